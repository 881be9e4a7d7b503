"""The working directory and Python path of the process that started a run.

`environment.json` stores both, so that a process elsewhere finds the run's modules and relative paths. Folders that do
not exist here are ignored.
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
    """This process's working directory, and the entries of `sys.path` outside of Python's own folders."""
    own = tuple({os.path.realpath(prefix) + os.sep for prefix in (sys.prefix, sys.base_prefix)})
    path = dict.fromkeys(os.path.realpath(entry) for entry in sys.path)
    return {
        "folder": os.getcwd(),
        "path": [entry for entry in path if os.path.isdir(entry) and not f"{entry}{os.sep}".startswith(own)],
    }


def find_modules(run: Path) -> None:
    """Append the module folders of the run in the folder `run` to `sys.path`."""
    known = {os.path.realpath(entry) for entry in sys.path}
    sys.path += [entry for entry in _started(run)[1] if entry not in known and os.path.isdir(entry)]


@contextlib.contextmanager
def started_in(run: Path) -> Iterator[None]:
    """Change into the folder in which the run in the folder `run` was started, if it exists here."""
    folder = _started(run)[0]
    with contextlib.chdir(folder) if os.path.isdir(folder) else contextlib.nullcontext():
        yield


def _started(run: Path) -> tuple[str, list[str]]:
    """The (folder, path) of `launch_context` in a run folder; ("", []) if it is no run or its record is damaged."""
    try:
        started = json.loads((run / "environment.json").read_text())["started"]
        return str(started["folder"]), [str(entry) for entry in started["path"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "", []
