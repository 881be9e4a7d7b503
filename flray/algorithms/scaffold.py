"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1): correct the drift of local steps with control variates.

Client: g <- g - c_k + c, then the optimiser. After tau local steps at rate eta_l
    option I: c_k+ = gradient of the client's mean loss at w_g, over all of its samples;
    option II: c_k+ = c_k - c + (w_g - w_k) / (tau eta_l), where tau counts effective steps under momentum.
Server: w_g <- w_g + eta_g (mean_k w_k - w_g), c <- c + (1/N) sum_{k in S} (c_k+ - c_k). c and all c_k start at 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, LocalStatistics, SGDState
from flray.core.messages import Batch, Cohort, Metrics, ServerState, Update, fields
from flray.core.network.objective import BoundModel
from flray.core.protocol.algorithm_section import Setting, of_returning_clients
from flray.core.protocol.batching import edges
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.control import effective_steps
from flray.ops.losses import cross_entropy
from flray.ops.proximal import ProximalTerm


class ScaffoldState(ServerState):
    """Global model and server control variate `c [P]`. The broadcast is the same record."""

    c: Tensor


class ScaffoldClient(LocalStatistics):
    """The client's control variate `c [P]` (c_k)."""

    c: Tensor


class ScaffoldUpdate(Update):
    """The local model and `c [P]` = c_k+ - c_k, of which the server gets the sum over the cohort."""

    c: Tensor = fields.sum()


class ScaffoldLocalState(SGDState):
    """FedAvg's local state and `correction [P]` = c - c_k, which is added to every gradient."""

    correction: Tensor


