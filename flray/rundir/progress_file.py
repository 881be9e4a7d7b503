"""The progress of a server's long work ("task 2, task begin: TARGET makes inputs 12/40"), one line in the run folder's
hidden file `.doing`, for a display in another process.

The line is written at most once a second, and only for work that takes longer. It is removed when the work ends. Errors
as it is written are ignored, because no result depends on it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from flray.core.protocol.clock import Clock
from flray.core.schema.errors import single_line
from flray.files import SMALL, atomic_write, regular

NAME = ".doing"
EVERY_S = 1.0


class ProgressFile:
    """The writer; algorithms use it as `ctx.progress`."""

    def __init__(self, folder: Callable[[], Path], clock: Callable[[], float] = time.monotonic) -> None:
        """`folder()` returns the run's present folder; `clock()` returns seconds."""
        self._folder, self._clock = folder, clock
        self._work: tuple[Clock, str] | None = None
        self._at, self._written = 0.0, False

    def __call__(self, moment: Clock, work: str, done: int, total: int) -> None:
        """Report that `done` of `total` steps of `work` are taken."""
        now = self._clock()
        if self._work != (moment, work):
            self._work, self._at = (moment, work), now
        elif now - self._at >= EVERY_S:
            self._at, self._written = now, True
            path = self._folder() / NAME
            with contextlib.suppress(OSError), atomic_write(path) as temporary:
                temporary.write_text(f"{moment}: {work} {done}/{total}")

    def end(self) -> None:
        """The work has ended or failed."""
        if self._written:
            remove(self._folder())
        self._work, self._written = None, False


def remove(folder: Path) -> None:
    """Remove the line, also that of a killed server."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink(missing_ok=True)


def read(folder: Path) -> str:
    """The line of the run in this folder; "": its server does no long work."""
    with contextlib.suppress(OSError):
        return single_line(regular(folder / NAME, SMALL).read_text(errors="replace"))
    return ""
