"""Residual networks of basic blocks: ResNet-8 as FedProj uses it, ResNet-18.

Parameters (3 input channels): `resnet8` 4,903,242 at C=10; `resnet8_3stage` 1,227,594 at C=10; `resnet18` 11,173,962 at
C=10 and 11,220,132 at C=100 (`stem: imagenet` 7,680 more). `norm` does not change the count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from flray.models.base import Classifier, Projection, image_shape, pooled, projected
from flray.models.weights import adopt, foreign_weights

Stem = Annotated[
    Literal["cifar", "cifar_pool", "imagenet"],
    Field(description="first convolution: 3x3; 3x3 and max-pool; 7x7 with stride 2 and max-pool"),
]
Norm = Annotated[
    Literal["batch", "group", "none_tracked"],
    Field(description="batch-norm; group-norm of 2 groups; batch-norm without running statistics, in tests too"),
]
StemInit = Annotated[
    Literal["pretrained", "random"],
    Field(description="pretrained: the file's first convolution if it has the shape of `stem`; random: never"),
]
PoolOut = Annotated[
    tuple[PositiveInt, PositiveInt],
    Field(description="pixels to which the last stage is averaged; its channels times these are the features"),
]
Width = Annotated[int, Field(ge=2, multiple_of=2, description="channels of the first stage, doubled in each later one")]
GROUPS = 2  # Seo et al. 2024 (FedRCL), CVPR, their ResNet-18


def resnet8(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    stem: Stem = "cifar_pool",
    norm: Norm = "batch",
    projection: Projection = None,
    width: Width = 64,
) -> ResNet:
    """Four stages of one block, widths 64 to 512: 4,903,242 parameters, 64.7 M multiply-adds at 3x32x32, C=10.

    The network whose size and cost FedProj reports; "8" counts the 3x3 convolutions in the blocks.
    """
    return ResNet("resnet8", input_shape, num_classes, (1, 1, 1, 1), stem, norm, projection, width=width)


def resnet8_3stage(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    stem: Stem = "cifar_pool",
    norm: Norm = "batch",
    projection: Projection = None,
    width: Width = 64,
    pool_out: PoolOut = (1, 1),
) -> ResNet:
    """Three stages of one block, widths 64 to 256: 1,227,594 parameters at C=10. "resnet8" in the TAKFL code.

    `width: 16` has the 78,042 of FedDF's, `width: 32` 308,650. Features of 4 `width`, times the pixels of `pool_out`.
    """
    return ResNet("resnet8_3stage", input_shape, num_classes, (1, 1, 1), stem, norm, projection, pool_out, width=width)


def resnet18(
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    stem: Stem = "cifar",
    norm: Norm = "batch",
    projection: Projection = None,
    pretrained: Annotated[
        str | None,
        Field(description="file of an ImageNet ResNet-18 with torchvision's names (.pth, .safetensors); none: random"),
    ] = None,
    stem_init: StemInit = "pretrained",
    pool_out: PoolOut = (1, 1),
    shortcut_bn_eps: Annotated[
        Annotated[float, Field(ge=0)] | Literal["official"],
        Field(
            description="epsilon of the shortcuts' batch-norms; official: 1 with running statistics, 0 without, as in "
            "FedProTIP's code"
        ),
    ] = 1e-5,
    width: Width = 64,
) -> ResNet:
    """Four stages of two blocks: 11,173,962 parameters at C=10, 11,168,832 without the head.

    He et al. 2016, CVPR. FedProj: `stem: cifar_pool`. FedSOL: `norm: none_tracked`. FedRCL: `norm: group`.
    FedProTIP: `pretrained`, `pool_out: [2, 2]`, `stem: cifar` or `imagenet`; its code (convs/resnet.py) `stem_init:
    random` and `shortcut_bn_eps: official`.
    """
    eps = float(norm == "batch") if shortcut_bn_eps == "official" else shortcut_bn_eps
    net = ResNet("resnet18", input_shape, num_classes, (2, 2, 2, 2), stem, norm, projection, pool_out, eps, width)
    if pretrained is not None:
        net.start_from(pretrained, stem_init)
    return net


class ResNet(Classifier):
    """Stem, stages of `blocks[i]` basic blocks of width `width * 2**i`, mean over pixels, linear head.

    `x [B, K, H, W]` -> `z [B, width * 2**(stages - 1)]` -> logits `[B, C]`. Each stage but the first halves the side.
    With `pool_out (h, w)` the mean is over h x w parts of the image, and `z` is h w times as wide, channels outermost.
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
        pool_out: tuple[int, int] = (1, 1),
        shortcut_eps: float = 1e-5,
        width: int = 64,
    ) -> None:
        super().__init__()
        channels, _, _ = image_shape(name, input_shape)
        self._pool, self._pool_out, self._counts = stem != "cifar", pool_out, tuple(blocks)
        self.stem = nn.Conv2d(channels, width, 7, 2, 3, bias=False) if stem == "imagenet" else _conv3x3(channels, width)
        self.stem_norm = _norm(norm, width)
        layers: list[nn.Module] = []
        before = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                out = width * 2**stage
                layers.append(BasicBlock(before, out, 2 if stage and not block else 1, norm, shortcut_eps))
                before = out
        self.blocks = nn.Sequential(*layers)
        self._stage_ends = {sum(blocks[: i + 1]) - 1 for i in range(len(blocks))}
        self.early = ("stem", "stem_norm", *(f"blocks.{i}" for i in range(sum(blocks[:2]))))
        self.projection, wide = projected(before * pool_out[0] * pool_out[1], projection)
        self.head = nn.Linear(wide, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        """Mean over the pixels of the last stage, `z [B, F]`, of `x [B, K, H, W]`."""
        x = self.stem_norm(self.stem(x))
        if self._pool:  # before ReLU: the same value and gradient, a quarter of the work
            x = F.max_pool2d(x, 3, 2, 1)
        return self._pooled(self.blocks(torch.relu(x)))

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Stem and last block of each stage, before ReLU, averaged over pixels (FedRCL: layers 0 to 4); and logits."""
        x = self.stem_norm(self.stem(x))
        levels = [pooled(x)]
        x = torch.relu(F.max_pool2d(x, 3, 2, 1) if self._pool else x)
        for i, block in enumerate(self.blocks):
            before = block.before_relu(x)  # type: ignore[operator]
            x = torch.relu(before)
            if i in self._stage_ends:
                levels.append(pooled(before))
        return levels, self.head(self._pooled(x))

    def _pooled(self, x: Tensor) -> Tensor:
        """The head's input, from the last stage."""
        (height, width), (rows, columns) = x.shape[2:], self._pool_out
        if self._pool_out == (1, 1):
            z = x.mean((2, 3))
        elif height % rows == width % columns == 0:  # the same mean; on a GPU, the adaptive one's gradient may vary
            z = F.avg_pool2d(x, (height // rows, width // columns)).flatten(1)
        else:
            z = F.adaptive_avg_pool2d(x, self._pool_out).flatten(1)
        return self.projection(z)  # type: ignore[no-any-return]

    def start_from(self, source: str, stem_init: StemInit) -> None:
        """Load a file with torchvision's names; head, projection and first convolution may differ there (see `adopt`).

        Raises `ConfigError` for a file that does not fit.
        """
        weights = {self._own_name(name): tensor for name, tensor in foreign_weights(source).items()}
        if stem_init == "random":
            weights.pop("stem.weight", None)
        self.starts_from = adopt(self, source, weights, ("head", "projection", "stem"))

    def _own_name(self, theirs: str) -> str:
        """`layer2.0.downsample.1.bias` -> `blocks.2.shortcut.1.bias`."""
        first, *rest = theirs.split(".")
        stage = first.removeprefix("layer")
        if first != stage and stage.isdigit() and rest and rest[0].isdigit():
            block, *rest = rest
            rest = [{"bn1": "norm1", "bn2": "norm2", "downsample": "shortcut"}.get(part, part) for part in rest]
            return ".".join(["blocks", str(sum(self._counts[: int(stage) - 1]) + int(block)), *rest])
        return ".".join([{"conv1": "stem", "bn1": "stem_norm", "fc": "head"}.get(first, first), *rest])


class BasicBlock(nn.Module):
    """conv3x3-norm-ReLU-conv3x3-norm plus the shortcut (conv1x1-norm where the shape changes), then ReLU."""

    def __init__(self, width: int, out: int, stride: int, norm: Norm, shortcut_eps: float = 1e-5) -> None:
        super().__init__()
        self.conv1 = _conv3x3(width, out, stride)
        self.norm1 = _norm(norm, out)
        self.conv2 = _conv3x3(out, out)
        self.norm2 = _norm(norm, out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), _norm(norm, out, shortcut_eps))

    def forward(self, x: Tensor) -> Tensor:
        """`[B, width, H, W]` -> `[B, out, H / stride, W / stride]`."""
        return torch.relu(self.before_relu(x))

    def before_relu(self, x: Tensor) -> Tensor:
        """The input of the last ReLU."""
        z = torch.relu(self.norm1(self.conv1(x)))
        return self.norm2(self.conv2(z)) + self.shortcut(x)  # type: ignore[no-any-return]


def _conv3x3(width: int, out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width, out, 3, stride, 1, bias=False)


def _norm(kind: Norm, width: int, eps: float = 1e-5) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(GROUPS, width, eps)
    return nn.BatchNorm2d(width, eps, track_running_stats=kind == "batch")
