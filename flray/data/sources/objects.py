"""Data sets of other libraries as the section `data`: torch's and Hugging Face's objects, partitions of flwr-datasets.

Their samples are read once, in the script's process, and reach the worker processes through the data cache.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.cache import Array, disk_errors, file_digest, sync
from flray.data.sources.arrays import PART, Part, store, to_numpy
from flray.data.sources.readers import TEST_SPLITS
from flray.files import cache_root, remove


def from_torch(train: Any, test: Any = None, *, classes: Sequence[str] | None = None) -> dict[str, str]:
    """The section `data` of torch data sets: `flray.run(config, data=from_torch(train, test))`.

    `train` and `test` give (image, label), (features, label) or (x, label, client) by number, or as an
    `IterableDataset`: a tensor [C, H, W] of uint8 or floats, [d], or a Pillow image; an integer. Each sample is read
    once: leave random transforms out, `data.augment` has flray's. The classes' names are those of `train.classes`.
    Raises `DataError`.
    """
    named = getattr(train, "classes", None)
    if classes is None and isinstance(named, list | tuple) and all(isinstance(name, str) for name in named):
        classes = named
    sets = {"train": train} | ({} if test is None else {"test": test})
    parts = {name: _torch_parts(data, f"from_torch: {name}") for name, data in sets.items()}
    return store(parts, "first", classes, "from_torch")


def _torch_parts(data: Any, what: str) -> Iterator[Part]:
    from torch.utils.data import IterableDataset

    indexed = hasattr(data, "__len__") and not isinstance(data, IterableDataset)
    samples = (data[i] for i in range(len(data))) if indexed else iter(data)
    kept: list[tuple[Any, ...]] = []
    for number, sample in enumerate(samples):
        if not isinstance(sample, tuple | list) or len(sample) not in (2, 3):
            raise DataError(
                f"{what} sample {number} is a {type(sample).__name__}; give (x, label) or (x, label, client)"
            )
        kept.append(tuple(_array(value) for value in sample))
        if len(kept) == PART:
            yield _stacked(kept, what, number)
            kept = []
    if kept:
        yield _stacked(kept, what, number)


def _stacked(samples: list[tuple[Any, ...]], what: str, last: int) -> Part:
    first = samples[0]
    for place, sample in enumerate(samples):
        number = last - len(samples) + 1 + place
        if len(sample) != len(first) or sample[0].shape != first[0].shape:
            raise DataError(
                f"{what} sample {number} has shape {list(sample[0].shape)} and an earlier one {list(first[0].shape)}; "
                "make them equal"
            )
        for value in sample[1:]:
            if value.size != 1 or value.dtype.kind not in "biu":
                raise DataError(f"{what} sample {number}: {shown(value.tolist())} is not an integer label")
    columns = [np.stack(column) for column in zip(*samples, strict=True)]
    return Part(columns[0], *(column.reshape(-1) for column in columns[1:]))


def _array(value: Any) -> Array:
    array = to_numpy(value)
    return array.transpose(2, 0, 1) if hasattr(value, "getbands") and array.ndim == 3 else array  # a Pillow image


def from_hf(
    train: Any,
    test: Any = None,
    *,
    input: str | None = None,
    label: str | None = None,
    group: str | None = None,
) -> dict[str, str]:
    """The section `data` of Hugging Face data: `flray.run(config, data=from_hf(train, test))`.

    `train`: a `Dataset`, an `IterableDataset` (a stream), a `DatasetDict` (with its test split, else validation), or a
    name of the hub. A column of the feature `Array3D` (named by `input` if there are several) is images [C, H, W] of
    floats or uint8. Other data are written as Parquet files into the cache and read as `hf:FOLDER`; all keys of `data`
    for tables apply (`label`, `text`, `tokenizer` ...). Raises `DataError`.
    """
    chosen = {key: value for key, value in (("input", input), ("label", label), ("group", group)) if value is not None}
    if isinstance(train, str):
        return {"source": f"hf:{train}", **chosen}
    if isinstance(train, dict):
        splits = dict(train)
        if "train" not in splits:
            names = ", ".join(map(str, splits)) or "(none)"
            raise DataError(f"from_hf: the splits {names} have no train; give from_hf(train, test)")
        train = splits["train"]
        test = test if test is not None else next((splits[name] for name in TEST_SPLITS if name in splits), None)
    sets = {"train": train} | ({} if test is None else {"test": test})
    for name, data in sets.items():
        if not hasattr(data, "to_parquet") or getattr(data, "features", None) is None:
            raise DataError(
                f"from_hf: {name} is a {type(data).__name__} without described columns; give a Dataset, or an "
                "IterableDataset with features"
            )
    arrays = [n for n, kind in train.features.items() if getattr(kind, "_type", "") == "Array3D"]
    if input in arrays or (input is None and len(arrays) == 1):
        return _of_images(sets, input or arrays[0], label, group)
    if input is None and arrays:
        raise DataError(f"from_hf: {', '.join(arrays)} are arrays; name one of them with input")
    return {"source": f"hf:{_as_parquet(sets)}", **chosen}


def _of_images(sets: dict[str, Any], input: str, label: str | None, group: str | None) -> dict[str, str]:
    features = sets["train"].features
    label = label or next((n for n, kind in features.items() if getattr(kind, "_type", "") == "ClassLabel"), "label")
    for split, data in sets.items():
        for name in (input, label, None if split == "test" else group):
            if name is not None and name not in data.features:
                near, columns = nearest(name, data.features), ", ".join(data.features)
                raise DataError(f"from_hf: {split} has no column {name!r}{near}; columns: {columns}")

    def parts(data: Any) -> Iterator[Part]:
        for batch in data.with_format("numpy").iter(PART):
            client = None if group is None or group not in batch else np.asarray(batch[group])
            yield Part(np.asarray(batch[input]), np.asarray(batch[label]), client)

    names = getattr(features[label], "names", None)
    return store({name: parts(data) for name, data in sets.items()}, "first", names, "from_hf")


def _as_parquet(sets: dict[str, Any]) -> Path:
    """The folder of the cache with the splits as Parquet files, named by their contents.

    A folder of that name whose files have other contents is replaced. Of two processes that write the
    same data the second one takes the folder of the first.
    """
    home = cache_root() / "given"
    scratch = home / f".tmp-{uuid.uuid4().hex}"
    names = [f"{name}.parquet" for name in sets]
    with disk_errors(home):
        scratch.mkdir(parents=True)
        try:
            for name, data in zip(names, sets.values(), strict=True):
                data.to_parquet(str(scratch / name))
                with (scratch / name).open("rb") as file:
                    sync(file)
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
        finally:
            remove(scratch)


def _contents(folder: Path, names: Sequence[str]) -> str | None:
    """The hash of the folder's files; None if one is missing."""
    try:
        return file_digest([folder / name for name in names])
    except FileNotFoundError:
        return None


def from_flwr(data: Any, train: str = "train", test: str | None = "test", **columns: str) -> dict[str, str]:
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
        clients.append(part.add_column("client", [number] * len(part)))
    tested = data.load_split(test) if partitioners and test is not None else None
    if tested is not None:  # tables have the same columns in both splits
        tested = tested.add_column("client", [-1] * len(tested))
    return from_hf(concatenate_datasets(clients), tested, group="client", **columns)
