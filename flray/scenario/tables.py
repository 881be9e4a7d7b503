"""Tables that a user gives as a file: CSV, Parquet, or JSON (rows in a list, a row a line, or a list a column)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import DataError, nearest
from flray.data.cache import Array

if TYPE_CHECKING:
    import pyarrow

INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")  # pandas writes it beside the columns
JSON = (".json", ".jsonl", ".ndjson")


def read_table(
    what: str,
    file: str,
    asked: str,
    needed: Sequence[str],
    optional: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> pyarrow.Table:
    """The table in a file, with the columns `needed` and, where it has them, `optional`. Spaces around names go.

    Columns `texts` of a CSV are read as text, where only nothing is missing. Other columns are left out, if the table
    has all that are asked for; an index of pandas that counts the rows always is. Raises `DataError`, which begins with
    `what` and says the `asked` columns, for a file that cannot be read, for two columns of one name, for another column
    where one is missing that it may mean, without a `needed` column and without a row.
    """
    import pyarrow as pa

    try:
        table = _read(Path(os.path.expanduser(file)), texts)
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())[:200]
        raise DataError(
            f"{what} cannot be read ({why}); write a CSV, Parquet or JSON file with columns {asked}"
        ) from None
    have = [name.strip() for name in table.column_names]
    table = table.rename_columns(have)
    if len(set(have)) < len(have):
        raise DataError(f"{what} has the columns {', '.join(have)}; give each a name of its own")
    for name in needed:
        if name not in have:
            raise DataError(f"{what} has the columns {', '.join(have)} and no column {name}; write {asked}")
    lacking = [name for name in (*needed, *optional) if name not in have]
    for name in have if lacking else ():
        if name not in (*needed, *optional) and not _counts_rows(name, table):
            near = nearest(name, lacking)
            raise DataError(f"{what}: column {name!r} is not read{near}; write columns {asked}, and no others")
    if not len(table):
        raise DataError(f"{what} has no row; write columns {asked}")
    return table


def _counts_rows(name: str, table: pyarrow.Table) -> bool:
    """Whether a column is pandas' index in the order of the rows."""
    return bool(INDEX.fullmatch(name)) and table.column(name).to_pylist() == list(range(len(table)))


def _read(path: Path, texts: Sequence[str]) -> pyarrow.Table:
    import pyarrow as pa

    if path.suffix in JSON:
        text = path.read_text(encoding="utf-8-sig")
        parts = [text] if path.suffix == ".json" else [line for line in text.splitlines() if line.strip()]
        read = [json.loads(part, object_pairs_hook=_once) for part in parts]
        (rows,) = read if path.suffix == ".json" else (read,)
        if isinstance(rows, dict):
            odd = next((name for name, values in rows.items() if not isinstance(values, list)), None)
            if odd is not None:  # pyarrow takes the letters of a text, the names of an object
                raise ValueError(f"column {odd} is no list; of pandas, use to_json(orient='records')")
            return pa.table(rows)
        names = dict.fromkeys(name for row in rows for name in dict(row))  # a row may lack some
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    if path.suffix in (".parquet", ".pq") or path.is_dir():
        from pyarrow import parquet

        return parquet.read_table(path)
    from pyarrow import csv

    kinds = {}
    if texts:
        with csv.open_csv(path) as reader:
            kinds = {name: pa.string() for name in reader.schema.names if name.strip() in texts}
    missing = {"null_values": [""], "strings_can_be_null": True} if texts else {}
    return csv.read_csv(path, convert_options=csv.ConvertOptions(column_types=kinds, **missing))


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these pairs. Raises `ValueError` for a name that it has twice."""
    pairs = list(pairs)
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(f"the object with the names {', '.join(names)} has one of them twice")
    return dict(pairs)


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


def numbers(what: str, table: pyarrow.Table, name: str, unit: str) -> Array:
    """A column of numbers, float64. Raises `DataError` for dates, durations, truth values and texts: write `unit`."""
    import pyarrow as pa

    column = table.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)):
        raise DataError(f"{what}: column {name} is {column.type}, no numbers; write {unit}")
    found: Array = column.to_numpy().astype(np.float64)
    return found
