"""Random crops, horizontal flip, brightness and cutout of many images at once; each epoch's numbers are drawn first."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flray.core.schema.errors import ConfigError
from flray.data.data_config import Augment

RATIO = (3 / 4, 4 / 3)  # width over height of a resized crop
TRIES = 10  # draws of a crop that fits into the image
AT_ONCE = 2**22  # values that are resized at once: 16 MB of float32


class AugmentDraws(NamedTuple):
    """An epoch's random numbers, a row for each sample: int64 [n, 2] (row, column), bool [n], int64 [n, 2], int64 [n,
    4] (top, left, height, width), float32 [n]. None: not drawn."""

    shift: Tensor | None
    flip: Tensor | None
    centre: Tensor | None
    box: Tensor | None
    factor: Tensor | None

    def part(self, places: slice | np.ndarray, device: torch.device) -> AugmentDraws:
        """The rows at `places`, on the device."""
        return AugmentDraws(*(None if t is None else t[places].to(device) for t in self))


def draw(augment: Augment, rng: np.random.Generator, n: int, size: Sequence[int]) -> AugmentDraws:
    """The numbers for `n` images of `size` (H, W), in the order crop offsets, flips, cutout centres, boxes, brightness
    factors. Raises `ConfigError` for a padding larger than the image."""
    shift = flip = centre = box = factor = None
    if augment.crop_padding:
        if augment.crop_padding > min(size[:2]):
            raise ConfigError(
                f"data.augment.crop_padding: {augment.crop_padding} for images of {size[0]} x {size[1]}; set at "
                f"most {min(size[:2])} (4 is usual for 32 x 32)"
            )
        shift = torch.from_numpy(rng.integers(0, 2 * augment.crop_padding + 1, (n, 2)))
    if augment.flip:
        flip = torch.from_numpy(rng.random(n) < 0.5)
    if augment.cutout:
        centre = torch.from_numpy(rng.integers(0, np.asarray(size[:2]), (n, 2)))
    if augment.resized_crop is not None:
        box = torch.from_numpy(boxes(rng, n, size[0], size[1], augment.resized_crop))
    if augment.brightness:
        low, high = max(0.0, 1 - augment.brightness), 1 + augment.brightness
        factor = torch.from_numpy(rng.uniform(low, high, n).astype(np.float32))
    return AugmentDraws(shift, flip, centre, box, factor)


def boxes(rng: np.random.Generator, n: int, h: int, w: int, scale: tuple[float, float]) -> np.ndarray:
    """(top, left, height, width) of `n` random parts of images h x w, int64 [n, 4], as in torchvision's
    RandomResizedCrop.

    The share of the area is uniform in `scale`, and so is the logarithm of the ratio of the sides. The first of ten
    sizes that fits is taken, at a uniform place. If none fits, it is the largest centred part of an allowed ratio.
    """
    area = h * w * rng.uniform(scale[0], scale[1], (n, TRIES))
    ratio = np.exp(rng.uniform(log(RATIO[0]), log(RATIO[1]), (n, TRIES)))
    widths, heights = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (widths > 0) & (widths <= w) & (heights > 0) & (heights <= h)
    taken = np.arange(n), fits.argmax(axis=1)
    size = np.stack([heights[taken], widths[taken]], axis=1)
    place = np.floor(rng.random((n, 2)) * (np.array([h, w]) - size + 1))
    none = ~fits.any(axis=1)
    size[none] = min(h, round(w / RATIO[0])), min(w, round(h * RATIO[1]))
    place[none] = (np.array([h, w]) - size[none]) // 2
    return np.concatenate([place, size], axis=1).astype(np.int64)


def apply_crop_flip(x: Tensor, augment: Augment, drawn: AugmentDraws) -> Tensor:
    """[n, H, W, C] -> same shape and dtype: pads by p, takes H x W from (row, column) offsets in 0..2p, then flips.

    Both are one gather of pixels: output pixel (r, c) reads padded pixel (r + dr, c' + dc), c' = W-1-c if flipped.
    """
    if drawn.shift is None and drawn.flip is None:
        return x
    n, h, w, channels = x.shape
    rows = torch.arange(h, device=x.device).expand(n, h)
    columns = torch.arange(w, device=x.device).expand(n, w)
    if drawn.flip is not None:
        columns = torch.where(drawn.flip[:, None], w - 1 - columns, columns)
    p = augment.crop_padding
    if drawn.shift is not None:
        rows = rows + drawn.shift[:, :1]
        columns = columns + drawn.shift[:, 1:]
        if augment.crop_mode == "reflect":
            # mirrored at the edge pixel, which is not repeated: -1 -> 1, H -> H-2
            rows, columns = _mirror(rows - p, h), _mirror(columns - p, w)
        else:
            x = torch.nn.functional.pad(x, (0, 0, p, p, p, p))
            h, w = h + 2 * p, w + 2 * p
    first = torch.arange(n, device=x.device)[:, None] * h
    flat = (first + rows)[:, :, None] * w + columns[:, None, :]
    return x.reshape(-1, channels).index_select(0, flat.reshape(-1)).view(n, flat.shape[1], flat.shape[2], channels)


def _mirror(i: Tensor, size: int) -> Tensor:
    i = i.abs()
    return torch.minimum(i, 2 * (size - 1) - i)


def apply_resized_crop(x: Tensor, drawn: AugmentDraws) -> Tensor:
    """[n, H, W, C] -> same shape and dtype: the box of each image, stretched to H x W, as torchvision's `resized_crop`.

    Bilinear between pixel centres, the box's edge repeated, uint8 rounded to the nearest level; nothing is averaged,
    because no box is larger than what it becomes.
    """
    if drawn.box is None or not len(x):
        return x
    together = max(1, AT_ONCE // x[0].numel())
    return torch.cat(
        [_stretched(*part) for part in zip(torch.split(x, together), torch.split(drawn.box, together), strict=True)]
    )


def _stretched(x: Tensor, box: Tensor) -> Tensor:
    n, h, w, channels = x.shape
    low, high, share = _between(h, box[:, 0], box[:, 2])
    first, rows = torch.arange(n, device=x.device)[:, None] * h, x.reshape(n * h, w * channels)
    above, below = (rows[(first + at).flatten()].view(x.shape).float() for at in (low, high))
    y = above + (below - above) * share[:, :, None, None]
    low, high, share = _between(w, box[:, 1], box[:, 3])
    left, right = (y.gather(2, at[:, None, :, None].expand(n, h, w, channels)) for at in (low, high))
    out = left + (right - left) * share[:, None, :, None]
    return out.round_().to(torch.uint8) if x.dtype == torch.uint8 else out


def _between(size: int, first: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Linear interpolation of `length [n]` pixels from `first [n]` on to `size` pixels: for each output pixel the two
    source pixels around it, and the weight of the second, all `[n, size]`."""
    centres = torch.arange(size, device=first.device) + 0.5
    at = (centres * (length[:, None] / size) - 0.5).clamp_(min=0)
    low = at.long()
    high = torch.minimum(low + 1, length[:, None] - 1)
    return first[:, None] + low, first[:, None] + high, at - low


def apply_brightness(x: Tensor, drawn: AugmentDraws) -> Tensor:
    """[n, H, W, C] times each image's factor: uint8 truncated to integers up to 255, as in PIL and torchvision; floats
    as they are, because their scale has no known end."""
    if drawn.factor is None:
        return x
    if x.dtype != torch.uint8:
        return x * drawn.factor[:, None, None, None]
    return (x * drawn.factor[:, None, None, None]).clamp_(max=255).to(torch.uint8)


def apply_cutout(x: Tensor, augment: Augment, drawn: AugmentDraws) -> Tensor:
    """Zero rows cy - s//2 .. cy - s//2 + s - 1 (columns alike), clipped at the border; float [n, C, H, W], in place.

    After normalisation, so the square has the mean colour (DeVries and Taylor's code; for even s the same square).
    """
    if drawn.centre is None:
        return x
    first = drawn.centre - augment.cutout // 2
    h = torch.arange(x.shape[2], device=x.device) - first[:, :1]
    w = torch.arange(x.shape[3], device=x.device) - first[:, 1:]
    inside_h, inside_w = (h >= 0) & (h < augment.cutout), (w >= 0) & (w < augment.cutout)
    return x.masked_fill_((inside_h[:, :, None] & inside_w[:, None, :])[:, None], 0.0)