class Scaffold(FedAvg[ScaffoldState, ScaffoldState, ScaffoldUpdate, ScaffoldClient, ScaffoldLocalState], frozen=True):
    asynchronous: ClassVar[bool] = True
    cautions = (of_returning_clients,)
    server_reason: ClassVar[str] = "its control variate c moves with the same mean"
    option: Literal["I", "II"] = hp(
        "II", doc="new c_k: gradient of the full local loss at w_g (I), or from the local steps (II)"
    )
    divisor: Literal["momentum", "steps"] = hp(
        "momentum", doc="option II: tau counts the momentum's effective steps, or local steps (paper)"
    )
    corrects: Literal["gradient", "weights"] = hp(
        "gradient",
        doc="c - c_k is added to the gradient (paper), or after each step w <- w - eta_l (c - c_k) (NIID-Bench)",
    )
    server_lr: float = hp(1.0, log=(0.1, 10.0), gt=0, doc="server learning rate (eta_g)")
    c_over: Literal["population", "cohort"] = hp(
        "population", doc="c gets the sum of c_k+ - c_k divided by N (paper), or by the cohort's |S| (FedZoo-Bench)"
    )

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        of_clients = super().unsuited(setting)
        if self.option == "I" or not self.momentum or self.optimizer == "adam":
            return of_clients
        if self.corrects == "weights":
            # c - c_k does not pass the momentum, so c_k must be a mean step over eta_l, not a mean gradient
            says = "corrects=weights needs divisor=steps under momentum: c - c_k is a part of every step"
            return of_clients if self.divisor == "steps" else (*of_clients, says)
        if self.divisor == "momentum":
            return of_clients
        factor = 1 / (1 - self.momentum)
        says = f"divisor=steps makes c_k up to {factor:.3g} times too large at momentum {self.momentum:g}; remove it"
        return (*of_clients, says)

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> ScaffoldState:
        return ScaffoldState(w, b, torch.zeros_like(w))

    def broadcast(self, ctx: Context, state: ScaffoldState) -> ScaffoldState:
        return state

    def aggregate(
        self, ctx: Context, state: ScaffoldState, updates: ScaffoldUpdate, cohort: Cohort
    ) -> tuple[ScaffoldState, Metrics]:
        w = torch.lerp(state.w, updates.w, self.server_lr)  # exactly the mean at 1
        clients = ctx.population if self.c_over == "population" else len(cohort.client_ids)
        c = torch.add(state.c, updates.c, alpha=1 / clients)
        return ScaffoldState(w, self.statistics(state, updates.b), c), {}

    # client -----------------------------------------------------------------------------------
    def step_cost(self) -> float:
        return 1 + 1 / self.local_epochs if self.option == "I" else 1.0

    def init_client(self, ctx: Context) -> ScaffoldClient:
        w, b = ctx.objective.initial()
        return ScaffoldClient.of(self.own_statistics(b), c=torch.zeros_like(w))

    def begin(
        self, ctx: ClientContext, broadcast: ScaffoldState, client: ScaffoldClient, data: ClientData
    ) -> ScaffoldLocalState:
        base: SGDState = super().begin(ctx, broadcast, client, data)
        correction = torch.sub(broadcast.c, client.c, out=ctx.objective.scratch("correction", base.w))
        return ScaffoldLocalState.of(base, correction=correction)

    def gradient(
        self,
        ctx: ClientContext,
        broadcast: ScaffoldState,
        client: ScaffoldClient,
        local: ScaffoldLocalState,
        batch: Batch,
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g.add_(local.correction) if self.corrects == "gradient" else g

    def descend(
        self, ctx: ClientContext, broadcast: ScaffoldState, local: ScaffoldLocalState, loss: Tensor, g: Tensor
    ) -> ScaffoldLocalState:
        after = super().descend(ctx, broadcast, local, loss, g)
        if self.corrects == "weights":
            after.w.add_(local.correction, alpha=-self.learning_rate(ctx))
        return after

    def proximal_term(
        self, ctx: ClientContext, broadcast: ScaffoldState, client: ScaffoldClient, local: ScaffoldLocalState
    ) -> ProximalTerm:
        """<c - c_k, w>: SCAFFOLD's part in FedSOL (Table 4)."""
        return ProximalTerm(linear=local.correction)

    def end(
        self,
        ctx: ClientContext,
        broadcast: ScaffoldState,
        client: ScaffoldClient,
        local: ScaffoldLocalState,
        data: ClientData,
    ) -> tuple[ScaffoldUpdate, ScaffoldClient]:
        c = self.new_control(ctx, broadcast, client, local, data)
        change = torch.sub(c, client.c, out=local.correction)
        return ScaffoldUpdate(local.w, local.b, change), ScaffoldClient.of(self.own_statistics(local.b), c=c)

    def new_control(
        self,
        ctx: ClientContext,
        broadcast: ScaffoldState,
        client: ScaffoldClient,
        local: ScaffoldLocalState,
        data: ClientData,
    ) -> Tensor:
        """c_k+ `[P]`, a new tensor; c_k if the client made no local step."""
        if not local.moments.steps:
            return client.c.clone()
        if self.option == "I":
            return self.full_gradient(ctx, broadcast, data)
        momentum = self.momentum if self.optimizer == "sgd" and self.divisor == "momentum" else 0.0
        tau = effective_steps(local.moments.steps, momentum)
        mean_gradient = torch.sub(broadcast.w, local.w).div_(tau * self.learning_rate(ctx))
        return mean_gradient.sub_(local.correction)

    def full_gradient(self, ctx: Context, broadcast: ScaffoldState, data: ClientData) -> Tensor:
        """The gradient `[P]`, a new tensor, of the mean loss at w_g over all samples of the client.

        Batch norm reads the statistics of each batch, as in training. A short last batch is one of its own where
        `last_batch` keeps it, and joins the one before it otherwise.
        """
        total, out = torch.zeros_like(broadcast.w), ctx.objective.scratch("anchor gradient", broadcast.w)
        limits = edges(data.num_examples, self.batch_size, "keep" if self.last_batch == "keep" else "merge")
        for first, last in pairwise(limits):
            (batch,) = data.only(data.numbers[first:last]).batches(last - first, epochs=1)

            def loss(f: BoundModel, batch: Batch = batch) -> Tensor:
                return cross_entropy(f(batch.x), batch.y, ctx.classes)

            _, g = ctx.objective.value_and_grad(loss, broadcast.w, broadcast.b, mode="train_frozen", out=out)
            total.add_(g, alpha=len(batch.y) / data.num_examples)
        return total
