"""Tables that a user gives as a file: CSV, Parquet, or JSON (rows in a list, a row a line, or a list a column)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flray.core.schema.errors import DataError
from flray.data.cache import Array

if TYPE_CHECKING:
    import pyarrow

JSON = (".json", ".jsonl", ".ndjson")


def read_table(what: str, file: str, asked: str, needed: Sequence[str], texts: Sequence[str] = ()) -> pyarrow.Table:
    """The table in a file; columns `texts` of a CSV are read as text, where only nothing is missing.

    Raises `DataError`, which begins with `what` and says the `asked` columns, for a file that cannot be read, for two
    columns of one name, without a `needed` column and without a row.
    """
    import pyarrow as pa

    try:
        table = _read(Path(file).expanduser(), texts)
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise DataError(
            f"{what} cannot be read ({why}); write a CSV, Parquet or JSON file with columns {asked}"
        ) from None
    have = table.column_names
    if len(set(have)) < len(have):
        raise DataError(f"{what} has the columns {', '.join(have)}; give each a name of its own")
    for name in needed:
        if name not in have:
            raise DataError(f"{what} has the columns {', '.join(have)} and no column {name}; write {asked}")
    if not len(table):
        raise DataError(f"{what} has no row; write columns {asked}")
    return table


def _read(path: Path, texts: Sequence[str]) -> pyarrow.Table:
    import pyarrow as pa

    if path.suffix in JSON:
        text = path.read_text(encoding="utf-8")
        rows = json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines() if line]
        return pa.table(rows) if isinstance(rows, dict) else pa.Table.from_pylist(rows)
    if path.suffix in (".parquet", ".pq") or path.is_dir():
        from pyarrow import parquet

        return parquet.read_table(path)
    from pyarrow import csv

    kinds = dict.fromkeys(texts, pa.string())
    missing = {"null_values": [""], "strings_can_be_null": True} if texts else {}
    return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=kinds, **missing))


def integers(what: str, table: pyarrow.Table, name: str) -> Array:
    """A column of whole numbers that are not negative, int64. Raises `DataError` that names the first other row."""
    import pyarrow as pa

    column = table.column(name)
    if not pa.types.is_integer(column.type):
        raise DataError(f"{what}: column {name} is {column.type}, not whole numbers; write integers")
    if column.null_count:
        row = next(i for i, value in enumerate(column) if not value.is_valid)
        raise DataError(f"{what}: row {row + 1} has no {name}; fill or remove it")
    numbers: Array = column.to_numpy().astype(np.int64)
    if numbers.min() < 0:
        row = int(numbers.argmin())
        raise DataError(f"{what}: row {row + 1} has {name} {numbers[row]}; numbers are 0 or more")
    return numbers
