"""Data sets of other libraries as the section `data`: torch's and Hugging Face's objects, partitions of flwr-datasets.

Their samples are read once, in the script's process, and reach the worker processes through the data cache.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.cache import Array, file_digest, storing
from flray.data.sources.arrays import PART, Layout, Named, Part, scratch_beside, store, to_numpy
from flray.data.sources.pictures import EIGHT_BITS, KINDS, Encoded, as_kind, kinds, loaded, pixels
from flray.data.sources.split_names import choose_splits
from flray.data.splits import in_line
from flray.files import cache_root, remove, sync


def from_torch(
    train: Any, test: Any = None, *, classes: Sequence[str] | None = None, channels: Layout | None = None
) -> dict[str, str]:
    """The section `data` of torch data sets: `flray.run(config, data=from_torch(train, test))`.

    `train` and `test` give (image, label), (features, label) or (x, label, client) by number, or as an
    `IterableDataset`: an array [C, H, W] (`channels="last"`: [H, W, C]) of uint8 or floats, [H, W], [d], or a Pillow
    image of one mode; an integer, or a text, which is the name of the class. A sample is stored as it is: leave random
    transforms out, `data.augment` has flray's. Names of classes are those of `class_to_idx` or `classes`, also inside
    of `Subset` and `ConcatDataset`, or of a class of yours that is one of them and changes no label; labels are
    compared by them. `classes`: other names for them, in their order; of texts the order. Raises `DataError`.
    """
    sets = {"train": train} | ({} if test is None else {"test": test})
    named = {name: named_classes(data, f"from_torch: {name}") for name, data in sets.items()}
    check_wrapped(sets, named)
    for name, data in sets.items():
        _check_loader(data, f"from_torch: {name}")
    parts = {name: _torch_parts(data, f"from_torch: {name}") for name, data in sets.items()}
    return store(parts, channels, classes, "from_torch", named)


def _check_loader(data: Any, what: str) -> None:
    """Raises `DataError` for torchvision's folder of pictures whose levels its own loader, `convert("RGB")`, clips."""
    if "torchvision" not in sys.modules:
        return
    from torchvision.datasets import DatasetFolder
    from torchvision.datasets.folder import default_loader

    while hasattr(data, "indices") and hasattr(data, "dataset"):  # a Subset
        data = data.dataset
    if not isinstance(data, DatasetFolder) or data.loader is not default_loader:
        return
    files = [path for path, _ in data.samples]
    examples, _ = kinds([Encoded(files.__getitem__, len(files), lambda i: f"{what} file {files[i]}")])
    for kind, name in examples.items():
        if kind not in EIGHT_BITS:
            raise DataError(
                f"{name} is a {kind} grey picture, which torchvision's loader clips to 8 bits; give "
                "ImageFolder(..., loader=PIL.Image.open), or the folder: data='hf:FOLDER'"
            )


def _torch_parts(data: Any, what: str) -> Iterator[Part]:
    kept: list[tuple[Any, ...]] = []
    number, pictures = -1, False
    for number, sample in enumerate(_samples(data, what)):
        if not isinstance(sample, tuple | list) or len(sample) not in (2, 3):
            raise DataError(
                f"{what} sample {number} is a {type(sample).__name__}; give (x, label) or (x, label, client)"
            )
        name = f"{what} sample {number}"
        if number and pictures != hasattr(sample[0], "getbands"):
            raise DataError(f"{name} is a {type(sample[0]).__name__}, unlike those before it; give one type")
        pictures = hasattr(sample[0], "getbands")
        x = _picture(sample[0], name) if pictures else to_numpy(sample[0], name)
        # copies, because a data set may fill the same memory for each sample
        kept.append((x.copy(), *(to_numpy(value, name).copy() for value in sample[1:])))
        if len(kept) == PART:
            yield _stacked(kept, what, number, "last" if pictures else None)
            kept = []
    if kept:
        yield _stacked(kept, what, number, "last" if pictures else None)


