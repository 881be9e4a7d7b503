"""Decoding: Parquet and hub tables, image bytes, torchvision files. Runs once a data set; `cache` keeps the result."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from flray.core.errors import DataError, nearest
from flray.data.cache import Array
from flray.data.config import DataConfig
from flray.data.published import LABELS, plain_name
from flray.data.sources import Split, Splits, Vocabulary

TEST_SPLITS = ("test", "validation", "validation_matched")  # the official test split, else validation (MNLI: of the train genres)


class Table(NamedTuple):
    """A pyarrow table with the `datasets` feature description of its columns."""

    data: Any
    features: Mapping[str, Any]
    fingerprint: str


class Columns(NamedTuple):
    """Which columns are read, of which kind the inputs are, class names where the table has them, and bare labels' meaning."""

    label: str
    input: tuple[str, ...]
    kind: Literal["image", "text", "number"]
    group: str | None
    names: tuple[str, ...] | None
    values: Mapping[int, str] | None = None


def parquet_files(folder: Path, train: str = "train", test: str | None = None) -> dict[str, list[Path]]:
    """Files of the splits `train` and `test` (none: the official one): `train.parquet` or `train-00000-of-00003.parquet`."""
    splits: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.parquet")):
        match = re.fullmatch(r"(.+?)(?:-\d+-of-(\d+))?", path.stem)
        assert match is not None
        splits.setdefault(match[1], []).append(path)
        if match[2] and len(list(folder.glob(f"{match[1]}-*-of-{match[2]}.parquet"))) != int(match[2]):
            raise DataError(f"{folder}: {match[1]} has not all of its {int(match[2])} shards; copy the missing files")
    for option, name in (("train", train), ("test", test)):
        if name is not None and name not in splits:
            raise DataError(
                f"{folder} has no {name} split (it has {', '.join(sorted(splits))}); choose one with options: {{{option}: NAME}}"
            )
    # one test split, never pooled with train
    test = test or next((name for name in TEST_SPLITS if name in splits and name != train), None)
    return {"train": splits[train]} | ({} if test is None else {test: splits[test]})


def parquet_splits(config: DataConfig, folder: Path, files: Mapping[str, list[Path]], vocabulary: Vocabulary | None) -> Splits:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = {}
    for split, paths in files.items():
        try:
            data = pa.concat_tables([pq.read_table(path) for path in paths])
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{folder}/{split}: not a readable Parquet file ({error}); copy it again") from error
        notes = (data.schema.metadata or {}).get(b"huggingface", b"{}")
        tables[split] = Table(data, json.loads(notes).get("info", {}).get("features", {}), "")
    return table_splits(config, tables, str(folder), vocabulary)


def hub_tables(config: DataConfig, options: Mapping[str, Any]) -> dict[str, Table]:
    """Train and test tables of a hub id or a folder, through `datasets`."""
    import datasets

    name = config.source.removeprefix("hf:")
    try:
        found = datasets.load_dataset(name, options["config"], revision=options["revision"])
    except Exception as error:  # the hub client raises many kinds; the user needs one line
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"hf:{name} cannot be loaded ({text}); check the id, the network, or name a folder") from error
    if not isinstance(found, datasets.DatasetDict):
        raise DataError(f"hf:{name} is not a set of splits in memory; choose another")
    test = options["test"] or next((s for s in TEST_SPLITS if s in found and s != options["train"]), None)
    tables = {}
    for split, key in (("train", options["train"] or "train"), ("test", test)):
        if key is None:
            continue
        if key not in found:
            raise DataError(f"hf:{name} has no split {key!r}{nearest(str(key), map(str, found))}; set options.{split}")
        part = found[key]
        tables[split] = Table(part.with_format("arrow")[:], part.features.to_dict(), part._fingerprint)
    return tables


def hub_splits(config: DataConfig, tables: Mapping[str, Table], vocabulary: Vocabulary | None) -> Splits:
    return table_splits(config, tables, config.source, vocabulary)


def table_splits(config: DataConfig, tables: Mapping[str, Table], where: str, vocabulary: Vocabulary | None) -> Splits:
    """Arrays of the tables `train` and, where there is one, the other; text becomes ids of `vocabulary`, or of one trained on it."""
    columns = choose_columns(config, tables["train"], where, vocabulary is not None)
    notes: tuple[str, ...] = ()
    if columns.kind == "text":
        from flray.data.text import labelled, token_ids

        tables, notes = labelled(tables, columns, where)
        vocabulary, inputs = token_ids(config, [t.data.select(columns.input) for t in tables.values()], vocabulary, where)
    else:
        inputs = [_inputs(config, t, columns, where) for t in tables.values()]
    what = f"{where}: label column {columns.label!r}"
    labels, names = _codes([_column(t, columns.label) for t in tables.values()], columns.names, what)
    if columns.values is not None:
        names = tuple(columns.values[int(value)] for value in names)
    groups: list[Array | None] = [None] * len(inputs)
    if columns.group:
        found = [_column(t, columns.group) for t in tables.values()]
        groups = list(_codes(found, None, f"{where}: group column {columns.group!r}", any_values=True)[0])
    splits = [Split(x, y, g) for x, y, g in zip(inputs, labels, groups, strict=True)]
    return Splits(splits[0], splits[1] if len(splits) > 1 else None, names, vocabulary=vocabulary, notes=notes)


