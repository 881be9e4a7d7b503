"""Prediction of the task that an input belongs to, from the final layer's subspaces of the tasks (FedProTIP, Eqs. 10
and 11).

omega = [ ||F P_tau|| ], for features F of one sample, a batch or a window and the final layer's blocks P_tau, is
compared with each client's references: omega of the features that the client stored of each task. The clients vote.
Beside it, for comparison, the nearest class mean of these features, linear discriminant analysis whose statistics
follow the network, and the energy of the logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flray.algorithms.fedavg import LocalStatistics
from flray.algorithms.protected import Protected, ProtectedDownT, ProtectedLocalT, ProtectedState
from flray.core.messages import Batch, Cohort, Metrics, Published, Record, Update, nbytes
from flray.core.messages.fields import each, shared
from flray.core.protocol.clock import task_name
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.modes import SAMPLE, Mode, Prediction, Reading, batch, window
from flray.core.protocol.samples import ClientData
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import warn
from flray.core.schema.hp import hp
from flray.ops.drifting_lda import ClassStatistics, FeatureMoments, compensated, discriminants, log_density
from flray.ops.exemplars import nearest_mean
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


class TaskPrediction(Protected[PredictingState, ProtectedDownT, PredictingClient, ProtectedLocalT], frozen=True):
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

    def batches(
        self,
        ctx: ClientContext,
        broadcast: ProtectedDownT,
        client: PredictingClient,
        local: ProtectedLocalT,
        data: ClientData,
    ) -> Iterable[Batch]:
        return self.split(ctx, data)[0].batches(self.batch_size, steps=ctx.num_steps)

    def init_client(self, ctx: Context) -> PredictingClient:
        return PredictingClient.of(self.own_statistics(ctx.objective.initial()[1]), features={})

    def end(
        self,
        ctx: ClientContext,
        broadcast: ProtectedDownT,
        client: PredictingClient,
        local: ProtectedLocalT,
        data: ClientData,
    ) -> tuple[Update, PredictingClient]:
        update, _ = super().end(ctx, broadcast, client, local, data)
        return update, PredictingClient.of(self.own_statistics(local.b), features=client.features)

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

    @property
    def tip_batch(self) -> int:
        """The number of samples that share a prediction in the modes of batches."""
        return self.tip_batch_size or self.batch_size

    # prediction -----------------------------------------------------------------------------------
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
