"""FedDyn (Acar et al., ICLR 2021, Algorithm 1): linear and quadratic terms make local and global stationary points
agree.

Client: min CE(w) - <h_k, w> + alpha/2 norm(w - w_g)^2, gradient g_l - h_k + alpha (w - w_g); then h_k <- h_k - alpha
(w_k - w_g).
Server: h <- h - (alpha/N) sum_{k in S} (w_k - w_g), w_g <- mean_{k in S} w_k - h / alpha. h and all h_k start at 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, LocalStatistics, SGDState
from flray.core.messages import Batch, Broadcast, Cohort, EachUpdate, Metrics, ServerState, Update
from flray.core.protocol.algorithm_section import of_returning_clients
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.optim import clip_
from flray.ops.pooling import mean_of_each
from flray.ops.proximal import ProximalTerm


class DynState(ServerState):
    """Global model and `h [P]`."""

    h: Tensor


class DynClient(LocalStatistics):
    """The client's `h [P]`, beside its statistics."""

    h: Tensor


class DynLocalState(SGDState):
    """FedAvg's local state and `minus_h [P]` = -h_k, the gradient of the linear term."""

    minus_h: Tensor


class FedDyn(FedAvg[DynState, Broadcast, Update, DynClient, DynLocalState], frozen=True):
    cautions = (of_returning_clients,)
    asynchronous: ClassVar[bool] = True
    server_reason: ClassVar[str] = "h and w move together"
    alpha: float = hp(0.1, log=(1e-3, 1.0), gt=0, doc="strength of the dynamic regulariser (alpha)")
    official: bool = hp(False, doc="official code: alpha n / (n_k N) on client k; clipping before alpha w is added")
    clip: float | None = hp(None, gt=0, doc="largest norm of the local gradient (official code: 10); none: no clipping")
    weighting: Literal["examples", "uniform"] = hp(
        "uniform", doc="mean of the local models: equal weights (paper), or by n_k (FedSOL)"
    )

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> DynState:
        return DynState(w, b, torch.zeros_like(w))

    def aggregate(self, ctx: Context, state: DynState, updates: Update, cohort: Cohort) -> tuple[DynState, Metrics]:
        # sum_{k in S} (w_k - w_g) is |S| times the plain mean, whatever the `weighting`
        plain = updates if self.weighting == "uniform" else mean_of_each(updates)
        mean = updates if self.weighting == "uniform" else mean_of_each(updates, cohort.weights)
        h = torch.sub(state.h, plain.w - state.w, alpha=self.alpha * len(cohort.client_ids) / ctx.population)
        w = torch.sub(mean.w, h, alpha=1 / self.alpha)
        return DynState(w, self.statistics(state, mean.b), h), {}

    # client -----------------------------------------------------------------------------------
    def init_client(self, ctx: Context) -> DynClient:
        w, b = ctx.objective.initial()
        return DynClient.of(self.own_statistics(b), h=torch.zeros_like(w))

    def strength(self, ctx: ClientContext) -> float:
        """alpha of this client."""
        if not self.official:
            return self.alpha
        return self.alpha * ctx.mean_examples / max(ctx.num_examples, 1)

    def begin(self, ctx: ClientContext, broadcast: Broadcast, client: DynClient, data: ClientData) -> DynLocalState:
        base: SGDState = super().begin(ctx, broadcast, client, data)
        return DynLocalState.of(base, minus_h=torch.neg(client.h, out=ctx.objective.scratch("minus h", base.w)))

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: DynClient, local: DynLocalState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        term = self.proximal_term(ctx, broadcast, client, local)
        g.add_(term.gradient(local.w, ctx.objective.scratch("proximal gradient", local.w)))
        if self.clip is None:
            return loss, g
        if not self.official:
            return loss, clip_(g, self.clip)
        # there alpha w is weight decay, which the optimiser adds after clipping
        alpha = self.strength(ctx)
        return loss, clip_(g.sub_(local.w, alpha=alpha), self.clip).add_(local.w, alpha=alpha)

    def proximal_term(
        self, ctx: ClientContext, broadcast: Broadcast, client: DynClient, local: DynLocalState
    ) -> ProximalTerm:
        """-<h_k, w> + alpha/2 norm(w - w_g)^2."""
        return ProximalTerm(local.minus_h, broadcast.w, self.strength(ctx))

    def end(
        self,
        ctx: ClientContext,
        broadcast: Broadcast,
        client: DynClient,
        local: DynLocalState,
        data: ClientData,
    ) -> tuple[Update, DynClient]:
        drift = torch.sub(local.w, broadcast.w, out=local.minus_h)
        h = torch.sub(client.h, drift, alpha=self.strength(ctx))
        # a weighted and a plain mean need the models themselves
        sent = Update if self.weighting == "uniform" else EachUpdate
        return sent(local.w, local.b), DynClient.of(self.own_statistics(local.b), h=h)
