"""Columns of a table as arrays: labels as codes, finite numbers. Errors name the file and row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flray.core.schema.errors import DataError, shown
from flray.data.cache import Array


class FeatureTable(NamedTuple):
    """A pyarrow table with the `datasets` description of its columns, and the names and row counts of its files."""

    data: Any
    features: Mapping[str, Any]
    fingerprint: str
    files: tuple[tuple[str, int], ...]

    def place(self, row: int) -> str:
        """The file of a row of the table, and its number there (from 0)."""
        for name, count in self.files:
            if row < count:
                return f"{name} row {row}"
            row -= count
        raise IndexError(row)


def _column(table: FeatureTable, name: str, what: str, any_values: bool = False) -> Array:
    """The labels (or group ids) of one table: integers, truth values or text. Raises `DataError` for missing ones."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.data.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise DataError(
            f"{what} has no value in {table.place(row)} ({column.null_count} such rows); fill or remove them"
        )
    kind = column.type
    if pa.types.is_floating(kind) and not any_values:
        raise DataError(f"{what} holds real numbers: regression is not supported; set data.label")
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise DataError(f"{what} holds {kind}, not a label for each sample; choose another column")
    values: Array = column.to_numpy()
    return values


def named(tables: Iterable[FeatureTable], name: str, names: tuple[str, ...], what: str) -> list[Array]:
    """The labels of several splits as numbers of the classes `names`. Raises `DataError` for other values."""
    out = []
    for table in tables:
        values = _column(table, name, what)
        if values.dtype.kind not in "iu":
            raise DataError(
                f"{what} holds {table.data.column(name).type}, but names the classes 0..{len(names) - 1}; write "
                "integers"
            )
        wrong = np.flatnonzero((values < 0) | (values >= len(names)))
        if len(wrong):
            value, place = values[wrong[0]], table.place(int(wrong[0]))
            raise DataError(
                f"{what}: value {value} in {place} is not a class, 0..{len(names) - 1}; remove such rows (-1: no label)"
            )
        out.append(values.astype(np.int64))
    return out


def codes(
    tables: Iterable[FeatureTable], name: str, what: str, any_values: bool = False
) -> tuple[list[Array], tuple[str, ...]]:
    """The values of several splits as int64 codes of their sorted values."""
    columns = [_column(table, name, what, any_values) for table in tables]
    kinds = {"text" if c.dtype.kind == "O" else "integers" if c.dtype.kind in "iu" else str(c.dtype) for c in columns}
    if len(kinds) > 1:
        raise DataError(f"{what} holds {' in one split, '.join(sorted(kinds))} in another; write them alike")
    if len({c.dtype for c in columns}) > 1 and kinds == {"integers"}:  # int64 beside uint64 would become real numbers
        wide = any(c.max() > np.iinfo(np.int64).max for c in columns)
        columns = [c.astype(object if wide else np.int64) for c in columns]
    elif kinds == {"text"}:
        columns = [c.astype(str) for c in columns]
    values, inverse = np.unique(np.concatenate(columns), return_inverse=True)
    ends = np.cumsum([len(c) for c in columns])[:-1]
    return [part.astype(np.int64) for part in np.split(inverse, ends)], tuple(str(v) for v in values)


def unlabelled(tables: Mapping[str, FeatureTable], name: str, names: tuple[str, ...], what: str) -> tuple[str, ...]:
    """A note if -1, which often marks rows without a label, is one of more than two classes."""
    if "-1" not in names or set(names) == {"-1", "1"}:
        return ()
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = []
    for table in tables.values():
        column = table.data.column(name)
        marked = pc.equal(column.cast(pa.string()), "-1")
        if pc.any(marked).as_py():
            rows.append(f"{pc.sum(marked).as_py()} rows, the first is {table.place(pc.index(marked, True).as_py())}")
    return (f"{what}: -1 is a class of its own ({'; '.join(rows)}); if it marks rows without a label, remove them",)


def _no_numbers(table: FeatureTable, name: str, where: str) -> str:
    """What a column holds instead of numbers, and what to do: images as arrays are given in Python."""
    kind = table.data.column(name).type
    feature = table.features.get(name)
    if isinstance(feature, dict) and feature.get("_type") == "Array3D":
        load = f"datasets.load_dataset({where.removeprefix('hf:')!r})"
        return f"holds arrays (Array3D), which Python gives: flray.run(CONFIG, data=flray.data.from_hf({load}))"
    inner, depth = getattr(kind, "storage_type", kind), 0
    while (value_type := getattr(inner, "value_type", None)) is not None:
        inner, depth = value_type, depth + 1
    if depth < 2:
        return f"holds {kind}, not equally many numbers in each row; set data.input"
    axis = f".map(lambda row: {{{name!r}: [row[{name!r}]]}})" if depth == 2 else ""  # grey images get their channel
    cast = f"data{axis}.cast_column({name!r}, datasets.Array3D((C, H, W), 'float32'))"
    return f"holds nested lists; of images make arrays: flray.run(CONFIG, data=flray.data.from_hf({cast}))"


def numbers(table: FeatureTable, name: str, where: str) -> Array:
    """A column of numbers, or of lists of numbers of one length, as float32 [n, d]. Raises `DataError` unless
    finite."""
    import pyarrow as pa

    column = table.data.column(name)
    values = column.to_numpy()
    try:
        if pa.types.is_temporal(column.type):
            raise TypeError("dates and times")
        if values.dtype == object:
            values = np.stack([np.asarray(value, dtype=np.float64).reshape(-1) for value in values])
        with np.errstate(over="ignore"):
            x: Array = values.astype(np.float32).reshape(len(values), -1)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{where}: column {name!r} {_no_numbers(table, name, where)}") from error
    wrong = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(wrong):
        row = int(wrong[0])
        value = shown(column[row].as_py())
        more = f" ({len(wrong)} such rows)" if len(wrong) > 1 else ""
        raise DataError(
            f"{where}: column {name!r}, {table.place(row)}: {value} is not a finite 32-bit number{more}; fill or "
            "remove them"
        )
    return x
