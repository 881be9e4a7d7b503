"""`environment.json`: versions, commit, hardware and fingerprints, for readers and for a resume."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flray.config.launch_context import launch_context
from flray.files import with_checksum
from flray.rundir.recorder import write_text


def environment(**more: Any) -> dict[str, Any]:
    """Versions, commit, hardware, and the values that the engine adds."""
    return {
        "python": sys.version.split()[0],
        "packages": dict(_packages()),
        "git": _git(),
        "machine": {
            "platform": platform.platform(),
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
        },
        "command": sys.argv,
        "started": launch_context(),
        "ray_auth_mode": os.environ.get("RAY_AUTH_MODE"),
        **more,
    }


# Once a process: they name the code that it has imported, and take 0.1 s, in which a small run trains.
@cache
def _packages() -> Mapping[str, str | None]:
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    packages = ("flray", "torch", "ray", "numpy", "pyarrow", "torchvision", "scikit-learn", "pandas", "pydantic")
    return {name: installed(name) for name in packages}


@cache
def _git() -> dict[str, Any] | None:
    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], capture_output=True, text=True, check=True, timeout=5, cwd=Path(__file__).parent
        ).stdout.strip()

    try:
        return {
            "commit": ask("rev-parse", "HEAD"),
            "changed": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None


def write_environment(folder: Path, values: Mapping[str, Any]) -> None:
    write_text(folder / "environment.json", with_checksum(values))
