"""One optimiser for a whole run: what `local` (on every client) and `centralized` (on all data) share."""

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
    """A model that goes on where it stopped: parameters `w [P]`, statistics `b [Q]`, optimiser; moments that it does
    not read are `[0]`."""

    w: Tensor
    b: Tensor
    moments: Moments


class PersistentOptimizer(FedAvg[Any, Any, Any, ModelWithOptimizer], frozen=True):
    """FedAvg's local steps on a `Trained` model, which is the client state."""

    changes_midrun: ClassVar[frozenset[str]] = frozenset({"lr", "lr_decay", "weight_decay"})  # moments are state
    # no options here: there is no average that they could change
    weighting: ClassVar[Literal["examples", "uniform"]] = "examples"  # type: ignore[misc]
    buffers: ClassVar[Literal["average", "keep", "local"]] = "local"  # type: ignore[misc]

    def initial_model(self, ctx: Context) -> ModelWithOptimizer:
        """The initial parameters and an optimiser that took no step."""
        w, b = ctx.objective.initial()
        none = w[:0].clone()
        first = torch.zeros_like(w) if self.optimizer == "adam" or self.momentum else none
        return ModelWithOptimizer(w, b, Moments(first, torch.zeros_like(w) if self.optimizer == "adam" else none, 0))

    def model_of(self, ctx: Context, message: object) -> tuple[Tensor, Tensor] | None:
        return (message.w, message.b) if isinstance(message, ModelWithOptimizer) else super().model_of(ctx, message)

    def begin(self, ctx: ClientContext, broadcast: object, client: ModelWithOptimizer, data: ClientData) -> SGDState:
        local = self.local_state(ctx, client.w, client.b)
        for scratch, kept in self._pairs(local, client):
            scratch[: len(kept)].copy_(kept)
        return local.replace(moments=local.moments.replace(steps=client.moments.steps))

    def end(
        self, ctx: ClientContext, broadcast: object, client: ModelWithOptimizer, local: SGDState, data: ClientData
    ) -> tuple[Any, Any]:
        first, second = (scratch[: len(old)].clone() for scratch, old in self._pairs(local, client))
        return (), ModelWithOptimizer(local.w.clone(), local.b.clone(), Moments(first, second, local.moments.steps))

    def _pairs(self, local: SGDState, client: ModelWithOptimizer) -> list[tuple[Tensor, Tensor]]:
        """(scratch `[P]`, what the client keeps of it) of both moments."""
        return [(local.moments.first, client.moments.first), (local.moments.second, client.moments.second)]

    def report(self, ctx: ClientContext, local: SGDState) -> Metrics:
        return {"train/loss": local.loss / max(ctx.num_steps, 1)}
