"""Two build steps that `pyproject.toml` cannot say: the table of what flray's classes declare, and a README whose links
work outside of a checkout.

`flray/config/declared.py` reads the table. Without it a command writes its own, so a failure here is only a warning.
"""

import re
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithTable(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            return
        table = Path(self.build_lib).resolve() / "flray" / "config" / "declared.json"
        command = (sys.executable, "-m", "flray.config.without_torch", str(table))
        done = subprocess.run(command, cwd=self.build_lib, capture_output=True, text=True)
        if done.returncode:
            self.warn(f"no {table}: {done.stderr.strip()[-500:]}")


def package_readme():
    """README.md for a package page, where relative links and pictures would be broken: each becomes its path."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[([^]]*)\]\((?!\w+://)([^)]+)\)", r"(Picture `\2`: \1.)", text)
    return re.sub(r"\[([^]]+)\]\((?!\w+://)([^)#]+)[^)]*\)", r"\1 (`\2`)", text)


setup(
    cmdclass={"build_py": BuildWithTable},
    long_description=package_readme(),
    long_description_content_type="text/markdown",
)
