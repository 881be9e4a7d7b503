"""The tables of a run folder, which a reader can open at any moment, TensorBoard, and STATUS."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flray.core.protocol.clock import PHASES, Position
from flray.core.schema.errors import AlgorithmError, CheckpointError, described, shown, warn
from flray.files import atomic_write, clear_partial, quoted, regular, write_text, writing
from flray.rundir.parts import RowsMissingWarning, lost_column, lost_rounds, missing_numbers, read_part, write_part
from flray.rundir.trackers import Trackers, numbers

PART = 100  # rounds in one Parquet file
ROWS = 50_000  # rows with which a file is full; a flush writes the last file again, so this bounds what it costs
NUMBERS = {float: np.float64, int: np.int64, bool: np.bool_}
FLUSH_S = 2.0  # rows stay in memory for at most so long, up to the next round


class ParquetTable:
    """A Parquet data set `FOLDER/part-0000.parquet ...`. A file is full with `PART` rounds, or with `ROWS` rows.

    Every flush writes the last file again under a hidden name and renames it; full files are not written again, and
    none is removed while the run goes on, so a reader that has listed the folder finds all of them. A damaged file is
    renamed to `_damaged-...`, which readers of Parquet folders ignore, with a warning.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stored: dict[str, set[int]] = {}  # `Position.order` of the rows in each file
        self._schema: dict[str, pa.DataType] = {}
        self._kinds: dict[str, str] = {}  # of the columns, as far as they have held a value
        self._part = 0  # number of the last file
        self._hundred = 0  # `PART` rounds to which the rows of the last file belong
        self._last: pa.Table | None = None  # what the last file holds; None: it does not exist
        self._new: list[Mapping[str, Any]] = []  # rows that are in no file
        if folder.exists() and not folder.is_dir():
            self._set_apart(folder, f"{folder} is no folder")
        for path in self._files():
            try:
                table = read_part(path)
            except ValueError as error:
                self._set_apart(path, str(error))
                continue
            nulls = {name: table[name].null_count for name in table.column_names}
            if lost := lost_column(folder.name, nulls, table.num_rows):
                self._set_apart(path, f"{path} {lost}")
                continue
            self._stored[path.name] = set(_orders(table).tolist())
            self._learn_schema(table.schema)

    @staticmethod
    def _set_apart(path: Path, why: str) -> None:
        damaged = path.with_name(f"_damaged-{time.time_ns()}-{path.name}")
        path.rename(damaged)
        warn(f"{why}; moved to {damaged.name}, its rows are lost", RowsMissingWarning)

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.parquet"))

    @property
    def stored_rounds(self) -> set[int]:
        """`done` of the rounds that have rows on disk."""
        return {order // len(PHASES) for order in self.orders if order % len(PHASES) == 0}

    @property
    def ended(self) -> set[int]:
        """`done` of the tasks' ends that have rows on disk."""
        return {order // len(PHASES) for order in self.orders if order % len(PHASES) == PHASES.index("task_end")}

    @property
    def orders(self) -> set[int]:
        """`Position.order` of the rows on disk."""
        return set().union(*self._stored.values())

    def count(self) -> int:
        """Rows on disk."""
        return sum(pq.read_metadata(path).num_rows for path in self._files())

    def _learn_schema(self, schema: pa.Schema) -> bool:
        before = dict(self._schema)
        for field in schema:
            known = self._schema.get(field.name)
            self._schema[field.name] = field.type if known is None else _wider(known, field.type)
            self._kinds.setdefault(field.name, _kind_of(field.type))
        return before != self._schema

    def check(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """The kinds of the columns after these rows. Raises `AlgorithmError` if a column would contain numbers in some
        rows and vectors or text in others."""
        kinds = dict(self._kinds)
        for name in dict.fromkeys(itertools.chain.from_iterable(rows)):
            # by type first: a cohort has as many values as clients, and few types
            types = dict.fromkeys(map(type, [row.get(name) for row in rows]))
            for kind in dict.fromkeys(_kind(found) for found in types if found is not type(None)):
                if kinds.setdefault(name, kind) != kind:
                    other = next(v for row in rows if (v := row.get(name)) is not None and _kind(type(v)) == kind)
                    raise AlgorithmError(
                        f"metric {name!r} was a {kinds[name]} in earlier rows of {self.folder.name}/ and is a {kind} "
                        f"now ({shown(other)}); report one kind under one name, NaN where there is no value"
                    )
        return kinds

    def append(self, rows: Sequence[Mapping[str, Any]], done: int) -> None:
        """Add rows at `done` rounds; :meth:`flush` writes them. Raises `AlgorithmError` as :meth:`check` does, and adds
        none then."""
        self._kinds = self.check(rows)
        if not rows:
            return
        hundred = max(done - 1, 0) // PART
        length = len(self._new) + (0 if self._last is None else self._last.num_rows)
        if length and (hundred != self._hundred or length >= ROWS):
            self.flush()
            self._part, self._last = self._part + 1, None
        self._hundred = hundred
        self._new.extend(rows)

    def flush(self) -> None:
        """Write the last file with the new rows. Of a row only this call makes Python objects into columns."""
        if not self._new:
            return
        names = dict.fromkeys(itertools.chain.from_iterable(self._new))
        columns = {name: _column([row.get(name) for row in self._new]) for name in names}
        kinds = {name: column.type for name, column in columns.items()}
        for name in [name for name, kind in kinds.items() if pa.types.is_null(kind)]:
            kinds[name] = self._schema.get(name, pa.float64())
        path = self._path()
        if self._learn_schema(pa.schema([*kinds.items()])):
            for full in self._files():  # they get a new column, and the new type of a changed one
                if full != path:
                    write_part(full, self._conform(read_part(full)))
        tables = [self._conform(table) for table in (self._last, pa.table(columns)) if table is not None]
        together = pa.concat_tables(tables).combine_chunks()
        write_part(path, together)
        self._stored.setdefault(path.name, set()).update(position_of(row).order for row in self._new)
        self._last, self._new = together, []

    def _path(self) -> Path:
        return self.folder / f"part-{self._part:04d}.parquet"

    def _conform(self, table: pa.Table) -> pa.Table:
        there, rows = set(table.column_names), table.num_rows
        return pa.table(
            {
                # not safe: of an integer above 2^53 the nearest float
                name: table[name].cast(kind, safe=False) if name in there else pa.nulls(rows, kind)
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
        self._part, self._hundred, self._last, self._new = 0, 0, None, []
        if left := self._files():
            self._part = int(left[-1].stem.removeprefix("part-"))
            self._last = read_part(left[-1])
            self._hundred = max(max(self._stored[left[-1].name]) // len(PHASES) - 1, 0) // PART

    def change_last(self, done: int, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Write these values into the last row, if it is that of the round `done`. Returns the row, or none."""
        table = self._last
        if table is None or table["done"][-1].as_py() != done:  # the row is lost
            return []
        before = table.num_rows - 1
        self._last, (row,) = table.slice(0, before), table.slice(before).to_pylist()
        row.update({name: value for name, value in values.items() if value is not None or name in row})
        self._new = rows = [row]
        self.flush()
        return rows


class Curves:
    """The numbers of rows as curves over the rounds done, for TensorBoard. A failure is one warning.

    The caller's thread writes the events: tensorboardX's own thread dies when the machine's clock is set back by weeks,
    and a caller that fills its queue then waits for ever.
    """

    def __init__(self) -> None:
        self._file: Any = None
        self._broken = False

    def add(self, folder: Path, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Write rows (rounds done, row) to a file in `folder`, which is made at the first row. TensorBoard leaves out
        the curves' points after that row in earlier files."""
        if self._broken or not rows:
            return
        try:
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.summary import scalar

            if self._file is None:
                self._file = _events_file(folder, rows[0][0])
            for done, row in rows:
                for name, value in numbers(row).items():
                    self._file.write_event(Event(wall_time=time.time(), step=done, summary=scalar(name, value)))
            self._file.flush()
        except Exception as error:  # of a disk, or of a library whose parts have changed
            self._broken = True
            what = f"{folder}: TensorBoard's curves cannot be written ({described(error)})"
            warn(f"{what}; the run goes on without them")

    def close(self) -> None:
        if self._file is not None and not self._broken:
            self._file.close()
            self._file = None


class Recorder:
    """Writes one run's rows: at most once in two seconds, and always at a checkpoint and at the end."""

    def __init__(
        self, folder: Path, check: Callable[[], None] = lambda: None, trackers: Trackers | None = None
    ) -> None:
        """`check()` raises if the run no longer owns the folder. Raises `CheckpointError` for a table that cannot be
        renamed."""
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
        self._curves = Curves()
        self._pending: list[tuple[int, Mapping[str, Any]]] = []

    @property
    def _tables(self) -> tuple[ParquetTable, ...]:
        return self.rounds, self.clients, self.tests, self.tasks, self.personal, *self.diagnostics.values()

    def round(self, row: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> None:
        """Add a round's row and the rows of its clients."""
        done = row["done"]
        when = {"done": done, "task": row["task"], "round": row["round"], "phase": "round"}
        self.clients.check(clients)
        self.rounds.check([row])  # both raise before either table has a row
        self._of_clients(when, clients)
        self.rounds.append([row], done)
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
        self.tasks.check([row])
        self._of_clients({name: row[name] for name in ("done", "task", "phase")}, clients)
        self.tasks.append([row], row["done"])

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
        self._curves.add(self.folder / "tensorboard", self._pending)
        if self._trackers is not None:
            self._trackers.rounds(self._pending)
        self._pending = []
        self._flushed = time.monotonic()

    def truncate(self, position: Position) -> None:
        """Remove all rows after `position`; a resume from there writes them again."""
        self.check()
        with _one_line(self.folder):
            for table in self._tables:
                table.truncate(position)

    def remove_last_test(self, done: int, columns: Iterable[str]) -> None:
        """Remove the test after the last round, `done`, and the values in the `columns` of its row."""
        self.change_last(done, dict.fromkeys(columns))
        self.remove_tests(done)

    def remove_tests(self, done: int) -> None:
        """Remove the rows of the tests after `done` rounds, the last."""
        with _one_line(self.folder):
            self.tests.truncate(Position(0, 0, done - 1, PHASES[-1]))

    def change_last(self, done: int, values: Mapping[str, Any]) -> None:
        """Write these values into the row of the last round, `done`. TensorBoard's curves end with it again."""
        with _one_line(self.folder):
            self._pending += [(done, row) for row in self.rounds.change_last(done, values)]

    def missing(self, position: Position, written: Sequence[str]) -> dict[str, str]:
        """The rounds (from 1) and tasks (from 0) up to `position` without rows, in words, by table of `written`."""
        done, ended = position.done, position.task + (position.phase == "task_end")
        rounds = (done - position.round) // position.task if position.task else position.round  # of each task
        tables = {"rounds": self.rounds, "clients": self.clients, "tests": self.tests}
        lost = {n: lost_rounds(n, each.stored_rounds, done, self.rounds.folder) for n, each in tables.items()}
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
        self._curves.close()


def _events_file(folder: Path, first: int) -> Any:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    folder.mkdir(exist_ok=True)
    # the name contains seconds: a resume in the same one has another file
    file = EventsWriter(str(folder / "events"), f".{secrets.token_hex(4)}")
    start = SessionLog(status=SessionLog.START)
    file.write_event(Event(wall_time=time.time(), step=first, session_log=start))
    return file


def _kind(kind: type) -> str:
    return "text" if issubclass(kind, str) else "vector" if issubclass(kind, list | tuple | np.ndarray) else "number"


def _kind_of(column: pa.DataType) -> str:
    if pa.types.is_string(column) or pa.types.is_large_string(column):
        return "text"
    return "vector" if pa.types.is_list(column) or pa.types.is_large_list(column) else "number"


def _column(values: list[Any]) -> pa.Array:
    """`pa.array(values)`; of integers and floats, and of truth values and numbers, an array of the wider type.

    `pa.array` imports pandas, 0.4 s and 32 MiB in the first flush of a run, so columns of floats, integers, truth
    values, texts or lists of one of them are made of their buffers.
    """
    kinds = {type(value) for value in values} - {type(None)}
    try:
        if not kinds:
            return pa.nulls(len(values))
        if kinds == {str}:
            texts = pa.lib.StringBuilder()
            texts.append_values(values)
            return texts.finish()
        if kinds == {list}:
            ends = np.cumsum([0, *(len(value or ()) for value in values)], dtype=np.int32)
            items = _column([item for value in values for item in value or ()])
            kind, buffers, children = pa.list_(items.type), [pa.py_buffer(ends)], [items]
        elif kinds <= NUMBERS.keys():
            dtype = next(dtype for kind, dtype in NUMBERS.items() if kind in kinds)  # the widest of them
            numbers: Any = np.array([0 if value is None else value for value in values], dtype)
            kind, children = pa.from_numpy_dtype(dtype), None
            buffers = [pa.py_buffer(_bits(numbers) if dtype is np.bool_ else numbers)]
        else:
            return pa.array(values)
        valid = pa.py_buffer(_bits([value is not None for value in values]))
        return pa.Array.from_buffers(kind, len(values), [valid, *buffers], children=children)
    except pa.ArrowInvalid:  # truth values among numbers
        return pa.array([int(value) if isinstance(value, bool) else value for value in values])


def _bits(values: Any) -> Any:
    return np.packbits(values, bitorder="little")


def _wider(known: pa.DataType, new: pa.DataType) -> pa.DataType:
    """The type of a column after rows of these types: integers that meet floats are floats, truth values that meet
    numbers are numbers, and so in vectors. Other columns keep their type."""
    if pa.types.is_list(known) and pa.types.is_list(new):
        return pa.list_(_wider(known.value_type, new.value_type))
    if pa.types.is_null(known):  # the elements of empty vectors
        return new
    if known == new or not all(map(_is_number, (known, new))):
        return known
    return pa.float64() if any(map(pa.types.is_floating, (known, new))) else pa.int64()


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def position_of(row: Mapping[str, Any]) -> Position:
    """When a row was written, with 0 for task and round; a row without `phase` is a round's."""
    return Position(0, 0, row["done"], row.get("phase") or "round")


def _orders(table: pa.Table) -> np.ndarray:
    """`Position.order` of every row; a table without `phase` holds rounds."""
    phases = table["phase"].to_pylist() if "phase" in table.column_names else ["round"] * table.num_rows
    ranks = np.array([PHASES.index(phase or "round") for phase in phases], dtype=np.int64)
    done = np.array(table["done"].to_pylist(), dtype=np.int64)  # to_numpy imports pandas
    return done * len(PHASES) + ranks


@contextlib.contextmanager
def _one_line(folder: Path) -> Iterator[None]:
    try:
        with writing(folder, f" and run: flray resume {quoted(folder)}"):
            yield
    except ValueError as error:  # a table that was damaged while the run went on
        raise CheckpointError(f"{error}; continue without these rows: flray resume {quoted(folder)}") from error


def write_status(folder: Path, text: str) -> None:
    """Write one line to STATUS. On a full disk it overwrites the old file, whose block exists."""
    path = folder / "STATUS"
    try:
        write_text(path, text + "\n")
    except CheckpointError as error:
        try:
            with regular(path).open("r+b") as file:
                file.write(text.encode() + b"\n")
                file.truncate()
        except OSError:
            raise error from None
