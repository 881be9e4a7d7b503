"""The conditional GAN of FedMemo's server (appendix E), which generates proxy data from a small held-out set.

A DCGAN whose discriminator also predicts the class (AC-GAN, Odena et al., ICML 2017; as in daiqing98/FedCIL). The paper
prints it for 32 pixels; for other sides the stack has more or fewer levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from flray.core.schema.errors import ConfigError

WIDTH = 64  # channels next to the image, doubled at each level below; hidden units for feature vectors


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
                nn.Linear(noise, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, shape[0])
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
            self.body: nn.Module = nn.Sequential(nn.Linear(shape[0], WIDTH), nn.BatchNorm1d(WIDTH), nn.LeakyReLU(0.2))
            self.real: nn.Module = nn.Linear(WIDTH, 1)
            self.label: nn.Module = nn.Linear(WIDTH, classes)
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
    return tuple(WIDTH * 2**i for i in reversed(range(doublings))), bottom


def normal_weights(module: nn.Module) -> None:
    """N(0, 0.02) for the weights of linear layers and convolutions, N(1, 0.02) for those of norms; biases 0 (DCGAN)."""
    if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d | nn.BatchNorm1d | nn.BatchNorm2d):
        norm = isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        nn.init.normal_(module.weight, 1.0 if norm else 0.0, 0.02)
        if module.bias is not None:
            torch.nn.init.zeros_(module.bias)
