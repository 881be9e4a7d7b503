"""The pixels of a picture: what each of Pillow's modes becomes. Encoded files and Pillow's objects alike come here."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from flray.core.schema.errors import DataError
from flray.data.cache import Array

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
EXACT = 2**24  # float32 holds all integers up to it
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
