"""Encoded images as arrays. Runs once for a data set; the cache stores the result."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from flray.core.schema.errors import DataError, shown
from flray.data.cache import Array


def decode_images(
    column: Any, resize: int | None, where: str, place: Callable[[int], str], folders: Sequence[Path]
) -> Array:
    """A column of encoded images as uint8 [n, H, W, C], C = 1 if the first image is grey, else 3.

    A row holds an image's bytes or names a file in one of `folders`, relative to the first. `place` names a row in
    errors. Raises `DataError`.
    """
    import pyarrow as pa

    parts = {"bytes": column}
    if pa.types.is_struct(column.type):
        parts = {name: column.field(name) for name in ("bytes", "path") if column.type.get_field_index(name) >= 0}
    parts = {name: part for name, part in parts.items() if not pa.types.is_null(part.type)}
    blobs, paths = parts.get("bytes"), parts.get("path")
    if not parts or (
        blobs is not None and not pa.types.is_binary(blobs.type) and not pa.types.is_large_binary(blobs.type)
    ):
        raise DataError(f"{where} holds {column.type}, not encoded images; set data.input")

    def content(i: int) -> Any:
        blob = None if blobs is None else blobs[i].as_buffer()
        if blob is not None:
            return io.BytesIO(blob)
        path = None if paths is None else paths[i].as_py()
        if not path:
            raise DataError(f"{where}, {place(i)}: no image")
        return _inside(str(path), folders, f"{where}, {place(i)}")

    return decode(content, len(column), resize, lambda i: f"{where}, {place(i)}")


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


def decode(
    content: Callable[[int], Any], n: int, resize: int | None, place: Callable[[int], str], mode: str | None = None
) -> Array:
    """`n` images as uint8 [n, H, W, C]. `content(i)`: a path or a binary file; `mode`: L or RGB, default: the first
    image's.

    `place(i)` names image i in errors. Decodes in threads, because Pillow releases the interpreter lock: 60,000 WebP
    images of 32x32 take seconds. Raises `DataError`.
    """
    from PIL import Image, UnidentifiedImageError

    def opened(i: int, mode: str | None) -> Any:
        source = content(i)
        try:
            with Image.open(source) as image:
                image.load()
                return image if mode in (None, image.mode) else image.convert(mode)
        except (
            Exception
        ) as error:  # Pillow's decoders raise many kinds for damaged files, and its own for an image that is a bomb
            why = "no known format" if isinstance(error, UnidentifiedImageError) else str(error)[:200]
            raise DataError(f"{place(i)} is not a readable image ({why}); replace it") from error

    first = opened(0, None)
    mode = mode or ("L" if first.mode in ("L", "1", "LA") else "RGB")
    size = (resize, resize) if resize else first.size
    out = np.empty((n, size[1], size[0], len(mode)), np.uint8)

    def work(start: int) -> None:
        for i in range(start, min(start + 500, n)):
            image = opened(i, mode)
            if resize and image.size != size:
                image = image.resize(size, Image.Resampling.BILINEAR)
            if image.size != size:
                raise DataError(
                    f"{place(i)} has {image.size[0]}x{image.size[1]} pixels and the first image {size[0]}x{size[1]}; "
                    "set data.resize"
                )
            out[i] = np.asarray(image).reshape(out.shape[1:])

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(work, range(0, n, 500)))
    return out
