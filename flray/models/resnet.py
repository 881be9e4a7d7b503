"""Residual networks of basic blocks: ResNet-8 as FedProj uses it, ResNet-18.

Parameters (3 input channels): `resnet8` 4,903,242 at C=10; `resnet8_3stage` 1,227,594 at C=10; `resnet18` 11,173,962 at
C=10 and 11,220,132 at C=100 (`stem: imagenet` 7,680 more). `norm` does not change the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from flray.models.base import Classifier, Projection, image_shape, pooled, projected

Stem = Annotated[
    Literal["cifar", "cifar_pool", "imagenet"],
    Field(description="first convolution: 3x3; 3x3 and max-pool; 7x7 with stride 2 and max-pool"),
]
Norm = Annotated[
    Literal["batch", "group", "none_tracked"],
    Field(description="batch-norm; group-norm of 2 groups; batch-norm without running statistics"),
]
GROUPS = 2  # Seo et al. 2024 (FedRCL), CVPR, their ResNet-18


def resnet8(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    stem: Stem = "cifar_pool",
    norm: Norm = "batch",
    projection: Projection = None,
) -> ResNet:
    """Four stages of one block, widths 64 to 512: 4,903,242 parameters, 64.7 M multiply-adds at 3x32x32, C=10.

    The network whose size and cost FedProj reports; "8" counts the 3x3 convolutions in the blocks.
    """
    return ResNet("resnet8", input_shape, num_classes, (1, 1, 1, 1), stem, norm, projection)


def resnet8_3stage(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    stem: Stem = "cifar_pool",
    norm: Norm = "batch",
    projection: Projection = None,
) -> ResNet:
    """Three stages of one block, widths 64 to 256: 1,227,594 parameters at C=10. "resnet8" in the TAKFL code."""
    return ResNet("resnet8_3stage", input_shape, num_classes, (1, 1, 1), stem, norm, projection)


def resnet18(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    stem: Stem = "cifar",
    norm: Norm = "batch",
    projection: Projection = None,
) -> ResNet:
    """Four stages of two blocks: 11,173,962 parameters at C=10.

    He et al. 2016, CVPR. FedProj: `stem: cifar_pool`. FedSOL: `norm: none_tracked`. FedRCL: `norm: group`.
    """
    return ResNet("resnet18", input_shape, num_classes, (2, 2, 2, 2), stem, norm, projection)


class ResNet(Classifier):
    """Stem, stages of `blocks[i]` basic blocks of width `64 * 2**i`, mean over pixels, linear head.

    `x [B, K, H, W]` -> `z [B, 64 * 2**(stages - 1)]` -> logits `[B, C]`. Every stage but the first halves the side.
    Convolutions start Kaiming normal (fan-out, ReLU), norms at scale 1 and shift 0, the head at PyTorch's default.
    """

    def __init__(
        self,
        name: str,
        input_shape: tuple[int, ...],
        num_classes: int,
        blocks: Sequence[int],
        stem: Stem,
        norm: Norm,
        projection: Projection,
    ) -> None:
        super().__init__()
        channels, _, _ = image_shape(name, input_shape)
        self._pool = stem != "cifar"
        self.stem = nn.Conv2d(channels, 64, 7, 2, 3, bias=False) if stem == "imagenet" else _conv3x3(channels, 64)
        self.stem_norm = _norm(norm, 64)
        layers: list[nn.Module] = []
        width = 64
        for stage, count in enumerate(blocks):
            for block in range(count):
                out = 64 * 2**stage
                layers.append(BasicBlock(width, out, 2 if stage and not block else 1, norm))
                width = out
        self.blocks = nn.Sequential(*layers)
        self._stage_ends = {sum(blocks[: i + 1]) - 1 for i in range(len(blocks))}
        self.projection, width = projected(width, projection)
        self.head = nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """Mean over the pixels of the last stage, `z [B, F]`, of `x [B, K, H, W]`."""
        x = self.stem_norm(self.stem(x))
        if self._pool:  # before ReLU: the same value and gradient, a quarter of the work
            x = F.max_pool2d(x, 3, 2, 1)
        return self.projection(self.blocks(torch.relu(x)).mean((2, 3)))  # type: ignore[no-any-return]

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Stem and last block of every stage, before ReLU, averaged over pixels (FedRCL: layers 0 to 4); and logits."""
        x = self.stem_norm(self.stem(x))
        found = [pooled(x)]
        x = torch.relu(F.max_pool2d(x, 3, 2, 1) if self._pool else x)
        for i, block in enumerate(self.blocks):
            before = block.before_relu(x)  # type: ignore[operator]
            x = torch.relu(before)
            if i in self._stage_ends:
                found.append(pooled(before))
        return found, self.head(self.projection(x.mean((2, 3))))


class BasicBlock(nn.Module):
    """conv3x3-norm-ReLU-conv3x3-norm plus the shortcut (conv1x1-norm where the shape changes), then ReLU."""

    def __init__(self, width: int, out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _conv3x3(width, out, stride)
        self.norm1 = _norm(norm, out)
        self.conv2 = _conv3x3(out, out)
        self.norm2 = _norm(norm, out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), _norm(norm, out))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, width, H, W]` -> `[B, out, H / stride, W / stride]`."""
        return torch.relu(self.before_relu(x))

    def before_relu(self, x: Tensor) -> Tensor:
        """What the last ReLU reads."""
        z = torch.relu(self.norm1(self.conv1(x)))
        return self.norm2(self.conv2(z)) + self.shortcut(x)  # type: ignore[no-any-return]


def _conv3x3(width: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, 3, stride, 1, bias=False)


def _norm(kind: Norm, width: int) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(GROUPS, width)
    return nn.BatchNorm2d(width, track_running_stats=kind == "batch")
