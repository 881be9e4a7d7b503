"""Multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from flray.models.base import Classifier

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "gelu": nn.functional.gelu}


class MLP(Classifier):
    """Linear layers with an activation after each but the last, PyTorch's default initialisation.

    `x [B, *input_shape]`, images flattened -> `z [B, hidden[-1]]`, the last hidden activation -> logits `[B, C]`.
    `hidden=[]` is a linear (softmax regression) model whose features are the flattened input.
    Parameters on 1x28x28, C=10: 159,010; with `hidden=[200, 200]` (the "2NN" of McMahan et al. 2017) 199,210.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        hidden: Annotated[tuple[PositiveInt, ...], Field(description="widths of the hidden layers")] = (200,),
        activation: Annotated[Literal["relu", "tanh", "gelu"], Field(description="after each hidden layer")] = "relu",
    ) -> None:
        super().__init__()
        widths = [prod(input_shape), *hidden]
        self.layers = nn.ModuleList(nn.Linear(n, m) for n, m in pairwise(widths))
        self.head = nn.Linear(widths[-1], num_classes)
        self._activation = ACTIVATIONS[activation]

    def features(self, x: Tensor) -> Tensor:
        """Last hidden activation `z [B, F]` of `x [B, ...]`."""
        if x.dim() > 2:
            x = x.flatten(1)
        activation = self._activation
        for layer in self.layers:
            x = activation(layer(x))
        return x

    def levels(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """Each hidden layer before its activation, `[B, hidden[l]]`, and logits `[B, C]`."""
        x, levels = x.flatten(1), []
        for layer in self.layers:
            levels.append(layer(x))
            x = self._activation(levels[-1])
        return levels, self.head(x)
