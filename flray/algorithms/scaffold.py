"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1): correct the drift of local steps with control variates.

Client: g <- g - c_k + c, then the optimiser. After tau steps of rate gamma
    option II: c_k+ = c_k - c + (w_g - w_k) / (A gamma);   option I: c_k+ = gradient of the client's mean loss at w_g,
    over all of its samples, whatever `last_batch` leaves out of an epoch.
Server: w_g <- w_g + eta_g (mean w_k - w_g), c <- c + (1/N) sum_{k in S} (c_k+ - c_k). c and all c_k start at 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from flray.algorithms.fedavg import Carry, FedAvg, LocalStatistics
from flray.core.messages import Batch, Cohort, Metrics, ServerState, Update
from flray.core.protocol.batching import edges
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.control import accumulation, mass
from flray.ops.losses import cross_entropy


class ScaffoldState(ServerState):
    """Global model and control variate `c [P]`; also what goes down."""

    c: Tensor


class ScaffoldClient(LocalStatistics):
    """The client's control variate `c [P]`, beside its statistics."""

    c: Tensor


class ScaffoldUpdate(Update):
    """Local model and `c [P]`: (c_k+ - c_k) / m_k, whose weighted mean the server turns into a sum."""

    c: Tensor


class ScaffoldCarry(Carry):
    """FedAvg's carry, and the `correction [P]` c - c_k."""

    correction: Tensor


class Scaffold(FedAvg[ScaffoldState, ScaffoldState, ScaffoldUpdate, ScaffoldClient, ScaffoldCarry], frozen=True):
    option: Literal["I", "II"] = hp(
        "II", doc="new c_k: gradient of the whole local loss at w_g (I), or from the local steps (II)"
    )
    divisor: Literal["momentum", "steps"] = hp(
        "momentum", doc="option II divides by the momentum's effective steps, or by tau (paper)"
    )
    server_lr: float = hp(1.0, log=(0.1, 10.0), gt=0, doc="server learning rate (eta_g)")

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> ScaffoldState:
        return ScaffoldState(w, b, torch.zeros_like(w))

    def broadcast(self, ctx: Context, state: ScaffoldState) -> ScaffoldState:
        return state

    def aggregate(
        self, ctx: Context, state: ScaffoldState, updates: ScaffoldUpdate, cohort: Cohort
    ) -> tuple[ScaffoldState, Metrics]:
        w = torch.lerp(state.w, updates.w, self.server_lr)  # exactly the mean at 1
        total = sum(mass(self.weighting, n) for n in cohort.num_examples.tolist())
        c = torch.add(state.c, updates.c, alpha=total / ctx.population)
        return ScaffoldState(w, self.statistics(state, updates.b), c), {}

    # client -----------------------------------------------------------------------------------
    def step_cost(self) -> float:
        return 1 + 1 / self.local_epochs if self.option == "I" else 1.0

    def init_client(self, ctx: Context) -> ScaffoldClient:
        w, b = ctx.objective.initial()
        return ScaffoldClient.of(self.own_statistics(b), c=torch.zeros_like(w))

    def begin(self, ctx: ClientContext, down: ScaffoldState, client: ScaffoldClient, data: ClientData) -> ScaffoldCarry:
        base: Carry = super().begin(ctx, down, client, data)
        correction = torch.sub(down.c, client.c, out=ctx.objective.scratch("correction", base.w))
        return ScaffoldCarry.of(base, correction=correction)

    def gradient(
        self, ctx: ClientContext, down: ScaffoldState, client: ScaffoldClient, carry: ScaffoldCarry, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, down, client, carry, batch)
        return loss, g.add_(carry.correction)

    def proximal(
        self, ctx: ClientContext, down: ScaffoldState, client: ScaffoldClient, carry: ScaffoldCarry, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(<c - c_k, w>, its gradient `[P]`, scratch) (FedSOL Table 4)."""
        g = ctx.objective.scratch("proximal gradient", carry.w).copy_(carry.correction)
        return torch.dot(g, carry.w), g

    def end(
        self,
        ctx: ClientContext,
        down: ScaffoldState,
        client: ScaffoldClient,
        carry: ScaffoldCarry,
        data: ClientData,
        used: float = 1.0,
    ) -> tuple[ScaffoldUpdate, ScaffoldClient]:
        """`used`: the share of c - c_k that the local steps contained; 1 but under FedSOL (its card says why)."""
        c = self.control(ctx, down, client, carry, data, used)
        # of sum_k p_k (c_k+ - c_k) / m_k the server makes the plain sum, whoever was skipped
        change = torch.sub(c, client.c, out=carry.correction).div_(mass(self.weighting, ctx.num_examples) or 1.0)
        return ScaffoldUpdate(carry.w, carry.b, change), ScaffoldClient.of(self.own_statistics(carry.b), c=c)

    def control(
        self,
        ctx: ClientContext,
        down: ScaffoldState,
        client: ScaffoldClient,
        carry: ScaffoldCarry,
        data: ClientData,
        used: float,
    ) -> Tensor:
        """c_k+ `[P]`, a new tensor: the mean local gradient, which is what the steps contained besides used (c - c_k).

        That of a client without a step stays."""
        steps = carry.moments.steps
        if not steps:
            return torch.clone(client.c)
        if self.option == "I":
            return self.full_gradient(ctx, down, data)
        momentum = self.momentum if self.optimizer == "sgd" and self.divisor == "momentum" else 0.0
        c = torch.sub(down.w, carry.w).div_(accumulation(steps, momentum) * self.learning_rate(ctx))
        return c.sub_(carry.correction, alpha=used)

    def full_gradient(self, ctx: Context, down: ScaffoldState, data: ClientData) -> Tensor:
        """The gradient `[P]`, a new tensor, of the client's mean loss at w_g: a sum over batches of all its samples.

        Batch norm reads the statistics of each batch, as in training; a short last batch joins the one before it where
        `last_batch` spares it in training."""
        total = torch.zeros_like(down.w)
        places = edges(data.num_examples, self.batch_size, "keep" if self.last_batch == "keep" else "merge")
        for first, last in pairwise(places):
            (batch,) = data.only(data.numbers[first:last]).batches(last - first, epochs=1)
            total.add_(self.anchor_gradient(ctx, down, batch), alpha=len(batch.y) / data.num_examples)
        return total

    def anchor_gradient(self, ctx: Context, down: ScaffoldState, batch: Batch) -> Tensor:
        """The gradient `[P]`, scratch, of a batch's mean loss at w_g."""
        out = ctx.objective.scratch("anchor gradient", down.w)
        _, g = ctx.objective.value_and_grad(
            lambda f: cross_entropy(f(batch.x), batch.y, ctx.classes), down.w, down.b, mode="train_frozen", out=out
        )
        return g
