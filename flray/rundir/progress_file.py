"""The step that a run's server has reached in long work ("task 2, task begin: TARGET makes inputs 12/40"), in one line
of the hidden file `.doing` of the run folder, which a display in another process reads.

The line is written at most once a second, and only for work that takes longer. It is removed when the work ends. No
result depends on it: where it cannot be written, there is none.
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


class ProgressFile:
    """The writer. Algorithms reach it as `ctx.progress`."""

    def __init__(self, folder: Callable[[], Path], clock: Callable[[], float] = time.monotonic) -> None:
        """`folder()` is the run's present folder; `clock()` counts seconds."""
        self._folder, self._clock = folder, clock
        self._work: tuple[Clock, str] | None = None
        self._at, self._written = 0.0, False

    def __call__(self, moment: Clock, work: str, done: int, total: int) -> None:
        """`done` of `total` steps of `work` are taken."""
        now = self._clock()
        if self._work != (moment, work):
            self._work, self._at = (moment, work), now
        elif now - self._at >= EVERY_S:
            self._at, self._written = now, True
            path = self._folder() / NAME
            with contextlib.suppress(OSError):
                partial = path.with_name(f"{NAME}.aside")
                partial.write_text(f"{moment}: {work} {done}/{total}")
                os.replace(partial, path)

    def end(self) -> None:
        """The work has ended, or has failed."""
        if self._written:
            remove(self._folder())
        self._work, self._written = None, False


def remove(folder: Path) -> None:
    """Remove the line, also one that a killed server has left."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)


def read(folder: Path) -> str:
    """The line of the run in this folder; "" where its server does no long work."""
    with contextlib.suppress(OSError):
        return (folder / NAME).read_text()
    return ""
