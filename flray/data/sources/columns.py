"""Columns of a table: which ones are read, and their values as arrays (labels as codes, finite numbers).

The label and the inputs are those that the configuration names or that leave no doubt. Errors name the file and row.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.cache import Array
from flray.data.class_names import Labels, Owned, check_alike, owned
from flray.data.data_config import DataConfig
from flray.data.published import LABELS, TEXT_TO_TEXT, plain_name
from flray.data.sources.arrays import MERGED, lossy, merged
from flray.data.sources.text import fields, prompt_of, text_columns
from flray.data.splits import SHOWN, Vocabulary, in_line, listed


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
    if values.dtype.kind in "Ob":
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


LABEL_NAMES = ("label", "fine_label")  # a label column of these names needs no word; the first one counts
LIKE_A_LABEL = {"label", "labels", "target", "targets", "class", "fine_label", "coarse_label"}
PANDAS_INDEX = re.compile(r"__index_level_\d+__")
NO_HEADER = re.compile(r"(Unnamed: \d+(\.\d+)*)?")  # a column of a CSV file, as pandas calls it
FIRST = re.compile(r"(Unnamed: 0(\.\d+)*)?")  # the first one, where `DataFrame.to_csv` writes the index
LIKE_AN_ID = re.compile(r"(?i:(?:.*[_\s.-])?(?:id|ids|idx|index|uuid|guid))|.*[a-z](?:Id|ID|Idx|Index)", re.DOTALL)
MOMENT = re.compile(r"\d{4}-\d\d|\d{1,2}[/.]\d{1,2}[/.]\d{2}|\d{1,2}:\d\d")  # a date or a time as text
CHANCE = math.log(1e-6)  # what is less likely in any column of a table is no accident
ROWS = 50  # from so many rows on, distinct integers in a narrow range number the rows
WORDS = 3  # a text has at least so many words; a name or a date has fewer


def choose_columns(config: DataConfig, table: FeatureTable, where: str, vocabulary: Vocabulary | None) -> Columns:
    """The columns that `config` names or the table leaves no doubt about. Raises `DataError`, which lists the columns.

    With a `vocabulary` or a tokenizer in the configuration the input is text.
    """
    _check_names(config, table, where)
    columns = [name for name in table.data.schema.names if name not in config.drop]
    left = dict.fromkeys(config.drop, "data.drop")
    left |= {name: "pandas' index" for name in columns if _is_index(config, table, name)}
    columns = [name for name in columns if name not in left]
    tokenised = vocabulary is not None or config.tokenizer is not None
    label, values = _label(config, table, columns, tokenised, where)
    names = class_names(table.features, label, where)
    rest = [name for name in columns if name not in (label, config.group, config.domain)]
    prompt = None
    if tokenised:
        chosen, prompt = _texts(config, table, rest, vocabulary, where)
        kind: Literal["image", "text", "number"] = "text"
    else:
        kind, chosen = _images_or_numbers(config, table, rest, label, where)
    left |= {name: "ClassLabel" if _is_class(table, name) else "" for name in rest if name not in chosen}
    known = values if names is None else None
    truth = tuple(name for name in chosen if str(table.data.schema.field(name).type) == "bool")
    return Columns(label, chosen, kind, config.group, names, known, config.domain, prompt, left, truth)


def _check_names(config: DataConfig, table: FeatureTable, where: str) -> None:
    columns = list(table.data.schema.names)
    inputs = config.input or ()
    for option in ("label", "input", "group", "domain", "drop"):
        own = getattr(config, option)
        for name in (own,) if isinstance(own, str) else own or ():
            if name not in columns:
                near = nearest(name, columns)
                raise DataError(f"{where}: no column {name!r} for data.{option}{near}; columns: {listed(columns)}")
            if option == "drop" and name in (config.label, config.group, config.domain, *inputs, *(config.text or ())):
                raise DataError(f"{where}: data.drop leaves {name!r} out, which another key names; remove one of them")
            if option == "input" and inputs.count(name) > 1:
                raise DataError(f"{where}: data.input names {name!r} twice; name each column once")
            if option == "input" and name == config.label:
                raise DataError(f"{where}: data.input and data.label both name {name!r}; a label is no input")


def _is_index(config: DataConfig, table: FeatureTable, name: str) -> bool:
    """Whether pandas wrote the column as the index of its rows, and no key names it."""
    named = (config.label, config.group, config.domain, *(config.input or ()), *(config.text or ()), *LABEL_NAMES)
    if name in named:
        return False
    if name in table.index_columns or PANDAS_INDEX.fullmatch(name):
        return True
    if not FIRST.fullmatch(name):
        return False
    values = values_of(table, name)
    return not values.null_count and len(values.unique()) == len(values)


def _label(
    config: DataConfig, table: FeatureTable, columns: Sequence[str], tokenised: bool, where: str
) -> tuple[str, Mapping[int, str] | None]:
    """The label column, and the meaning of its numbers in a published set. Raises `DataError` if several fit."""
    bare, values = LABELS.get(plain_name(config.source), (None, None)) if tokenised else (None, None)
    if config.label:
        return config.label, values if config.label == bare else None
    others = [name for name in columns if name not in (config.group, config.domain, *(config.input or ()))]
    named = labels_by_name(others)
    if len(named) > 1:
        raise DataError(
            f"{where}: several columns could be the label, {', '.join(named)}; set data.label, and leave the others "
            f"out, for example with data.drop: [{', '.join(named[1:])}]"
        )
    if named:
        return named[0], values if named[0] == bare else None
    if bare in others:
        return str(bare), values
    classes = [name for name in others if _is_class(table, name)]
    if len(classes) == 1:
        return classes[0], None
    if all((table.features.get(name) or {}).get("_type") == "Image" for name in columns):
        raise DataError(
            f"{where}: there are pictures and no label; of a folder write train/CLASS/picture.png, every class at the "
            "same depth, or give metadata.csv a column label"
        )
    raise DataError(f"{where}: the label column is not clear; set data.label to one of {listed(columns)}")


def labels_by_name(names: Sequence[str]) -> list[str]:
    """The columns that could be the label if one of them has its name: one of `LABEL_NAMES` first; else none."""
    named = [name for name in LABEL_NAMES if name in names]
    like = [name for name in names if name.casefold() in LIKE_A_LABEL and name not in (*named, "coarse_label")]
    return [*named, *like] if named else []


def _texts(
    config: DataConfig, table: FeatureTable, rest: Sequence[str], vocabulary: Vocabulary | None, where: str
) -> tuple[tuple[str, ...], str | None]:
    """The text column, or the two of a pair, or those of the prompt, which is the second part of the result."""
    text = [name for name in rest if is_text(table, name)]
    prompt = prompt_of(config, vocabulary)
    if prompt is not None:
        return fields(config, prompt, text, where), prompt
    chosen = text_columns(config, text, where)
    second = [
        name for name in text if name not in chosen and _most(table, name, lambda text: len(text.split()) >= WORDS)
    ]
    known = plain_name(config.source) in {**LABELS, **TEXT_TO_TEXT}
    if second and config.text is None and len(chosen) == 1 and not known:
        raise DataError(
            f"{where}: several columns are text, {', '.join([*chosen, *second])}; set data.text to one of them, or to "
            f"two for pairs, or leave columns out, as in data.drop: [{', '.join(second)}]"
        )
    return chosen, None


def _images_or_numbers(
    config: DataConfig, table: FeatureTable, rest: Sequence[str], label: str, where: str
) -> tuple[Literal["image", "number"], tuple[str, ...]]:
    """The one image column, or the columns of numbers. Raises `DataError` if the choice is not clear."""
    kinds = {name: table.data.schema.field(name).type for name in rest}
    images = [name for name in rest if pa.types.is_struct(kinds[name]) or pa.types.is_binary(kinds[name])]
    text = [name for name in rest if is_text(table, name)]
    if config.input is not None:
        of_text = [name for name in config.input if name in text]
        if of_text:
            raise DataError(_needs_a_tokenizer(of_text, where))
        pictures = [name for name in config.input if name in images]
        if pictures and len(config.input) > 1:
            raise DataError(f"{where}: data.input names the image column {pictures[0]!r} and others; name it alone")
        return ("image" if pictures else "number"), config.input
    if config.text:
        raise DataError(_needs_a_tokenizer(config.text, where))
    described = [name for name in images if (table.features.get(name) or {}).get("_type") == "Image"]
    if len(described) == 1 or len(images) == 1:
        return "image", tuple(described if len(described) == 1 else images)
    if images:
        raise DataError(
            f"{where}: several columns could be the image, {', '.join(images)}; set data.input to one of them"
        )
    return "number", _features(table, rest, text, label, where)


def _features(table: FeatureTable, rest: Sequence[str], text: Sequence[str], label: str, where: str) -> tuple[str, ...]:
    """All columns, if each is a feature without doubt."""
    doubts = {name: why for name in rest if (why := doubt(table, name) or _repeats(table, name, label)) is not None}
    chosen = tuple(name for name in rest if name not in doubts)
    if not chosen and any(not _most(table, name, MOMENT.search) for name in text):
        raise DataError(_needs_a_tokenizer(text, where))
    if not rest:
        raise DataError(f"{where}: no input column beside {label!r}; columns: {listed(table.data.column_names)}")
    if doubts:
        reasons = "; ".join(f"{name!r} {why}" for name, why in list(doubts.items())[:3])
        names = listed(chosen or ["NAME", "NAME"])
        more = "; text needs data.tokenizer" if text else ""
        raise DataError(
            f"{where}: not every column is clearly a feature: {reasons}; write data.drop: [{listed(doubts)}], or "
            f"name the features, data.input: [{names}]{more}"
        )
    return chosen


def _needs_a_tokenizer(text: Sequence[str], where: str) -> str:
    return (
        f"{where}: text (columns {', '.join(text)}) needs a tokenizer; set data.tokenizer to `train`, or to the name "
        "or folder of a Hugging Face tokenizer (or name a numeric column with data.input)"
    )


def doubt(table: FeatureTable, name: str) -> str | None:
    """The reason why a column that no key names is not taken as a feature; None: it is one."""
    kind = table.data.schema.field(name).type
    if pa.types.is_temporal(kind):
        return "holds dates or times"
    if pa.types.is_decimal(kind):
        return "holds decimals"
    if pa.types.is_null(kind):
        return "is empty"
    if is_text(table, name):
        example = next((value for value in values_of(table, name).slice(0, 100).to_pylist() if value), "")
        return f"holds text, such as {shown(example)}"
    of_codes = pa.types.is_dictionary(kind) and not pa.types.is_floating(kind.value_type)
    if of_codes or name in table.categories or _is_class(table, name):
        return "holds categories"
    if name.casefold() in LIKE_A_LABEL:
        return "has the name of a label"
    if NO_HEADER.fullmatch(name):
        return "has no name"
    if pa.types.is_integer(kind) and LIKE_AN_ID.fullmatch(name):
        return "has the name of an id"
    if pa.types.is_integer(kind) and _numbers_the_rows(table, name):
        return "numbers the rows"
    return inexact(table, name)


def _repeats(table: FeatureTable, name: str, label: str) -> str | None:
    """The reason why a column is no feature: its values are those of the label, one for one.

    The label, shuffled over the rows, would be so with a probability of k!/(n!/(n_1! ... n_k!)), for n_i rows of class
    i of k. Where `CHANCE` allows it in one of the columns, as in a small table, the column stays a feature.
    """
    values, labels = values_of(table, name), values_of(table, label)
    if pa.types.is_nested(labels.type) or isinstance(labels.type, pa.BaseExtensionType):
        return None
    counts = labels.value_counts().field("counts").to_pylist()
    if pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):  # such as one-hot rows
        if len(set(map(str, values.slice(0, 1000).to_pylist()))) > len(counts):
            return None
        values = pa.chunked_array([pa.array(map(str, values.to_pylist()), pa.string())])
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)
    if not any(test(values.type) for test in kinds) or len(values.unique()) != len(counts):
        return None
    logarithm = (
        math.log(table.data.num_columns)
        + math.lgamma(len(counts) + 1)
        + sum(math.lgamma(n + 1) for n in counts)
        - math.lgamma(len(labels) + 1)
    )
    pairs = pa.table({"value": values, "label": labels}).group_by(["value", "label"]).aggregate([]).num_rows
    return f"has one value for each class of {label!r}" if pairs == len(counts) and logarithm < CHANCE else None


def _numbers_the_rows(table: FeatureTable, name: str) -> bool:
    """Whether the integers are distinct, and at least every fourth of their range: of `ROWS` rows no feature has that
    by chance."""
    values = values_of(table, name)
    if len(values) < ROWS or values.null_count:
        return False
    numbers = values.to_numpy()
    return int(numbers.max()) - int(numbers.min()) < 4 * len(numbers) and len(np.unique(numbers)) == len(numbers)


def _most(table: FeatureTable, name: str, test: Callable[[str], object]) -> bool:
    """Whether most of the first texts of a column pass a test."""
    texts = [text for text in values_of(table, name).slice(0, 1000).to_pylist() if text]
    return 2 * sum(bool(test(text)) for text in texts) > len(texts)


def _is_class(table: FeatureTable, name: str) -> bool:
    feature: Any = table.features.get(name)
    return isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