def choose_columns(config: DataConfig, table: Table, where: str, tokenised: bool) -> Columns:
    """Label, input and group column; a wrong or missing name is an error that lists the columns. `tokenised`: text is asked for."""
    import pyarrow as pa

    schema, features = table.data.schema, table.features
    columns = list(schema.names)
    for option in ("label", "input", "group"):
        name = getattr(config, option)
        if name is not None and name not in columns:
            raise DataError(f"{where}: no column {name!r} for data.{option}{nearest(name, columns)}; columns: {', '.join(columns)}")
    kinds = {c: schema.field(c).type for c in columns}
    images = [c for c in columns if pa.types.is_struct(kinds[c]) or pa.types.is_binary(kinds[c])]
    labels = (config.label, config.group, "label", "fine_label")
    text = [c for c in columns if (pa.types.is_string(kinds[c]) or pa.types.is_large_string(kinds[c])) and c not in labels]
    tokenised = tokenised or config.tokenizer is not None
    if not tokenised and (config.text or (text and not images and config.input is None) or config.input in text):
        raise DataError(
            f"{where}: text (columns {', '.join(text)}) needs a tokenizer; set data.tokenizer to `train`, or to the name or folder of a "
            "Hugging Face tokenizer (or name a numeric column with data.input)"
        )
    classes = [c for c in columns if isinstance(features.get(c), dict) and features[c].get("_type") == "ClassLabel"]
    label = config.label or next((c for c in ("label", "fine_label") if c in columns), None)
    bare, values = LABELS.get(plain_name(config.source), (None, None)) if tokenised else (None, None)
    if label is None and bare in columns:
        label = bare
    if label is None and len(classes) == 1:
        label = classes[0]
    if label is None:
        raise DataError(f"{where}: which column is the label? set data.label to one of {', '.join(columns)}")
    rest = [c for c in columns if c not in (label, config.group)]
    names = features[label].get("names") if label in classes else None
    if tokenised:
        from flray.data.text import text_columns

        chosen = text_columns(config, text, where)
        bare_values = values if label == bare and not names else None
        return Columns(label, chosen, "text", config.group, tuple(names) if names else None, bare_values)
    chosen = (config.input,) if config.input else tuple([c for c in images if c in rest][:1])
    if not chosen:
        chosen = tuple(c for c in rest if c not in classes)
    if not chosen:
        raise DataError(f"{where}: no input column beside {label!r}; columns: {', '.join(columns)}")
    return Columns(label, chosen, "image" if chosen[0] in images else "number", config.group, tuple(names) if names else None)


def _column(table: Table, name: str) -> Array:
    values: Array = table.data.column(name).to_numpy()
    return values


def _codes(columns: list[Any], names: tuple[str, ...] | None, what: str, any_values: bool = False) -> tuple[list[Array], tuple[str, ...]]:
    """Values of several splits as int64 codes of one common, sorted vocabulary."""
    if any(c.dtype.kind == "f" for c in columns) and not any_values:
        raise DataError(f"{what} holds real numbers or gaps: regression is not supported; set data.label")
    if names is not None:
        for c in columns:
            if c.min(initial=0) < 0 or c.max(initial=0) >= len(names):
                raise DataError(
                    f"{what}: value {c.min() if c.min() < 0 else c.max()} is no class of 0..{len(names) - 1} (-1 marks unlabelled rows)"
                )
        return [c.astype(np.int64) for c in columns], names
    values, codes = np.unique(np.concatenate([np.asarray(c).astype(str) if c.dtype == object else c for c in columns]), return_inverse=True)
    ends = np.cumsum([len(c) for c in columns])[:-1]
    return [part.astype(np.int64) for part in np.split(codes, ends)], tuple(str(v) for v in values)


