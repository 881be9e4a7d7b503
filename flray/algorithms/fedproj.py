"""FedProj (journal version and preprint): client gradients projected so that a memory loss cannot rise, then ensemble
distillation.

Journal version (sections 4, A.2, A.4, Algorithm 1) by default; the preprint (arXiv 2505.20485) by option.

Constraint <g, g_mem> >= 0; g = g_local - (<g_local, g_mem> / ||g_mem||^2) g_mem where it is violated. The projected
gradient goes to the optimiser (`project_stage: update` projects the optimiser's direction instead).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flray.algorithms.fedavg import OwnStatistics, SGDState
from flray.algorithms.feddf import FedDF
from flray.core.messages import Batch, Broadcast, Metrics, Models, ServerState, Update
from flray.core.network.parts import ModuleMode
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.ops.distill import Ensemble, proxy_logits, pull
from flray.ops.memory import (
    MemoryBuffer,
    MemoryLoss,
    MemorySums,
    memory_batch_places,
    memory_gradient,
    with_seen_labels,
)
from flray.ops.pooling import mean_of_each
from flray.ops.project import ProjectionRule, project


class FedProjState(ServerState):
    """Global model and `logits [n, C]`: the ensemble of the last round on the public data; `[0, 0]` before there is
    one."""

    logits: Tensor


class FedProjBroadcast(Broadcast):
    """The model, the `memory [M]` as numbers of public samples (None: all of them), Z_t `logits [M, C]` or `[0, 0]`."""

    memory: Tensor | None
    logits: Tensor


class FedProjLocalState(SGDState):
    """FedAvg's local state, scratch for the memory gradient `[P]`, and what was drawn for this client and round:
    the `order [M]` in which it reads the memory (with labels: the samples that have one of the classes seen so far)
    and one u ~ U(0, 1) per local step (`draws`)."""

    memory_grad: Tensor
    order: np.ndarray
    draws: np.ndarray
    tally: MemorySums


class FedProj(FedDF[FedProjState, FedProjBroadcast, FedProjLocalState], frozen=True):
    projection_rate: float = hp(
        1.0, linear=(0.0, 1.0), ge=0, le=1, doc="share of local steps that project (r); 0: FedDF's client"
    )
    rule: ProjectionRule = hp(
        "threshold", doc="threshold: exact, skipped where ||g_mem||^2 <= delta; epsilon, always: preprint"
    )
    delta: float = hp(1e-12, log=(1e-14, 1e-2), ge=0, doc="smallest ||g_mem||^2 that projects (rule threshold, A.4)")
    eps: float = hp(1e-8, log=(1e-12, 1e-2), ge=0, doc="added to ||g_mem||^2 (rules epsilon and always)")
    scope: Literal["global", "tensor"] = hp("global", doc="one inner product over all parameters, or one per tensor")
    project_stage: Literal["gradient", "update"] = hp(
        "gradient", doc="project the gradient before the optimiser, or its direction after"
    )
    memory_loss: MemoryLoss = hp("kl", doc="KL to the ensemble, or cross-entropy with the memory's labels")
    round0: Literal["auto", "skip", "ce_labels", "kl_init"] = hp("auto", doc="memory loss before there is an ensemble")
    memory_size: int | None = hp(
        None, ge=1, doc="size of the buffer M, resampled every round; none: the whole public set"
    )
    memory_batch: Literal["minibatch", "full"] = hp(
        "minibatch", doc="memory gradient on one mini-batch per step, or on the buffer"
    )
    memory_batch_size: int | None = hp(None, ge=1, doc="size of that mini-batch; none: the local batch size")
    memory_bn: ModuleMode = hp(
        "train_frozen", doc="batch norm in the memory pass: batch statistics (kept out of b or not), or b"
    )
    alpha: float = hp(0.0, choice=(0.0, 0.1, 0.3, 0.5), ge=0, doc="weight of the divergence term R on the server")
    wd_anchor: Literal["previous_global", "average", "sum_clients", "per_client_mean"] = hp(
        "previous_global", doc="R: ||w - w_g||^2, to the average, summed over the clients' models, or their mean"
    )

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> FedProjState:
        proxy = ctx.require_proxy()
        if "ce_labels" in (self.memory_loss, self.round0) and not proxy.same_labels:
            what = (
                "algorithm.memory_loss or round0 is ce_labels, but the proxy data carry no labels of the private "
                "classes"
            )
            raise ConfigError(f"{what}; use kl and round0=auto, or set proxy.labelled and proxy.same_labels")
        initial = self.round0 == "kl_init"
        return FedProjState(
            w, b, proxy_logits(ctx.objective, w, b, proxy, self.distill_batch_size) if initial else w.new_zeros(0, 0)
        )

    def broadcast(self, ctx: Context, state: FedProjState) -> FedProjBroadcast:
        size = ctx.require_proxy().size
        if self.memory_size is None or self.memory_size >= size:
            return FedProjBroadcast(state.w, state.b, None, state.logits)
        index = torch.from_numpy(np.sort(ctx.rng("memory").choice(size, self.memory_size, replace=False)))
        logits = state.logits[index.to(state.logits.device)] if len(state.logits) else state.logits
        return FedProjBroadcast(state.w, state.b, index, logits)

    def distill(
        self, ctx: Context, state: FedProjState, updates: Models, average: Update, teacher: Ensemble
    ) -> tuple[FedProjState, Metrics]:
        state, metrics = super().distill(ctx, state, updates, average, teacher)
        return state.replace(logits=teacher.logits), metrics

    def penalty(self, state: FedProjState, updates: Models, average: Update) -> Callable[[Tensor], Tensor] | None:
        """Gradient of alpha R(w) (Algorithm 1); None without it."""
        if not self.alpha:
            return None
        anchors = {"previous_global": state.w, "average": average.w}
        if self.wd_anchor in anchors:
            return pull(anchors[self.wd_anchor], self.alpha)
        # sum_k ||w - w_k||^2 = K ||w - mean||^2 + const
        return pull(mean_of_each(updates).w, self.alpha * (len(updates.w) if self.wd_anchor == "sum_clients" else 1))

    # client -----------------------------------------------------------------------------------
    def begin(
        self, ctx: ClientContext, broadcast: FedProjBroadcast, client: OwnStatistics, data: ClientData
    ) -> FedProjLocalState:
        base: SGDState = super().begin(ctx, broadcast, client, data)
        order = ctx.rng("memory order").permutation(
            ctx.require_proxy().size if broadcast.memory is None else len(broadcast.memory)
        )
        if self._loss_kind(ctx, broadcast) == "ce_labels":
            order = with_seen_labels(ctx, broadcast.memory, order)
        draws, tally = (
            ctx.rng("projection").random(ctx.num_steps),
            MemorySums(*torch.zeros(5, device=base.w.device).unbind()),
        )
        memory_grad = ctx.objective.scratch("memory gradient", base.w)
        return FedProjLocalState.of(base, memory_grad=memory_grad, order=order, draws=draws, tally=tally)

    def step_cost(self, proxy_size: int | None = None) -> float:
        """1 + r m / B: a share r of the steps reads m samples of the memory besides the B of the local batch.

        `proxy_size`: number of public samples, which is m under `memory_batch: full` without a `memory_size`.
        """
        sizes = [size for size in (self.memory_size, proxy_size) if size is not None]
        if self.memory_batch == "minibatch":
            sizes.append(self.memory_batch_size or self.batch_size)
        if not sizes:
            raise ConfigError(
                "algorithm.memory_batch: full costs what the public set is large: say its size, or set "
                "algorithm.memory_size"
            )
        return 1 + self.projection_rate * min(sizes) / self.batch_size

    def gradient(
        self,
        ctx: ClientContext,
        broadcast: FedProjBroadcast,
        client: OwnStatistics,
        local: FedProjLocalState,
        batch: Batch,
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        if self.project_stage == "gradient" and self.remembers(ctx, broadcast, local):
            g = self.projected(ctx, broadcast, local, g, out=g)
        return loss, g

    def direction(self, ctx: ClientContext, broadcast: FedProjBroadcast, local: FedProjLocalState, g: Tensor) -> Tensor:
        v = super().direction(ctx, broadcast, local, g)
        if self.project_stage == "update" and self.remembers(ctx, broadcast, local):
            v = self.projected(ctx, broadcast, local, v, out=None)  # v may be the momentum buffer itself
        return v

    def remembers(self, ctx: ClientContext, broadcast: FedProjBroadcast, local: FedProjLocalState) -> bool:
        """Whether this local step reads the memory: u < r, and there is something to remember."""
        reads = len(local.order) > 0 and self._loss_kind(ctx, broadcast) != "skip"
        return reads and bool(local.draws[local.moments.steps] < self.projection_rate)

    def _loss_kind(self, ctx: Context, broadcast: FedProjBroadcast) -> Any:
        """Which memory loss this round reads: `kl`, `ce_labels`, or `skip`."""
        if self.memory_loss == "ce_labels" or len(broadcast.logits):
            return self.memory_loss
        before = "ce_labels" if ctx.require_proxy().same_labels else "skip"  # the first ensemble
        return before if self.round0 == "auto" else self.round0

    def projected(
        self, ctx: ClientContext, broadcast: FedProjBroadcast, local: FedProjLocalState, v: Tensor, out: Tensor | None
    ) -> Tensor:
        """`v [P]` after the projection with this step's memory gradient, which is tallied."""
        size, full = self.memory_batch_size or self.batch_size, self.memory_batch == "full"
        chosen = local.order if full else memory_batch_places(local.order, local.moments.steps, size)
        where, how = (
            (local.w, local.b, MemoryBuffer(broadcast.memory, broadcast.logits)),
            (self._loss_kind(ctx, broadcast), self.memory_bn),
        )
        loss, g_mem = memory_gradient(
            ctx, *where, chosen, *how, self.distill_batch_size if full else size, local.memory_grad
        )
        entries = ctx.objective.layout.entries if self.scope == "tensor" else None
        result, conflict = project(v, g_mem, self.rule, self.delta, self.eps, out, entries)
        local.tally.add_(loss, conflict)
        return result

    def report(self, ctx: ClientContext, local: FedProjLocalState) -> Metrics:
        return {**super().report(ctx, local), **local.tally.report(local.moments.steps)}
