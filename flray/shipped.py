"""The folders `configs/` and `notebooks/`: in an installed package, beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """The folder `name` that comes with flray."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def is_installed(folder: Path) -> bool:
    """Whether `folder`, of :func:`shipped`, is that of an installed package, where nothing is written."""
    return folder.resolve().parent == PACKAGE
