"""The distance that each layer moves in local training, and FedSOL's Lambda (FedSOL, Eq. 7 and Figure 5b)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flray.core.network.objective import Objective
from flray.core.protocol.context import Context
from flray.core.protocol.probe import ClientView, Place, Probe, Row
from flray.metrics.reading import due
from flray.ops.perturb import Adaptive, adaptive_scale, norm_groups, parameter_subset


class LayerDistance(Probe, frozen=True):
    """A row for each client and layer, in the network's order: `distance` ||w_k - w_g|| of the layer's tensors,
    `relative` to ||w_g|| of them, and the mean of Lambda over their elements (`lambda_mean`), with which FedSOL scales
    its perturbation.

    A weight and a bias are one layer, and so is a tensor of the network itself. For any algorithm.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "end"})

    every: int = Field(1, ge=1, description="rounds between two observations, from the first on")
    adaptive: Adaptive = Field("columnwise", description="Lambda: |w_k - w_g| normalised per column, tensor or layer")

    def observe(self, ctx: Context, view: ClientView, memory: Any) -> tuple[Sequence[Row], Any]:
        if not due(ctx, self.every):
            return [], memory
        if view.place == "start":
            return [], view.model_of(view.broadcast)
        local = view.model_of(view.update)
        if memory is None or local is None:
            return [], memory
        return by_layer(ctx.objective, local[0], memory[0], self.adaptive), memory


def by_layer(objective: Objective, w: Tensor, anchor: Tensor, adaptive: Adaptive) -> list[dict[str, Any]]:
    """`layer`, `distance`, `relative`, `lambda_mean` of each layer between two points `[P]`; for `none` Lambda is 1."""
    everything = parameter_subset(objective, "all")
    if adaptive == "none":
        scale = torch.ones_like(w)
    else:
        scale = adaptive_scale(w, anchor, everything, adaptive, torch.zeros_like(w))
    difference, rows = (w - anchor).double(), []
    for numbers in norm_groups(everything.entries, "layer"):
        entries = [everything.entries[i] for i in numbers]
        places = torch.cat([torch.arange(e.offset, e.offset + e.numel, device=w.device) for e in entries])
        far, size = float(difference[places].norm()), float(anchor[places].double().norm())
        rows.append(
            {
                "layer": entries[0].name.rpartition(".")[0] or entries[0].name,
                "distance": far,
                "relative": far / size if size else float("nan"),
                "lambda_mean": float(scale[places].double().mean()),
            }
        )
    return rows
