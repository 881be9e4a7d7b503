"""The tables of a run folder, which a reader can open at any moment, TensorBoard, and STATUS."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flray.core.protocol.clock import PHASES, Position
from flray.core.schema.errors import AlgorithmError, CheckpointError, shown
from flray.files import atomic_write, clear_partial
from flray.rundir.parts import (
    RowsMissingWarning,
    missing_numbers,
    read_part,
    rounds_without_clients,
    untested_rounds,
    write_part,
)
from flray.rundir.trackers import Trackers

PART = 100  # rounds in one Parquet file
FLUSH_S = 1.0  # rows stay in memory for at most so long, up to the next round


class ParquetTable:
    """A Parquet data set `FOLDER/part-0000.parquet ...`, `PART` rounds a file.

    Every flush writes the last file again under a hidden name and renames it. A damaged file is renamed to
    `_damaged-...`, which readers of Parquet folders ignore, with a warning.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stored: dict[str, set[int]] = {}  # `Position.order` of the rows in each file
        self._schema: dict[str, pa.DataType] = {}
        self._rows: list[Mapping[str, Any]] = []
        self._kinds: dict[str, str] = {}  # of the columns, as far as they have held a value
        self._part = 0
        if folder.exists() and not folder.is_dir():
            self._set_apart(folder, f"{folder} is no folder")
        for path in self._files():
            try:
                table = read_part(path)
                self._stored[path.name] = set(_orders(table).tolist())
                self._learn_schema(table.schema)
            except ValueError as error:
                self._set_apart(path, str(error))
            except KeyError:
                self._set_apart(path, f"{path} has no column 'done'")

    @staticmethod
    def _set_apart(path: Path, why: str) -> None:
        damaged = path.with_name(f"_damaged-{time.time_ns()}-{path.name}")
        path.rename(damaged)
        warnings.warn(f"{why}; moved to {damaged.name}, its rows are lost", RowsMissingWarning, stacklevel=3)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    @property
    def stored_rounds(self) -> set[int]:
        """`done` of the rounds that have rows on disk."""
        return {order // len(PHASES) for order in self._orders() if order % len(PHASES) == 0}

    @property
    def ended(self) -> set[int]:
        """`done` of the tasks' ends that have rows on disk."""
        return {order // len(PHASES) for order in self._orders() if order % len(PHASES) == PHASES.index("task_end")}

    def _orders(self) -> set[int]:
        return set().union(*self._stored.values())

    def count(self) -> int:
        """Rows on disk."""
        return sum(pq.read_metadata(path).num_rows for path in self._files())

    def _learn_schema(self, schema: pa.Schema) -> bool:
        before = dict(self._schema)
        for field in schema:
            known = self._schema.get(field.name)
            # a column of integers that meets a float is a column of floats
            self._schema[field.name] = field.type if known is None or known == pa.int64() else known
            self._kinds.setdefault(field.name, _kind_of(field.type))
        return before != self._schema

    def check(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The kinds of the columns after these rows.

        Raises `AlgorithmError` if a column would contain numbers in some rows and vectors or text in others.
        """
        kinds = dict(self._kinds)
        for row in rows:
            for name, value in row.items():
                if value is None:
                    continue
                kind = "number" if type(value) is float else _kind(value)
                if kinds.setdefault(name, kind) != kind:
                    raise AlgorithmError(
                        f"metric {name!r} was a {kinds[name]} in earlier rows of {self.folder.name}/ and is a {kind} "
                        f"now ({shown(value)}); report one kind under one name, NaN where there is no value"
                    )
        return kinds

    def append(self, rows: Sequence[Mapping[str, Any]], done: int) -> None:
        """Add rows at `done` rounds; :meth:`flush` writes them. Raises `AlgorithmError` as :meth:`check` does, and adds
        none then."""
        self._kinds = self.check(rows)
        part = max(done - 1, 0) // PART
        if part != self._part and self._rows:
            self.flush()
            self._rows = []
        self._part = part
        self._rows.extend(rows)

    def flush(self) -> None:
        if not self._rows:
            return
        names = dict.fromkeys(name for row in self._rows for name in row)
        columns = {name: pa.array([row.get(name) for row in self._rows]) for name in names}
        fields = [
            pa.field(n, pa.float64() if pa.types.is_null(c.type) and n not in self._schema else c.type)
            for n, c in columns.items()
        ]
        if self._learn_schema(pa.schema([f for f in fields if not pa.types.is_null(f.type)])):
            for path in self._files():  # earlier files get a new column, and the new type of a changed one
                write_part(path, self._conform(read_part(path)))
        path = self.folder / f"part-{self._part:04d}.parquet"
        write_part(path, self._conform(pa.table(columns)))
        self._stored[path.name] = {Position(0, 0, row["done"], row.get("phase") or "round").order for row in self._rows}

    def _conform(self, table: pa.Table) -> pa.Table:
        return pa.table(
            {
                name: table[name].cast(kind) if name in table.column_names else pa.nulls(table.num_rows, kind)
                for name, kind in self._schema.items()
            }
        )

    def truncate(self, last: Position) -> None:
        """Remove every row after the position `last`."""
        for path in self._files():
            values = self._stored[path.name]
            self._stored[path.name] = {value for value in values if value <= last.order}
            if not self._stored[path.name]:
                del self._stored[path.name]
                path.unlink()
            elif self._stored[path.name] < values:
                table = read_part(path)
                write_part(path, table.filter(_orders(table) <= last.order))
        left = self._files()
        self._part = int(left[-1].stem.removeprefix("part-")) if left else 0
        self._rows = read_part(left[-1]).to_pylist() if left else []


class Recorder:
    """Writes one run's rows: at most once a second, and always at a checkpoint and at the end."""

    def __init__(
        self, folder: Path, check: Callable[[], None] = lambda: None, trackers: Trackers | None = None
    ) -> None:
        """`check()` raises if the run no longer owns the folder. `trackers` get the same numbers as TensorBoard.

        Raises `CheckpointError` for tables that can be neither read nor renamed.
        """
        self.folder, self.check, self._trackers = folder, check, trackers
        with _one_line(folder):
            self.rounds, self.clients = ParquetTable(folder / "rounds"), ParquetTable(folder / "clients")
            self.tasks, self.personal = ParquetTable(folder / "tasks"), ParquetTable(folder / "personal")
            self.tests = ParquetTable(folder / "tests")
            folders = sorted(path for path in (folder / "diagnostics").glob("*") if path.is_dir())
            self.diagnostics = {path.name: ParquetTable(path) for path in folders}
            clear_partial(folder, folder / "partition", folder / "profile", *(table.folder for table in self._tables))
        # a short first round does not wait for the imports of pandas and TensorBoard
        self._flushed = time.monotonic()
        self._tensorboard: Any = None
        self._pending: list[tuple[int, Mapping[str, Any]]] = []

    @property
    def _tables(self) -> tuple[ParquetTable, ...]:
        return self.rounds, self.clients, self.tests, self.tasks, self.personal, *self.diagnostics.values()

    def round(self, row: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> None:
        """Add a round's row and the rows of its clients."""
        done = row["done"]
        when = {"done": done, "task": row["task"], "round": row["round"], "phase": "round"}
        self.clients.check(clients)  # raises before either table has a row
        self.rounds.append([row], done)
        self._of_clients(when, clients)
        self._pending.append((done, row))
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def tested(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of one test of the global model; see `tested.py`."""
        if rows:
            self.tests.append(rows, rows[0]["done"])
            # TensorBoard's curves begin with the initial model; later tests are in their round's row
            if rows[0]["done"] == 0 and rows[0]["total"]:
                self._pending.append((0, {f"{rows[0]['set']}/acc": rows[0]["right"] / rows[0]["total"]}))

    def diagnosed(self, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Add rows (probe's name, row) to the probes' tables `diagnostics/NAME`."""
        for name, row in rows:
            if name not in self.diagnostics:
                self.diagnostics[name] = ParquetTable(self.folder / "diagnostics" / name)
            self.diagnostics[name].append([row], row["done"])

    def traced(self, traces: Sequence[tuple[str, bytes]]) -> None:
        """Write the profiler's traces `(name, bytes)` below `profile/`; a repeated round replaces its own."""
        for name, trace in traces:
            self.check()
            with _one_line(self.folder):
                (self.folder / "profile").mkdir(exist_ok=True)
                with atomic_write(self.folder / "profile" / name) as path:
                    path.write_bytes(trace)

    def task(self, row: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> None:
        """Add the row of a task's beginning or end (`phase`), and the rows of its clients."""
        self.clients.check(clients)
        self.tasks.append([row], row["done"])
        self._of_clients({name: row[name] for name in ("done", "task", "phase")}, clients)

    def _of_clients(self, when: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> None:
        self.clients.append([{**when, **client} for client in clients], when["done"])

    def clients_tested(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of a personalised test: a row a client and number of fine-tuning epochs."""
        if rows:
            self.personal.append(rows, rows[0]["done"])

    def flush(self) -> None:
        """Write everything to disk. Raises `CheckpointError` if that fails, or if the run no longer owns the folder."""
        self.check()
        with _one_line(self.folder):
            for table in self._tables:
                table.flush()
            self._write_tensorboard()
        self._flushed = time.monotonic()

    def _write_tensorboard(self) -> None:
        if self._tensorboard is None and self._pending:
            from tensorboardX import SummaryWriter

            self._tensorboard = SummaryWriter(str(self.folder / "tensorboard"), purge_step=self._pending[0][0])
        for done, row in self._pending:
            for name, value in row.items():
                if name not in ("done", "task", "round") and isinstance(value, int | float) and value is not None:
                    self._tensorboard.add_scalar(name, value, done)
        if self._trackers is not None:
            self._trackers.rounds(self._pending)
        self._pending = []
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def truncate(self, position: Position) -> None:
        """Remove all rows after `position`; a resume from there writes them again."""
        self.check()
        with _one_line(self.folder):
            for table in self._tables:
                table.truncate(position)

    def missing(self, position: Position, written: Sequence[str]) -> dict[str, str]:
        """The rounds (from 1) and tasks (from 0) up to `position` without rows, in words, by table of `written`."""
        done, ended = position.done, position.task + (position.phase == "task_end")
        rounds = (done - position.round) // position.task if position.task else position.round  # of each task
        lost = {
            "rounds": missing_numbers(self.rounds.stored_rounds, done),
            "clients": missing_numbers(self.clients.stored_rounds | rounds_without_clients(self.rounds.folder), done),
        }
        lost["tests"] = missing_numbers(self.tests.stored_rounds | untested_rounds(self.rounds.folder), done)
        for name, table in {"tasks": self.tasks, "personal": self.personal}.items():
            tasks = missing_numbers(
                {task for task in range(ended) if (task + 1) * rounds in table.ended}, ended - 1, first=0
            )
            lost[name] = tasks and f"{tasks} (task 0 is the first)"
        return {name: text for name, text in lost.items() if text and name in written}

    def counts(self) -> dict[str, int]:
        """Rows on disk, by table."""
        return {table.folder.relative_to(self.folder).as_posix(): table.count() for table in self._tables}

    def folder_renamed(self, folder: Path) -> None:
        """The run folder has another name now."""
        for table in self._tables:
            table.folder = folder / table.folder.relative_to(self.folder)
        self.folder = folder
        if self._trackers is not None:
            self._trackers.folder_renamed(folder)

    def status(self, text: str) -> None:
        self.check()
        write_status(self.folder, text)
        if self._trackers is not None:
            self._trackers.status(text)

    def close(self) -> None:
        self.flush()
        if self._tensorboard is not None:
            self._tensorboard.close()


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "vector" if isinstance(value, list | tuple | np.ndarray) else "number"


def _kind_of(column: pa.DataType) -> str:
    if pa.types.is_string(column) or pa.types.is_large_string(column):
        return "text"
    return "vector" if pa.types.is_list(column) or pa.types.is_large_list(column) else "number"


def _orders(table: pa.Table) -> np.ndarray:
    """`Position.order` of every row; a table without `phase` holds rounds.

    Raises `KeyError` without a column `done`.
    """
    phases = table["phase"].to_pylist() if "phase" in table.column_names else ["round"] * table.num_rows
    ranks = np.array([PHASES.index(phase or "round") for phase in phases], dtype=np.int64)
    done = np.array(table["done"].to_pylist(), dtype=np.int64)  # to_numpy imports pandas
    return done * len(PHASES) + ranks


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {folder}: {error.strerror or error}; free some space and run: flray resume {folder}"
        ) from error
    except ValueError as error:  # a table that was damaged while the run went on
        raise CheckpointError(f"{error}; continue without these rows: flray resume {folder}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file; a reader sees the old file or the new one. Raises `CheckpointError` when that fails."""
    try:
        with atomic_write(path) as temporary:
            temporary.write_text(text)
    except OSError as error:
        what = "remove that folder" if path.is_dir() else "free some space, or see who owns the folder"
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}; {what}") from error


def write_status(folder: Path, text: str) -> None:
    """Write one line to STATUS. On a full disk it overwrites the old file, whose block exists."""
    path = folder / "STATUS"
    try:
        write_text(path, text + "\n")
    except CheckpointError as error:
        try:
            with path.open("r+b") as file:
                file.write(text.encode() + b"\n")
                file.truncate()
        except OSError:
            raise error from None
