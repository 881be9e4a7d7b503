"""FedProTIP (Cha, Chen, Vikalo): gradients projected off the subspaces of older tasks, and tasks predicted from them.

Client, after the first task: G <- G - (G Phi) Phi^T for the weight of every layer of the body, as rows (Eqs. 4, 5).
Task end: client k extracts U_k, the directions that the inputs of its layers need beside Phi (Eqs. 6 to 8). The server
appends them: Phi <- [Phi, orth(U_k - Phi Phi^T U_k)] (Eq. 9, made orthonormal). The final layer's block of task t is
P_t. Test: omega = [ ||F P_tau|| ] of features F is compared with the clients' references. The clients vote for a task,
whose head predicts (Eqs. 10, 11).
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from flray.algorithms.protected import SPACE, Blocks, ProtectedDown, ProtectedLocalState
from flray.algorithms.task_prediction import PredictingClient, PredictingState, TaskPrediction
from flray.core.messages import Cohort, Metrics, Record, nbytes
from flray.core.messages.fields import each, shared
from flray.core.protocol.algorithm_section import ServerRule
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError, warn
from flray.core.schema.hp import hp
from flray.ops.drifting_lda import FeatureMoments, added, feature_moments
from flray.ops.exemplars import class_means, extract_features
from flray.ops.optim import decay_
from flray.ops.subspace import (
    SPACE_SHARE,
    ColumnSample,
    CountRule,
    Criterion,
    Svd,
    block_sizes,
    extract,
    fitting_rank,
    space_rank,
)


class ProTIPDown(ProtectedDown):
    """The model and all blocks; those of the final layer, `spaces`, are read when a task ends, as is `old`, the model
    that the server's statistics of features are of, with `simple_predictors`."""

    spaces: tuple[Tensor, ...] = shared(default=())
    old: tuple[Tensor, Tensor] | None = None


class Directions(Record):
    """A client's directions U_k: `layers[name] [d, r]`, and `space [d_L, r]` of the final layer. With
    `simple_predictors` the class means `[C_t, d_L]` of its stored features, and the moments of the features of samples
    that it trains on."""

    layers: dict[str, Tensor] = each()
    space: Tensor = each()
    means: Tensor | None = each()
    moments: FeatureMoments | None = each()


class DirectionsReceived(Record):
    """The type of `Directions` at the server: tuples, a client each."""

    layers: tuple[dict[str, Tensor], ...]
    space: tuple[Tensor, ...]
    means: tuple[Tensor | None, ...]
    moments: tuple[FeatureMoments | None, ...]


class ProTIPLocalState(ProtectedLocalState):
    """`trained [P]`: 1 for the parameters that gradients may change, else 0; None: all of them."""

    trained: Tensor | None


