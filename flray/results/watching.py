"""A run while it is going on, for `flray watch`: in a folder, also written by another machine, or in a storage.

It only reads. If the files do not tell something (whether a process on another machine is alive), it says so and goes
on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from flray.core.schema.errors import CheckpointError
from flray.rundir import mirrored, progress_file
from flray.rundir.download import READER_FILES
from flray.rundir.lock import STALE_S, lock_status
from flray.rundir.reader import Run, load, runs_below
from flray.rundir.uri import is_uri

ENDED = ("finished", "diverged", "failed", "interrupted", "paused")  # beginnings of the STATUS of a run that has ended
PATIENCE_S = 600.0  # seconds to wait for a run to begin
GOOD = ("finished", "diverged")


class Glance(NamedTuple):
    """A run at one moment. `run`: None before it begins; `news`: its files changed since the last glance; `note`:
    what its files do not say; `over`: nothing more will come."""

    run: Run | None
    news: bool
    note: str
    over: bool

    @property
    def good(self) -> bool:
        """Whether the run finished or diverged, and was not stopped, lost or failed."""
        return self.run is not None and self.run.status.startswith(GOOD)


def glances(
    place: str,
    every: float,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    patience: float = PATIENCE_S,
) -> Iterator[Glance]:
    """The run at `place` (a folder, or the URI of a storage) every `every` seconds, until it has ended.

    Waits `patience` seconds for a run to begin, if the folder that will contain it exists. Raises `CheckpointError` if
    there is no run, none began in time, or runs lie inside of `place`; `ConfigError` for a URI that names no place.
    """
    watcher = Watcher(place, clock, patience)
    while True:
        glance = watcher.look()
        yield glance
        if glance.over:
            return
        wait(every)


class Watcher:
    """One run: its last state, and when it changed by this machine's clock. `look` gives the next glance."""

    def __init__(self, place: str, clock: Callable[[], float], patience: float) -> None:
        self.place, self.clock, self.patience = place, clock, patience
        self._began = clock()
        self._files: tuple[object, ...] | None = None
        self._run: Run | None = None
        self._changed = self._beat_seen = clock()
        self._beat = 0.0

    def look(self) -> Glance:
        try:
            run = Run(self.place)  # of a storage: brought up to date
        except CheckpointError as error:
            return Glance(self._run, False, f"waiting: {error}", False)
        if not (run.folder / "config.yaml").exists() and not (run.folder / "STATUS").exists():
            if runs_below(run.folder):
                load(self.place)  # says which
            self._check_coming(run.folder)
            return Glance(None, False, f"waiting for {self.place} to begin", False)
        files = tuple(sorted(file for kind in READER_FILES for file in mirrored.files(run.folder, kind)))
        news = files != self._files
        if news:
            self._files, self._run, self._changed = files, run, self.clock()
        assert self._run is not None
        return Glance(self._run, news, *self._judged(run))

    def _check_coming(self, folder: Path) -> None:
        """Raises `CheckpointError` if no run can begin here, or none began in time."""
        if is_uri(self.place):
            return
        home = folder.absolute().parent
        if not folder.exists() and (not home.is_dir() or home == home.parent):
            raise CheckpointError(f"there is no run in {self.place}, and no folder {home} of runs; see flray runs")
        if self.clock() - self._began > self.patience and lock_status(folder) is None:
            raise CheckpointError(f"no run began in {self.place} within {_spoken(self.patience)}; see flray runs")

    def _judged(self, run: Run) -> tuple[str, bool]:
        """(note, whether the run is over)."""
        ended, silent = run.status.startswith(ENDED), self.clock() - self._changed
        quiet = f"nothing new for {_spoken(silent)}" if silent > STALE_S else ""
        if is_uri(self.place):
            return ("" if ended or not quiet else f"{quiet}; a storage is brought up to date at checkpoints"), ended
        coming = lock_status(run.folder.with_name(f"{run.folder.name}.new"))
        if ended and coming is not None and coming.alive:
            return "another run is about to take its place", False
        status = lock_status(run.folder)
        if ended:  # a resumed run has the lock before its STATUS changes
            goes_on = status is not None and status.alive is True
            return ("", False) if goes_on else ("", True)
        if status is None:
            return "no process holds the folder: the run was lost, or this is a copy of its folder", False
        if status.alive is False:
            return f"lost: {status.owner} is gone; go on with: flray resume {self.place}", True
        if status.last_beat != self._beat:
            self._beat, self._beat_seen = status.last_beat, self.clock()
        without = self.clock() - self._beat_seen
        if status.alive is None and without > STALE_S:
            return f"stalled: no sign of life of {status.owner} for {_spoken(without)}", False
        return progress_file.read(run.folder) or quiet, False


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
