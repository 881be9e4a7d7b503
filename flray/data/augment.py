"""Random crop, horizontal flip and cutout over a chunk of images; numbers drawn for a whole epoch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flray.data.data_config import Augment


class Drawn(NamedTuple):
    """An epoch's random numbers, one row an example: int64 [n, 2] (row, column), bool [n], int64 [n, 2]."""

    shift: Tensor | None
    flip: Tensor | None
    centre: Tensor | None

    def part(self, places: slice | np.ndarray, device: torch.device) -> Drawn:
        """These rows, on the device."""
        return Drawn(*(None if t is None else t[places].to(device) for t in self))


def draw(augment: Augment, rng: np.random.Generator, n: int, size: Sequence[int]) -> Drawn:
    """All numbers of an epoch of `n` images of `size` (H, W): crop offsets, then flips, then cutout centres."""
    shift = flip = centre = None
    if augment.crop_padding:
        shift = torch.from_numpy(rng.integers(0, 2 * augment.crop_padding + 1, (n, 2)))
    if augment.flip:
        flip = torch.from_numpy(rng.random(n) < 0.5)
    if augment.cutout:
        centre = torch.from_numpy(rng.integers(0, np.asarray(size[:2]), (n, 2)))
    return Drawn(shift, flip, centre)


def apply_crop_flip(x: Tensor, augment: Augment, drawn: Drawn) -> Tensor:
    """uint8 [n, H, W, C] -> same shape: pad by p, take H x W from (row, column) offsets in 0..2p, then flip.

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
            # mirrored about the edge pixel, which is not repeated: -1 -> 1, H -> H-2
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


def apply_cutout(x: Tensor, augment: Augment, drawn: Drawn) -> Tensor:
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
