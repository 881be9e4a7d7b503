"""FedNova (Wang et al., NeurIPS 2020, section 4): average normalised updates, so that clients with more local steps do
not pull more.

Client: SGD of rate eta; sends d_k = (w_g - w_k) / (eta a_k). a_k = norm_1 of the accumulation vector: tau_k for plain
SGD, [tau - m (1 - m^tau) / (1 - m)] / (1 - m) with momentum m; with a proximal term a <- a (1 - eta mu) + 1 every step.
Server: w_g <- w_g - eta tau_eff sum_k p_k d_k, tau_eff = sum_k p_k a_k (with a proximal term sum_k p_k tau_k, as in the
original code). Batch-norm statistics by the same formula (`buffers: average`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, LocalStatistics, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Record, ServerState
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError, warn
from flray.core.schema.hp import hp
from flray.ops.control import effective_steps
from flray.ops.proximal import ProximalTerm


class NovaState(ServerState):
    """Global model, the slow `momentum [P]` (None without gmf), and `dbar [P]`, the mean of all d_k (None unless ccvr
    is fixed)."""

    momentum: Tensor | None
    dbar: Tensor | None


class NovaBroadcast(Broadcast):
    """Global model and `dbar [P]` (None unless ccvr is fixed)."""

    dbar: Tensor | None


class NovaClient(LocalStatistics):
    """With ccvr: the client's direction `d [P]` (d_k) of its last round."""

    d: Tensor


class NovaUpdate(Record):
    """The normalised update `d [P]` = (w_g - w_k) / (eta a_k), the same of the statistics, `d_b [Q]`, and `tau`, whose
    mean is tau_eff: a_k, or tau_k with mu. `d_uncorrected [P]`: d less the correction dbar - d_k (None unless ccvr is
    fixed)."""

    d: Tensor
    d_b: Tensor
    tau: float
    d_uncorrected: Tensor | None


class NovaLocalState(SGDState):
    """FedAvg's local state and `correction [P]` = dbar - d_k, added to every gradient (None without ccvr)."""

    correction: Tensor | None


class FedNova(FedAvg[NovaState, NovaBroadcast, NovaUpdate, NovaClient | OwnStatistics, NovaLocalState], frozen=True):
    server_reason: ClassVar[str] = "its clients send normalised updates, which are no models"
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
        eta, tau_eff = self.learning_rate(ctx), updates.tau
        step, momentum, dbar = updates.d * tau_eff, None, None
        if state.momentum is not None:
            momentum = step.add_(state.momentum, alpha=self.gmf)
        if state.dbar is not None and updates.d_uncorrected is not None:
            dbar = torch.lerp(state.dbar, updates.d_uncorrected, self.sampled_share(ctx, cohort))
        w = torch.sub(state.w, step, alpha=eta)
        b = self.statistics(state, torch.sub(state.b, updates.d_b, alpha=eta * tau_eff))
        for name, variance in ctx.objective.buffer_layout.views(b).items():
            if name.endswith("running_var") and bool((variance < 0).any()):
                warn(
                    f"fednova: {name} has negative entries, whose outputs in a test are not numbers: some clients take "
                    "many more steps than others; set algorithm.buffers=local, or take a network without batch norm"
                )
                break
        return NovaState(w, b, momentum, dbar), {}

    def sampled_share(self, ctx: Context, cohort: Cohort) -> float:
        """q: the cohort's share of all samples; of all clients with uniform weighting."""
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
            term = ProximalTerm(anchor=broadcast.w)
            g.add_(term.gradient(local.w, ctx.objective.scratch("proximal gradient", local.w)), alpha=self.mu)
        if local.correction is not None:
            g.add_(local.correction)
        return loss, g

    def proximal_term(
        self, ctx: ClientContext, broadcast: NovaBroadcast, client: NovaClient | OwnStatistics, local: NovaLocalState
    ) -> ProximalTerm:
        """<dbar - d_k, w>: FedNova's part in FedSOL (Table 4), with ccvr."""
        return ProximalTerm(linear=local.correction)

    def normalizer(self, ctx: Context, steps: int) -> float:
        """a_k of a client with `steps` local steps (tau_k)."""
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
        tau = local.moments.steps
        a = self.normalizer(ctx, tau)
        scale = a * self.learning_rate(ctx) or 1.0  # a client without a step sends 0
        d = torch.sub(broadcast.w, local.w, out=local.grad).div_(scale)
        d_uncorrected = None
        if self.ccvr == "fixed":
            assert isinstance(client, NovaClient) and local.correction is not None  # of begin
            d_uncorrected = torch.sub(d, local.correction) if tau else client.d.clone()
        update = NovaUpdate(d, (broadcast.b - local.b).div_(scale), float(tau) if self.mu else a, d_uncorrected)
        if self.ccvr == "off":
            return update, super().end(ctx, broadcast, client, local, data)[1]
        d_k = d.clone() if d_uncorrected is None else d_uncorrected
        return update, NovaClient.of(self.own_statistics(local.b), d=d_k)
