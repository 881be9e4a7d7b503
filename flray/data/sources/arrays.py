"""Sources that are arrays: pairs (samples, labels) of a script, and folders of `.npy` files.

Samples are copied in parts into a temporary file, checked, and stored as an entry of the data cache that is named by
its contents. A script's arrays thereby reach the worker processes, and samples may be more than the memory. That holds
for the samples as they are: `data.resize`, `train_size`, and a test split drawn by `test_fraction` are made in memory.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from flray.core.schema.errors import DataError, nearest, shown
from flray.data.cache import Array, digest, disk_errors, file_digest
from flray.data.checks import check_splits
from flray.data.data_config import DataConfig
from flray.data.sources.options import check_options, data_root, no_columns
from flray.data.splits import Split, Splits, cached
from flray.files import array_checksum, cache_root, remove

GIVEN = "given:"  # a source of a script; then the key of its entry in the data cache
PART = 1024  # samples that are copied at once
UNNAMED = 1000  # classes that may have no name, or ten for a sample: a label of 10^9 is a mistake
DAY_S = 86400.0
Layout = Literal["first", "last"]
Pair = tuple[Any, ...]  # (samples, labels) or (samples, labels, clients)


def from_arrays(
    train: Pair,
    test: Pair | None = None,
    *,
    classes: Sequence[str] | None = None,
    channels: Layout = "first",
) -> dict[str, str]:
    """The section `data` of arrays: `flray.run(config, data=from_arrays((x, y), (x_test, y_test)))`.

    `train` and `test` are (x, y) or (x, y, client): NumPy arrays (memory-mapped ones are not read into memory) or torch
    tensors. x: images [n, C, H, W] (`channels="last"`: [n, H, W, C]; grey: [n, H, W]), uint8 of 0..255 or floats on
    any scale; or features [n, d]. y: integers [n] from 0. client: integers [n] for the partition `natural`. `classes`:
    their names. Raises `DataError` for other shapes and types, and for NaN and infinities.
    """
    pairs = {"train": train} | ({} if test is None else {"test": test})
    parts = {}
    for name, pair in pairs.items():
        if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
            raise DataError(f"from_arrays: {name} is {shown(type(pair).__name__)}; give (x, y) or (x, y, client)")
        x, *numbers = (to_numpy(part) for part in pair)
        parts[name] = _in_parts(x, *numbers, what=f"from_arrays: {name}")
    return store(parts, channels, classes, "from_arrays")


class Part(NamedTuple):
    """Samples x [k, ...], labels [k], and clients [k] or None."""

    x: Array
    y: Array
    client: Array | None = None


def store(
    splits: dict[str, Iterator[Part]], channels: Layout, classes: Sequence[str] | None, what: str
) -> dict[str, str]:
    """The section `data` of samples that come in parts: `train`, and perhaps `test`. Raises `DataError`."""
    with disk_errors(cache_root() / "data"), _scratch() as folder:
        written = {n: _written(folder / n, parts, channels, f"{what}: {n}") for n, parts in splits.items()}
        return {"source": GIVEN + _entry(written["train"], written.get("test"), classes, what).key}


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
    names = [f"{split}_{part}" for split in ("train", "test") for part in Part._fields]
    files = {path.stem: path for path in sorted((root / config.source).glob("*.npy"))}
    for name, path in files.items():
        if name not in names:
            raise DataError(f"{path} is none of {', '.join(names)}{nearest(name, names)}; rename or remove it")
        if f"{name.partition('_')[0]}_x" not in files:
            raise DataError(f"{path} has no test_x.npy beside it; write the samples, or remove it")
    return files


def npy_folder(config: DataConfig, files: dict[str, Path]) -> Splits:
    """`root/source/{train,test}_{x,y,client}.npy` and, with the classes' names, `classes.txt`; option `channels`."""
    channels = check_options(config, {"channels": "first"})["channels"]
    no_columns(config)
    folder = files["train_x"].parent
    if channels not in ("first", "last"):
        raise DataError(f"data.options.channels: {shown(channels)} is not first or last")
    lines = folder / "classes.txt"
    try:
        classes = lines.read_text(encoding="utf-8").splitlines() if lines.is_file() else None
    except UnicodeDecodeError as error:
        raise DataError(f"{lines} is not UTF-8 ({error.reason}); write a name a line in UTF-8") from error
    key = digest("npy", file_digest(list(files.values())), sorted(files), channels, classes)

    def build() -> Splits:
        with _scratch() as scratch:
            written = {}
            for name in ("train", "test"):
                if f"{name}_x" not in files:
                    continue
                if f"{name}_y" not in files:
                    raise DataError(f"{folder} has {name}_x.npy and no {name}_y.npy; write the labels, int64 [n]")
                arrays = [_load(files[f"{name}_{part}"]) for part in Part._fields if f"{name}_{part}" in files]
                parts = _in_parts(*arrays, what=str(files[f"{name}_x"]))
                written[name] = _written(scratch / name, parts, channels, f"{folder}: {name}")
            return _checked(written["train"], written.get("test"), classes, str(folder))

    return cached(key, build)


def _load(path: Path) -> Array:
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        raise ValueError("it is an archive of arrays")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npy file ({error}); write it again with numpy.save") from error