def _samples(data: Any, what: str) -> Iterator[Any]:
    """The samples in order. An error of the data set's own is a `DataError` that names the sample."""
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(data, DataLoader):
        raise DataError(f"{what} is a DataLoader, which gives batches; give its data set: loader.dataset")
    indexed = hasattr(data, "__len__") and not isinstance(data, IterableDataset)
    samples = (data[i] for i in range(len(data))) if indexed else iter(data)
    number = 0
    while True:
        try:
            sample = next(samples)
        except StopIteration:
            return
        except Exception as error:  # of the user's data set: a file that is no picture, a bug
            why = " ".join(str(error)[:200].split())
            raise DataError(f"{what} sample {number} cannot be read ({type(error).__name__}: {why})") from error
        yield sample
        number += 1


def _picture(image: Any, what: str) -> Array:
    """A Pillow picture as [H, W, C], in the colours and levels that a file has (`pictures.py`)."""
    try:
        image = loaded(image, upright=False)
        return pixels(as_kind(image, KINDS[image.mode]))
    except DataError as error:
        raise DataError(f"{what} {error}") from error
    except OSError as error:  # opened, and not loaded until now
        raise DataError(f"{what} is not a readable image ({error}); replace it") from error


def _stacked(samples: list[tuple[Any, ...]], what: str, last: int, layout: Layout | None) -> Part:
    first = samples[0]
    for place, sample in enumerate(samples):
        number = last - len(samples) + 1 + place
        if len(sample) != len(first) or sample[0].shape != first[0].shape or sample[0].dtype != first[0].dtype:
            raise DataError(
                f"{what} sample {number} is {sample[0].dtype} {list(sample[0].shape)} and an earlier one "
                f"{first[0].dtype} {list(first[0].shape)}; make them equal (pictures: convert all to one mode)"
            )
        for name, value, like in zip(("label", "client"), sample[1:], first[1:], strict=False):
            text = name == "label" and value.dtype.kind == "U"
            if value.size != 1 or not (text or value.dtype.kind in "biu"):
                raise DataError(f"{what} sample {number}: the {name} {shown(value.tolist())} is not an integer")
            if text != (like.dtype.kind == "U"):
                raise DataError(f"{what} sample {number} has the label {shown(value.item())}, unlike those before it")
    x, *numbers = (np.stack(column) for column in zip(*samples, strict=True))
    y, *clients = (column.reshape(-1) for column in numbers)
    return Part(x, y, clients[0] if clients else None, layout)


def named_classes(data: Any, what: str) -> Named:
    """The names of a torch data set's classes; of a subset or a concatenation those of the data sets inside."""
    from torch.utils.data import ChainDataset, ConcatDataset, Subset

    for kind, method in ((Subset, "__getitem__"), (ConcatDataset, "__getitem__"), (ChainDataset, "__iter__")):
        if isinstance(data, kind) and getattr(type(data), method) is not getattr(kind, method):
            own = _own_classes(data)  # a class of the user's, which may give other labels
            inside = Named((own,)) if own or kind is ChainDataset else _names_inside(data, what)
            return inside if any(inside.names) and (own or _same_labels(data, kind, what)) else Named((own,))
    return _names_inside(data, what)


def _same_labels(data: Any, kind: Any, what: str) -> bool:
    """Whether a user's subclass of `kind` gives the labels of the data sets inside, which is so where it changes x."""

    def label(sample: Any) -> Array:
        return to_numpy(sample[1], what).copy()  # a data set may fill the same memory for each sample

    try:
        return len(data) == kind.__len__(data) and all(
            np.array_equal(label(data[i]), label(kind.__getitem__(data, i))) for i in range(len(data))
        )
    except Exception:  # of the user's data set, which the reading of its samples tells
        return False