def _inputs(config: DataConfig, table: Table, columns: Columns, where: str) -> Array:
    if columns.kind == "image":
        column = table.data.column(columns.input[0]).combine_chunks()
        return decode_images(column, config.resize, f"{where}: column {columns.input[0]!r}")
    parts = []
    for name in columns.input:
        values = table.data.column(name).to_numpy()
        if values.dtype == object:
            try:
                values = np.stack([np.asarray(v, dtype=np.float32).reshape(-1) for v in values])
            except (TypeError, ValueError) as error:
                raise DataError(f"{where}: column {name!r} is not numbers of one length; set data.input") from error
        parts.append(values.astype(np.float32).reshape(len(values), -1))
    return np.concatenate(parts, axis=1)


def decode_images(column: Any, resize: int | None, where: str) -> Array:
    """Encoded images -> uint8 [n, H, W, C], C = 1 where the first image is grey, else 3."""
    import pyarrow as pa

    struct = pa.types.is_struct(column.type)
    blobs = column.field("bytes") if struct else column
    paths = column.field("path") if struct else None

    def content(i: int) -> Any:
        blob = blobs[i].as_buffer()
        path = paths[i].as_py() if blob is None and paths is not None else None
        if blob is None and path is None:
            raise DataError(f"{where}: row {i} is empty")
        return path or io.BytesIO(blob)

    return decode(content, len(column), resize, where)


def decode(content: Callable[[int], Any], n: int, resize: int | None, where: str, mode: str | None = None) -> Array:
    """`n` images, `content(i)` a path or a binary file -> uint8 [n, H, W, C]; `mode` L or RGB, default: the first image's.

    Threads, because Pillow's decoders let go of the interpreter lock; 60,000 WebP images of 32x32 take seconds.
    """
    from PIL import Image

    def opened(i: int) -> Any:
        source = content(i)
        try:
            with Image.open(source) as image:
                image.load()
                return image
        except OSError as error:
            name = source if isinstance(source, str) else f"{where}: row {i}"
            raise DataError(f"{name} is not a readable image ({error})") from error

    if not n:
        raise DataError(f"{where}: no rows")
    first = opened(0)
    mode = mode or ("L" if first.mode in ("L", "1", "LA") else "RGB")
    size = (resize, resize) if resize else first.size
    out = np.empty((n, size[1], size[0], len(mode)), np.uint8)

    def work(start: int) -> None:
        for i in range(start, min(start + 500, n)):
            image = opened(i)
            if image.mode != mode:
                image = image.convert(mode)
            if resize and image.size != size:
                image = image.resize(size, Image.Resampling.BILINEAR)
            if image.size != size:
                raise DataError(
                    f"{where}: row {i} has {image.size[0]}x{image.size[1]} pixels and row 0 has {size[0]}x{size[1]}; set data.resize"
                )
            out[i] = np.asarray(image).reshape(out.shape[1:])

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(work, range(0, n, 500)))
    return out


_VISION = {  # class in torchvision.datasets, where its files lie below root
    "cifar10": ("CIFAR10", "cifar-10-batches-py/*"),
    "cifar100": ("CIFAR100", "cifar-100-python/*"),
    "mnist": ("MNIST", "MNIST/raw/*"),
    "fashion_mnist": ("FashionMNIST", "FashionMNIST/raw/*"),
    "svhn": ("SVHN", "t*_32x32.mat"),
}


def torchvision_files(name: str, root: Path, download: bool) -> list[Path]:
    """The files of a torchvision data set below `root`, downloaded where allowed; [] where there are none."""
    pattern = _VISION[name][1]
    if download and not any(root.glob(pattern)):
        try:
            for split in (True, False):
                _vision(name, root, split, download=True)
        except (OSError, RuntimeError) as error:
            raise DataError(f"torchvision cannot download {name} to {root} ({error}); is there a network?") from error
    return sorted(path for path in root.glob(pattern) if path.is_file())


def torchvision_splits(name: str, root: Path) -> Splits:
    """Official train and test split (SVHN without its extra split), NHWC."""
    try:
        train, test = _vision(name, root, True), _vision(name, root, False)
    except (RuntimeError, OSError) as error:
        raise DataError(f"torchvision's {name} files in {root} are incomplete or damaged; delete them and download again") from error
    return Splits(_vision_split(train), _vision_split(test), tuple(getattr(train, "classes", map(str, range(10)))))


def _vision(name: str, root: Path, train: bool, download: bool = False) -> Any:
    import torchvision

    kind = getattr(torchvision.datasets, _VISION[name][0])
    if name == "svhn":
        return kind(root, split="train" if train else "test", download=download)
    return kind(root, train=train, download=download)


def _vision_split(data: Any) -> Split:
    x = np.asarray(data.data)
    if x.ndim == 3:
        x = x[..., None]
    elif x.shape[1] == 3 and x.shape[-1] != 3:  # SVHN is stored NCHW
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    return Split(x.astype(np.uint8), np.asarray(getattr(data, "targets", getattr(data, "labels", None)), dtype=np.int64))
