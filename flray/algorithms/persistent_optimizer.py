"""One optimiser for the entire run: the base of `local` (on every client) and `centralized` (on all data)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, SGDState
from flray.core.messages import ClientState, Metrics
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.ops.optim import Moments


class ModelWithOptimizer(ClientState):
    """Parameters `w [P]`, statistics `b [Q]` and the optimiser's moments after the last round; moments that the
    optimiser does not read are `[0]`."""

    w: Tensor
    b: Tensor
    moments: Moments


class PersistentOptimizer(FedAvg[Any, Any, Any, ModelWithOptimizer], frozen=True):
    """FedAvg's local steps on a `ModelWithOptimizer`, which is the client state."""

    changes_midrun: ClassVar[frozenset[str]] = frozenset({"lr", "lr_decay", "weight_decay"})  # the moments are stored
    # constants, not options: there is no average that they could change
    weighting: ClassVar[Literal["examples", "uniform"]] = "examples"  # type: ignore[misc]
    buffers: ClassVar[Literal["average", "keep", "local"]] = "local"  # type: ignore[misc]

    def initial_model(self, ctx: Context) -> ModelWithOptimizer:
        """The initial model with an optimiser before its first step."""
        w, b = ctx.objective.initial()
        none = w[:0].clone()
        first = torch.zeros_like(w) if self.optimizer == "adam" or self.momentum else none
        return ModelWithOptimizer(w, b, Moments(first, torch.zeros_like(w) if self.optimizer == "adam" else none, 0))

    def model_of(self, ctx: Context, message: object) -> tuple[Tensor, Tensor] | None:
        return (message.w, message.b) if isinstance(message, ModelWithOptimizer) else super().model_of(ctx, message)

    def begin(self, ctx: ClientContext, broadcast: object, client: ModelWithOptimizer, data: ClientData) -> SGDState:
        local = self.local_state(ctx, client.w, client.b)
        for scratch, stored in self._moments(local, client):
            scratch[: len(stored)].copy_(stored)
        return local.replace(moments=local.moments.replace(steps=client.moments.steps))

    def end(
        self, ctx: ClientContext, broadcast: object, client: ModelWithOptimizer, local: SGDState, data: ClientData
    ) -> tuple[Any, Any]:
        first, second = (scratch[: len(old)].clone() for scratch, old in self._moments(local, client))
        return (), ModelWithOptimizer(local.w.clone(), local.b.clone(), Moments(first, second, local.moments.steps))

    def _moments(self, local: SGDState, client: ModelWithOptimizer) -> list[tuple[Tensor, Tensor]]:
        """(scratch `[P]`, the stored moment `[P]` or `[0]`) of both moments."""
        return [(local.moments.first, client.moments.first), (local.moments.second, client.moments.second)]

    def report(self, ctx: ClientContext, local: SGDState) -> Metrics:
        return {"train/loss": local.loss / max(ctx.steps_taken, 1)}
