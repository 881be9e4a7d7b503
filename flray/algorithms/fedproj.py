"""FedProj (journal version; preprint arXiv 2505.20485): client gradients projected so that a memory loss cannot rise to
first order, then ensemble distillation.

Defaults follow the journal version (sections 4, A.2, A.4, Algorithm 1).
Client: g_mem is the gradient of the memory loss on public samples, KL(ensemble of the last round || f). Constraint
<g, g_mem> >= 0; where it is violated g = g_local - (<g_local, g_mem> / ||g_mem||^2) g_mem. The optimiser gets the
projected gradient (`project_stage: update` projects the optimiser's direction instead).
Server: FedDF from the average, with alpha R(w) added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from flray.aggregations.feddf import FedDF
from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast, HasModel, Metrics, Record, ServerState, StreamedModels, Update
from flray.core.network.parts import ModuleMode
from flray.core.protocol.aggregation import Aggregated, Buffers
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.ops.distill import Ensemble, proxy_logits, pull
from flray.ops.memory import (
    MemoryBuffer,
    MemoryLoss,
    MemorySums,
    batch_gradient,
    memory_batch_places,
    memory_gradient,
    with_seen_labels,
)
from flray.ops.pooling import mean_of_each
from flray.ops.project import ProjectionRule, project


class LastEnsemble(Record):
    """The `logits [n, C]` of the last round's ensemble on the public data; `[0, 0]` in round 1."""

    logits: Tensor


class FedProjBroadcast(Broadcast):
    """The model, the buffer M_t as numbers of public samples `memory [M]` (None: all), and Z_t on it, `logits [M, C]`
    or `[0, 0]`."""

    memory: Tensor | None
    logits: Tensor


class FedProjBatch(Batch):
    """A local batch, and the memory of its step: `memory_x [m, ...]` with targets, the ensemble's logits `[m, C]` or
    labels `[m]`; `places [M]` instead with `memory_batch: full`. A step that is not projected has a plain batch."""

    memory_x: Tensor | None = None
    target: Tensor | None = None
    places: np.ndarray | None = None


class FedProjLocalState(SGDState):
    """FedAvg's local state; scratch `memory_grad [P]`; sums for metrics; in a step with
    `project_stage: update`, its batch's memory."""

    memory_grad: Tensor
    sums: MemorySums
    memory: FedProjBatch | None = None


