"""The first lines of CSV files: pandas takes one of data as names, renames the second of two equal names, and takes
fields beyond the names as an index. Each is refused."""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from flray.core.schema.errors import DataError, shown
from flray.data.sources.choice import PANDAS_INDEX
from flray.data.splits import listed

NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")
ROWS = 10_000
SEVERAL = 3  # from so many columns on, 0, 1, 2, ... are the names that pandas gives, and no row of data by chance
LONGER = (
    "the rows have more fields than the first line has names; name each column, and write numbers with a decimal point"
)
SEPARATORS = (";", "\t", "|", ",")
PLAIN = (".csv", ".tsv")  # files that are read here; the others are archives


def check_headers(
    columns: Sequence[str], files: Iterable[str], separator: str, where: str, label: str | None = None
) -> None:
    """Raises `DataError` unless the first line of each file has the names of all fields.

    `columns`: the names as pandas reads them. `files`: the paths of those on this machine. `label`: the column that the
    user names, which no row of data has.
    """
    paths = [Path(file) for file in files if file.casefold().endswith(PLAIN)]
    for path in paths:
        names, row = _first_rows(path, separator)
        other = next((mark for mark in SEPARATORS if len(names) == 1 and mark in names[0]), None)
        if other is not None:
            what = "tabs" if other == "\t" else repr(other)
            raise DataError(f"{path}: its fields are separated by {what}; write commas, or tabs in a file .tsv")
        if label not in names or label in _values(path, separator, names.index(label)):
            _check_names(names, str(path))
        twice = [name for name, count in Counter(names).items() if count > 1 and name]
        if twice:
            raise DataError(f"{path} has several columns {shown(twice[0])}; rename them, or remove all but one")
        if len(row) > len(names):
            raise DataError(f"{path}: {LONGER}")
    if not paths:
        _check_names(columns, where)
        if any(PANDAS_INDEX.fullmatch(name) for name in columns):
            raise DataError(f"{where}: {LONGER}")


def _check_names(names: Sequence[str], where: str) -> None:
    """Raises `DataError` for names that are numbers, as a row of data is, but for 0, 1, 2, ... or 1, 2, 3, ..."""
    numbers = [name for name in names if NUMBER.fullmatch(name) or NUMBER.fullmatch(re.sub(r"\.\d+$", "", name))]
    counted = any(numbers == [str(first + place) for place in range(len(numbers))] for first in (0, 1))
    if numbers and not (counted and len(numbers) >= SEVERAL):
        raise DataError(
            f"{where}: the names of columns are numbers, {listed(numbers[:5])}, as if the first line were a row of "
            "data; write a line of names above it, or name the label with data.label if it is one"
        )


def _values(path: Path, separator: str, place: int) -> set[str]:
    """The values of a field in the rows after the first line, at most `ROWS` of them."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = itertools.islice((row for row in csv.reader(file, delimiter=separator) if row), 1, ROWS)
        return {row[place].strip() for row in rows if len(row) > place}


def _first_rows(path: Path, separator: str) -> tuple[list[str], list[str]]:
    """The fields of the first line and of the second one, as they are written; [] for one that is not there."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = (row for row in csv.reader(file, delimiter=separator) if row)
        try:
            return [name.strip() for name in next(rows, [])], next(rows, [])
        except csv.Error:  # a field of more than 128 KB, which is no name
            return [], []
