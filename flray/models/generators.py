"""Generators of inputs from noise or label embeddings, which servers train to generate data.

Those of data-free methods: an image [C, H, W] with sides divisible by 4 comes from convolutions after two upsamplings,
as in the authors' codes; a feature vector [d] from two linear layers. `noise` is the width of the input.

The conditional GAN of FedMemo's server (appendix E), which generates proxy data from a small held-out set: a DCGAN
whose discriminator also predicts the class (AC-GAN, Odena et al., ICML 2017; as in daiqing98/FedCIL). The paper prints
it for 32 pixels; for other sides the stack has more or fewer levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
    noise = 256

    def __init__(self, shape: Sequence[int], noise: int | None = None) -> None:
        super().__init__()
        self.noise = noise = self.noise if noise is None else noise
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


class MFCLGenerator(_FromNoise):
    """The generator of MFCL (Babakniya et al., NeurIPS 2023): noise `z [B, noise]` -> inputs of the classifier.

    As TARGET's, but with biases, eps 0.8 in the later norms, and at the end tanh and a norm without scale and shift,
    which gives each training batch mean 0 and variance 1. Parameters for 3x32x32: 8,423,939.
    """

    eps, bias, last = 0.8, True, "norm"
    noise = 1000


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


GAN_WIDTH = 64  # channels next to the image, doubled at each level below; hidden units for feature vectors


class ProxyGenerator(nn.Module):
    """Noise `z [B, noise]` -> images `[B, C, H, W]` in -1..1: linear to 256 x 4 x 4, norm, ReLU, three transposed
    convolutions (4, 2, 1) of 128, 64, C channels, norm and ReLU between, tanh. For 3x32x32 1,073,219 parameters.

    For features `[d]` there are two linear layers instead. Initial weights are N(0, 0.02).
    """

    def __init__(self, shape: Sequence[int], noise: int = 100) -> None:
        """Raises `ConfigError` unless images are squares with a side of 4 to 7 times a power of 2, at least 2."""
        super().__init__()
        self.noise = noise
        if len(shape) != 3:
            self.layers = nn.Sequential(
                nn.Linear(noise, GAN_WIDTH), nn.BatchNorm1d(GAN_WIDTH), nn.ReLU(), nn.Linear(GAN_WIDTH, shape[0])
            )
        else:
            widths, bottom = stack(shape)
            first = widths[0] * bottom * bottom
            layers: list[nn.Module] = [nn.Linear(noise, first), nn.Unflatten(1, (widths[0], bottom, bottom))]
            for narrow, wide in pairwise([*widths, shape[0]]):
                layers += [nn.BatchNorm2d(narrow), nn.ReLU(), nn.ConvTranspose2d(narrow, wide, 4, 2, 1)]
            self.layers = nn.Sequential(*layers, nn.Tanh())
        self.apply(normal_weights)

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z)  # type: ignore[no-any-return]


class ProxyDiscriminator(nn.Module):
    """Images `[B, C, H, W]` in -1..1 -> (logit `[B]` that they are real, logits `[B, classes]` of their class).

    Three convolutions (4, 2, 1) of 64, 128, 256 channels with norm and LeakyReLU 0.2, then one for each output over the
    remaining pixels. The printed sigmoid is in the loss. Features `[d]`: linear layers instead.
    """

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        """Raises `ConfigError` as :class:`ProxyGenerator` does."""
        super().__init__()
        if len(shape) != 3:
            self.body: nn.Module = nn.Sequential(
                nn.Linear(shape[0], GAN_WIDTH), nn.BatchNorm1d(GAN_WIDTH), nn.LeakyReLU(0.2)
            )
            self.real: nn.Module = nn.Linear(GAN_WIDTH, 1)
            self.label: nn.Module = nn.Linear(GAN_WIDTH, classes)
        else:
            widths, bottom = stack(shape)
            layers: list[nn.Module] = []
            for wide, narrow in pairwise([shape[0], *reversed(widths)]):
                layers += [nn.Conv2d(wide, narrow, 4, 2, 1), nn.BatchNorm2d(narrow), nn.LeakyReLU(0.2)]
            self.body = nn.Sequential(*layers)
            self.real, self.label = (nn.Conv2d(widths[0], outputs, bottom) for outputs in (1, classes))
        self.apply(normal_weights)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.real(h).flatten(), self.label(h).flatten(1)


def stack(shape: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """(channels from the bottom up, one a doubling of the side; side at the bottom, 4 to 7): 32 = 4 x 2 x 2 x 2 with
    256, 128, 64 channels, 28 = 7 x 2 x 2 with 128, 64, 8 = 4 x 2 with 64."""
    _, height, width = shape
    bottom, doublings = height, 0
    while bottom >= 8 and bottom % 2 == 0:
        bottom, doublings = bottom // 2, doublings + 1
    if height != width or not doublings or not 4 <= bottom < 8:
        raise ConfigError(
            f"the proxy GAN needs squares with a side of 4 to 7 times a power of 2, the data have {height}x{width}; "
            "set data.resize, or algorithm.proxy.data: real"
        )
    return tuple(GAN_WIDTH * 2**i for i in reversed(range(doublings))), bottom


def normal_weights(module: nn.Module) -> None:
    """N(0, 0.02) for the weights of linear layers and convolutions, N(1, 0.02) for those of norms; biases 0 (DCGAN)."""
    if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.BatchNorm1d | nn.BatchNorm2d):
        norm = isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        nn.init.normal_(module.weight, 1.0 if norm else 0.0, 0.02)
        if module.bias is not None:
            torch.nn.init.zeros_(module.bias)
