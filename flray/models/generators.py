"""Generators of inputs from noise or label embeddings, which data-free methods train on the server.

An image [C, H, W] with sides divisible by 4 comes from convolutions after two upsamplings, as in the authors' codes; a
feature vector [d] from two linear layers. `noise` is the width of the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch
from torch import Tensor, nn

from flray.core.schema.errors import ConfigError

WIDTH = 128  # of the first layers


def last_layers(shape: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """(output width of the first linear layer, its shape for the convolutions) for samples of `shape`.

    Raises `ConfigError` for images whose sides are not divisible by 4.
    """
    if len(shape) != 3:
        return WIDTH, (WIDTH,)
    _, height, width = shape
    if height % 4 or width % 4:
        raise ConfigError(
            f"the generator needs image sides divisible by 4, the data have {height}x{width}; set data.resize"
        )
    start = (WIDTH, height // 4, width // 4)
    return start[0] * start[1] * start[2], start


class _FromNoise(nn.Module):
    """Noise `z [B, noise]` -> samples `[B, *shape]` of `blocks` after a linear layer."""

    eps, bias, last = 1e-5, False, "sigmoid"

    def __init__(self, shape: Sequence[int], noise: int) -> None:
        super().__init__()
        self.noise = noise
        width, self._start = last_layers(shape)
        self.first = nn.Linear(noise, width)
        images = len(shape) == 3
        self.blocks = _images(shape[0], self.eps, self.bias, self.last) if images else _vectors(shape[0])

    def forward(self, z: Tensor) -> Tensor:
        return self.blocks(self.first(z).unflatten(1, self._start))  # type: ignore[no-any-return]


class TargetGenerator(_FromNoise):
    """The generator of TARGET (Zhang et al., ICCV 2023): noise `z [B, noise]` -> images `[B, C, H, W]` in 0..1.

    Linear, norm, stretch, conv 128, norm, LeakyReLU 0.2, stretch, conv 64, norm, LeakyReLU 0.2, conv C, sigmoid.
    Parameters for 3x32x32 and noise 256: 2,328,899. Features `[B, d]` are normalised at the end.
    """

    def __init__(self, shape: Sequence[int], noise: int = 256) -> None:
        super().__init__(shape, noise)


class MFCLGenerator(_FromNoise):
    """The generator of MFCL (Babakniya et al., NeurIPS 2023): noise `z [B, noise]` -> inputs of the classifier.

    As TARGET's, but with biases, eps 0.8 in the later norms, and at the end tanh and a norm without scale and shift,
    which gives each training batch mean 0 and variance 1. Parameters for 3x32x32: 8,423,939.
    """

    eps, bias, last = 0.8, True, "norm"

    def __init__(self, shape: Sequence[int], noise: int = 1000) -> None:
        super().__init__(shape, noise)


class NoisyLabelGenerator(nn.Module):
    """The generator of NAYER (Tran et al., CVPR 2024), which LANDER uses: embeddings of labels -> images in 0..1.

    `e [B, embedding]` is normalised. Each `rows` samples have their own linear layer, whose random weights are drawn
    anew each time and are the only noise. The rest is :class:`TargetGenerator`'s. B is at most `batch`.
    """

    def __init__(
        self, shape: Sequence[int], embedding: int = 512, noise: int = 256, batch: int = 256, rows: int = 10
    ) -> None:
        super().__init__()
        self.rows = rows
        width, self._start = last_layers(shape)
        self.norm = nn.BatchNorm1d(embedding)
        self.noisy = nn.ModuleList(nn.Linear(embedding, noise) for _ in range(ceil(batch / rows)))
        self.first = nn.Linear(noise, width)
        self.blocks = _vectors(shape[0]) if len(shape) != 3 else _images(shape[0], 1e-5, False, "sigmoid")

    def forward(self, e: Tensor) -> Tensor:
        parts = torch.split(self.norm(e), self.rows)
        z = torch.cat([layer(part) for layer, part in zip(self.noisy, parts, strict=False)])
        return self.blocks(self.first(z).unflatten(1, self._start))  # type: ignore[no-any-return]


def _images(channels: int, eps: float, bias: bool, last: str) -> nn.Sequential:
    end: nn.Module = nn.Sigmoid()
    if last == "norm":
        end = nn.Sequential(nn.Tanh(), nn.BatchNorm2d(channels, affine=False))
    return nn.Sequential(
        nn.BatchNorm2d(WIDTH),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=bias),
        nn.BatchNorm2d(WIDTH, eps),
        nn.LeakyReLU(0.2),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(WIDTH, WIDTH // 2, 3, padding=1, bias=bias),
        nn.BatchNorm2d(WIDTH // 2, eps),
        nn.LeakyReLU(0.2),
        nn.Conv2d(WIDTH // 2, channels, 3, padding=1),
        end,
    )


def _vectors(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm1d(WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, width), nn.BatchNorm1d(width, affine=False)
    )
