"""`Classifier`, the base of flray's models: features, head, and forward = head(features); most declare levels too."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from flray.core.schema.errors import ConfigError


class Classifier(nn.Module):
    """A network with a feature/head split; a subclass sets `head` (registered last) and writes `features`.

    It may declare `levels(x)` for algorithms that read several representations: (the network's levels, shallow to deep,
    each `[B, F_l]`, before its activation and pooled over pixels; logits `[B, C]`).

    `early`: names of the parameters and submodules, in the order of the forward pass, that continual methods freeze
    after the first task of a pretrained network. An algorithm reads them as `ctx.mask("early")`.
    """

    head: nn.Module
    early: tuple[str, ...] = ()

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, F]` of inputs `x [B, ...]`, the input of the head."""
        raise NotImplementedError(
            f"{type(self).__name__} defines no features(x)"
        )  # a class with its own forward needs none

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, C]` of inputs `x [B, ...]`."""
        return self.head(self.features(x))  # type: ignore[no-any-return]


def linear_head(model: nn.Module, algorithm: str) -> nn.Linear:
    """The linear layer `head` after a network's features, for an `algorithm` that reads them.

    Raises `ConfigError` for a network without one.
    """
    head = getattr(model, "head", None)
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"{algorithm} reads features, and {type(model).__name__} has no linear head after them; choose "
            "another model"
        )
    return head


def pooled(x: Tensor) -> Tensor:
    """Mean over the pixels of `x [B, K, H, W]`, `[B, K]`; its gradient is channels-last, that of `mean` is not."""
    return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)


Projection = Annotated[
    PositiveInt | None,
    Field(description="width of MOON's projection before the head (256 in the paper); none: no projection"),
]


def projected(width: int, projection: int | None) -> tuple[nn.Module, int]:
    """(linear `width` -> `width`, ReLU, linear -> `projection`, or the identity; the head's input width).

    Li et al. 2021 (MOON), CVPR.
    """
    if projection is None:
        return nn.Identity(), width
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, projection)), projection


def image_shape(model: str, input_shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
    """`input_shape` as `(channels, height, width)`; `ConfigError` for another shape or sides below `smallest`."""
    if len(input_shape) != 3:
        raise ConfigError(f"model {model!r} reads images [K, H, W], the data have shape {list(input_shape)}; use 'mlp'")
    channels, height, width = input_shape
    if min(height, width) < smallest:
        need = f"{smallest}x{smallest} pixels or more"
        raise ConfigError(f"model {model!r} needs {need}, the data have {height}x{width}; set data.resize")
    return channels, height, width


def enlarge(x: Tensor, smallest: int) -> Tensor:
    """Images `x [B, K, H, W]`; sides below `smallest` are enlarged to it (nearest pixel)."""
    size = [max(side, smallest) for side in x.shape[2:]]
    return x if size == list(x.shape[2:]) else F.interpolate(x, size)


def count_parameters(module: nn.Module) -> int:
    """The number of trainable parameters; tied ones count once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
