"""Sources that are arrays: pairs (samples, labels) of a script, and folders of `.npy` files.

Samples are copied in parts into a temporary file, checked, and stored as an entry of the data cache that is named by
its contents. A script's arrays thereby reach the worker processes, and samples may be more than the memory. That holds
for the samples as they are: `data.resize`, `train_size`, and a test split drawn by `test_fraction` are made in memory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.cache import Array, check_unchanged, digest, file_digest, storing
from flray.data.checks import check_splits
from flray.data.class_names import Labels, Owned, owned
from flray.data.data_config import DataConfig
from flray.data.sources.float32 import lossy
from flray.data.sources.options import check_options, data_root, no_columns
from flray.data.splits import Split, Splits, cached, check_features, class_list, in_line
from flray.files import array_checksum, cache_root, partial, remove, remove_leftovers

GIVEN = "given:"  # a source of a script; then the key of its entry in the data cache
PART = 1024  # samples that are copied at once
UNNAMED = 1000  # classes that may have no name, or ten for a sample: a label of 10^9 is a mistake
FILES = ("x", "y", "client")  # of the samples, the labels and the clients of a split
Pair = tuple[Any, ...]  # (samples, labels) or (samples, labels, clients)
Layout = Literal["first", "last"]
FEW = (1, 2, 3, 4)  # channels of grey and colour, each with or without alpha; more are scans and satellite images
SAY = "say channels='first' or channels='last' (of a folder: data.options.channels)"


def from_arrays(
    train: Pair,
    test: Pair | None = None,
    *,
    classes: Sequence[str] | None = None,
    channels: Layout | None = None,
) -> dict[str, str]:
    """The section `data` of arrays: `flray.run(config, data=from_arrays((x, y), (x_test, y_test)))`.

    `train` and `test` are (x, y) or (x, y, client): NumPy arrays (memory-mapped ones are not read into memory) or torch
    tensors. x: images [n, C, H, W] (`channels="last"`: [n, H, W, C]; grey: [n, H, W]), uint8 of 0..255, or floats and
    integers of 16 bits on any scale; or features [n, d]. `channels="first"` says a layout that the shape leaves open,
    as of [n, 3, 28, 3]. A table of pandas or pyarrow is features, if all columns are numbers. y: integers [n]; ids with
    gaps, or from 1, are numbered from 0 in their order. y may be texts [n]: the classes are the sorted texts of both
    splits, or `classes` in their order, and both splits are numbered by name. client: integers [n] for the partition
    `natural`. `classes`: the names of the integers. Raises `DataError` for other shapes and types, for an open layout,
    and for NaN and infinities.
    """
    pairs = {"train": train} | ({} if test is None else {"test": test})
    parts = {}
    for name, pair in pairs.items():
        if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
            given = f"from_arrays: {name} is {shown(type(pair).__name__)}"
            frame = "; of a frame: x = frame.drop(columns=[LABEL]), y = frame[LABEL]" if hasattr(pair, "iloc") else ""
            raise DataError(f"{given}; give from_arrays((x, y)), or (x, y, client) in it{frame}")
        check_one_type(pair[1], f"from_arrays: {name}: labels")
        for one, two in itertools.combinations(zip(("x", "y", "client"), pair, strict=False), 2):
            check_same_rows(one, two, f"from_arrays: {name}")
        given_x = numbers_of_frame(pair[0], f"from_arrays: {name}")
        x, *numbers = (to_numpy(part, f"from_arrays: {name}") for part in (given_x, *pair[1:]))
        parts[name] = _in_parts(x, *numbers, what=f"from_arrays: {name}")
    if test is not None:
        check_same_columns(train[0], test[0], "from_arrays")
    return store(parts, channels, classes, "from_arrays")


class Named(NamedTuple):
    """The names by id of the classes of a split. `of` [n]: which of several `names` a sample has; None: the first.
    `closed`: as of `Labels`."""

    names: tuple[Mapping[int, str] | None, ...] = (None,)
    of: Array | None = None
    closed: bool = True


class Part(NamedTuple):
    """Samples x [k, ...], labels [k] (integers or texts), and clients [k] or None. `layout`: of the images, if what
    gave them knows it."""

    x: Array
    y: Array
    client: Array | None = None
    layout: Layout | None = None


def store(
    splits: dict[str, Iterator[Part]],
    channels: Layout | None,
    classes: Sequence[str] | None,
    what: str,
    named: Mapping[str, Named] | None = None,
) -> dict[str, str]:
    """The section `data` of samples that come in parts: `train`, and perhaps `test`. `named`: the names that each split
    gives its classes; `classes`: new names. Raises `DataError`."""
    with scratch_beside(cache_root() / "data" / "given") as folder:
        written = _written(folder, splits, channels, what)
        checked = _checked(written, classes, what, named or {})
        stored = [array_checksum(*part) for part in (checked.train, checked.test) if part is not None]
        mapped = checked.reading[1:-1]  # other labels of other origin may be the same numbers
        return {"source": GIVEN + cached(digest("given", *stored, checked.classes, *mapped), lambda: checked).key}


def given_key(source: str) -> str | None:
    """The key of the cache entry in `given:KEY`; None: it is not a key, and could be a path."""
    key = source.removeprefix(GIVEN)
    return key if re.fullmatch("[0-9a-f]{32}", key) else None


def given(config: DataConfig) -> Splits:
    """The samples of :func:`store`. Raises `DataError` if the data cache does not have them."""
    check_options(config, {})
    no_columns(config)
    key = given_key(config.source)
    if key is None:
        raise DataError(
            f"data.source {shown(config.source)}: after `given:` comes the key of 32 hexadecimal digits that "
            "flray.data.from_arrays returns"
        )

    def gone() -> Splits:
        raise DataError(
            f"data set {config.source!r} is not in the data cache {cache_root()}; run the script that made it again, "
            "or set FLRAY_CACHE to the folder that has it (on a cluster: one that all nodes share)"
        )

    return cached(key, gone)


def npy_files(config: DataConfig) -> dict[str, Path]:
    """The files `train_x.npy` ... of the folder `root/source` by name; empty: it has no `train_x.npy`.

    Raises `DataError` for a `.npy` file of another name, which would be left out.
    """
    root = data_root(config)
    if root is None or not (root / config.source / "train_x.npy").is_file():
        return {}
    names = [f"{split}_{part}" for split in ("train", "test") for part in FILES]
    files = {path.stem: path for path in sorted((root / config.source).glob("*.npy"))}
    for name, path in files.items():
        if name not in names:
            raise DataError(f"{path} is none of {', '.join(names)}{nearest(name, names)}; rename or remove it")
        if f"{name.partition('_')[0]}_x" not in files:
            raise DataError(f"{path} has no test_x.npy beside it; write the samples, or remove it")
    return files


def npy_folder(config: DataConfig, files: dict[str, Path]) -> Splits:
    """`root/source/{train,test}_{x,y,client}.npy` and, with the classes' names, `classes.txt`; option `channels`."""
    channels = check_options(config, {"channels": None})["channels"]
    no_columns(config)
    folder = files["train_x"].parent
    if channels not in ("first", "last", None):
        raise DataError(f"data.options.channels: {shown(channels)} is not first or last")
    lines = folder / "classes.txt"
    try:
        classes = lines.read_text(encoding="utf-8-sig").rstrip().split("\n") if lines.is_file() else None
    except UnicodeDecodeError as error:
        raise DataError(f"{lines} is not UTF-8 ({error.reason}); write a name a line in UTF-8") from error
    contents = file_digest(list(files.values()))
    key = digest("npy", contents, sorted(files), channels, classes)

    def build() -> Splits:
        check_unchanged(list(files.values()), contents)
        splits = {}
        for name in ("train", "test"):
            if f"{name}_x" not in files:
                continue
            if f"{name}_y" not in files:
                raise DataError(f"{folder} has {name}_x.npy and no {name}_y.npy; write the labels, int64 [n]")
            arrays = [_load(files[f"{name}_{part}"]) for part in FILES if f"{name}_{part}" in files]
            splits[name] = _in_parts(*arrays, what=str(files[f"{name}_x"]))
        with scratch_beside(cache_root() / "data" / "given") as scratch:
            written = _written(scratch, splits, channels, str(folder))
            return _checked(written, classes, str(folder), {})

    return cached(key, build)


