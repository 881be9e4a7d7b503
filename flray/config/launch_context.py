"""Where a run was started: its own modules and relative paths are found from there, whoever reads its results.

`environment.json` keeps the working directory and Python's path; a folder that is gone, or on another machine, is
passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def launch_context() -> dict[str, Any]:
    """For `environment.json`: this process's working directory, and where Python finds the user's modules."""
    own = tuple({os.path.realpath(prefix) + os.sep for prefix in (sys.prefix, sys.base_prefix)})
    path = dict.fromkeys(os.path.realpath(entry) for entry in sys.path)
    return {
        "folder": os.getcwd(),
        "path": [entry for entry in path if os.path.isdir(entry) and not f"{entry}{os.sep}".startswith(own)],
    }


def find_modules(run: Path) -> None:
    """From now on Python also finds, behind everything else, the modules that the run in the folder `run` found."""
    known = {os.path.realpath(entry) for entry in sys.path}
    sys.path += [entry for entry in _started(run)[1] if entry not in known and os.path.isdir(entry)]


@contextlib.contextmanager
def started_in(run: Path) -> Iterator[None]:
    """Inside, relative paths are those of the folder in which the run in the folder `run` was started."""
    folder = _started(run)[0]
    with contextlib.chdir(folder) if os.path.isdir(folder) else contextlib.nullcontext():
        yield


def _started(run: Path) -> tuple[str, list[str]]:
    """What `launch_context` said then; nothing for a folder that is no run, or whose record is damaged."""
    try:
        started = json.loads((run / "environment.json").read_text())["started"]
        return str(started["folder"]), [str(entry) for entry in started["path"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "", []
