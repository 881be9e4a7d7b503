"""The first lines of CSV files: pandas takes one of data as names, renames the second of two equal names, and takes
fields beyond the names as an index. Each is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from flray.core.schema.errors import DataError, shown
from flray.data.sources.choice import PANDAS_INDEX
from flray.data.splits import listed

NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?")
SEVERAL = 3  # from so many columns on, 0, 1, 2, ... are the names that pandas gives, and no row of data by chance
PLAIN = (".csv", ".tsv")  # files that are read here; the others are archives


def check_headers(columns: Sequence[str], files: Iterable[str], separator: str, where: str) -> None:
    """Raises `DataError` unless the first line of each file has the names of all fields.

    `columns`: the names as pandas reads them. `files`: the paths of those on this machine.
    """
    known = set[str]()
    paths = [Path(file) for file in files if file.casefold().endswith(PLAIN)]
    for path in paths:
        names = _header(path, separator)
        known.update(names)
        _check_names(names, str(path))
        twice = [name for name, count in Counter(names).items() if count > 1 and name]
        if twice:
            raise DataError(f"{path} has several columns {shown(twice[0])}; rename them, or remove all but one")
    _check_names(columns, where)
    longer = [name for name in columns if PANDAS_INDEX.fullmatch(name) and name not in known]
    if longer:
        raise DataError(
            f"{paths[0] if len(paths) == 1 else where}: the rows have more fields than the first line has names; name "
            "each column, and write numbers with a decimal point"
        )


def _check_names(names: Sequence[str], where: str) -> None:
    """Raises `DataError` for names that are numbers, as a row of data is, but for 0, 1, 2, ... or 1, 2, 3, ..."""
    numbers = [name for name in names if NUMBER.fullmatch(name) or NUMBER.fullmatch(re.sub(r"\.\d+$", "", name))]
    counted = any(numbers == [str(first + place) for place in range(len(numbers))] for first in (0, 1))
    if numbers and not (counted and len(numbers) >= SEVERAL):
        raise DataError(
            f"{where}: the names of columns are numbers, {listed(numbers[:5])}, as if the first line were a row of "
            "data; write a line of names above it"
        )


def _header(path: Path, separator: str) -> list[str]:
    """The names in the first line of a file, as they are written."""
    import pandas as pd

    try:
        row = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:  # pandas' own errors are of ValueError
        raise DataError(f"{path} is not a readable CSV file ({error}); write it again, in UTF-8") from error
    return [str(name).strip() for name in row.iloc[0]]