def _load(path: Path) -> Array:
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        raise ValueError("it is an archive of arrays")
    except (OSError, ValueError, EOFError) as error:
        what = "numbers or texts, such as y.astype(str)" if "Python objects" in str(error) else "it again"
        raise DataError(f"{path} is not a readable .npy file ({error}); write {what} with numpy.save") from error


def _in_parts(x: Array, y: Array, client: Array | None = None, *, what: str) -> Iterator[Part]:
    if not x.ndim:
        raise DataError(f"{what}: samples have no axis; give images [n, C, H, W], or features [n, d]")
    for name, values in (("labels", y), ("clients", client)):
        if values is not None and values.shape != x.shape[:1]:
            remedy = ""
            if values.ndim == 2 and len(values) == len(x):
                one_hot = "; of one-hot rows, y.argmax(axis=1); several classes of one sample are not supported"
                remedy = ": y.reshape(-1)" if values.shape[1] == 1 else one_hot
            raise DataError(
                f"{what}: {name} have shape {list(values.shape)}; make it [{x.shape[0]}], one for a sample{remedy}"
            )
    for first in range(0, len(x), PART):
        rows = slice(first, first + PART)
        yield Part(x[rows], y[rows], None if client is None else client[rows])


def _written(
    folder: Path, splits: Mapping[str, Iterator[Part]], channels: Layout | None, what: str
) -> dict[str, Split]:
    """The samples of each split in a memory-mapped file of `folder`, all in the layout `channels`, or that of
    `train`."""
    written = {}
    for name, parts in splits.items():
        written[name], channels = _split_of(folder / name, parts, channels, f"{what}: {name}")
    return written


