"""Two things that `pyproject.toml` cannot say: its packages, and a README whose links work outside of a checkout."""

import re
from pathlib import Path

from setuptools import find_packages, setup


def package_readme():
    """README.md for a package page, where relative links and pictures would be broken: each becomes its path."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"!\[([^]]*)\]\((?!\w+://)([^)]+)\)", r"(Picture `\2`: \1.)", text)
    return re.sub(r"\[([^]]+)\]\((?!\w+://)([^)#]+)[^)]*\)", r"\1 (`\2`)", text)


setup(
    # the last three lie beside flray/, see pyproject.toml
    packages=[*find_packages(include=["flray", "flray.*"]), "flray.tuning", "flray.configs", "flray.notebooks"],
    long_description=package_readme(),
    long_description_content_type="text/markdown",
)
