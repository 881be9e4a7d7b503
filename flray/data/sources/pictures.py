"""Pictures as arrays: what each of Pillow's modes becomes, and the decoding of a split's files.

Encoded files and Pillow's objects alike come here. Decoding runs once for a data set; the cache stores the result.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from flray.core.schema.errors import DataError, shown
from flray.data.cache import Array
from flray.data.sources.columns import FeatureTable
from flray.data.sources.float32 import EXACT

Kind = Literal["grey", "colour", "16-bit", "32-bit", "float"]
# Alpha is left out, as torchvision's loader and Pillow's `convert` do it: the colours stay as they are stored.
KINDS: dict[str, Kind] = {
    **dict.fromkeys(("1", "L", "LA", "La"), "grey"),
    **dict.fromkeys(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"), "colour"),
    **dict.fromkeys(("I;16", "I;16B", "I;16L", "I;16N"), "16-bit"),
    "I": "32-bit",
    "F": "float",
}
ALPHA = {"La": "LA", "RGBa": "RGBA", "LA": "LA", "RGBA": "RGBA", "PA": "RGBA"}  # a mode with alpha, not premultiplied
EIGHT_BITS: dict[Kind, str] = {"grey": "L", "colour": "RGB"}
HEADER = 2**16  # bytes of a file that say how many bits its channels have
ORIENTATION = 0x0112  # the EXIF tag
SAMPLE_FORMAT, SIGNED = 339, 2  # the TIFF tag, and its value for signed integers
COMPOSITE = ("MPO", "PSD")  # formats whose first frame is the picture, and the others a preview or its layers


def kind_of(image: Any) -> Kind:
    """The kind of a picture. Raises `DataError` for one whose levels Pillow cuts to 8 bits or reads without their sign,
    or of an unknown mode."""
    kind = KINDS.get(image.mode)
    if kind is None:
        raise DataError(f"has the mode {image.mode}, which flray does not read; convert it to L or RGB")
    bits = _bits(image)
    if kind in EIGHT_BITS and bits > 8:
        raise DataError(
            f"has {bits} bits a channel in colour or with transparency, of which Pillow reads 8; write it with 8 bits, "
            "or give arrays (flray.data.from_arrays)"
        )
    if kind in EIGHT_BITS and SIGNED in getattr(image, "tag_v2", {}).get(SAMPLE_FORMAT, ()):
        raise DataError(
            "has signed levels of 8 bits, whose negative ones Pillow reads as 128 to 255; write them with 16 bits"
        )
    return kind


def _bits(image: Any) -> int:
    """The bits a channel of a file that is not yet loaded: 8, or more than Pillow's mode has, by the decoder and its
    raw mode, or by the header of JPEG 2000 (SIZ) and AVIF (`high_bitdepth` of the box av1C)."""
    for codec, _, _, args in getattr(image, "tile", ()):
        words = args if isinstance(args, tuple) else (args,)
        if any(isinstance(word, str) and re.search(r";16[BLN]$", word) for word in words):
            return 16
        if codec == "ppm" and isinstance(words[-1], int) and words[-1] > 255:
            return 16
    file, format = getattr(image, "fp", None), getattr(image, "format", None)
    if file is None or format not in ("JPEG2000", "AVIF"):
        return 8
    place = file.tell()
    file.seek(0)
    head = file.read(HEADER)
    file.seek(place)
    if format == "AVIF":
        return 10 if any(flags & 0x40 for flags in head.partition(b"av1C")[2][2:3]) else 8
    siz = head.partition(b"\xff\x4f\xff\x51")[2]
    sizes = siz[38 : 38 + 3 * int.from_bytes(siz[36:38], "big") : 3]
    return max((size % 128 + 1 for size in sizes), default=8)


def loaded(image: Any, mode: str | None = None, upright: bool = True) -> Any:
    """A picture with its pixels, converted to `mode` if one is given.

    `upright`: turned as its camera noted (EXIF), as `datasets` does with files; torchvision takes a picture as it is.

    Raises `DataError` for several frames, for what `kind_of` refuses, and for a conversion that clips levels.
    """
    from PIL import ImageOps

    frames = getattr(image, "n_frames", 1)
    if frames > 1 and getattr(image, "format", None) not in COMPOSITE:
        raise DataError(f"has {frames} frames ({image.format}); write the one that counts as a file of its own")
    kind = kind_of(image)
    image.load()
    if upright and image.getexif().get(ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if mode is None or image.mode == mode:
        return image
    if kind not in EIGHT_BITS:
        raise DataError(f"has the mode {image.mode}, whose levels the mode {mode} would clip; leave the mode out")
    converted = _straight(image).convert(mode)
    kind_of(converted)
    return converted


def as_kind(image: Any, kind: Kind) -> Any:
    """The picture in Pillow's mode L (grey), RGB (colour) or F (levels).

    Raises `DataError` for levels that float32 does not hold, and for a picture whose shapes are only in its
    transparency.
    """
    from PIL import Image

    if kind in EIGHT_BITS:
        mode, straight = EIGHT_BITS[kind], _straight(image)
        if straight.mode in ("LA", "RGBA"):
            *colours, (low, high) = straight.getextrema()
            if low < high and all(least == most for least, most in colours):
                raise DataError(
                    "has one colour, and its shapes are in its transparency, which is left out; put it on a background"
                )
        return straight if straight.mode == mode else straight.convert(mode)
    levels = np.asarray(image)
    if kind == "32-bit" and max(-int(levels.min()), int(levels.max())) > EXACT:
        raise DataError(f"has levels beyond {EXACT:,}, which 32-bit floats do not hold; write fewer bits")
    if kind == "float" and not np.isfinite(levels).all():
        raise DataError(f"has {int((~np.isfinite(levels)).sum())} pixels that are not finite numbers; fill them")
    return Image.fromarray(levels.astype(np.float32))


def _straight(image: Any) -> Any:
    """The picture with its transparency as a channel of its own, not multiplied into the colours."""
    mode = ALPHA.get(image.mode, "RGBA" if image.mode == "P" and "transparency" in image.info else image.mode)
    return image if image.mode == mode else image.convert(mode)


def pixels(image: Any, size: tuple[int, int] | None = None) -> Array:
    """A picture of mode L, RGB or F as [H, W, C], resized (bilinear) to `size` (width, height)."""
    from PIL import Image

    if size is not None and image.size != size:
        image = image.resize(size, Image.Resampling.BILINEAR)
    array: Array = np.asarray(image)
    return array if array.ndim == 3 else array[..., None]


def one_kind(examples: Mapping[Kind, str], modes: Mapping[str, int]) -> Kind:
    """The kind in which pictures of several kinds are read: colour for grey and colour. `examples`: a picture's name of
    each kind. Raises `DataError` for 8 bits beside levels of another scale."""
    if examples.keys() <= EIGHT_BITS.keys():
        return "colour"
    (one, first), (other, second) = list(examples.items())[:2]
    raise DataError(
        f"{second} is {_words(other)} and {first} {_words(one)} (modes: {listed(modes)}), so their levels have "
        "different scales; write all pictures with the same number of bits"
    )


def _words(kind: Kind) -> str:
    return {"grey": "an 8-bit grey picture", "colour": "an 8-bit colour picture"}.get(kind, f"a {kind} grey picture")


def listed(modes: Mapping[str, int]) -> str:
    """`RGB (11), L (1)`: Pillow's modes by count."""
    return ", ".join(f"{mode} ({count})" for mode, count in Counter(modes).most_common())


def has_alpha(modes: Mapping[str, int]) -> bool:
    """Whether pictures of these modes have a channel of transparency."""
    return bool(ALPHA.keys() & modes.keys())


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


def encoded(column: Any, where: str, place: Callable[[int], str], folders: Sequence[Path]) -> Encoded:
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
    """The pictures of all splits in one kind: grey ones beside colour ones become colour.

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