def _split_of(path: Path, parts: Iterable[Part], channels: Layout | None, what: str) -> tuple[Split, Layout | None]:
    """The samples of the parts in a file at `path`, and the layout of their images."""
    n, like = 0, None
    ids: list[Array] = []
    clients: list[Array] = []
    with storing(path):
        file = path.open("wb")
    with file:
        for part in parts:
            if part.x.ndim == 4:
                channels = layout_of(part.x.shape[1:], part.layout or channels, what)
            x = _converted(part.x, channels or "first", what)
            if like is None:
                like = x[:0]
            if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
                raise DataError(
                    f"{what} sample {n} is {x.dtype} {list(x.shape[1:])} and the first one {like.dtype} "
                    f"{list(like.shape[1:])} (height, width, channels of images); make them equal"
                )
            with storing(path):
                file.write(np.ascontiguousarray(x).data)
                file.flush()
            ids.append(label_values(part.y, f"{what}: label", n))
            if ids[-1].dtype.kind != ids[0].dtype.kind:
                raise DataError(f"{what} sample {n} has the label {shown(ids[-1][0].item())}, unlike those before it")
            if n and bool(clients) != (part.client is not None):
                raise DataError(f"{what} sample {n} has {'no' if clients else 'a'} client, unlike those before it")
            if part.client is not None:
                clients.append(integers(part.client, f"{what}: client", n))
            n += len(x)
    if like is None or not n:
        raise DataError(f"{what} has no samples; give at least one")
    x = np.memmap(path, like.dtype, "r", shape=(n, *like.shape[1:])).view(np.ndarray)
    return Split(x, np.concatenate(ids), np.concatenate(clients) if clients else None), channels


