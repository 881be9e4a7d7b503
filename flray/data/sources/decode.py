"""Encoded pictures as arrays. Runs once for a data set; the cache stores the result."""

from __future__ import annotations

import io
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from flray.core.schema.errors import DataError, shown
from flray.data.cache import Array
from flray.data.sources.columns import FeatureTable
from flray.data.sources.pictures import KINDS, Kind, as_kind, has_alpha, kind_of, listed, loaded, one_kind, pixels

AT_ONCE = 500  # pictures that a thread decodes before it takes others
T = TypeVar("T")


class Encoded(NamedTuple):
    """The `total` encoded pictures of one split. `content(i)`: a path or a binary file; `place(i)` names picture i."""

    content: Callable[[int], Any]
    total: int
    place: Callable[[int], str]


class Decoded(NamedTuple):
    """The pictures of each split, uint8 or float32 [n, H, W, C], how they were read, and what a user must know."""

    arrays: list[Array]
    reading: str
    notes: tuple[str, ...]


def decode_column(
    tables: Mapping[str, FeatureTable], name: str, resize: int | None, what: str, folders: Sequence[Path]
) -> Decoded:
    """The pictures of the column `name` of each split, in the mode of its feature if that has one. `what` names the
    column in errors; `folders`: see :func:`_encoded`. Raises `DataError`."""
    feature = tables["train"].features.get(name)
    mode = feature.get("mode") if isinstance(feature, dict) and feature.get("_type") == "Image" else None
    if mode is not None and mode not in KINDS:
        raise DataError(f"{what}: its description names the mode {shown(mode)}, which is none of {', '.join(KINDS)}")
    columns = [(table.data.column(name).combine_chunks(), table.place) for table in tables.values()]
    return decode([_encoded(column, what, place, folders) for column, place in columns], resize, mode)


def _encoded(column: Any, where: str, place: Callable[[int], str], folders: Sequence[Path]) -> Encoded:
    """The pictures of a column. A row holds a picture's bytes or names a file in one of `folders`, relative to the
    first. `place` names a row in errors. Raises `DataError` for a column of something else."""
    parts = _parts(column)
    blobs, paths = parts.get("bytes"), parts.get("path")
    binary = blobs is None or pa.types.is_binary(blobs.type) or pa.types.is_large_binary(blobs.type)
    words = paths is None or pa.types.is_string(paths.type) or pa.types.is_large_string(paths.type)
    if not parts or not binary or not words:
        raise DataError(f"{where} holds {column.type}, not encoded images; set data.input")

    def content(i: int) -> Any:
        blob = None if blobs is None else blobs[i].as_buffer()
        if blob is not None:
            return io.BytesIO(blob)
        path = None if paths is None else paths[i].as_py()
        if not path:
            raise DataError(f"{where}, {place(i)}: no image")
        return _inside(str(path), folders, f"{where}, {place(i)}")

    def named(i: int) -> str:
        path = None if paths is None else paths[i].as_py()
        return f"{where}, {place(i)}" + (f" ({shown(path)})" if path else "")

    return Encoded(content, len(column), named)


def _parts(column: Any) -> dict[str, Any]:
    """The bytes and the paths of a column of pictures, without those that are missing in all rows."""
    parts = {"bytes": column}
    if pa.types.is_struct(column.type):
        parts = {name: column.field(name) for name in ("bytes", "path") if column.type.get_field_index(name) >= 0}
    return {name: part for name, part in parts.items() if not pa.types.is_null(part.type)}


def named_files(tables: Iterable[FeatureTable]) -> list[str]:
    """The paths, sorted, of rows that name a picture's file and do not hold its bytes, in any column."""
    names = set[str]()
    for table in tables:
        columns = [column for column in table.data.columns if pa.types.is_struct(column.type)]
        for chunk in chain.from_iterable(column.chunks for column in columns):
            parts = _parts(chunk)
            paths = parts.get("path")
            if paths is None or not (pa.types.is_string(paths.type) or pa.types.is_large_string(paths.type)):
                continue
            lone = paths.filter(parts["bytes"].is_null()) if "bytes" in parts else paths
            names.update(filter(None, lone.unique().to_pylist()))
    return sorted(names)


def _inside(name: str, folders: Sequence[Path], what: str) -> str:
    """The path of the file `name`. Raises `DataError` unless it lies in one of `folders`: a downloaded data set must
    not read other files of this machine."""
    try:
        path = (folders[0] / name).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{what}: {shown(name)} is not a path ({error}); write the file again") from error
    if not any(path.is_relative_to(folder.resolve()) for folder in folders):
        raise DataError(
            f"{what} names the file {shown(name)}, which is not in the data set's folder {folders[0]}; copy the images "
            "there"
        )
    return str(path)