def _names_inside(data: Any, what: str) -> Named:
    """The names of the data sets inside of one of torch's own, else those of the data set itself."""
    from torch.utils.data import ChainDataset, ConcatDataset, Subset

    if isinstance(data, Subset):
        inner = named_classes(data.dataset, what)
        return inner if inner.of is None else inner._replace(of=inner.of[np.asarray(data.indices, np.int64)])
    if isinstance(data, ConcatDataset | ChainDataset):
        parts: list[Any] = list(data.datasets)
        inside = [named_classes(part, what) for part in parts]
        if all(one.of is None and one.names == inside[0].names for one in inside):
            return inside[0]
        if isinstance(data, ChainDataset):
            raise DataError(
                f"{what} is a chain of data sets with other classes or in another order; give them one order, or "
                "map-style data sets"
            )
        firsts = np.cumsum([0, *(len(one.names) for one in inside)])
        of = [
            first + (np.zeros(len(part), np.int64) if one.of is None else one.of)
            for first, one, part in zip(firsts[:-1], inside, parts, strict=True)
        ]
        return Named(tuple(names for one in inside for names in one.names), np.concatenate(of))
    return Named((_own_classes(data),))


def _own_classes(data: Any) -> dict[int, str] | None:
    """The names by id that a data set's attributes give; None: it has none, or changes its labels."""
    if getattr(data, "target_transform", None) is not None:
        return None
    number, classes = getattr(data, "class_to_idx", None), getattr(data, "classes", None)
    names: dict[int, str] = {}
    if isinstance(number, Mapping) and number and all(isinstance(name, str) for name in number):
        for name, id_ in number.items():  # ImageNet has several words for a class
            names[int(id_)] = f"{names[int(id_)]}, {name}" if int(id_) in names else name
    elif isinstance(classes, list | tuple | np.ndarray) and all(isinstance(name, str) for name in classes):
        names = dict(enumerate(map(str, classes)))
    return names or None


def check_wrapped(sets: Mapping[str, Any], named: Mapping[str, Named]) -> None:
    """Raises `DataError` if a data set without names wraps one whose classes differ from those of the others, because
    its labels may be those of either."""
    first: dict[int, str] | None = None
    wrapped = False
    for split, data in sets.items():
        bare = None in named[split].names
        inside = _wrapped_classes(data) if bare else []
        wrapped = wrapped or bool(inside)
        for names in [*(own for own in named[split].names if own is not None), *inside]:
            first = first or dict(names)
            if wrapped and names != first:
                raise DataError(
                    f"from_torch: {split} wraps a data set whose classes are {in_line(list(names.values()))}, and "
                    f"others are {in_line(list(first.values()))}, so that its labels are not clear; give the wrapper "
                    "the attribute `classes`, the names in the order of its labels"
                )


def _wrapped_classes(data: Any, depth: int = 0) -> list[dict[int, str]]:
    """The names of the data sets in the attributes of a data set that has no names of its own."""
    from torch.utils.data import Dataset

    found: list[dict[int, str]] = []
    for value in vars(data).values() if hasattr(data, "__dict__") and depth < 5 else ():
        for inner in value if isinstance(value, list | tuple) and len(value) < 100 else [value]:
            if isinstance(inner, Dataset):
                names = _own_classes(inner)
                found += _wrapped_classes(inner, depth + 1) if names is None else [names]
    return found