class FedProTIP(TaskPrediction[ProTIPDown, ProTIPLocalState], frozen=True):
    server_rule: ClassVar[ServerRule] = "linear"
    server_reason: ClassVar[str] = "its updates lie outside the protected span, where only their mean surely stays"
    keeps: ClassVar[str] = "features of samples of each task on the clients; bases and references on the server"

    eps: float = hp(0.7, choice=(0.7, 0.8, 0.9), ge=0, le=1, doc="share of the activations' energy to protect")
    delta_eps: float = hp(0.0, ge=0, doc="added to eps with each task (official: 0.001)")
    criterion: Criterion = hp("energy", doc="what has to reach eps (Eq. 8)")
    count_rule: CountRule = hp(
        "inclusive", doc="gpm_strict_first (official): one direction fewer for who extracts first"
    )
    columns: int = hp(512, ge=1, doc="columns of a layer's activations that are sampled (m_s)")
    svd: Svd = hp("exact", doc="exact, or randomized: for wide layers")
    space_rank: Literal["fixed", "threshold"] = hp("fixed", doc="final layer: 30/5/4 scheme (official), or eps (paper)")
    space_first: int = hp(30, ge=1, doc="fixed: directions of the first task's first client (from scratch: 20)")
    space_later: int = hp(SPACE_SHARE, ge=1, doc="fixed: directions of all other clients of a task together")
    merge: Literal["parallel", "sequential"] = hp(
        "parallel", doc="clients extract at once, or each against what those before it added (official)"
    )
    append: Literal["residual", "official"] = hp("residual", doc="how directions are appended (Eq. 9)")
    rank_tol: float = hp(1e-3, ge=0, lt=1, doc="a direction is appended if the sine of its angle to the basis is above")
    norm_affine: Literal["frozen", "official", "train"] = hp(
        "frozen", doc="body tensors without a basis, after the first task: fixed, only decaying, or trained"
    )
    decay_projection: Literal["none", "project"] = hp(
        "none", doc="weight decay: not projected (official), or projected"
    )

    @model_validator(mode="after")
    def _svd(self) -> Self:
        if self.svd == "randomized" and self.criterion == "sigma_sum":
            raise ConfigError("algorithm.svd: criterion sigma_sum needs all singular values; set svd to exact")
        return self

    # training -------------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> PredictingState:
        self.warn_of_empty_blocks(ctx)
        return PredictingState(w, b, (), (), {}, {})

    def warn_of_empty_blocks(self, ctx: Context) -> None:
        """Warns, before the first round, if the features have too few directions for a block of each task."""
        width, clients = getattr(ctx.objective.module.head, "in_features", None), ctx.populations
        if self.space_rank != "fixed" or width is None or len(clients) < 2:
            return
        sizes = block_sizes(clients, self.space_first, self.space_later)
        free = [max(width - sum(sizes[:task]), 0) for task in range(len(sizes))]
        short = [task for task, size in enumerate(sizes) if free[task] < size]
        if not short:
            return
        got = ", ".join(f"task {task}: {free[task]} of {sizes[task]}" for task in short)
        rank = fitting_rank(clients, width)
        fit = f"algorithm.space_first={rank} algorithm.space_later={rank} fit; or take" if rank else "take"
        warn(
            f"features have {width} directions, blocks of {len(sizes)} tasks need {sum(sizes)} ({got}; 0 is the first "
            f"task): a task without a block cannot be predicted; {fit} a model with wider features (pool_out)"
        )

    def broadcast(self, ctx: Context, state: PredictingState) -> ProTIPDown:
        old = state.old if ctx.clock.phase == "task_end" else None
        return ProTIPDown(state.w, state.b, state.blocks, state.spaces, old)

    def local_state(self, ctx: Context, w: Tensor, b: Tensor) -> ProTIPLocalState:
        return ProTIPLocalState.of(super().local_state(ctx, w, b), trained=None)

    def begin(
        self, ctx: ClientContext, broadcast: ProTIPDown, client: PredictingClient, data: ClientData
    ) -> ProTIPLocalState:
        local = super().begin(ctx, broadcast, client, data)
        if not broadcast.blocks:
            return local
        layers, trained = self.layers_with_bases(ctx, broadcast.blocks), None
        if self.norm_affine != "train":
            trained = ctx.objective.scratch("moves", local.w).fill_(1.0)
            protected = {layer.entry for layer, _ in layers}
            for entry, in_head in zip(ctx.objective.layout.entries, ctx.objective.in_head, strict=True):
                if not in_head and entry not in protected:
                    entry.view(trained).zero_()
        rows = tuple((layer.stored(local.grad), basis) for layer, basis in layers)
        return local.replace(trained=trained, protected=rows)

    def direction(self, ctx: ClientContext, broadcast: ProTIPDown, local: ProTIPLocalState, g: Tensor) -> Tensor:
        """FedAvg's, of the projected gradient; `g` is `local.grad`, whose rows are projected in place."""
        if self.decay_projection == "none":
            self.project_(local)
        reached = ctx.objective.reached()
        if local.trained is not None:
            g.mul_(local.trained)
            if self.norm_affine == "frozen":
                reached = local.trained if reached is None else reached * local.trained
        decay_(g, local.w, self.weight_decay, reached)
        if self.decay_projection == "project":
            self.project_(local)
        return self.optimizer_direction(local, g)

    # the end of a task ----------------------------------------------------------------------------
    def next_exchange(self, ctx: Context, state: PredictingState) -> Exchange | None:
        if ctx.clock.phase != "task_end" or ctx.classes is None:
            return super().next_exchange(ctx, state)
        extraction = Exchange(
            "extract", self.broadcast, self.merge_directions, self.extract, who="task", order=self.merge
        )
        return [extraction, self.relevance_exchange, None][ctx.clock.exchange]

    def extract(
        self, ctx: ClientContext, broadcast: ProTIPDown, client: PredictingClient, data: ClientData
    ) -> tuple[Directions, PredictingClient, Metrics]:
        """The client's directions U_k of every layer (Eqs. 6 to 8); stores its features of the task."""
        model, layers = ctx.objective.at(broadcast.w, broadcast.b), self.layers(ctx)
        trained, held = self.split(ctx, data)
        samples: dict[str, ColumnSample] = {}
        before = ctx.objective.at(*broadcast.old) if broadcast.old else None
        parts, labels, old_parts = [], [], []
        for batch, inputs in self.activations(ctx, broadcast, trained):
            with torch.no_grad():
                parts.append(model.features(batch.x))
                if before is not None:
                    old_parts.append(before.features(batch.x))
            labels.append(batch.y)
            for name, entered in inputs.items():
                samples.setdefault(name, ColumnSample(self.columns, ctx.rng("columns", name))).add(entered)
        directions = {
            key: self.directions(ctx, columns, broadcast.blocks, key)
            for name, sample in samples.items()
            for key, columns in zip(layers[name].keys, sample.columns, strict=True)
        }
        features, first_task, rank = torch.cat(parts), ctx.clock.task == 0, None
        if self.space_rank == "fixed":
            first = first_task and not broadcast.spaces
            ranks = self.space_first, self.space_later
            rank = space_rank(ctx.population, first_task, first, *ranks)
            if first and self.merge == "parallel":  # it may be any of the clients: the server cuts
                rank = max(rank, space_rank(ctx.population, True, False, *ranks))
        spaces = tuple({SPACE: block} for block in broadcast.spaces)
        space = self.directions(ctx, features.T, spaces, SPACE, rank)
        y, count, moments = torch.cat(labels), len(ctx.in_use.new), None
        if self.simple_predictors:
            moments = feature_moments(features, ctx.local(y), count, torch.cat(old_parts) if old_parts else None)
        if self.references == "held_out":
            plain = held.only(held.numbers[: self.n_batches * self.batch_size]).plain
            features, y = extract_features(model, plain)
        after = client.replace(features={**client.features, str(ctx.clock.task): features})
        means = None
        if self.simple_predictors:
            means = class_means(features, ctx.local(y), count)[0]
        return Directions(directions, space, means, moments), after, {}

    def directions(self, ctx: Context, a: Tensor, blocks: Blocks, key: str, rank: int | None = None) -> Tensor:
        """The directions `[d, r]`, float32, that the columns `a [d, m]` need beside a layer's basis."""
        a, eps = a.to(self.dtype), min(self.eps + ctx.clock.task * self.delta_eps, 1.0)
        basis, draws = self.basis(blocks, key, a), ctx.rng("svd", key)
        # the official code asks whether a client has extracted before, not whether it added a direction
        rule = self.count_rule if ctx.clock.task == 0 and not blocks else "inclusive"
        return extract(a, basis, eps, self.criterion, rule, self.svd, rank, draws).float().contiguous()

    def merge_directions(
        self, ctx: Context, state: PredictingState, updates: DirectionsReceived, cohort: Cohort
    ) -> tuple[PredictingState, Metrics]:
        """Merge the clients' directions into the bases, in the order of the clients' numbers (Eq. 9)."""
        clients = cohort.client_ids.tolist()
        layers = dict(zip(clients, updates.layers, strict=True))
        spaces = {client: {SPACE: space} for client, space in zip(clients, updates.space, strict=True)}
        if self.space_rank == "fixed":  # clients that extract in parallel do not know which of them is the first
            first = None if state.spaces else min(clients)
            for client, space in spaces.items():
                first_task = ctx.clock.task == 0
                rank = space_rank(ctx.population, first_task, client == first, self.space_first, self.space_later)
                space[SPACE] = space[SPACE][:, :rank]
        how = self.rank_tol, self.append
        blocks = self.merged(ctx, state.blocks, layers, *how)
        final = self.merged(ctx, tuple({SPACE: block} for block in state.spaces), spaces, *how)
        metrics = {"comm/bases_up_bytes": nbytes(updates)}
        means, moments, task = dict(state.means), state.moments, str(ctx.clock.task)
        for own in updates.means:
            if own is not None:
                means[task] = means[task] + own if task in means else own
        for received in updates.moments:
            if received is not None:
                moments = added(moments, received)
        appended = tuple(block[SPACE] for block in final)
        return state.replace(blocks=blocks, spaces=appended, means=means, moments=moments), metrics
