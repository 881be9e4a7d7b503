"""Ctrl-C and SIGTERM in a command that trains, and where its results go."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import typer

from flray.log import LOGGER


def results_folder(folder: Path, storage: str | None) -> Path:
    """The folder of the results; a warning if it lies in a copy of the working directory that Ray deletes."""
    if storage is None and "working_dir_files" in folder.absolute().parts:
        warnings.warn(
            f"{folder} lies in Ray's copy of the job's working directory, which Ray deletes; give --out on a shared "
            "disk, or storage=URI",
            stacklevel=2,
        )
    return folder


@contextlib.contextmanager
def interruptible(folder: Path, again: str | None = None) -> Iterator[None]:
    """Ctrl-C is the exit code 130 and SIGTERM (a stopped job) 143; the last line names the folder and how to go on.

    `again`: how to go on if it is not `flray resume FOLDER`.
    """
    before = signal.getsignal(signal.SIGTERM)
    # Ray leaves this handler as it is; a run in one process has no other
    if ours := before is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        LOGGER.warning(_what_is_left(folder, again))
        # a SystemExit here is SIGTERM's; its code is 1 if Ray was waiting and raised it anew
        raise typer.Exit(130 if isinstance(stopped, KeyboardInterrupt) else 143) from None
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def _what_is_left(folder: Path, again: str | None) -> str:
    if again is not None and folder.exists():
        return f"interrupted; finished work is in {folder}; {again}"
    if (folder / "config.yaml").exists():
        return f"interrupted; finished rounds are saved in {folder}, continue with: flray resume {folder}"
    return f"interrupted before the first round; {folder} has no results"
