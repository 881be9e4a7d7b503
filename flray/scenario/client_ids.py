"""The numbers of clients whose ids are in the data: groups of a data set, clients of a file."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from flray.core.schema.errors import DataError, warn
from flray.data.cache import Array
from flray.data.class_names import Labels, check_alike
from flray.scenario.partition import PartitionWarning

if TYPE_CHECKING:
    import pyarrow

# as programs write numbers, which 01 is not: it is a name
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+(e[+-][0-9]{2})?)?")
NOTHING = ("nan", "na", "<na>", "n/a", "none", "null")
EXACT = 2**53  # float64 does not tell all whole numbers from here on apart


def numbered(what: str, ids: Array, clients: int | None, written: bool = False) -> tuple[Array, int]:
    """(the number of each sample's group int64 `[n]`, the number of groups) of whole `ids` `[n]`.

    Groups are numbered in the order of their ids. Ids are numbers of clients, some of whom may have no sample, where
    `clients` says so: `written` ids (a user's file) if all are below it, others if they are 0 to `clients` - 1 with
    gaps. Without `clients` a warning says how ids with gaps or below 0 are numbered; written ones from 0 with gaps
    raise `DataError`.
    """
    every, places = np.unique(ids, return_inverse=True)
    first, last, count = int(every[0]), int(every[-1]), len(every)
    gaps = first == 0 and last >= count
    if clients is not None and first >= 0 and (last < clients if written else gaps and last + 1 == clients):
        return ids.astype(np.int64), clients
    if clients != count and gaps and written:
        missing = int(np.argmax(every != np.arange(count)))
        raise DataError(
            f"{what} has the clients 0 to {last} without client {missing}; set partition.clients to {last + 1} (client "
            f"{missing} has no sample), or to {count} (the clients are the sorted ids)"
        )
    if clients is None and (gaps or first < 0 or (written and first > 0)):
        moved = int(np.argmax(every != np.arange(count)))
        keep = f"; to keep the ids as numbers, set partition.clients to {last + 1}" if last < len(ids) else ""
        warn(
            f"{what}: the clients are the sorted ids, so client {moved} is the one with id {every[moved]}{keep}",
            PartitionWarning,
        )
    return places, count


def ids_of(what: str, column: pyarrow.ChunkedArray, remove: str) -> Array:
    """Ids `[n]` of a column: Python's integers if all are whole numbers that are not negative, else texts.

    Spaces around them go. Raises `DataError` for other columns and numbers, for texts that differ in spaces only, and
    for rows without an id, which says how to `remove` them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type) or pa.types.is_temporal(column.type):
        raise DataError(f"{what}: column client is {column.type}; write whole numbers or names")
    empty = pc.equal(pc.utf8_trim_whitespace(column.cast(pa.large_string())), "")
    missing = column.null_count + (pc.sum(empty).as_py() or 0)
    if missing:
        raise DataError(f"{what} has no client in {missing} rows; fill them, or {remove}: nobody's samples")
    if pa.types.is_floating(column.type):
        values = column.to_numpy()
        wrong = np.flatnonzero(~((values == np.floor(values)) & (np.abs(values) < EXACT)))
        if len(wrong):
            raise DataError(f"{what}: row {wrong[0] + 1} has client {values[wrong[0]]}; write a whole number or a name")
        column = column.cast(pa.int64())
    texts = column.cast(pa.large_string()).to_numpy().astype(str)
    names, places = np.unique(texts, return_inverse=True)
    plain = [name.strip() for name in names.tolist()]
    words = [name for name in plain if not NUMBER.fullmatch(name)]
    if len(plain) > len(words) == 1 and words[0].lower() in NOTHING:
        raise DataError(f"{what} has the client {words[0]!r} beside numbers; fill such rows, or {remove}")
    if not words:
        numbers = list(map(Fraction, plain))
        if max(number.denominator for number in numbers) > 1:
            part = next(name for name, number in zip(plain, numbers, strict=True) if number.denominator > 1)
            raise DataError(f"{what} has client {part}; write a whole number or a name")
        if (least := min(numbers)) < 0:
            raise DataError(
                f"{what} has client {least}; number clients from 0, and leave out the rows of nobody's samples"
            )
        return np.array([int(number) for number in numbers], dtype=object)[places]
    check_alike([Labels(what, places, dict(enumerate(names.tolist())), closed=False, row=_row)], what, case=False)
    return np.array(plain)[places]


def _row(row: int) -> str:
    return f"row {row + 1}"
