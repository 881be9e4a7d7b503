"""The working directory and Python path of the process that started a run.

`environment.json` stores both, so that a process elsewhere finds the run's modules and relative paths. Folders that do
not exist here are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flray.core.schema.errors import ConfigError, ResourceError
from flray.files import MANY, regular


def working_folder() -> str:
    """This process's working directory. Raises `ConfigError` if somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            "this process's working directory is gone; change to one that exists (os.chdir, in a shell cd)"
        ) from None


def launch_context() -> dict[str, Any]:
    """This process's working directory, and the entries of `sys.path` outside of Python's own folders."""
    own = tuple({os.path.realpath(prefix) + os.sep for prefix in (sys.prefix, sys.base_prefix)})
    folder, path = working_folder(), dict.fromkeys(_module_folders())
    return {
        "folder": folder,
        "path": [entry for entry in path if os.path.isdir(entry) and not f"{entry}{os.sep}".startswith(own)],
    }


def find_modules(run: Path) -> None:
    """Append the module folders of the run in the folder `run` to `sys.path`."""
    known = set(_module_folders())
    sys.path += [entry for entry in _started(run)[1] if entry not in known and os.path.isdir(entry)]


def _module_folders() -> list[str]:
    """The entries of `sys.path`; relative ones, such as "", need the working directory."""
    return [os.path.realpath(entry if os.path.isabs(entry) else f"{working_folder()}/{entry}") for entry in sys.path]


_lock = threading.Lock()
# runs of this process that are not finished, and their threads: relative paths are those of its working directory
_working: dict[object, int] = {}
_moved: tuple[int, str] | None = None  # (the thread that has changed it, where it was), see :func:`started_in`


@contextlib.contextmanager
def working_directory() -> Iterator[None]:
    """A run that needs this process's working directory as it is.

    Raises `ResourceError` while another thread has changed it for a run that began elsewhere.
    """
    me, token = threading.get_ident(), object()
    with _lock:
        if _moved is not None and _moved[0] != me:
            raise ResourceError(
                f"this process is in {os.getcwd()} and not in {_moved[1]} at the moment, for a run that began there "
                "and is resumed by another thread; start this run after it, or in a process of its own"
            )
        _working[token] = me
    try:
        yield
    finally:
        with _lock:
            del _working[token]


@contextlib.contextmanager
def started_in(run: Path) -> Iterator[None]:
    """Change into the folder in which the run in the folder `run` was started, if it exists here.

    A process has one working directory. Raises `ResourceError` if a run of another thread needs another one.
    """
    global _moved
    folder, here, me = _started(run)[0], working_folder(), threading.get_ident()
    if not os.path.isdir(folder) or os.path.samefile(folder, here):
        yield
        return
    with _lock:
        before = _moved
        if set(_working.values()) - {me} or (before is not None and before[0] != me):
            raise ResourceError(
                f"{run} began in {folder}, and another run of this process goes on in {here}: relative paths would be "
                "wrong for one of them; resume it after that run, or in a process of its own"
            )
        os.chdir(folder)
        _moved = before or (me, here)
    try:
        yield
    finally:
        with _lock:
            _moved = before
            os.chdir(here)


def _started(run: Path) -> tuple[str, list[str]]:
    """The (folder, path) of `launch_context` in a run folder; ("", []) if it is no run or its record is damaged."""
    try:
        started = json.loads(regular(run / "environment.json", MANY).read_text())["started"]
        return str(started["folder"]), [str(entry) for entry in started["path"]]
    except (OSError, ValueError, KeyError, TypeError):
        return "", []
