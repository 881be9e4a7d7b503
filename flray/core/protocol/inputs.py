"""Shape and scale of the network's inputs, for methods that generate inputs (a generator, a gradient inversion)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flray.core.schema.errors import ConfigError


class Inputs(NamedTuple):
    """Shape and scale of one input, and the names of the outputs.

    `shape`: (C, H, W) of an image, (d,) of features, (L,) of token ids. `mean` and `std`, `[C]`, are an image's
    constants on the 0..1 scale; empty for what is used as it is. `classes`: a name for every output of the head.
    """

    shape: tuple[int, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()
    text: bool = False

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    def normalised(self, pixels: Tensor) -> Tensor:
        """Images `[B, C, H, W]` on the 0..1 scale as a network takes them, (pixels - mean) / std, with their gradient.

        Inputs that are not images are returned unchanged.
        """
        if not self.is_image:
            return pixels
        mean, std = self._scale(pixels)
        return (pixels - mean) / std

    def pixels(self, x: Tensor) -> Tensor:
        """The inverse of :meth:`normalised`: images `[B, C, H, W]` on the 0..1 scale, x std + mean.

        Inputs that are not images are returned unchanged.
        """
        if not self.is_image:
            return x
        mean, std = self._scale(x)
        return x * std + mean

    def _scale(self, like: Tensor) -> tuple[Tensor, ...]:
        """`mean` and `std`, `[C, 1, 1]`."""
        return tuple(
            torch.tensor(part, dtype=like.dtype, device=like.device)[:, None, None] for part in (self.mean, self.std)
        )

    def require_numbers(self, what: str) -> None:
        """Raises `ConfigError` if the inputs are token ids, which `what` cannot generate."""
        if self.text:
            raise ConfigError(f"{what} makes images or feature vectors, the data are texts; choose another algorithm")
