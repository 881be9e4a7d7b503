"""FedProTIP (Cha, Chen, Vikalo): gradients projected off the subspaces of older tasks, and tasks predicted from them.

Client, after the first task: G <- G - (G Phi) Phi^T for the weight of every layer of the body, as rows (Eqs. 4, 5).
Task end: client k extracts U_k, the directions that the inputs of its layers need beside Phi (Eqs. 6 to 8). The server
appends them: Phi <- [Phi, orth(U_k - Phi Phi^T U_k)] (Eq. 9, made orthonormal). The final layer's block of task t is
P_t.
Test: omega = [ ||F P_tau|| ], for features F of one sample, a batch or a window, is compared with each client's
references: omega of the features that it stored of each task. The clients vote for a task, whose head predicts (Eqs.
10, 11). `simple_predictors` adds three others for comparison: the nearest class mean of these features, linear
discriminant analysis whose statistics follow the network, and the energy of the logits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor
from torch.nn import functional as F

from flray.algorithms.fedavg import LocalStatistics
from flray.algorithms.protected import (
    SPACE,
    Blocks,
    Protected,
    ProtectedDown,
    ProtectedLocalState,
    ProtectedState,
)
from flray.core.messages import Batch, Cohort, Metrics, Published, Record, Update, nbytes
from flray.core.messages.fields import each, shared
from flray.core.protocol.algorithm_section import ServerRule
from flray.core.protocol.clock import task_name
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.modes import SAMPLE, Mode, Prediction, Reading, batch, window
from flray.core.protocol.samples import ClientData
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, warn
from flray.core.schema.hp import hp
from flray.ops.drifting_lda import (
    ClassStatistics,
    FeatureMoments,
    added,
    compensated,
    discriminants,
    feature_moments,
    log_density,
)
from flray.ops.exemplars import class_means, extract_features, nearest_mean
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
from flray.ops.task_vote import batch_relevance, predict_tasks, relevance, window_relevance


class PredictingState(ProtectedState):
    """The model, the bases, and the final layer's block of each task, `spaces[t] [d_L, r]`. `references`: by
    "task/client" the relevances `[m, B]` of the samples whose features that client stored. With `simple_predictors`
    also, by task, the sums `[C_t, d_L]` over clients of class means of these features, `means`; the `statistics` of
    features under the present model, that model, `old`, and of each task the `discriminants` (w, c) that follow; and,
    while a task ends, the sums of the clients' `moments`."""

    spaces: tuple[Tensor, ...]
    references: dict[str, Tensor]
    means: dict[str, Tensor]
    statistics: ClassStatistics | None = None
    discriminants: dict[str, tuple[Tensor, Tensor]] | None = None
    old: tuple[Tensor, Tensor] | None = None
    moments: FeatureMoments | None = None


class FinalLayerBlocks(Record):
    """The final layer's blocks P_t, `spaces[t] [d_L, r]`."""

    spaces: tuple[Tensor, ...] = shared()


class References(Record):
    """A client's relevances `[m, B]` by task."""

    references: dict[str, Tensor] = each()


class ReferencesReceived(Record):
    """The type of `References` at the server: a tuple, a client each."""

    references: tuple[dict[str, Tensor], ...]


class PredictingClient(LocalStatistics):
    """`features [m, d_L]` by task: the final layer's inputs on up to `n_batches` batches of each task of the client."""

    features: dict[str, Tensor]


class PredictingPublished(Published):
    """The model and, at a task's end, what tasks are predicted from, as in `PredictingState`."""

    spaces: tuple[Tensor, ...]
    references: dict[str, Tensor]
    means: dict[str, Tensor]
    discriminants: dict[str, tuple[Tensor, Tensor]] | None


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


