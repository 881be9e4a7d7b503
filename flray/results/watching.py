"""Runs while they go on, for `flray show --follow`: in a folder, also written by another machine, or in a storage. It
only reads. Where the files do not tell something (whether a process on another machine is alive), it says so."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flray.core.schema.errors import CheckpointError
from flray.files import quoted
from flray.results.continual import tested_set
from flray.results.essentials import WIDTH, about, sparkline
from flray.results.readable import readable_runs
from flray.results.tables import planned_rounds, settings
from flray.rundir import progress_file, storage
from flray.rundir.by_task import class_counts
from flray.rundir.download import READER_FILES
from flray.rundir.folder import is_run
from flray.rundir.lock import STALE_S, lock_status
from flray.rundir.reader import Run, load, runs_below
from flray.rundir.uri import is_uri

ENDED = ("finished", "diverged", "failed", "interrupted", "paused")  # beginnings of the STATUS of a run that has ended
PATIENCE_S = 600.0  # seconds to wait for a run to begin, or for a folder that no process holds to change
GOOD = ("finished", "diverged")
SETTLE_S = 60.0  # seconds after the end of the last run, in which the next run of a grid may begin
CLASSES = 12  # classes with a line each; of more, those with the lowest last accuracy


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
        self.place, self.clock, self.patience = place, clock, patience  # seconds for a run to begin, or a copy to grow
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
        files = tuple(sorted(file for kind in READER_FILES for file in storage.files(run.folder, kind)))
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
            note = "no process holds the folder: the run was lost, or this is a copy of its folder"
            return note, silent > self.patience  # another program may bring a copy up to date every few minutes
        if status.alive is False:
            return f"lost: {status.owner} is gone; go on with: flray resume {quoted(self.place)}", True
        if status.last_beat != self._beat:
            self._beat, self._beat_seen = status.last_beat, self.clock()
        without = self.clock() - self._beat_seen
        if status.alive is None and without > STALE_S:
            return f"stalled: no sign of life of {status.owner} for {_spoken(without)}", False
        return progress_file.read(run.folder) or quiet, False


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


# several runs -------------------------------------------------------------------------------------
class Overview(NamedTuple):
    """Runs at one moment, by place. `news`: something changed since the last look; `over`: all runs have ended.

    `missing`: a line for each place that has no readable run. `notes`: of a sweep, which of its runs are shown.
    """

    glances: Mapping[str, Glance]
    news: bool
    over: bool
    missing: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def good(self) -> bool:
        """Whether every run finished or diverged, and every place has one."""
        return bool(self.glances) and not self.missing and all(glance.good for glance in self.glances.values())


def overviews(
    places: Sequence[str],
    every: float,
    wait: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    patience: float = PATIENCE_S,
) -> Iterator[Overview]:
    """The runs in and below `places` every `every` seconds, of a sweep its trials and then its final runs, until all
    have ended.

    Runs that begin later are found; a run whose folder was removed or renamed (`--overwrite`) is left out. If runs were
    going on at the first look, it waits `SETTLE_S` seconds after the end of the last one for another to begin. Raises
    `CheckpointError` if no run can begin in any of the places, or none begins within `patience` seconds.
    """
    watchers: dict[str, Watcher] = {}
    ended: float | None = None
    start = clock()
    while True:
        found = readable_runs(places)
        missing = [str(broken) for broken in found.broken]
        here = {run.place for run in found.runs}
        # the trials of a sweep are not found any more where its final runs are, and are still there
        gone = [place for place in watchers if place not in here and not is_uri(place) and not is_run(Path(place))]
        for place in gone:
            del watchers[place]
        if not found.runs and not watchers:
            if not any(map(_may_begin, places)):
                raise CheckpointError(f"{'; '.join(missing)}; see flray runs")
            if clock() - start > patience:
                raise CheckpointError(f"no run began in {', '.join(places)} within {patience:.0f} s; see flray runs")
            yield Overview({}, False, False, missing)
            wait(every)
            continue
        fresh = [run.place for run in found.runs if run.place not in watchers]
        begun = not watchers
        watchers |= {place: Watcher(place, clock, PATIENCE_S) for place in fresh}
        glances = {place: watcher.look() for place, watcher in watchers.items()}
        idle = all(glance.over for glance in glances.values())
        ended = None if not idle else -math.inf if begun else clock() if ended is None else ended
        over = ended is not None and clock() - ended >= SETTLE_S
        news = bool(fresh or gone) or any(glance.news for glance in glances.values())
        yield Overview(glances, news, over, missing, found.notes)
        if over:
            return
        wait(every)


def _may_begin(place: str) -> bool:
    """Whether the folder, or the one that will contain it, exists."""
    return is_uri(place) or Path(place).is_dir() or Path(place).absolute().parent.is_dir()


def row_of(place: str, glance: Glance) -> dict[str, Any]:
    """A run as a row: its folder, what it runs, status, rounds, last accuracy, the curve of accuracies, a note."""
    run = glance.run
    row: dict[str, Any] = dict.fromkeys(("run", "what", "status", "rounds", "accuracy", "curve", "note"), "")
    row |= {"run": place, "status": "not begun"}
    if run is None:
        return row | {"note": glance.note}
    try:
        config, rounds = settings(run), run.rounds
    except CheckpointError as error:
        return row | {"status": "damaged", "note": str(error)}
    name = f"{tested_set(config)}/acc"
    accuracy = rounds[name].dropna().to_numpy(float) if name in rounds else np.zeros(0)
    total = planned_rounds(config)
    return row | {
        "what": about(config).partition(";")[0],
        "status": run.standing.partition(";")[0].partition(":")[0],
        "rounds": f"{len(rounds)}/{total}" if total else str(len(rounds)),
        "accuracy": f"{accuracy[-1]:.2%}" if len(accuracy) else "",
        "curve": sparkline(accuracy, WIDTH // 2),
        "note": glance.note,
    }


def classes_over_rounds(run: Run, width: int = WIDTH) -> list[str]:
    """A line a class: its accuracy over the tested rounds as bars from 0 to 100 %, and the last one; empty before the
    second test."""
    config = settings(run)
    counts = class_counts(run.tests, tested_set(config)) if len(run.tests) else None
    if counts is None or len(counts.done) < 2:
        return []
    shares = np.divide(counts.right, counts.total, where=counts.total > 0, out=np.full(counts.right.shape, np.nan))
    shown = [number for number in range(shares.shape[1]) if np.isfinite(shares[:, number]).any()]
    if len(shown) > CLASSES:
        shown = sorted(sorted(shown, key=lambda number: float(np.nan_to_num(shares[-1, number], nan=2)))[:CLASSES])
    lines = []
    for number in shown:
        bars = sparkline(shares[:, number], width, (0.0, 1.0))
        last = shares[-1, number]
        lines.append(f"class {number:<4} {bars}  {'-' if np.isnan(last) else f'{last:.0%}'}")
    return lines
