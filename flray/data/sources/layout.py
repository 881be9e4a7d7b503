"""Arrays of images as flray stores them: channels last, uint8 or float32. A layout that a shape leaves open is said."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from flray.core.schema.errors import DataError, shown
from flray.data.cache import Array

Layout = Literal["first", "last"]
FEW = (1, 2, 3, 4)  # channels of grey and colour, each with or without alpha; more are scans and satellite images
SAY = "say channels='first' or channels='last' (of a folder: data.options.channels)"


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
    suits = _layout(*shape)
    if suits == "last":
        raise DataError(f"{what} images of shape {list(shape)} have their channels last; {SAY}")
    if suits is None:
        raise DataError(f"{what} images of shape {list(shape)}: it is open which axis has the channels; {SAY}")
    return suits


def _layout(first: int, middle: int, last: int) -> Layout | None:
    """The layout of one image of this shape; None: it has two.

    Few channels are on one side only; many are beside two equal sides.
    """
    if (first in FEW) != (last in FEW):
        return "first" if first in FEW else "last"
    if first in FEW or (first == middle) == (middle == last):
        return None
    return "first" if middle == last else "last"
