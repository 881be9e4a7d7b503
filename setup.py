"""The one build step that `pyproject.toml` cannot say: a wheel contains the table of what flray's classes declare.

`flray/config/declared.py` reads it. Without the table a command writes its own, so a failure here is only a warning.
"""

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


setup(cmdclass={"build_py": BuildWithTable})
