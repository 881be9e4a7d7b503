"""The run of one seed of a trial, and the objectives of its rounds."""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment
from flray.core.schema.errors import CheckpointError
from flray.metrics.names import LAST
from flray.rundir import checkpoint
from flray.rundir.lock import FolderLock, holder
from flray.rundir.parts import read_part
from flray.rundir.reader import Run
from flray.rundir.recorder import ParquetTable, position_of
from flray.rundir.storage import TABLES
from flray.running import play
from flray.tuning.config import CUMULATIVE, RECENT

ORPHAN_S = 30.0  # for which a process is waited for that lost its driver; Ray ends it within seconds
POLL_S = 0.2


class TrialRun:
    """A run that is played round by round, paused, and resumed by this process or another.

    `row` is the last round's (empty before the first), `sums` the :data:`CUMULATIVE` objectives over all rounds up to
    it, of a run that has ended also over its tasks' ends, `recent` the last tested values of each :data:`RECENT` one,
    and `values` the first objective at each tested round where it is finite. Files, which the recorder writes with a
    delay, are read only up to a checkpoint.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        objectives: Sequence[str],
        overwrite: bool = False,
        replaces: int | None = None,
        accept: Sequence[str] = (),
    ) -> None:
        """`overwrite` and `replaces` are the job's. `accept`: keys of the configuration that may change."""
        self.experiment, self.folder = experiment, folder
        self.overwrite, self.replaces, self.accept = overwrite, replaces, accept
        self.row: dict[str, Any] = {}
        self.sums = dict.fromkeys(CUMULATIVE, 0.0)
        self.recent: dict[str, deque[float]] = {name: deque(maxlen=LAST) for name in RECENT}
        self.values: dict[int, float] = {}
        self._first = next(iter(objectives), "")
        self._tests = [RECENT.get(name, name) for name in objectives if name not in CUMULATIVE]
        self._rows: Generator[dict[str, Any]] | None = None
        self.in_time = False  # it has ended before its last round (`until`)

    # where it is ------------------------------------------------------------------------------
    @property
    def round(self) -> int:
        """The number of its rounds, over all tasks."""
        return int(self.row.get("done", 0))

    @property
    def diverged(self) -> bool:
        return bool(self.row.get("diverged"))

    @property
    def ended(self) -> bool:
        return self.diverged or self.in_time or self.round >= self.experiment.total_rounds

    @property
    def saved(self) -> int:
        """The number of rounds in its last checkpoint; 0 for a run that will be replaced."""
        if self.replaces is not None and self.folder.exists() and self.folder.stat().st_ino == self.replaces:
            return 0
        stored = checkpoint.checkpoints(self.folder)
        return checkpoint.rounds_done(stored[-1]) if stored else 0

    # its values -----------------------------------------------------------------------------
    @property
    def tested(self) -> bool:
        """Whether the last round has every objective that a single round can have."""
        return bool(self.row) and all(self.row.get(name) is not None for name in self._tests)

    def unknown(self) -> list[str]:
        """The objectives that are not even a column of the last round."""
        return [name for name in self._tests if name not in self.row]

    def value(self, objective: str) -> float:
        """An objective at the last round, NaN if it has none: a sum over the rounds, a mean of the last tested ones, or
        the round's own."""
        if objective in RECENT:
            values = self.recent[objective]
            return sum(values) / len(values) if self.row.get(RECENT[objective]) is not None else math.nan
        number = self.sums.get(objective, self.row.get(objective))
        return math.nan if number is None else float(number)

    # going on ---------------------------------------------------------------------------------
    def wait(self) -> None:
        """Waits for another process that still has the folder: an earlier one of this trial, which ends because its
        driver was killed, or a second command, which may finish the run."""
        patience = time.monotonic() + ORPHAN_S
        while self._rows is None and holder(self.folder) is not None and time.monotonic() < patience:
            time.sleep(POLL_S)

    def advance(self) -> None:
        """Plays the next round; the last one, or the end of the time (`until`), finishes the run."""
        begins = self._rows is None
        if self._rows is None:
            self._rows = self._play()
        row = next(self._rows, None)
        if row is None:
            self._rows, self.in_time = None, True
            self._add_tasks()
            return
        if begins:
            # the checkpoint that it began with, which need not be the last: that can be damaged
            self.recall(row["done"] - 1)
        self._count(row)
        if self.ended:
            self._finish()
            self._add_tasks()

    def _count(self, row: dict[str, Any]) -> None:
        """Goes to the round of this row, which follows the last one."""
        self.row = row
        for name, columns in CUMULATIVE.items():
            self.sums[name] += sum(float(row.get(column) or 0) for column in columns)
        for name, column in RECENT.items():
            if row.get(column) is not None:
                self.recent[name].append(float(row[column]))
        if self._first and self.tested and math.isfinite(value := self.value(self._first)):
            self.values[self.round] = value

    def until(self, last: int) -> None:
        """Plays up to round `last`, the round in which the run diverges, or its end in time; then pauses."""
        self.wait()
        if self.saved >= last:
            self.recall(last)
        else:
            self.pause()
            self.advance()
            while self.round < last and not (self.diverged or self.in_time):
                self.advance()
        self.pause()

    def recall(self, last: int) -> int:
        """Goes to the checkpoint of round `last` (over all tasks). If that is the last round, finishes the run. Returns
        the last tested round before it, 0 if there is none."""
        if last >= self.experiment.total_rounds and not Run(self.folder).status.startswith(("finished", "diverged")):
            self._rows = self._play()
            self._finish()
        self.row, self.sums, self.values = {}, dict.fromkeys(CUMULATIVE, 0.0), {}
        for values in self.recent.values():
            values.clear()
        if last == 0:
            return 0
        rounds = Run(self.folder).rounds
        rounds = rounds[rounds["done"] <= last] if len(rounds) else rounds
        if len(rounds) < last:
            raise CheckpointError(
                f"{self.folder / 'rounds'} has {len(rounds)} of {last} rounds; remove {self.folder} to train it again"
            )
        tested = 0
        for row in rounds.sort_values("done").to_dict("records"):
            tested = self.round if self.tested else tested
            # as play() yields it: Python's own numbers, and None where there is no value
            missing = {name for name, value in row.items() if isinstance(value, float) and value != value}
            self._count({str(name): None if name in missing else value for name, value in row.items()})
        if last >= self.experiment.total_rounds:
            self._add_tasks()
        return tested

    def pause(self) -> None:
        """Writes a checkpoint and releases the run; this trial or another process can resume it."""
        if self._rows is not None:
            self._rows.close()
            self._rows = None

    # copies ---------------------------------------------------------------------------------
    def copy_to(self, place: Path) -> None:
        """Copies the last checkpoint, and the rows up to it."""
        latest = checkpoint.checkpoints(self.folder)[-1]
        shutil.copytree(latest, place / latest.name)
        for name in _tables(self.folder):
            shutil.copytree(self.folder / name, place / name)

    def go_on_from(self, place: Path) -> None:
        """Continues from a copy by :meth:`copy_to`, of this run or another one, whatever this one had done. Rounds that
        this run had not done come from the copy, so its table has no gap."""
        self.wait()
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock.acquire(self.folder)
        try:
            self._take(place)
        finally:
            lock.release()

    def _take(self, place: Path) -> None:
        """Takes the copy's checkpoint, and its rows after each own table's last; rows after the checkpoint go."""
        (source,) = place.glob("round-*")
        last = checkpoint.position(source)
        for name in sorted({*_tables(self.folder), *_tables(place)}):
            own = ParquetTable(self.folder / name)
            own.truncate(last)
            mine = max(own.orders, default=-1)  # the initial model's test has the order 0
            theirs = (
                row for part in sorted((place / name).glob("part-*.parquet")) for row in read_part(part).to_pylist()
            )
            for at, rows in itertools.groupby(theirs, key=position_of):
                if mine < at.order <= last.order:
                    own.append(list(rows), at.done)
            own.flush()
        home = self.folder / "checkpoints"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(source, home / source.name)

    def _play(self) -> Generator[dict[str, Any]]:
        """Iterates over the rows from the present round on."""
        self.wait()
        begun = self.saved > 0
        # a folder without a checkpoint is this trial's own beginning; a run that only the storage has is somebody's
        overwrite = not begun and (self.overwrite or self.folder.exists())
        return play(
            self.experiment, self.folder, resume=begun, overwrite=overwrite, accept=self.accept if begun else ()
        )

    def _finish(self) -> None:
        """Runs what a run does after its last round."""
        assert self._rows is not None
        for _ in self._rows:
            pass
        self._rows = None

    def _add_tasks(self) -> None:
        """Adds what the beginnings and ends of the tasks of an ended run cost, which no round has."""
        tasks = Run(self.folder).tasks
        for name, columns in CUMULATIVE.items():
            self.sums[name] += float(tasks.reindex(columns=columns).fillna(0).to_numpy(float).sum())


def _tables(folder: Path) -> list[str]:
    """The existing tables of a run, as paths below `folder`; each probe has one below `diagnostics/`."""
    folders = [folder / name for name in TABLES if name != "diagnostics"] + sorted((folder / "diagnostics").glob("*"))
    return [path.relative_to(folder).as_posix() for path in folders if path.is_dir()]
