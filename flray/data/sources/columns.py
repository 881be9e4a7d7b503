"""Columns of a table as arrays: labels as codes, finite numbers. Errors name the file and row."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flray.core.schema.errors import DataError, shown
from flray.data.cache import Array
from flray.data.class_names import Labels, Owned, check_alike, owned
from flray.data.sources.float32 import MERGED, lossy, merged
from flray.data.splits import SHOWN, in_line, listed


class FeatureTable(NamedTuple):
    """A pyarrow table with the `datasets` description of its columns, and the names and row counts of its files.

    `described`: the description in each file, if they are several. `index_columns`, `categories`: the columns that
    pandas wrote as an index, and as categories. `absent`: by column, a text of a CSV file that is read as no value.
    `rows`: the number of each row in its file, if some were left out.
    """

    data: Any
    features: Mapping[str, Any]
    fingerprint: str
    files: tuple[tuple[str, int], ...]
    described: tuple[Mapping[str, Any], ...] = ()
    index_columns: frozenset[str] = frozenset()
    categories: frozenset[str] = frozenset()
    absent: Mapping[str, str] = {}
    rows: Array | None = None

    def place(self, row: int) -> str:
        """The file of a row of the table, and its number there (from 0)."""
        number = row
        for name, count in self.files:
            if number < count:
                return f"{name} row {number if self.rows is None else self.rows[row]}"
            number -= count
        raise IndexError(row)

    def missing(self, name: str) -> str:
        """The place of the first row without a value of a column, how many there are, and what to do."""
        column, word = self.data.column(name), self.absent.get(name)
        row = pc.index(pc.is_null(column), True).as_py()
        why = "" if word is None else f"; the CSV file has {shown(word)}, which means no value; write another word"
        return f"{self.place(row)} ({column.null_count} such rows); fill or remove them{why}"

    def selected(self, keep: Array) -> FeatureTable:
        """The rows of the mask `keep`."""
        ends = np.cumsum([count for _, count in self.files])[:-1]
        counts = [int(part.sum()) for part in np.split(keep, ends)]
        files = tuple((name, count) for (name, _), count in zip(self.files, counts, strict=True))
        rows = np.concatenate([np.arange(count) for _, count in self.files]) if self.rows is None else self.rows
        return self._replace(data=self.data.filter(pa.array(keep)), files=files, rows=rows[keep])


class Columns(NamedTuple):
    """The columns that are read, the kind of the inputs, the table's class names, the meaning of numeric labels, the
    column of domains, and the prompt of the texts.

    `left`: the other columns, and the reason why one is not read. `truth`: inputs of truth values, read as 0 and 1.
    """

    label: str
    input: tuple[str, ...]
    kind: Literal["image", "text", "number"]
    group: str | None
    names: tuple[str, ...] | None
    values: Mapping[int, str] | None = None
    domain: str | None = None
    prompt: str | None = None
    left: Mapping[str, str] = {}
    truth: tuple[str, ...] = ()

    @property
    def needed(self) -> list[str]:
        """All columns that each split must have. Only train needs its group: nobody else is shared out."""
        return [self.label, *self.input, *([self.domain] if self.domain else [])]

    @property
    def line(self) -> str:
        """What is read and what is not, for `Splits.reading`."""
        chosen = in_line(self.input)
        count = f" ({len(self.input)} columns)" if self.kind == "number" else ""
        what = {"number": "features", "image": "images", "text": "text"}[self.kind]
        left = [f"{listed([name])} ({why})" if why else listed([name]) for name, why in self.left.items()]
        unread = ", ".join(left[:SHOWN]) + (", ..." if len(left) > SHOWN else "")
        truth = f"; false is 0 and true 1: {in_line(self.truth)}" if self.truth else ""
        return f"{what}: {chosen}{count}{truth}" + (f"; not read: {unread}" if left else "")


def class_names(features: Mapping[str, Any], column: str, where: str) -> tuple[str, ...] | None:
    """The names of a column of type ClassLabel, None for another one. Raises `DataError` if they are no words."""
    feature = features.get(column)
    if not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return None
    names = feature.get("names")
    if names is None:
        return None
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise DataError(
            f"{where}: the class names of {column!r} are {shown(names)}, not a list of words; write the file again"
        )
    return tuple(names)


def _column(table: FeatureTable, name: str, what: str, any_values: bool = False) -> Array:
    """The labels (or group ids) of one table: integers, truth values or text. Raises `DataError` for missing ones."""
    column = table.data.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise DataError(f"{what} has no value in {table.missing(name)}")
    kind = getattr(column.type, "storage_type", column.type)
    if pa.types.is_floating(kind) and not any_values:
        if pc.all(pc.equal(column, pc.floor(column))).as_py():
            raise DataError(f"{what} holds whole numbers as {kind}; write them as integers: astype('int64')")
        raise DataError(
            f"{what} holds real numbers: regression is not supported; choose another column, or write names, such as "
            "v1.5"
        )
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise DataError(f"{what} holds {kind}, not a label for each sample; choose another column")
    if not any_values and (pa.types.is_temporal(kind) or pa.types.is_decimal(kind)):
        raise DataError(f"{what} holds {kind}; write labels as integers or text, or choose another column")
    values: Array = column.to_numpy()
    if values.dtype.kind == "O" and (empty := np.flatnonzero(values == "")).size:
        raise DataError(
            f"{what} is an empty text in {table.place(int(empty[0]))} ({len(empty)} such rows); fill or remove them"
        )
    return values


def labels_of(tables: Iterable[FeatureTable], name: str, what: str, unite: bool = False) -> tuple[list[Array], Owned]:
    """The labels of several splits as numbers of one list of classes (`Owned`, which has them by file).

    The names are those of the description of each file (ClassLabel), else the texts. `unite`: as in :func:`owned`.
    """
    tables = list(tables)
    places, kinds = [], dict[str, str]()
    for table in tables:
        values, start = _column(table, name, what), 0
        described = table.described or (table.features,) * len(table.files)
        for (file, count), features in zip(table.files, described, strict=True):
            part, row = values[start : start + count], functools.partial(_row, table, start)
            names = class_names(features, name, file)
            place = _place(table, name, Labels(file, part, row=row), names, what)
            if names is None:
                kinds.setdefault(_kind(part), file)
            places.append(place)
            start += count
    _check_kinds(kinds, what)
    if all(place.names is None for place in places):
        ids = _one_type([place.ids for place in places])
        places = [place._replace(ids=own) for place, own in zip(places, ids, strict=True)]
    result = owned(places, what, unite)
    ends = np.cumsum([len(table.files) for table in tables])[:-1]
    parts = np.split(np.arange(len(places)), ends)
    return [np.concatenate([result.ids[k] for k in part]) for part in parts], result


def _row(table: FeatureTable, start: int, row: int) -> str:
    return table.place(start + row)


def _kind(values: Array) -> str:
    return {"i": "integers", "u": "integers", "O": "text"}.get(values.dtype.kind, str(values.dtype))


def _check_kinds(kinds: Mapping[str, str], what: str) -> None:
    """Raises `DataError` for several kinds of values; `kinds`: the first file of each."""
    if len(kinds) > 1:
        found = " and ".join(f"{kind} in {file}" for kind, file in kinds.items())
        raise DataError(f"{what} holds {found}; write them alike")


def _place(table: FeatureTable, name: str, place: Labels, names: tuple[str, ...] | None, what: str) -> Labels:
    """The labels of one file with the names of its classes: declared ones, or the texts themselves."""
    values = place.ids
    # names in the place of their ids, as `datasets` reads them too; a text 0 could be either
    of_names = names is not None and values.dtype.kind == "O" and set(values) <= {n for n in names if not n.isdecimal()}
    if of_names or (names is None and values.dtype.kind in "Ob"):
        texts, ids = np.unique(values.astype(str), return_inverse=True)
        found = Labels(place.place, ids, dict(enumerate(map(str, texts))), closed=False, row=place.row)
        return found
    if names is None:
        return place
    if values.dtype.kind not in "iu":
        raise DataError(
            f"{what} holds {table.data.column(name).type}, but names the classes 0..{len(names) - 1}; write integers"
        )
    wrong = np.flatnonzero((values < 0) | (values >= len(names)))
    if len(wrong):
        raise DataError(
            f"{what}: value {values[wrong[0]]} in {place.row(int(wrong[0]))} is not a class, 0..{len(names) - 1}; "
            "remove such rows (-1: no label)"
        )
    return place._replace(ids=values.astype(np.int64), names=dict(enumerate(names)))


def _one_type(columns: list[Array]) -> list[Array]:
    """Integers of one type: int64 beside uint64 would become real numbers."""
    if len({c.dtype for c in columns}) < 2:
        return columns
    wide = any(len(c) and c.max() > np.iinfo(np.int64).max for c in columns)
    return [c.astype(object if wide else np.int64) for c in columns]


def codes(tables: Iterable[FeatureTable], name: str, what: str) -> list[Array]:
    """The values of several splits (clients), int64: whole numbers as they are; codes of other sorted values.

    The values of the first split have the first codes. Those of a ClassLabel are names, if the files number them
    differently. Raises `DataError` for missing values, and for texts that differ in spaces only.
    """
    tables = list(tables)
    described = [
        (table, features) for table in tables for features in table.described or (table.features,) * len(table.files)
    ]
    names = {class_names(features, name, what) for _, features in described}
    if len(names) > 1:
        return _first_split_first(labels_of(tables, name, what, unite=True)[0])
    columns = [_as_integers(table, _column(table, name, what, any_values=True), what) for table in tables]
    kinds = {_kind(column): table.files[0][0] for table, column in zip(tables, columns, strict=True)}
    _check_kinds(kinds, what)
    columns = [c.astype(str) for c in columns] if "text" in kinds else _one_type(columns)
    if "text" in kinds:
        found = [np.unique(column, return_inverse=True) for column in columns]
        places = [
            Labels(table.files[0][0], ids, dict(enumerate(texts.tolist())), closed=False, row=table.place)
            for table, (texts, ids) in zip(tables, found, strict=True)
        ]
        check_alike(places, what, case=False)
    elif names == {None} and all(column.dtype.kind in "iu" and column.dtype != np.uint64 for column in columns):
        return [column.astype(np.int64) for column in columns]
    return _first_split_first(columns)


def ids_of(table: FeatureTable, name: str, numbers: Array) -> list[str]:
    """The values of a column, as texts, whose :func:`codes` are the distinct `numbers` [n] of its rows, in their
    order."""
    column, out = values_of(table, name), []
    described = table.described or (table.features,) * len(table.files)
    ends = np.cumsum([count for _, count in table.files])
    for row in np.unique(numbers, return_index=True)[1].tolist():
        value = column[row].as_py()
        names = class_names(described[int(np.searchsorted(ends, row, side="right"))], name, name)
        whole = isinstance(value, float) and value.is_integer()
        out.append(names[value] if names is not None else str(int(value)) if whole else str(value))
    return out


def _as_integers(table: FeatureTable, values: Array, what: str) -> Array:
    """The values, of real numbers that are all whole int64. Raises `DataError` for NaN."""
    if values.dtype.kind != "f":
        return values
    if (wrong := np.flatnonzero(np.isnan(values))).size:
        raise DataError(f"{what} is NaN in {table.place(int(wrong[0]))} ({len(wrong)} such rows); fill or remove them")
    fits = (values == np.floor(values)) & (np.abs(values) < 2**53)
    return values.astype(np.int64) if fits.all() else values


def _first_split_first(columns: list[Array]) -> list[Array]:
    """Codes int64 of the sorted values of the first column, then of those that only the others have."""
    values, places = np.unique(np.concatenate(columns), return_inverse=True)
    parts = np.split(places, np.cumsum([len(column) for column in columns])[:-1])
    late = np.ones(len(values), bool)
    late[parts[0]] = False
    numbers = np.argsort(np.argsort(late, kind="stable"))
    return [numbers[part].astype(np.int64) for part in parts]


def unlabelled(tables: Mapping[str, FeatureTable], name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """A note if -1, which often marks rows without a label, is one of more than two classes."""
    if "-1" not in names or set(names) == {"-1", "1"}:
        return ()
    rows = []
    for table in tables.values():
        column = table.data.column(name)
        marked = pc.equal(column.cast(pa.string()), "-1")
        if pc.any(marked).as_py():
            rows.append(f"{pc.sum(marked).as_py()} rows, the first is {table.place(pc.index(marked, True).as_py())}")
    return (
        f"label column {name!r}: -1 is a class of its own ({'; '.join(rows)}); if it marks rows without a label, "
        "remove them",
    )


def is_text(table: FeatureTable, name: str) -> bool:
    """Whether a column holds text."""
    kind = table.data.schema.field(name).type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def values_of(table: FeatureTable, name: str) -> Any:
    """A column of the table; of a dictionary its values."""
    column = table.data.column(name)
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def inexact(table: FeatureTable, name: str) -> str | None:
    """What 32-bit floats lose of a column, in words: integers that they do not have, numbers that become one; None:
    nothing that a feature needs."""
    column, row_of = values_of(table, name), None
    if pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        row_of, column = pc.list_parent_indices(column), pc.list_flatten(column)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return None
    values = column.to_numpy() if not column.null_count else column.drop_null().to_numpy()
    kept = np.flatnonzero(column.is_valid().to_numpy())
    finite = np.isfinite(values)
    values, kept = values[finite], kept[finite]
    with np.errstate(over="ignore"):
        lost = lossy(values[:, None], values[:, None].astype(np.float32))
    if lost is None:
        return None
    first, _, what = lost
    row = int(kept[first]) if row_of is None else row_of[int(kept[first])].as_py()
    return f"holds {what}, such as {shown(values[first].item())} in {table.place(row)}"


def _other_length(table: FeatureTable, name: str) -> str:
    """The first row whose list is not as long as that of the first row."""
    sizes = [len(value) if value is not None else 0 for value in table.data.column(name).to_pylist()]
    row = next((row for row, size in enumerate(sizes) if size != sizes[0]), None)
    return "" if row is None else f" ({sizes[0]} in {table.place(0)}, {sizes[row]} in {table.place(row)})"


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
        odd = _other_length(table, name) if depth else ""
        return f"holds {kind}, not equally many numbers in each row{odd}; set data.input, or data.drop: [{name}]"
    axis = f".map(lambda row: {{{name!r}: [row[{name!r}]]}})" if depth == 2 else ""  # grey images get their channel
    cast = f"data{axis}.cast_column({name!r}, datasets.Array3D((C, H, W), 'float32'))"
    return f"holds nested lists; of images make arrays: flray.run(CONFIG, data=flray.data.from_hf({cast}))"


def _of_numbers(kind: Any) -> bool:
    """Whether a column of this type holds numbers, or lists of them. A tensor has axes, which features lack."""
    if isinstance(kind, pa.BaseExtensionType):
        return len(getattr(kind, "shape", ())) < 2 and _of_numbers(kind.storage_type)
    if (inner := getattr(kind, "value_type", None)) is not None:
        return _of_numbers(inner)
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null)
    return any(test(kind) for test in tests)


def numbers(table: FeatureTable, name: str, where: str) -> Array:
    """A column of numbers, or of lists of numbers of one length, as float32 [n, d]. Raises `DataError` unless they are
    finite and 32-bit floats tell them apart."""
    column = values_of(table, name)
    try:
        if not _of_numbers(column.type):
            raise TypeError("dates, texts and bytes: some of them could be read as numbers")
        if pa.types.is_fixed_size_list(column.type) and not column.null_count:
            values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
        else:
            values = column.to_numpy()
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
    values = values.reshape(x.shape)
    lost = merged(values, x)
    if lost is not None:
        raise DataError(
            f"{where}: column {name!r} holds {MERGED}, such as {shown(values[lost].item())} in "
            f"{table.place(lost[0])}; subtract the least one first, or write data.drop: [{name}]"
        )
    return x
