"""Random views of images for contrastive learning (SCR, Mai et al. 2021, after SimCLR)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


def random_views(
    pixels: Tensor,
    draws: np.random.Generator,
    scale: tuple[float, float] = (0.2, 1.0),
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1),
    jitter_share: float = 0.8,
    grey_share: float = 0.2,
) -> Tensor:
    """One random view of each image `[B, C, H, W]` on the 0..1 scale.

    A crop with a share of the image's area in `scale` and sides in the ratio 3/4 to 4/3, resized to the image's size
    (bilinear); mirrored with probability 1/2; with `jitter_share` brightness, contrast and saturation times
    1 - j ... 1 + j and the hue turned by at most j of the circle, in this order; grey with `grey_share`. Images
    without three channels skip saturation, hue and grey.
    """
    count, channels = len(pixels), pixels.shape[1]

    def uniform(low: float, high: float) -> Tensor:
        """One number an image, `[B, 1, 1, 1]`."""
        drawn = torch.from_numpy(draws.uniform(low, high, count))
        return drawn.to(pixels)[:, None, None, None]

    x = _crop_and_flip(pixels, uniform, scale)
    brightness, contrast, saturation, hue = jitter
    changed = uniform(0, 1) < jitter_share
    y = (x * uniform(1 - brightness, 1 + brightness)).clamp(0, 1)
    mean = _grey(y).mean(dim=(2, 3), keepdim=True)
    y = (mean + (y - mean) * uniform(1 - contrast, 1 + contrast)).clamp(0, 1)
    factor, turn, grey = uniform(1 - saturation, 1 + saturation), uniform(-hue, hue), uniform(0, 1) < grey_share
    if channels == 3:
        y = rotate_hue((_grey(y) + (y - _grey(y)) * factor).clamp(0, 1), turn[:, :, 0])
    x = torch.where(changed, y, x)
    return torch.where(grey, _grey(x), x) if channels == 3 else x


def _crop_and_flip(pixels: Tensor, uniform: Callable[[float, float], Tensor], scale: tuple[float, float]) -> Tensor:
    area, ratio = uniform(*scale), uniform(math.log(3 / 4), math.log(4 / 3)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)  # shares of the sides
    across, down, mirrored = (1 - width) * uniform(-1, 1), (1 - height) * uniform(-1, 1), uniform(-1, 1).sign()
    nothing = torch.zeros_like(width)
    rows = [torch.cat([width * mirrored, nothing, across], 3), torch.cat([nothing, height, down], 3)]
    grid = F.affine_grid(torch.cat(rows, 2)[:, 0], list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def _grey(x: Tensor) -> Tensor:
    """`[B, 1, H, W]`: the luma of three channels, the mean of others."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return (x * torch.tensor(LUMA, dtype=x.dtype, device=x.device)[:, None, None]).sum(dim=1, keepdim=True)


def rotate_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Images `[B, 3, H, W]` on the 0..1 scale with their hue turned by `turn [B, 1, 1]` of the circle (HSV)."""
    value, low = x.amax(dim=1), x.amin(dim=1)
    spread = value - low
    r, g, b = x.unbind(dim=1)
    safe = torch.where(spread > 0, spread, 1.0)
    hue = torch.where(value == r, (g - b) / safe, torch.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    sixths = hue + 6 * turn
    places = [(n + sixths) % 6 for n in (5, 3, 1)]
    return torch.stack([value - spread * torch.minimum(k, 4 - k).clamp(0, 1) for k in places], dim=1)