def from_hf(
    train: Any,
    test: Any = None,
    *,
    input: str | Sequence[str] | None = None,
    label: str | None = None,
    group: str | None = None,
    channels: Layout | None = None,
) -> dict[str, Any]:
    """The section `data` of Hugging Face data: `flray.run(config, data=from_hf(train, test))`.

    `train`: a `Dataset`, an `IterableDataset` (a stream), a `DatasetDict` (with its test split, else validation), or a
    name of the hub. A column of the feature `Array3D` (named by `input` if there are several) is images [C, H, W]
    (`channels="last"`: [H, W, C]) of floats or uint8; the label is chosen as in a table. Other data are written as
    Parquet files into the cache, pictures with the contents of their files, and read as `hf:FOLDER`; all keys of `data`
    for tables apply (`label`, `text`, `tokenizer` ...). Raises `DataError`, also for a transform that runs when a row
    is read.
    """
    chosen = {key: value for key, value in (("input", input), ("label", label), ("group", group)) if value is not None}
    if isinstance(train, str):
        return {"source": f"hf:{train}", **chosen}
    if isinstance(train, dict):
        splits = {str(name): data for name, data in train.items()}
        if test is not None:
            splits["test"] = test
        named = None if test is None else "test"
        found = choose_splits(splits, None, named, "from_hf: the dictionary", "{0}=splits[{1!r}]")
        if found.train not in splits:
            names = ", ".join(splits) or "(none)"
            raise DataError(f"from_hf: the splits {names} have no train; give from_hf(train, test)")
        train, test = splits[found.train], None if found.test is None else splits[found.test]
    sets = {"train": train} | ({} if test is None else {"test": test})
    sets = {name: _as_stored(data, f"from_hf: {name}") for name, data in sets.items()}
    train = sets["train"]
    arrays = [n for n, kind in train.features.items() if getattr(kind, "_type", "") == "Array3D"]
    if (isinstance(input, str) and input in arrays) or (input is None and len(arrays) == 1):
        return _of_images(sets, arrays[0] if input is None else str(input), label, group, channels)
    if input is None and arrays:
        raise DataError(f"from_hf: {', '.join(arrays)} are arrays; name one of them with input")
    if channels is not None:
        raise DataError("from_hf: channels says the layout of a column of arrays (Array3D), which train does not have")
    return {"source": f"hf:{_as_parquet(sets)}", **chosen}


def _as_stored(data: Any, what: str) -> Any:
    """The stored rows and columns of a Hugging Face data set, or of a torch `Subset` of one. Raises `DataError` for
    other objects, and for a transform that runs when a row is read."""
    from torch.utils.data import Subset

    if isinstance(data, Subset):
        if type(data).__getitem__ is not Subset.__getitem__:
            raise DataError(f"{what} is a {type(data).__name__}, whose samples are its own; give them with from_torch")
        stored = _as_stored(data.dataset, what)
        if not hasattr(stored, "select"):
            raise DataError(f"{what} is a Subset of a {type(stored).__name__}, which has no row numbers; use take")
        return stored.select(list(data.indices))
    if type(data).__module__.partition(".")[0] == "pandas":
        raise DataError(f"{what} is a pandas.{type(data).__name__}; give datasets.Dataset.from_pandas(frame)")
    if not hasattr(data, "to_parquet") or getattr(data, "features", None) is None:
        raise DataError(
            f"{what} is a {type(data).__name__} without described columns; give a Dataset, or an IterableDataset with "
            "features"
        )
    form = getattr(data, "format", None) or {}
    if form.get("type") == "custom":
        raise DataError(
            f"{what} has a transform (set_transform), which would be left out; run it once with map, or take it off "
            "with reset_format and set data.resize, data.augment"
        )
    whole = form.get("output_all_columns")
    columns = list(data.features) if whole else form.get("columns") or list(data.features)
    return data if len(columns) == len(data.features) else data.select_columns(columns)


def _of_images(
    sets: dict[str, Any], input: str, label: str | None, group: str | None, channels: Layout | None
) -> dict[str, str]:
    from flray.data.sources.choice import labels_by_name  # imports pyarrow

    features = sets["train"].features
    if label is None:
        others = [name for name in features if name not in (input, group)]
        described = [name for name in others if getattr(features[name], "_type", "") == "ClassLabel"]
        fits = labels_by_name(others) or described or ["label"]
        if len(fits) > 1:
            raise DataError(f"from_hf: the label column is not clear; name one of {', '.join(fits)} with label")
        label = fits[0]
    for split, data in sets.items():
        for name in (input, label, None if split == "test" else group):
            if name is not None and name not in data.features:
                near, columns = nearest(name, data.features), ", ".join(data.features)
                raise DataError(f"from_hf: {split} has no column {name!r}{near}; columns: {columns}")

    def parts(data: Any) -> Iterator[Part]:
        for batch in data.with_format("numpy").iter(PART):
            client = None if group is None or group not in batch else np.asarray(batch[group])
            x = np.asarray(batch[input]).astype(data.features[input].dtype, copy=False)  # `datasets` widens integers
            yield Part(x, np.asarray(batch[label]), client)

    named = {}
    for split, data in sets.items():
        names = getattr(data.features[label], "names", None)
        if names is None and "string" in str(getattr(data.features[label], "dtype", "")):
            raise DataError(
                f"from_hf: label column {label!r} of {split} holds text; make classes of it: "
                f"data.class_encode_column({label!r})"
            )
        named[split] = Named((None if names is None else dict(enumerate(names)),))
    return store({name: parts(data) for name, data in sets.items()}, channels, None, "from_hf", named)