class FedProTIP(Protected[PredictingState, ProTIPDown, PredictingClient, ProTIPLocalState], frozen=True):
    server_rule: ClassVar[ServerRule] = "linear"
    server_reason: ClassVar[str] = "its updates lie outside the protected span, where only their mean surely stays"
    keeps: ClassVar[str] = "features of samples of each task on the clients; bases and references on the server"

    block_set: Literal["all", "skip_first"] = hp("all", doc="blocks in omega: all, or all but the first (official)")
    reference_update: Literal["recompute", "frozen_prefix"] = hp(
        "recompute", doc="references: computed anew each task from stored features, or once, with 0 for later blocks"
    )
    tip_window: int | None = hp(
        None, ge=1, doc="adds the mode tip_window: a prediction reads this number of last inputs"
    )
    tip_batch_size: int | None = hp(
        None, ge=1, doc="samples of a test set that share a prediction in the modes of batches; none: batch_size"
    )
    vote_ties: Literal["similarity", "lowest"] = hp(
        "similarity", doc="ties of the vote: higher similarity, or the lowest task (official)"
    )
    references: Literal["train", "held_out"] = hp(
        "train", doc="samples of the references: trained on, and of the blocks; or held out from both"
    )
    held_out: float = hp(
        0.1, choice=(0.05, 0.1, 0.2), gt=0, lt=1, doc="references held_out: share of a client's samples"
    )
    simple_predictors: bool = hp(
        False, doc="adds modes: nearest class mean of stored features, discriminant analysis, energy of the logits"
    )
    magnitude: Literal["mean", "raw"] = hp("mean", doc="skip_first, 2nd task: omega over sqrt(b), or raw (official)")

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

    def init_client(self, ctx: Context) -> PredictingClient:
        return PredictingClient.of(self.own_statistics(ctx.objective.initial()[1]), features={})

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

    def batches(
        self,
        ctx: ClientContext,
        broadcast: ProTIPDown,
        client: PredictingClient,
        local: ProTIPLocalState,
        data: ClientData,
    ) -> Iterable[Batch]:
        return self.split(ctx, data)[0].batches(self.batch_size, steps=ctx.num_steps)

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

    def end(
        self,
        ctx: ClientContext,
        broadcast: ProTIPDown,
        client: PredictingClient,
        local: ProTIPLocalState,
        data: ClientData,
    ) -> tuple[Update, PredictingClient]:
        update, _ = super().end(ctx, broadcast, client, local, data)
        return update, PredictingClient.of(self.own_statistics(local.b), features=client.features)

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
        for own, inputs in self.activations(ctx, broadcast, trained):
            with torch.no_grad():
                parts.append(model.features(own.x))
                if before is not None:
                    old_parts.append(before.features(own.x))
            labels.append(own.y)
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
            if first and self.merge == "parallel":  # who is first is not known yet: the server cuts
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
        means = class_means(features, ctx.local(y), count)[0] if self.simple_predictors else None
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
            ranks = self.space_first, self.space_later
            for client, space in spaces.items():
                rank = space_rank(ctx.population, ctx.clock.task == 0, client == first, *ranks)
                space[SPACE] = space[SPACE][:, :rank]
        blocks = self.merged(ctx, state.blocks, layers, self.rank_tol, self.append)
        final = self.merged(ctx, tuple({SPACE: block} for block in state.spaces), spaces, self.rank_tol, self.append)
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

    # references -----------------------------------------------------------------------------------
    def split(self, ctx: Context, data: ClientData) -> tuple[ClientData, ClientData]:
        """(the samples that are trained on, those of the references): with `references: held_out` apart, the same in
        every round; a client with a single sample has it in both."""
        if self.references == "train" or data.num_examples < 2:
            return data, data
        numbers = data.numbers
        u = rng(ctx.seed, "held-out references").random(int(numbers.max()) + 1)[numbers]
        held = u < self.held_out
        held[u.argmin()], held[u.argmax()] = True, False
        return data.only(numbers[~held]), data.only(numbers[held][u[held].argsort()])

    @property
    def relevance_exchange(
        self,
    ) -> Exchange[PredictingState, FinalLayerBlocks, References, PredictingClient, ReferencesReceived]:
        """Every client with stored features computes their relevances, once the task has its block."""
        return Exchange("relate", self.broadcast_blocks, self.store_references, self.compute_references, who="stateful")

    def broadcast_blocks(self, ctx: Context, state: PredictingState) -> FinalLayerBlocks:
        return FinalLayerBlocks(state.spaces)

    def compute_references(
        self, ctx: Context, broadcast: FinalLayerBlocks, client: PredictingClient, data: ClientData
    ) -> tuple[References, PredictingClient, Metrics]:
        """The relevances omega of the client's stored features (Eq. 10)."""
        present = {
            task: relevance(features[:, None], self.relevance_blocks(broadcast.spaces))
            for task, features in client.features.items()
        }
        if self.reference_update == "frozen_prefix":
            client = client.replace(features={})
        return References(present), client, {}

    def store_references(
        self, ctx: Context, state: PredictingState, updates: ReferencesReceived, cohort: Cohort
    ) -> tuple[PredictingState, Metrics]:
        if len(state.spaces) > ctx.clock.task and not state.spaces[-1].shape[1]:
            full = f"{task_name(ctx.clock.task)}: all {len(state.spaces[-1])} directions of the final layer are in use"
            warn(f"{full}, so it cannot be predicted; take a wider model, or a smaller algorithm.space_first")
        references = dict(state.references)
        for client, own in zip(cohort.client_ids.tolist(), updates.references, strict=True):
            references |= {f"{task}/{client}": omega for task, omega in own.items()}
        new = state.blocks[ctx.clock.task :], state.spaces[ctx.clock.task :]  # empty if no client had samples
        sent = {"comm/references_up_bytes": nbytes(updates), "comm/block_bytes": nbytes(new)}
        state = state.replace(references=references)
        if self.simple_predictors:
            state = self.update_statistics(ctx, state)
        return state, {**sent, **self.occupied_shares(ctx, state.blocks)}

    def update_statistics(self, ctx: Context, state: PredictingState) -> PredictingState:
        """The statistics of all tasks under the present model; without a sample of the task that ends those of `old`
        stay."""
        if state.moments is None:
            return state
        statistics = compensated(state.statistics, state.moments, str(ctx.clock.task))
        return state.replace(
            statistics=statistics, discriminants=discriminants(statistics), old=(state.w, state.b), moments=None
        )

    # prediction -----------------------------------------------------------------------------------
    @property
    def tip_batch(self) -> int:
        """The number of samples that share a prediction in the modes of batches."""
        return self.tip_batch_size or self.batch_size

    def relevance_blocks(self, spaces: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The blocks in omega."""
        return spaces[1:] if self.block_set == "skip_first" else spaces

    def published(self, ctx: Context, state: PredictingState) -> Published:
        if ctx.clock.phase != "task_end":
            return Published(state.w, state.b)
        return PredictingPublished(state.w, state.b, state.spaces, state.references, state.means, state.discriminants)

    def reads_batch_size(self) -> str:
        return "" if self.tip_batch_size else "the inference mode tip_batch without tip_batch_size"

    def modes(self, ctx: Context) -> Mapping[str, Mode]:
        modes = dict(super().modes(ctx))
        if ctx.classes is None or ctx.clock.phase != "task_end":
            return modes
        readings = [SAMPLE, batch(self.tip_batch)]
        if self.tip_window is not None:
            readings.append(window(self.tip_window))
        answers = {"tip": self.predict_by_vote}
        if self.simple_predictors:
            answers |= {
                "mean": self.predict_by_mean,
                "lda": self.predict_by_discriminants,
                "energy": self.predict_by_energy,
            }
        return modes | {
            f"{name}_{reading.kind}": Mode(partial(answer, reading), reading, self.features_and_logits)
            for name, answer in answers.items()
            for reading in readings
        }

    def features_and_logits(self, ctx: Context, published: Published, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features `[B, d_L]` and logits `[B, C]`."""
        model = ctx.objective.at(published.w, published.b)
        z = model.features(x)
        return z, model.head(z)

    def predict_by_vote(
        self, reads: Reading, ctx: Context, published: PredictingPublished, z: tuple[Tensor, Tensor]
    ) -> Prediction:
        """The logits of the head of the task that the clients vote for; of all heads if there are no references."""
        assert ctx.classes is not None
        features, logits = z
        if not published.references:
            return self.of_seen(ctx, published, logits)
        omega = self.relevances_of_units(reads, relevance(features[:, None], self.relevance_blocks(published.spaces)))
        tasks = predict_tasks(omega, self.references_by_client(reads, published), self.vote_ties)
        return self.by_head(ctx, logits, tasks)

    def predict_by_mean(
        self, reads: Reading, ctx: Context, published: PredictingPublished, z: tuple[Tensor, Tensor]
    ) -> Prediction:
        """By the head of the task that has the class mean nearest to the features; of several samples: nearest on
        average."""
        features, logits = z
        if not published.means:
            return self.of_seen(ctx, published, logits)
        scores = features.new_full((len(features), ctx.clock.task + 1), -5.0)  # farther than any mean
        for task, sums in published.means.items():
            known = (sums != 0).any(dim=1).to(sums)
            scores[:, int(task)] = nearest_mean(features, F.normalize(sums, dim=1), known).amax(dim=1)
        return self.by_head(ctx, logits, mean_scores(scores, reads).argmax(dim=1))

    def predict_by_discriminants(
        self, reads: Reading, ctx: Context, published: PredictingPublished, z: tuple[Tensor, Tensor]
    ) -> Prediction:
        """By the head of the most probable task (`flray.ops.drifting_lda`), all equally probable before; of several
        samples: by the mean log probability."""
        features, logits = z
        if not published.discriminants:
            return self.of_seen(ctx, published, logits)
        scores = features.new_full((len(features), ctx.clock.task + 1), -torch.inf)  # of a task without statistics
        for task, rule in published.discriminants.items():
            scores[:, int(task)] = log_density(features, *rule)
        scores = scores.log_softmax(dim=1).clamp(min=-1e4)  # sums of infinities are NaN, which argmax takes
        return self.by_head(ctx, logits, mean_scores(scores, reads).argmax(dim=1))

    def predict_by_energy(
        self, reads: Reading, ctx: Context, published: PredictingPublished, z: tuple[Tensor, Tensor]
    ) -> Prediction:
        """By the head with the largest log sum_c e^(logit c) (Liu et al., NeurIPS 2020); of several samples: on
        average."""
        assert ctx.classes is not None
        logits = z[1]
        tasks = range(ctx.clock.task + 1)
        scores = torch.stack([ctx.classes.task(task).narrow(logits).logsumexp(dim=1) for task in tasks], dim=1)
        return self.by_head(ctx, logits, mean_scores(scores, reads).argmax(dim=1))

    def by_head(self, ctx: Context, logits: Tensor, tasks: Tensor) -> Prediction:
        """The logits `[m, C]` of the head of each sample's task, of `tasks [m]`, or `[1]`: one for all samples."""
        assert ctx.classes is not None
        tasks = tasks.expand(len(logits))
        heads = torch.zeros(ctx.clock.task + 1, logits.shape[1], dtype=torch.bool, device=logits.device)
        for task, head in enumerate(heads):
            head[ctx.classes.task(task).index] = True
        return Prediction(logits.masked_fill(~heads[tasks], -torch.inf), task=tasks)

    def relevances_of_units(self, reads: Reading, omega: Tensor) -> Tensor:
        """The relevances of samples, batches or windows, as the mode reads them, from the samples' `[m, B]`."""
        omega, mean = omega.double(), self.magnitude == "mean"
        if reads.kind == "window":
            return window_relevance(omega, reads.size, mean)
        return batch_relevance(omega, reads.size, mean)

    def references_by_client(self, reads: Reading, published: PredictingPublished) -> list[list[Tensor | None]]:
        """By client and task the references, of batches or windows as the mode reads them; None: no reference."""
        references = {
            key: self.relevances_of_units(reads, omega) for key, omega in published.references.items() if len(omega)
        }
        clients = sorted({int(key.partition("/")[2]) for key in references})
        return [[references.get(f"{task}/{k}") for task in range(len(published.spaces))] for k in clients]


def mean_scores(scores: Tensor, reads: Reading) -> Tensor:
    """The scores of the tasks `[m, T]` of single samples, their mean `[1, T]` over a batch, or `[m, T]` over the
    samples of each window."""
    if reads.kind == "batch":
        return scores.mean(dim=0, keepdim=True)
    if reads.kind == "sample":
        return scores
    sums = torch.cat([scores.new_zeros(reads.size, scores.shape[1]), scores]).double().cumsum(dim=0)
    sizes = torch.arange(1, len(scores) + 1, device=scores.device).clamp(max=reads.size)
    return (sums[reads.size :] - sums[: -reads.size]) / sizes[:, None]
