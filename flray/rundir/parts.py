"""One Parquet file of a run's table, with the checksum of its rows in its metadata."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flray.core.schema.errors import message_of
from flray.files import atomic_write, checksum, regular

if TYPE_CHECKING:
    import pandas

KEY = b"flray.checksum"
ZERO = pa.py_buffer(bytes(8))  # of any type of numbers


# columns that every table of the name has, besides `done`
COLUMNS = {
    "tests": (
        "set", "mode", "total", "right", "covered", "loss_sum", "class_total", "class_right", "task", "phase",
    ),
    "personal": ("finetune_epochs", "test/acc"),
    "tasks": ("phase",),
    "conflict": ("step",),
    "propositions": ("step",),
}  # fmt: skip
OPTIONAL = frozenset({"covered", "loss_sum", "test/acc"})  # may have no value


class RowsMissingWarning(UserWarning):
    """Rows of a run's tables are damaged or deleted, and cannot be restored."""


def write_part(path: Path, table: pa.Table) -> None:
    """Write the table with its checksum. Raises `OSError` when the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        marked = table.replace_schema_metadata({KEY: _rows_checksum(table)})
        pq.write_table(marked, temporary.absolute())  # pyarrow expands `~` at the beginning


def read_part(path: Path) -> pa.Table:
    """The table of a file. Raises `ValueError` in one line if it cannot be read or its checksum differs."""
    try:
        table = pq.ParquetFile(regular(path)).read()
        expected = (table.schema.metadata or {}).get(KEY)
        if expected is not None and expected.decode() != _rows_checksum(table):  # earlier versions of flray wrote none
            raise ValueError("its rows are not those that were written")
    except Exception as error:  # pyarrow raises many kinds of errors for bytes that are not Parquet
        raise ValueError(f"{path} is damaged ({message_of(error)})") from error
    return table


def table_problem(name: str, table: pandas.DataFrame) -> str:
    """The reason why a readable table is not flray's table `name` ("has no column done"); "": it is."""
    from pandas.api.types import is_numeric_dtype, is_string_dtype

    if lost := lost_column(name, {str(column): int(table[column].isna().sum()) for column in table}, len(table)):
        return lost
    # a metric has a slash in its name, and is a number or a vector of numbers
    text = [column for column in map(str, table) if "/" in column and is_string_dtype(table[column])]
    text += ["done"] * (not is_numeric_dtype(table["done"]))
    return f"has text in the column {text[0]}" if text else ""


def lost_column(name: str, nulls: Mapping[str, int], rows: int) -> str:
    """What a table `name` lacks ("has no column task"); "": nothing. `nulls`: how many values each column lacks."""
    for column in ("done", *COLUMNS.get(name, ())):
        if column not in nulls:
            return f"has no column {column}"
        if nulls[column] and column not in OPTIONAL:
            return f"has no {column} in {nulls[column]} of {rows} rows"
    return ""


def _rows_checksum(table: pa.Table) -> str:
    """The checksum of a table's names, types, values and nulls."""
    parts: list[bytes] = []
    for name in table.column_names:
        column = table[name].combine_chunks()
        # Parquet renames a list's element
        kind = f"list of {column.type.value_type}" if pa.types.is_list(column.type) else column.type
        parts.append(f"{name}\0{kind}\0{len(column)}\0".encode())
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
            # pa.scalar and to_numpy import pandas, 0.4 s
            zero = pa.Array.from_buffers(column.type, 1, [None, ZERO])[0]
            for values in (column.is_valid(), column.fill_null(zero)):
                numbers = values.cast(pa.uint8()) if pa.types.is_boolean(values.type) else values
                parts.append(np.from_dlpack(numbers).tobytes())
        else:
            parts.append(repr(column.to_pylist()).encode())
    return checksum(*parts)


def lost_rounds(name: str, stored: Collection[int], last: int, rounds: Path) -> str:
    """The rounds up to `last` that lack rows in the table `name`. `rounds`: the folder of the table that says in which
    rounds no client trained (`cohort.dropout`) and in which no model was tested."""
    lost, without = missing_numbers(stored, last), {"clients": _untrained, "tests": _untested}.get(name)
    return missing_numbers({*stored, *_rounds(rounds, without)}, last) if lost and without else lost


def _untrained(table: pa.Table) -> list[bool]:
    return [steps == 0 for steps in table["client_steps"].to_pylist()]


def _untested(table: pa.Table) -> list[bool]:
    columns = [table[name].to_pylist() for name in ("test/acc", "val/acc") if name in table.column_names]
    columns.append([None] * table.num_rows)
    return [all(value is None for value in values) for values in zip(*columns, strict=True)]


def untested_rounds(folder: Path) -> set[int]:
    """Rounds of the table `rounds` without a test of the global model; damaged files are skipped."""
    return _rounds(folder, _untested)


def _rounds(folder: Path, chosen: Callable[[pa.Table], list[bool]]) -> set[int]:
    """The chosen rounds of the table `rounds`; damaged files are skipped."""
    rounds: set[int] = set()
    for path in folder.glob("part-*.parquet"):
        with contextlib.suppress(ValueError, KeyError):
            table = read_part(path)
            rounds |= {done for done, yes in zip(table["done"].to_pylist(), chosen(table), strict=True) if yes}
    return rounds


def missing_numbers(stored: Iterable[int], last: int, first: int = 1) -> str:
    """The numbers from `first` to `last` that are not in `stored`: "3, 7-9"; "": none."""
    missing = sorted(set(range(first, last + 1)) - set(stored))
    known = set(missing)
    starts = [n for n in missing if n - 1 not in known]
    ends = [n for n in missing if n + 1 not in known]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
