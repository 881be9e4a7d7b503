"""VGG-11 without batch norm, as the FedSOL code builds it."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.models.base import Classifier, enlarge, image_shape, pooled

# widths of the 3x3 convolutions, max-pool 2 after every stage
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
SIDE = 32  # halved five times


class VGG11(Classifier):
    """Eight 3x3 convolutions in five stages, max-pool 2 after each, two linear layers of 512; ReLU after every layer.

    `x [B, K, H, W]` -> `z [B, 512]` -> logits `[B, C]`. No normalisation, no dropout. Sides below 32 are upsampled to
    32 (nearest). Kernels start at N(0, 2 / (9 out)) and their biases at 0, linear layers at PyTorch's default.
    Parameters at K=3, C=10: 9,750,922.
    Simonyan and Zisserman 2015, ICLR, configuration A, with the smaller linear layers of Lee et al. 2024 (FedSOL),
    CVPR, Table 3.
    """

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        channels, height, width = image_shape("vgg11", input_shape)
        widths = [channels, *(out for stage in STAGES for out in stage)]
        self.convolutions = nn.ModuleList(nn.Conv2d(n, m, 3, padding=1) for n, m in pairwise(widths))
        pixels = (max(height, SIDE) // SIDE) * (max(width, SIDE) // SIDE)
        self.linears = nn.ModuleList([nn.Linear(512 * pixels, 512), nn.Linear(512, 512)])
        self.head = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=(2 / (9 * module.out_channels)) ** 0.5)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, 512]` of `x [B, K, H, W]`."""
        return torch.relu(self._before_relu(x)[-1])

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """All convolutions, averaged over pixels, and both linear layers, before ReLU: ten tensors; and logits."""
        levels = self._before_relu(x)
        return [pooled(z) if z.dim() == 4 else z for z in levels], self.head(torch.relu(levels[-1]))

    def _before_relu(self, x: Tensor) -> list[Tensor]:
        x, levels, convolutions = enlarge(x, SIDE), [], iter(self.convolutions)
        for stage in STAGES:
            for layer in range(len(stage)):
                levels.append(next(convolutions)(x))
                # pool before ReLU: the same value and gradient, a quarter of the work
                x = torch.relu(F.max_pool2d(levels[-1], 2) if layer == len(stage) - 1 else levels[-1])
        x = x.flatten(1)
        for linear in self.linears:
            levels.append(linear(x))
            x = torch.relu(levels[-1])
        return levels
