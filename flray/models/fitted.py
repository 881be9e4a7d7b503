"""Networks of other libraries, fitted to the data: the last linear layer is the head, apart from the features, and the
first convolution has the channels of the images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from flray.models.base import Classifier


class Split(Classifier):
    """`body` (the network with the identity in place of its last linear layer), then `head`, that layer."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, x: Tensor) -> Tensor:
        """Representation `z [B, F]` of inputs `x [B, ...]`."""
        return logits(self.body(x))


class Headless(nn.Module):
    """A network whose last layer is not linear: it has no features, and no `head`."""

    head = None

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, C]` of inputs `x [B, ...]`."""
        return logits(self.body(x))


def logits(output: Any) -> Tensor:
    """The logits of a network's output: a tensor, or a record or a tuple with them."""
    if isinstance(output, Tensor):
        return output
    return output.logits if hasattr(output, "logits") else output[0]  # type: ignore[no-any-return]


def split(network: nn.Module, num_classes: int, sample: Tensor) -> nn.Module:
    """`network` with its head apart, if its last linear layer with `num_classes` outputs gives its logits.

    That is tried on `sample [B, ...]`, in eval mode: logits before and after must be equal but for rounding. (GPT-2
    applies its last layer to every token, and picks one afterwards.)
    """
    linear = [(name, m) for name, m in network.named_modules() if isinstance(m, nn.Linear)]
    named = [(name, m) for name, m in linear if m.out_features == num_classes and name]
    if not named:
        return Headless(network)
    place, head = named[-1]
    network.eval()
    with torch.no_grad():
        before = logits(network(sample))
        owner, _, leaf = place.rpartition(".")
        parent = network.get_submodule(owner)
        setattr(parent, leaf, nn.Identity())
        try:
            features = logits(network(sample))
            # but for the rounding of a layer; NaN, which says nothing, is not the same
            same = features.shape == (len(sample), head.in_features) and bool(
                (head(features) - before).norm() <= 1e-5 * before.norm()
            )
        except (RuntimeError, TypeError, ValueError, AttributeError):  # the network needs the layer itself
            same = False
    network.train()
    if same:
        return Split(network, head)
    setattr(parent, leaf, head)
    return Headless(network)


def with_channels(network: nn.Module, channels: int) -> None:
    """Replace the network's first convolution by one of `channels` input channels, newly initialised, if it has
    others."""
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d):
            if layer.in_channels != channels:
                owner, _, leaf = name.rpartition(".")
                size: Any = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation")}
                new = nn.Conv2d(channels, layer.out_channels, bias=layer.bias is not None, **size)
                setattr(network.get_submodule(owner), leaf, new)
            return
