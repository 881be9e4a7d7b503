"""FedNova (Wang et al., NeurIPS 2020, section 4): average normalised updates, so that clients with more steps do not
pull more.

Client: SGD of rate gamma; sends d_k = (w_g - w_k) / (gamma a_k), a_k = norm_1 of its accumulation vector: tau_k for
plain SGD, [tau - m (1 - m^tau) / (1 - m)] / (1 - m) with momentum m, a <- a (1 - gamma mu) + 1 at every step with a
proximal term.
Server: w_g <- w_g - gamma tau_eff sum_k p_k d_k, tau_eff = sum_k p_k a_k (sum_k p_k tau_k with a proximal term,
original code).
The statistics of batch norm by the same formula (`buffers: average`).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, LocalStatistics, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Record, ServerState
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.ops.control import effective_steps
from flray.ops.proximal import ProximalTerm


class NovaState(ServerState):
    """Global model, the slow `momentum [P]` (with gmf) and `dbar [P]` (ccvr: fixed)."""

    momentum: Tensor | None
    dbar: Tensor | None


class NovaBroadcast(Broadcast):
    """Global model and `dbar [P]` (ccvr: fixed)."""

    dbar: Tensor | None


class NovaClient(LocalStatistics):
    """With ccvr: the client's direction `d [P]` in its last round, beside its statistics."""

    d: Tensor


class NovaUpdate(Record):
    """Normalised changes `d [P]` = (w_g - w_k) / (gamma a_k) and `d_b [Q]`, the client's part of tau_eff (a_k, or tau_k
    with mu), and its `own [P]` direction (ccvr: fixed)."""

    d: Tensor
    d_b: Tensor
    tau: float
    own: Tensor | None


class NovaLocalState(SGDState):
    """FedAvg's local state and, with ccvr, the `correction [P]` dbar - d_k that every step contains."""

    correction: Tensor | None


class FedNova(FedAvg[NovaState, NovaBroadcast, NovaUpdate, NovaClient | OwnStatistics, NovaLocalState], frozen=True):
    mu: float = hp(0.0, ge=0, doc="weight of a proximal term (mu); needs momentum 0 or nova_compat")
    gmf: float = hp(0.0, choice=(0.0, 0.5, 0.9), ge=0, lt=1, doc="slow momentum of the server (gmf)")
    nova_compat: bool = hp(False, doc="a_k by the original optimiser's counters: mu with momentum, and under Adam")
    ccvr: Literal["off", "fixed", "fedsol_snapshot"] = hp(
        "off", doc="cross-client variance reduction: add dbar - d_k to the gradient"
    )

    @model_validator(mode="after")
    def _defined(self) -> FedNova:
        if self.mu and self.momentum and self.optimizer == "sgd" and not self.nova_compat:
            raise ConfigError(
                "algorithm fednova: a_k is not defined for mu with momentum; set algorithm.momentum: 0, algorithm.mu: "
                "0, or algorithm.nova_compat: true for the original optimiser's rule"
            )
        return self

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> NovaState:
        return NovaState(
            w, b, torch.zeros_like(w) if self.gmf else None, torch.zeros_like(w) if self.ccvr == "fixed" else None
        )

    def broadcast(self, ctx: Context, state: NovaState) -> NovaBroadcast:
        return NovaBroadcast(state.w, state.b, state.dbar)

    def aggregate(
        self, ctx: Context, state: NovaState, updates: NovaUpdate, cohort: Cohort
    ) -> tuple[NovaState, Metrics]:
        rate, momentum, dbar, d = self.learning_rate(ctx), None, None, updates.d * updates.tau
        if state.momentum is not None:
            momentum = d.add_(state.momentum, alpha=self.gmf)
        if state.dbar is not None and updates.own is not None:
            dbar = torch.lerp(state.dbar, updates.own, self.share(ctx, cohort))
        w = torch.sub(state.w, d, alpha=rate)
        b = self.statistics(state, torch.sub(state.b, updates.d_b, alpha=rate * updates.tau))
        return NovaState(w, b, momentum, dbar), {}

    def share(self, ctx: Context, cohort: Cohort) -> float:
        """q: the cohort's share of all samples, or of all clients where clients count alike."""
        if self.weighting == "uniform":
            return len(cohort.client_ids) / ctx.population
        return float(cohort.num_examples.sum()) / (ctx.mean_examples * ctx.population)

    # client -----------------------------------------------------------------------------------
    def init_client(self, ctx: Context) -> NovaClient | OwnStatistics:
        if self.ccvr == "off":
            return super().init_client(ctx)
        w, b = ctx.objective.initial()
        return NovaClient.of(self.own_statistics(b), d=torch.zeros_like(w))

    def begin(
        self, ctx: ClientContext, broadcast: NovaBroadcast, client: NovaClient | OwnStatistics, data: ClientData
    ) -> NovaLocalState:
        base: SGDState = super().begin(ctx, broadcast, client, data)
        if not isinstance(client, NovaClient):
            return NovaLocalState.of(base, correction=None)
        correction = torch.neg(client.d, out=ctx.objective.scratch("correction", base.w))
        return NovaLocalState.of(
            base, correction=correction if broadcast.dbar is None else correction.add_(broadcast.dbar)
        )

    def gradient(
        self,
        ctx: ClientContext,
        broadcast: NovaBroadcast,
        client: NovaClient | OwnStatistics,
        local: NovaLocalState,
        batch: Batch,
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        if self.mu:
            near = ProximalTerm(anchor=broadcast.w)
            g.add_(near.gradient(local.w, ctx.objective.scratch("proximal gradient", local.w)), alpha=self.mu)
        if local.correction is not None:
            g.add_(local.correction)
        return loss, g

    def proximal_term(
        self, ctx: ClientContext, broadcast: NovaBroadcast, client: NovaClient | OwnStatistics, local: NovaLocalState
    ) -> ProximalTerm:
        """<dbar - d_k, w>, the term of `ccvr: fixed`."""
        return ProximalTerm(linear=local.correction)

    def normalizer(self, ctx: Context, steps: int) -> float:
        """a_k of a client that made `steps` local steps."""
        sgd = self.optimizer == "sgd"
        shrink = self.mu * self.learning_rate(ctx) if sgd or self.nova_compat else 0.0
        return effective_steps(steps, self.momentum if sgd else 0.0, shrink)

    def end(
        self,
        ctx: ClientContext,
        broadcast: NovaBroadcast,
        client: NovaClient | OwnStatistics,
        local: NovaLocalState,
        data: ClientData,
    ) -> tuple[NovaUpdate, NovaClient | OwnStatistics]:
        a = self.normalizer(ctx, local.moments.steps)
        scale = a * self.learning_rate(ctx) or 1.0  # a client without a step sends 0
        d = torch.sub(broadcast.w, local.w, out=local.grad).div_(scale)
        own = None
        if self.ccvr == "fixed":  # a client without a step keeps what it had
            assert isinstance(client, NovaClient) and local.correction is not None  # of begin
            own = torch.sub(d, local.correction) if a else client.d.clone()
        update = NovaUpdate(d, (broadcast.b - local.b).div_(scale), float(local.moments.steps) if self.mu else a, own)
        if self.ccvr == "off":
            return update, super().end(ctx, broadcast, client, local, data)[1]
        return update, NovaClient.of(self.own_statistics(local.b), d=d.clone() if own is None else own)
