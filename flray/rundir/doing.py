"""What a run's server does just now ("task 2, task begin: TARGET makes inputs 12/40"), in a line of a hidden file of
the run folder, for a display in another process.

It is written at most once a second, and only in work that has gone on for longer; it is gone when the work is over.
It is no part of the run: nothing is lost with it, and where it cannot be written there is none.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from flray.core.protocol.clock import Clock

NAME = ".doing"
EVERY_S = 1.0


class Doing:
    """The writer, which algorithms reach as `ctx.progress`."""

    def __init__(self, folder: Callable[[], Path], clock: Callable[[], float] = time.monotonic) -> None:
        """`folder`: where the run is now; `clock`: seconds."""
        self._folder, self._clock = folder, clock
        self._what: tuple[Clock, str] | None = None
        self._at, self._written = 0.0, False

    def __call__(self, moment: Clock, what: str, done: int, total: int) -> None:
        """`done` of `total` steps of something are taken."""
        now = self._clock()
        if self._what != (moment, what):
            self._what, self._at = (moment, what), now
        elif now - self._at >= EVERY_S:
            self._at, self._written = now, True
            path = self._folder() / NAME
            with contextlib.suppress(OSError):
                aside = path.with_name(f"{NAME}.aside")
                aside.write_text(f"{moment}: {what} {done}/{total}")
                os.replace(aside, path)

    def over(self) -> None:
        """The work is done, or failed."""
        if self._written:
            clear(self._folder())
        self._what, self._written = None, False


def clear(folder: Path) -> None:
    """What a server that was killed has left."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)


def doing(folder: Path) -> str:
    """What the server of the run in this folder does just now; "": nothing that takes long."""
    with contextlib.suppress(OSError):
        return (folder / NAME).read_text()
    return ""