class FedProj(
    FedDF[LastEnsemble],
    FedAvg[ServerState, FedProjBroadcast, Update, OwnStatistics, FedProjLocalState],
    frozen=True,
):
    asynchronous: ClassVar[bool] = False
    server_reason: ClassVar[str] = "its clients read the logits of FedDF's ensemble"

    projection_rate: float = hp(
        1.0, linear=(0.0, 1.0), ge=0, le=1, doc="share of local steps that are projected (r); 0: FedDF's client"
    )
    rule: ProjectionRule = hp(
        "threshold", doc="threshold: exact, skipped where ||g_mem||^2 <= delta; epsilon, always: preprint"
    )
    delta: float = hp(
        1e-12, log=(1e-14, 1e-2), ge=0, doc="threshold: no projection if ||g_mem||^2 is at most delta (A.4)"
    )
    eps: float = hp(1e-8, log=(1e-12, 1e-2), ge=0, doc="added to ||g_mem||^2 (rules epsilon and always)")
    scope: Literal["global", "tensor"] = hp("global", doc="one inner product over all parameters, or one per tensor")
    project_stage: Literal["gradient", "update"] = hp(
        "gradient", doc="project the gradient before the optimiser, or its direction after"
    )
    memory_loss: MemoryLoss = hp("kl", doc="KL to the ensemble, or cross-entropy with the memory's labels")
    round0: Literal["auto", "skip", "ce_labels", "kl_init"] = hp(
        "auto", doc="memory loss in round 1, before there is an ensemble"
    )
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
    def initial(self, ctx: Context, w: Tensor, b: Tensor) -> LastEnsemble:
        proxy = ctx.require_proxy()
        if "ce_labels" in (self.memory_loss, self.round0) and not proxy.same_labels:
            what = (
                "algorithm.memory_loss or round0 is ce_labels, but the proxy data have no labels of the private classes"
            )
            raise ConfigError(f"{what}; use kl and round0=auto, or set proxy.labelled and proxy.same_labels")
        if self.round0 != "kl_init":
            return LastEnsemble(w.new_zeros(0, 0))
        return LastEnsemble(proxy_logits(ctx.objective, w, b, proxy, self.distill_batch_size))

    def broadcast(self, ctx: Context, state: ServerState) -> FedProjBroadcast:
        size, logits = ctx.require_proxy().size, state.rule.logits
        if self.memory_size is None or self.memory_size >= size:
            return FedProjBroadcast(state.w, state.b, None, logits)
        index = torch.from_numpy(np.sort(ctx.rng("memory").choice(size, self.memory_size, replace=False)))
        logits = logits[index.to(logits.device)] if len(logits) else logits
        return FedProjBroadcast(state.w, state.b, index, logits)

    def distill(
        self,
        ctx: Context,
        before: HasModel,
        updates: StreamedModels,
        average: Update,
        teacher: Ensemble,
        buffers: Buffers,
    ) -> Aggregated:
        after = super().distill(ctx, before, updates, average, teacher, buffers)
        return after._replace(own=LastEnsemble(teacher.logits))

    def penalty(self, before: HasModel, updates: StreamedModels, average: Update) -> Callable[[Tensor], Tensor] | None:
        """Gradient of alpha R(w) (Algorithm 1); None with alpha 0."""
        if not self.alpha:
            return None
        anchors = {"previous_global": before.w, "average": average.w}
        if self.wd_anchor in anchors:
            return pull(anchors[self.wd_anchor], self.alpha)
        # sum_k ||w - w_k||^2 = K ||w - mean||^2 + const
        return pull(mean_of_each(updates).w, self.alpha * (len(updates.w) if self.wd_anchor == "sum_clients" else 1))

    # client -----------------------------------------------------------------------------------
    def begin(
        self, ctx: ClientContext, broadcast: FedProjBroadcast, client: OwnStatistics, data: ClientData
    ) -> FedProjLocalState:
        base: SGDState = super().begin(ctx, broadcast, client, data)
        return FedProjLocalState.of(
            base,
            memory_grad=ctx.objective.scratch("memory gradient", base.w),
            sums=MemorySums(*torch.zeros(5, device=base.w.device).unbind()),
        )

    def batches(
        self,
        ctx: ClientContext,
        broadcast: FedProjBroadcast,
        client: OwnStatistics,
        local: FedProjLocalState,
        data: ClientData,
    ) -> Iterator[Batch]:
        """Local batches with the memory of their steps: a step is projected if its u ~ U(0, 1) is below r. The client
        reads the memory in an order of its own, cyclically, without samples of unseen classes for `ce_labels`."""
        own = super().batches(ctx, broadcast, client, local, data)
        kind = self.memory_loss_of_round(ctx, broadcast)
        if kind is None:
            yield from own
            return
        buffer = MemoryBuffer.of_message(broadcast.memory, broadcast.logits)
        order = ctx.rng("memory order").permutation(buffer.size(ctx))
        if kind == "ce_labels":
            order = with_seen_labels(ctx, buffer, order)
        if not len(order):
            yield from own
            return
        projected = ctx.rng("projection").random(ctx.num_steps) < self.projection_rate
        if self.memory_batch == "full":
            for step, batch in enumerate(own):
                yield FedProjBatch.of(batch, places=order) if projected[step] else batch
            return
        size, steps = self.memory_batch_size or self.batch_size, range(max(ctx.num_steps, 1))
        places = np.stack([memory_batch_places(order, step, size) for step in steps])  # [steps, m]
        there = torch.from_numpy(places).to(ctx.device)  # at once, because a GPU waits for it
        for step, batch in enumerate(own):
            if projected[step]:
                x, target = buffer.batch(ctx, places[step], kind, there[step])
                batch = FedProjBatch.of(batch, memory_x=x, target=target)
            yield batch

    def reads_batch_size(self) -> str:
        minibatch = self.memory_batch == "minibatch" and self.memory_batch_size is None
        return "memory_batch: minibatch without memory_batch_size" if minibatch else ""

    def step_cost(self, proxy_size: int | None = None) -> float:
        """1 + r m / B: a share r of the steps reads m memory samples besides the local batch of B.

        `proxy_size`: number of public samples, which is m with `memory_batch: full` and no `memory_size`.
        """
        sizes = [size for size in (self.memory_size, proxy_size) if size is not None]
        if self.memory_batch == "minibatch":
            sizes.append(self.memory_batch_size or self.batch_size)
        if not sizes:
            raise ConfigError(
                "algorithm.memory_batch: full makes the cost of a step depend on the public set: give its size, or set "
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
        if self.project_stage == "gradient" and isinstance(batch, FedProjBatch):
            g = self.projected(ctx, broadcast, local, batch, g, out=g)
        return loss, g

    def direction(self, ctx: ClientContext, broadcast: FedProjBroadcast, local: FedProjLocalState, g: Tensor) -> Tensor:
        v = super().direction(ctx, broadcast, local, g)
        if self.project_stage == "update" and local.memory is not None:
            v = self.projected(ctx, broadcast, local, local.memory, v, out=None)  # v may be the momentum buffer itself
        return v

    def step(
        self,
        ctx: ClientContext,
        broadcast: FedProjBroadcast,
        client: OwnStatistics,
        local: FedProjLocalState,
        batch: Batch,
    ) -> FedProjLocalState:
        memory = batch if isinstance(batch, FedProjBatch) else None
        return super().step(ctx, broadcast, client, local.replace(memory=memory), batch).replace(memory=None)

    def memory_loss_of_round(self, ctx: Context, broadcast: FedProjBroadcast) -> MemoryLoss | None:
        """This round's memory loss; None: there is none before the first ensemble."""
        if self.memory_loss == "ce_labels" or len(broadcast.logits):
            return self.memory_loss
        same_labels = ctx.require_proxy().same_labels
        return "ce_labels" if self.round0 == "ce_labels" or (self.round0 == "auto" and same_labels) else None

    def projected(
        self,
        ctx: ClientContext,
        broadcast: FedProjBroadcast,
        local: FedProjLocalState,
        memory: FedProjBatch,
        v: Tensor,
        out: Tensor | None,
    ) -> Tensor:
        """`v [P]` projected with the memory gradient of this step, in `out`; adds to the sums."""
        w, b, mode, scratch = local.w, local.b, self.memory_bn, local.memory_grad
        if memory.memory_x is not None and memory.target is not None:
            loss, g_mem = batch_gradient(ctx, w, b, memory.memory_x, memory.target, mode, scratch)
        else:
            kind, places = self.memory_loss_of_round(ctx, broadcast), memory.places
            assert kind is not None and places is not None  # of batches
            buffer = MemoryBuffer.of_message(broadcast.memory, broadcast.logits)
            loss, g_mem = memory_gradient(ctx, w, b, buffer, places, kind, mode, self.distill_batch_size, scratch)
        entries = ctx.objective.layout.entries if self.scope == "tensor" else None
        result, conflict = project(v, g_mem, self.rule, self.delta, self.eps, out, entries)
        local.sums.add_(loss, conflict)
        return result

    def report(self, ctx: ClientContext, local: FedProjLocalState) -> Metrics:
        return {**super().report(ctx, local), **local.sums.report(local.moments.steps)}