def _as_parquet(sets: dict[str, Any]) -> Path:
    """The folder of the cache with the splits as Parquet files, named by their contents.

    A folder of that name whose files have other contents is replaced. Of two processes that write the
    same data the second one takes the folder of the first.
    """
    home = cache_root() / "given"
    names = [f"{name}.parquet" for name in sets]
    with scratch_beside(home / "splits") as scratch, storing(home):
        for name, data in zip(names, sets.values(), strict=True):
            _write_parquet(data, scratch / name, f"from_hf: {Path(name).stem}")
            sync(scratch / name)
        key = file_digest([scratch / name for name in names])
        folder = home / key
        if _contents(folder, names) != key:
            remove(folder)
            try:
                scratch.rename(folder)
            except OSError:
                if _contents(folder, names) != key:
                    raise
    return folder


def _write_parquet(data: Any, path: Path, what: str) -> None:
    """A data set as a Parquet file that holds the contents of its files: `to_parquet` would keep their paths."""
    if not any(getattr(kind, "_type", "") == "Image" for kind in data.features.values()):
        data.to_parquet(str(path))
        return
    import pyarrow.parquet as pq
    from datasets.table import embed_table_storage, table_cast

    schema = data.features.arrow_schema
    with pq.ParquetWriter(path, schema) as writer:
        for batch in data.with_format("arrow").iter(PART):
            try:
                embedded = embed_table_storage(table_cast(batch, schema))
            except FileNotFoundError as error:
                raise DataError(f"{what}: the file {shown(error.filename)} of a picture is missing") from error
            writer.write_table(embedded)


def _contents(folder: Path, names: Sequence[str]) -> str | None:
    """The hash of the folder's files; None if one is missing."""
    try:
        return file_digest([folder / name for name in names])
    except FileNotFoundError:
        return None


def from_flwr(data: Any, train: str = "train", test: str | None = "test", **columns: Any) -> dict[str, Any]:
    """The section `data` of a `FederatedDataset` of flwr-datasets, whose partitions are the clients of the partition
    `natural`: `flray.run(config, data=from_flwr(data), partition="natural")`.

    `train` names the partitioned split, `test` the one that tests the global model (None: drawn from train). A single
    partitioner, with its `dataset` set, is taken as well. `columns`: `input` and `label`, as of :func:`from_hf`.
    Raises `DataError`.
    """
    from datasets import concatenate_datasets

    partitioners = getattr(data, "partitioners", None)
    if isinstance(partitioners, dict) and train not in partitioners:
        raise DataError(f"from_flwr: the split {train!r} has no partitioner{nearest(train, partitioners)}")
    if partitioners is None and not (hasattr(data, "load_partition") and hasattr(data, "num_partitions")):
        raise DataError(f"from_flwr: {type(data).__name__} is not a FederatedDataset and not a partitioner")
    load = (lambda number: data.load_partition(number, train)) if partitioners else data.load_partition
    count = (partitioners[train] if partitioners else data).num_partitions
    clients = []
    for number in range(count):
        part = load(number)
        if "client" in part.column_names:
            raise DataError("from_flwr: the data have a column client of their own; rename it with rename_column")
        if not len(part):
            raise DataError(
                f"from_flwr: partition {number} of {count} has no samples, and the clients after it would get other "
                "numbers; give each one some, for example with the partitioner's min_partition_size"
            )
        clients.append(part.add_column("client", [number] * len(part)))
    tested = data.load_split(test) if partitioners and test is not None else None
    if tested is not None:  # tables have the same columns in both splits
        tested = tested.add_column("client", [-1] * len(tested))
    return from_hf(concatenate_datasets(clients), tested, group="client", **columns)