def to_numpy(values: Any) -> Array:
    """An array of a torch tensor (bfloat16 as float32) or of anything that NumPy takes; memory-mapped ones stay so."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    return values if isinstance(values, np.ndarray) else np.asarray(values)


def _in_parts(x: Array, y: Array, client: Array | None = None, *, what: str) -> Iterator[Part]:
    if not x.ndim:
        raise DataError(f"{what}: samples have no axis; give images [n, C, H, W], or features [n, d]")
    for name, values in (("labels", y), ("clients", client)):
        if values is not None and values.shape != x.shape[:1]:
            raise DataError(f"{what}: {name} have shape {list(values.shape)}; make it [{x.shape[0]}], one for a sample")
    for first in range(0, len(x), PART):
        rows = slice(first, first + PART)
        yield Part(x[rows], y[rows], None if client is None else client[rows])


def _written(path: Path, parts: Iterable[Part], channels: Layout, what: str) -> Split:
    """The samples of the parts in a file at `path`, memory-mapped, as flray stores them."""
    n, like = 0, None
    labels: list[Array] = []
    clients: list[Array] = []
    with path.open("wb") as file:
        for part in parts:
            x = _converted(part.x, channels, what)
            if like is None:
                like = x[:0]
            if x.shape[1:] != like.shape[1:] or x.dtype != like.dtype:
                raise DataError(
                    f"{what} sample {n} is {x.dtype} {list(x.shape[1:])} and the first one {like.dtype} "
                    f"{list(like.shape[1:])} (height, width, channels of images); make them equal"
                )
            file.write(np.ascontiguousarray(x).data)
            labels.append(integers(part.y, f"{what}: label", n))
            if n and bool(clients) != (part.client is not None):
                raise DataError(f"{what} sample {n} has {'no' if clients else 'a'} client, unlike those before it")
            if part.client is not None:
                clients.append(integers(part.client, f"{what}: client", n))
            n += len(x)
    if like is None or not n:
        raise DataError(f"{what} has no samples; give at least one")
    x = np.memmap(path, like.dtype, "r", shape=(n, *like.shape[1:])).view(np.ndarray)
    return Split(x, np.concatenate(labels), np.concatenate(clients) if clients else None)


def _converted(x: Array, channels: Layout, what: str) -> Array:
    """Images [k, H, W, C] uint8 or float32, features float32 [k, d]. Raises `DataError`, also for NaN."""
    if x.dtype.kind not in "biuf":
        raise DataError(f"{what} samples are {x.dtype}, not numbers; give uint8 or floats")
    if x.ndim not in (2, 3, 4):
        raise DataError(
            f"{what} samples have shape {list(x.shape[1:])}; give images [C, H, W] or [H, W], or features [d]"
        )
    if x.ndim == 4 and channels == "first":
        if x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
            raise DataError(
                f"{what} images of shape {list(x.shape[1:])} have their channels last; say so with channels last, or "
                "give [C, H, W]"
            )
        x = x.transpose(0, 2, 3, 1)
    elif x.ndim == 3:
        x = x[..., None]
    if x.ndim == 4 and x.dtype.kind in "biu" and x.dtype != np.uint8:
        raise DataError(f"{what} images are {x.dtype}; give uint8 with 0..255, or floats")
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    with np.errstate(over="ignore"):
        floats: Array = x.astype(np.float32)
    return floats


def integers(values: Array, what: str, first: int) -> Array:
    """int64 of integers. Raises `DataError` for other types; `first` is the number of the first sample."""
    if values.dtype.kind not in "biu":
        raise DataError(f"{what}s are {values.dtype}, not integers (sample {first}: {shown(values[:1].tolist()[0])})")
    return values.astype(np.int64)


def _entry(train: Split, test: Split | None, classes: Sequence[str] | None, what: str) -> Splits:
    checked = _checked(train, test, classes, what)
    key = digest("given", *[array_checksum(*part) for part in (train, test) if part is not None], checked.classes)
    return cached(key, lambda: checked)


def _checked(train: Split, test: Split | None, classes: Sequence[str] | None, what: str) -> Splits:
    count = max(int(split.y.max()) for split in (train, test) if split is not None) + 1
    names = unnamed(count, len(train.y), what) if classes is None else tuple(map(str, classes))
    if test is not None and (test.x.dtype, test.x.shape[1:]) != (train.x.dtype, train.x.shape[1:]):
        raise DataError(
            f"{what}: test samples are {test.x.dtype} {list(test.x.shape[1:])} and train samples {train.x.dtype} "
            f"{list(train.x.shape[1:])}; make them equal"
        )
    splits = Splits(train, test, names)
    check_splits(splits, what)
    return splits


def unnamed(count: int, samples: int, what: str) -> tuple[str, ...]:
    """The names 0, 1, ... of `count` classes. Raises `DataError` for many more classes than samples."""
    if count > max(UNNAMED, 10 * samples):
        raise DataError(f"{what}: label {count - 1} of {samples} samples; number the classes from 0 without gaps")
    return tuple(map(str, range(count)))


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder of the data cache; removes those that killed processes left more than a day ago."""
    home = cache_root() / "data"
    folder = home / f".tmp-given-{uuid.uuid4().hex}"
    folder.mkdir(parents=True)
    for other in home.glob(".tmp-given-*"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > DAY_S:
                remove(other)
    try:
        yield folder
    finally:
        remove(folder)