def _converted(x: Array, layout: Layout, what: str) -> Array:
    """Images [k, H, W, C] uint8 or float32, features float32 [k, d]. Raises `DataError`."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{what} samples are {x.dtype}, not numbers; give uint8 or floats")
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"{what} samples have shape {list(x.shape[1:])}; give images [C, H, W] or [H, W], or features [d]"
        )
    if x.ndim > 2:
        return images(x, layout, what)
    with np.errstate(over="ignore"):
        floats: Array = x.astype(np.float32)
    lost = lossy(x, floats) if np.isfinite(floats).all() else None
    if lost is not None:
        row, column, why = lost
        raise DataError(
            f"{what}: feature {column} holds {why}, such as {shown(x[row, column].item())}; subtract the least one "
            "first, or leave the feature out"
        )
    return floats


def _checked(splits: dict[str, Split], classes: Sequence[str] | None, what: str, named: Mapping[str, Named]) -> Splits:
    """The splits with the labels of all as numbers of one list of classes."""
    train, test = splits["train"], splits.get("test")
    if test is not None and (test.x.dtype, test.x.shape[1:]) != (train.x.dtype, train.x.shape[1:]):
        raise DataError(
            f"{what}: test samples are {test.x.dtype} {list(test.x.shape[1:])} and train samples {train.x.dtype} "
            f"{list(train.x.shape[1:])}; make them equal"
        )
    places, rows = [], []
    for name, split in splits.items():
        own = named.get(name, Named())
        if split.y.dtype.kind == "U":
            y, own = _by_name(split.y, own, f"{what}: {name}")
            splits = splits | {name: split._replace(y=y)}
        for number, names in enumerate(own.names):
            of = np.arange(len(split.y)) if own.of is None else np.flatnonzero(own.of == number)
            place = name if len(own.names) == 1 else f"{name}, data set {number}"
            places.append(Labels(place, splits[name].y[of], names, own.closed, functools.partial(_sample, name, of)))
            rows.append((name, of))
    ids, names_, lines = _classes(places, None if classes is None else tuple(map(str, classes)), what)
    merged_ids = {name: np.empty(len(split.y), np.int64) for name, split in splits.items()}
    for (name, of), numbers in zip(rows, ids, strict=True):
        merged_ids[name][of] = numbers
    train, *tests = [split._replace(y=merged_ids[name]) for name, split in splits.items()]
    reading = (f"label: {class_list(names_)}", *lines, shape_line(train))
    result = Splits(train, tests[0] if tests else None, names_, reading=reading)
    check_splits(result, what)
    return result


def _by_name(texts: Array, own: Named, what: str) -> tuple[Array, Named]:
    """Labels that are texts as ids of names: of the list of the data set's classes, if it has one, else of the sorted
    texts. Raises `DataError` for a text that the list does not have."""
    found, numbers = np.unique(texts, return_inverse=True)
    listed = {name: id_ for id_, name in (own.names[0] or {}).items()} if len(own.names) == 1 else {}
    if not listed:
        return numbers, Named((dict(enumerate(found.tolist())),), closed=False)
    if lacking := [text for text in found.tolist() if text not in listed]:
        raise DataError(f"{what}: the data set's classes do not have the label {shown(lacking[0])}; add it to classes")
    return np.array([listed[text] for text in found.tolist()])[numbers], own


def shape_line(split: Split) -> str:
    """The line of `Splits.reading` about samples that are arrays."""
    if split.x.ndim != 4:
        return f"features: {split.x.shape[1]} columns, {split.x.dtype}"
    height, width, channels = split.x.shape[1:]
    return f"images: {channels} channel{'s' if channels > 1 else ''}, {width}x{height}, {split.x.dtype} [H, W, C]"


def _sample(name: str, of: Array, row: int) -> str:
    return f"{name} sample {of[row]}"


def _classes(places: Sequence[Labels], given: tuple[str, ...] | None, what: str) -> Owned:
    """The labels as numbers of the classes that the splits name, else `given`, else of the ids that occur. Texts are
    numbered as `given`, if it is there."""
    named = [place for place in places if place.names is not None]
    twice = next((name for place, name in enumerate(given or ()) if name in (given or ())[:place]), None)
    if twice is not None:
        raise DataError(f"{what}: classes has {twice!r} twice; give each class a name of its own")
    blank = next((place for place, name in enumerate(given or ()) if not name.strip()), None)
    if blank is not None:
        raise DataError(f"{what}: the name of class {blank} is blank; give each class a name")
    if not named and given is not None:
        high = max(int(place.ids.max()) for place in places)
        if high == len(given) and min(int(place.ids.min()) for place in places) == 1:
            raise DataError(f"{what}: labels are 1 to {high} and there are {high} classes; number them from 0: y - 1")
        return Owned([place.ids for place in places], given, ())
    if named and given is not None and not any(place.closed for place in named):
        ids, classes, lines = owned([Labels("classes", places[0].ids[:0], dict(enumerate(given))), *places], what)
        return Owned(ids[1:], classes, lines)
    if not named:
        check_ids(np.concatenate([place.ids for place in places]), len(places[0].ids), what)
    ids, classes, lines = owned(places, what)
    if given is not None and given != classes:
        if set(given) == set(classes):
            raise DataError(
                f"{what}: classes are {in_line(given)}, and the data set numbers them {in_line(classes)}; leave "
                "classes out"
            )
        if len(given) != len(classes):
            raise DataError(f"{what}: classes has {len(given)} names, and the data set {len(classes)} classes")
        classes = given
    return Owned(ids, classes, lines)


def check_ids(ids: Array, samples: int, what: str) -> None:
    """Raises `DataError` for ids without names that are no classes: below 0, or far above the number of samples."""
    low, high = int(ids.min()), int(ids.max())
    if low < 0 and set(np.unique(ids).tolist()) != {-1, 1}:
        raise DataError(f"{what}: label {low} is not a class; number the classes from 0 (-1: remove such samples)")
    if high >= max(UNNAMED, 10 * samples):
        raise DataError(f"{what}: label {high} of {samples} samples; number the classes from 0 without gaps")


@contextlib.contextmanager
def scratch_beside(path: Path) -> Iterator[Path]:
    """A temporary folder beside a path of the data cache; removes those that killed processes left."""
    folder = partial(path)
    with storing(folder.parent):
        folder.mkdir(parents=True)
    remove_leftovers(folder.parent)
    try:
        yield folder
    finally:
        remove(folder)


# values that a script gives ----------------------------------------------------------------------
def label_values(values: Array, what: str, first: int) -> Array:
    """Labels [n]: int64 of integers, a string array of texts. `first` is the number of the first sample.

    Raises `DataError` for other types, for missing labels and for blank texts.
    """
    if values.dtype.kind in "OT":  # T: NumPy's texts of any length
        wrong = next((row for row, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            raise DataError(
                f"{what}s are objects, and that of sample {first + wrong} is {shown(values[wrong])}, not a text; give "
                "integers or texts, one for a sample"
            )
        values = values.astype(object).astype(str)
    if values.dtype.kind != "U":
        return integers(values, what, first)
    blank = np.flatnonzero(np.char.strip(values) == "")
    if len(blank):
        raise DataError(
            f"{what} is an empty text in sample {first + int(blank[0])} ({len(blank)} such samples); fill or remove "
            "them"
        )
    return values


def integers(values: Array, what: str, first: int) -> Array:
    """int64 of integers. Raises `DataError` for other types and numbers; `first` is the number of the first sample."""
    if values.dtype.kind not in "biu":
        remedy = ""
        # from 2^53 on floats may have merged ids
        if (
            values.dtype.kind == "f"
            and ((np.abs(values.astype(np.float64)) < 2**53) & (values == np.floor(values))).all()
        ):
            remedy = "; they are whole, so write y.astype('int64')"
        elif values.dtype.kind in "UO":
            remedy = "; number them: numpy.unique(ids, return_inverse=True)[1]"
        raise DataError(
            f"{what}s are {values.dtype}, not integers (sample {first}: {shown(values[:1].tolist()[0])}){remedy}"
        )
    if len(values) and values.max() > np.iinfo(np.int64).max:
        row = int(values.argmax())
        raise DataError(
            f"{what}s are {values.dtype}, and that of sample {first + row}, {values[row]}, is above 2^63 - 1; number "
            "them: numpy.unique(ids, return_inverse=True)[1]"
        )
    return values.astype(np.int64)


def check_one_type(values: Any, what: str) -> None:
    """Raises `DataError` for a list of texts beside other values, of which NumPy would make texts."""
    if not isinstance(values, list | tuple) or not any(isinstance(value, str) for value in values):
        return
    row, other = next(((row, value) for row, value in enumerate(values) if not isinstance(value, str)), (0, None))
    if not isinstance(values[row], str):
        raise DataError(f"{what} are texts, and that of sample {row} is {shown(other)}; give texts only, or integers")


def numbers_of_frame(values: Any, what: str) -> Any:
    """The numbers [n, d] of a table of pandas or pyarrow, whose columns are numbers or truth values; other
    values as they are.

    Raises `DataError`, which names the column, for columns of other types, for missing values, and for integers that
    32-bit floats do not have: beside floats NumPy makes 64-bit floats of them.
    """
    if hasattr(values, "to_pandas") and hasattr(values, "columns"):
        values = values.to_pandas()
    if not hasattr(values, "iloc") or values.ndim != 2:
        return values
    for place, (name, kind) in enumerate(zip(values.columns, values.dtypes, strict=True)):
        if kind.kind not in "biuf":
            raise DataError(
                f"{what}: column {shown(name)} is {kind}, not numbers; leave it out: x.drop(columns=[{name!r}]), or "
                "make numbers of it"
            )
        missing = np.flatnonzero(values.iloc[:, place].isna())
        if len(missing):
            raise DataError(
                f"{what}: column {shown(name)} has no value in row {missing[0]} ({len(missing)} such rows); fill or "
                "remove them"
            )
        column = values.iloc[:, [place]].to_numpy()
        lost = lossy(column, column.astype(np.float32)) if kind.kind in "iu" else None
        if lost is not None:
            raise DataError(
                f"{what}: column {shown(name)} holds {lost[2]}, such as {column[lost[0], 0]}; subtract the least one "
                "first, or leave the feature out"
            )
    array = values.to_numpy()
    return array if array.dtype.kind != "O" else values.astype("float64").to_numpy()  # truth values beside numbers


def check_same_rows(one: tuple[str, Any], two: tuple[str, Any], what: str) -> None:
    """Raises `DataError` for two objects of pandas, each after its name, whose rows have the same names in another
    order."""
    index, other = (getattr(each, "index", None) if hasattr(each, "iloc") else None for _, each in (one, two))
    if index is None or other is None or index.equals(other):
        return
    if len(index) != len(other) or set(index) != set(other):
        return
    for row, (name, its) in enumerate(zip(index, other, strict=True)):
        if name != its:
            raise DataError(
                f"{what}: row {row} of {one[0]} has the index {shown(name)} and that of {two[0]} {shown(its)}; give "
                f"both in one order, {two[0]}.loc[{one[0]}.index], or {two[0]}.to_numpy() if the places are right"
            )


def check_same_columns(train: Any, test: Any, what: str) -> None:
    """Raises `DataError` for two tables of pandas or pyarrow whose columns have other names, or another order.

    The names 0, 1, 2, ... are those of a frame without names: beside other ones they are places, as of an array.
    """
    frames = (each if hasattr(each, "iloc") or hasattr(each, "to_pandas") else None for each in (train, test))
    first, second = (list(getattr(each, "column_names", getattr(each, "columns", ()))) for each in frames)
    unnamed = any(names == list(range(len(names))) for names in (first, second))
    if not unnamed or set(first) == set(second):
        check_features(what, list(map(str, first)), "train", list(map(str, second)), "test")


# arrays of images as flray stores them: channels last, uint8 or float32 ---------------------------
def to_numpy(values: Any, what: str) -> Array:
    """An array of a torch tensor (bfloat16 as float32) or of anything that NumPy takes; memory-mapped ones stay so.

    Raises `DataError` for lists of pictures, for masked values and for objects that are no array.
    """
    if isinstance(values, list | tuple) and any(hasattr(value, "getbands") for value in values):
        raise DataError(f"{what} is a list of Pillow pictures; give flray.data.from_torch(list(zip(pictures, labels)))")
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
        array: Array = values if isinstance(values, np.ndarray) else np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # sparse tensors, lists of unequal lengths
        why = " ".join(str(error)[:200].split())
        raise DataError(
            f"{what} is a {type(values).__name__} that is no array ({why}); give numbers [n, ...]"
        ) from error
    if isinstance(array, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(array)
        if masked.any():
            row = int(np.argwhere(masked)[0][0]) if masked.ndim else 0
            raise DataError(
                f"{what} has {int(masked.sum())} masked values, the first in row {row}; fill or remove them"
            )
        array = np.asarray(array)
    return array


def images(x: Array, layout: Layout, what: str) -> Array:
    """Images [k, H, W, C], uint8 (truth values: 0 and 255) or float32, of [k, H, W], [k, C, H, W] or [k, H, W, C].

    Integers of up to 16 bits keep their levels. Raises `DataError` for wider integers.
    """
    if x.ndim == 3:
        x = x[..., None]
    elif layout == "first":
        x = x.transpose(0, 2, 3, 1)
    if x.dtype.kind == "b":
        return x.astype(np.uint8) * np.uint8(255)
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind in "iu" and x.dtype.itemsize > 2:
        raise DataError(f"{what} images are {x.dtype}; give uint8 with 0..255, (u)int16 or floats, whose levels stay")
    with np.errstate(over="ignore"):
        floats: Array = x.astype(np.float32)
    return floats


def layout_of(shape: tuple[int, ...], channels: Layout | None, what: str) -> Layout:
    """Where the channels of images of `shape` (without the samples) are: where `channels` says, else first.

    Raises `DataError` if nobody says it and the shape is not that of channels first.
    """
    if channels not in ("first", "last", None):
        raise DataError(f"{what}: channels is {shown(channels)}; {SAY}")
    if channels is not None or len(shape) != 3:
        return channels or "first"
    suits = _one_layout(*shape)
    if suits == "last":
        raise DataError(f"{what} images of shape {list(shape)} have their channels last; {SAY}")
    if suits is None:
        raise DataError(f"{what} images of shape {list(shape)}: it is open which axis has the channels; {SAY}")
    return suits


def _one_layout(first: int, middle: int, last: int) -> Layout | None:
    """The layout of one image of this shape; None: it has two.

    Few channels are on one side only; many are beside two equal sides.
    """
    if (first in FEW) != (last in FEW):
        return "first" if first in FEW else "last"
    if first in FEW or (first == middle) == (middle == last):
        return None
    return "first" if middle == last else "last"