def decode(splits: Sequence[Encoded], resize: int | None, mode: str | None = None) -> Decoded:
    """The pictures of all splits in one kind (`pictures.py`): grey ones beside colour ones become colour.

    `mode`: the Pillow mode into which all are converted, as the feature `Image(mode)` of `datasets` says. Decodes in
    threads, because Pillow releases the interpreter lock: 60,000 WebP images of 32x32 take seconds. Raises `DataError`,
    which names the picture, for damaged and animated ones, for other sizes than the first one's without `resize`, and
    for other numbers of bits.
    """

    def start(image: Any) -> tuple[Kind, tuple[int, int]]:
        whole = loaded(image, mode)
        return KINDS[whole.mode], whole.size

    kind, own = _use(splits[0], 0, start)
    size = (resize, resize) if resize else own
    found = _arrays(splits, size, bool(resize), mode, kind)
    if found is None:
        kind = one_kind(*kinds(splits))
        found = _arrays(splits, size, bool(resize), mode, kind)
        assert found is not None
    arrays, modes = found
    total, (height, width, channels), dtype = sum(modes.values()), arrays[0].shape[1:], arrays[0].dtype
    reading = (
        f"pictures: {total} of mode {listed(modes)} -> {channels} channel{'s' if channels > 1 else ''}, "
        f"{width}x{height}, {dtype} [H, W, C]{'; transparency is left out' if has_alpha(modes) else ''}"
    )
    mixed = kind == "colour" and mode is None and any(KINDS[name] == "grey" for name in modes)
    note = f"pictures of mode {listed(modes)} are all read in colour; data.channels: 1 makes them grey"
    return Decoded(arrays, reading, (note,) if mixed else ())


def _use(of: Encoded, i: int, use: Callable[[Any], T]) -> T:
    """`use` of the opened picture. All errors are `DataError`s that name the picture."""
    from PIL import Image, UnidentifiedImageError

    source = of.content(i)
    try:
        with Image.open(source) as image:
            return use(image)
    except DataError as error:
        raise DataError(f"{of.place(i)} {error}") from error
    except Exception as error:  # Pillow's decoders raise many kinds for damaged files, and its own for a bomb
        why = "no known format" if isinstance(error, UnidentifiedImageError) else " ".join(str(error)[:200].split())
        raise DataError(f"{of.place(i)} is not a readable image ({why}); replace it") from error


def kinds(splits: Sequence[Encoded]) -> tuple[dict[Kind, str], Counter[str]]:
    """The name of a picture of each kind, and the pictures' modes by count, from the files' headers. Raises
    `DataError`."""
    examples: dict[Kind, str] = {}
    modes: Counter[str] = Counter()
    for split in splits:
        for i in range(split.total):
            kind, mode = _use(split, i, lambda image: (kind_of(image), image.mode))
            examples.setdefault(kind, split.place(i))
            modes[mode] += 1
    return examples, modes


def _arrays(
    splits: Sequence[Encoded], size: tuple[int, int], resize: bool, mode: str | None, kind: Kind
) -> tuple[list[Array], Counter[str]] | None:
    """The pictures of all splits, and their modes by count; None: one of them is of another kind."""
    shape = (size[1], size[0], 3 if kind == "colour" else 1)
    total = sum(split.total for split in splits)
    try:
        whole = np.empty((total, *shape), np.uint8 if kind in ("grey", "colour") else np.float32)
    except MemoryError as error:
        raise DataError(
            f"{splits[0].place(0)}: {total} pictures of {size[0]}x{size[1]} pixels do not fit into the memory; set "
            "data.resize"
        ) from error
    arrays = np.split(whole, np.cumsum([split.total for split in splits])[:-1])
    stop = threading.Event()

    def picture(image: Any) -> tuple[Array | None, str]:
        # the mode of the file: loading may change it
        own, image = image.mode, loaded(image, mode)
        if KINDS[image.mode] != kind and (kind, KINDS[image.mode]) != ("colour", "grey"):
            return None, own
        if not resize and image.size != size:
            raise DataError(
                f"has {image.size[0]}x{image.size[1]} pixels and the first image {size[0]}x{size[1]}; set data.resize"
            )
        return pixels(as_kind(image, kind), size), own

    def work(part: tuple[Encoded, Array, int]) -> Counter[str]:
        split, out, first = part
        modes: Counter[str] = Counter()
        for i in range(first, min(first + AT_ONCE, split.total)):
            if stop.is_set():
                break
            array, own = _use(split, i, picture)
            if array is None:
                stop.set()
                break
            out[i] = array
            modes[own] += 1
        return modes

    parts = [
        (split, out, first)
        for split, out in zip(splits, arrays, strict=True)
        for first in range(0, split.total, AT_ONCE)
    ]
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        modes = sum(pool.map(work, parts), Counter[str]())
    return None if stop.is_set() else (list(arrays), modes)
