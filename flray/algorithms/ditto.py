"""Ditto (Li et al., ICML 2021, Algorithm 1): beside FedAvg's model each client trains its own, which
a penalty keeps near the global one.

min_v h_k(v; w*) = F_k(v) + lambda / 2 norm(v - w*)^2;   v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w^t))
"""

from __future__ import annotations

import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, SGDState
from flray.core.messages import Batch, Broadcast, ClientState, Metrics, ServerState, Update
from flray.core.protocol.algorithm import Predictor
from flray.core.protocol.algorithm_section import Setting, of_fine_tuned_models
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData, FineTuning
from flray.core.schema.hp import hp
from flray.ops.optim import Moments


class DittoClient(ClientState):
    """The personal model's parameters `v [P]` and `statistics [Q]`; `b [Q]`: the client's statistics for the global
    model with `buffers: local`, else `[0]`."""

    v: Tensor
    statistics: Tensor
    b: Tensor


class DittoLocalState(SGDState):
    """FedAvg's local state of the global model, and that of the `personal` model."""

    personal: SGDState


class Ditto(FedAvg[ServerState, Broadcast, Update, DittoClient, DittoLocalState], frozen=True):
    cautions = (of_fine_tuned_models,)

    lam: float = hp(
        1.0, choice=(0.05, 0.1, 0.2, 1.0, 2.0), ge=0, doc="pull of v_k towards the global model (lambda); 0: v_k alone"
    )
    personal_epochs: int | None = hp(None, ge=1, doc="epochs of v_k per round; none: as many as local_epochs")

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        """The penalty alone multiplies v_k - w by 1 - lr lambda in a step."""
        grows = self.lr * self.lam
        says = f"lr x lam = {grows:g} is above 2, so the personal models diverge from the penalty alone; lower one"
        return (*super().unsuited(setting), *((says,) if grows > 2 and self.optimizer == "sgd" else ()))

    @property
    def epochs(self) -> tuple[int, int]:
        """Local epochs of (the global model, the personal model)."""
        return self.local_epochs, self.local_epochs if self.personal_epochs is None else self.personal_epochs

    @property
    def reads_step_number(self) -> bool:
        return super().reads_step_number or self.epochs[0] != self.epochs[1]

    def step_cost(self) -> float:
        return sum(self.epochs) / max(self.epochs)

    @property
    def local_batches(self) -> tuple[int, int]:
        return self.batch_size, max(self.epochs)

    def init_client(self, ctx: Context) -> DittoClient:
        w, b = ctx.objective.initial()
        return DittoClient(w, b, b.clone() if self.buffers == "local" else b[:0].clone())

    def begin(self, ctx: ClientContext, broadcast: Broadcast, client: DittoClient, data: ClientData) -> DittoLocalState:
        local, scratch = super().begin(ctx, broadcast, client, data), ctx.objective.scratch
        first = scratch("personal first moment", local.moments.first).zero_()
        moments = Moments(first, scratch("personal second moment", local.moments.second).zero_(), 0)
        # copies, not scratch: they become part of the client state
        personal = SGDState(
            client.v.clone(), client.statistics.clone(), local.grad, moments, torch.zeros_like(local.loss)
        )
        return DittoLocalState.of(local, personal=personal)

    def step(
        self, ctx: ClientContext, broadcast: Broadcast, client: DittoClient, local: DittoLocalState, batch: Batch
    ) -> DittoLocalState:
        done = max(local.moments.steps, local.personal.moments.steps)
        per_epoch = ctx.num_steps // max(self.epochs)
        if done < per_epoch * self.epochs[1]:
            local = local.replace(personal=self.personal_step(ctx, broadcast, client, local.personal, batch))
        if done < per_epoch * self.epochs[0]:
            local = super().step(ctx, broadcast, client, local, batch)
        return local

    def personal_step(
        self, ctx: ClientContext, broadcast: Broadcast, client: DittoClient, personal: SGDState, batch: Batch
    ) -> SGDState:
        """v <- v - eta direction(grad F(v) + lam (v - w^t))."""
        loss, g = self.gradient(ctx, broadcast, client, personal, batch)  # type: ignore[arg-type]  # FedAvg reads no more
        personal.loss.add_(loss)
        g.add_(personal.w, alpha=self.lam).add_(broadcast.w, alpha=-self.lam)
        v = self.direction(ctx, broadcast, personal, g)  # type: ignore[arg-type]
        personal.w.add_(v, alpha=-self.learning_rate(ctx))
        return personal.replace(moments=personal.moments.replace(steps=personal.moments.steps + 1))

    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: DittoClient, local: DittoLocalState, data: ClientData
    ) -> tuple[Update, DittoClient]:
        update, _ = super().end(ctx, broadcast, client, local, data)
        return update, DittoClient(
            local.personal.w, local.personal.b, local.b.clone() if self.buffers == "local" else client.b
        )

    def report(self, ctx: ClientContext, local: DittoLocalState) -> Metrics:
        personal = local.personal
        return {**super().report(ctx, local), "ditto/personal_loss": personal.loss / max(personal.moments.steps, 1)}

    def personalize(
        self, ctx: ClientContext, broadcast: Broadcast, client: DittoClient, batches: FineTuning
    ) -> Predictor:
        return ctx.objective.at(*self.finetune(ctx, client.v, client.statistics, batches))
