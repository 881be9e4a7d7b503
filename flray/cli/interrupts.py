"""Ctrl-C, SIGTERM and SIGHUP in a command that trains."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from flray.files import quoted
from flray.log import LOGGER

STOPS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def same_command(overwrite: bool) -> str:
    """How a command goes on that continues what is there; with `--overwrite` it would begin anew."""
    return f"the same command {'without --overwrite ' if overwrite else ''}continues"


@contextlib.contextmanager
def interruptible(folder: Path, again: str | None = None) -> Iterator[None]:
    """Ctrl-C is the exit code 130, SIGTERM (a stopped job) 143 and SIGHUP (a closed terminal) 129; the last line names
    the folder and how to go on: `again`, or `flray resume FOLDER`. A signal that is ignored stays ignored."""
    received: list[int] = []

    def stop(number: int, _: Any) -> None:
        received.append(number)
        sys.exit(128 + number)

    # Ray leaves these handlers as they are; a run in one process has no other
    ours = [number for number in STOPS if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        LOGGER.warning(_what_is_left(folder, again))
        # a SystemExit here is a signal's; its code is 1 if Ray was waiting and raised it anew
        number = received[0] if received else signal.SIGTERM
        raise typer.Exit(130 if isinstance(stopped, KeyboardInterrupt) else 128 + number) from None
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _what_is_left(folder: Path, again: str | None) -> str:
    if again is not None and folder.exists():
        return f"interrupted; finished work is in {folder}; {again}"
    if (folder / "config.yaml").exists():
        return f"interrupted; finished rounds are saved in {folder}, continue with: flray resume {quoted(folder)}"
    return f"interrupted before the first round; {folder} has no results"
