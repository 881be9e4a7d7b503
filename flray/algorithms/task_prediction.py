"""Prediction of the task that an input belongs to, from the final layer's subspaces of the tasks (FedProTIP, Eqs. 10
and 11).

omega = [ ||F P_tau|| ], for features F of one sample, a batch or a window and the final layer's blocks P_tau, is
compared with each client's references: omega of the features that the client stored of each task. The clients vote."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from flray.algorithms.fedavg import LocalStatistics
from flray.algorithms.protected import Protected, ProtectedDownT, ProtectedLocalT, ProtectedState
from flray.core.messages import Cohort, Metrics, Published, Record, Update, nbytes
from flray.core.messages.fields import each, shared
from flray.core.protocol.clock import task_name
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.modes import SAMPLE, Mode, Prediction, Reading, batch, window
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.task_vote import batch_relevance, predict_tasks, relevance, window_relevance


class PredictingState(ProtectedState):
    """The model, the bases, and the final layer's block of each task, `spaces[t] [d_L, r]`. `references`: by
    "task/client" the relevances `[m, B]` of the samples whose features that client stored."""

    spaces: tuple[Tensor, ...]
    references: dict[str, Tensor]


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
    """The model and, at a task's end, blocks and references, from which tasks are predicted."""

    spaces: tuple[Tensor, ...]
    references: dict[str, Tensor]


class TaskPrediction(Protected[PredictingState, ProtectedDownT, PredictingClient, ProtectedLocalT], frozen=True):
    block_set: Literal["all", "skip_first"] = hp("all", doc="blocks in omega: all, or all but the first (official)")
    reference_update: Literal["recompute", "frozen_prefix"] = hp(
        "recompute", doc="references: computed anew each task from stored features, or once, with 0 for later blocks"
    )
    tip_window: int | None = hp(
        None, ge=1, doc="adds the mode tip_window: a prediction reads this number of last inputs"
    )
    vote_ties: Literal["similarity", "lowest"] = hp(
        "similarity", doc="ties of the vote: higher similarity, or the lowest task (official)"
    )
    magnitude: Literal["mean", "raw"] = hp("mean", doc="skip_first, 2nd task: omega over sqrt(b), or raw (official)")

    # references -----------------------------------------------------------------------------------
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
            warnings.warn(
                f"{full}, so it cannot be predicted; take a wider model, or a smaller algorithm.space_first",
                stacklevel=2,
            )
        references = dict(state.references)
        for client, own in zip(cohort.client_ids.tolist(), updates.references, strict=True):
            references |= {f"{task}/{client}": omega for task, omega in own.items()}
        new = state.blocks[ctx.clock.task :], state.spaces[ctx.clock.task :]  # empty if no client had samples
        sent = {"comm/references_up_bytes": nbytes(updates), "comm/block_bytes": nbytes(new)}
        return state.replace(references=references), {**sent, **self.occupied_shares(ctx, state.blocks)}

    # prediction -----------------------------------------------------------------------------------
    def relevance_blocks(self, spaces: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The blocks in omega."""
        return spaces[1:] if self.block_set == "skip_first" else spaces

    def published(self, ctx: Context, state: PredictingState) -> Published:
        if ctx.clock.phase != "task_end":
            return Published(state.w, state.b)
        return PredictingPublished(state.w, state.b, state.spaces, state.references)

    def modes(self, ctx: Context) -> Mapping[str, Mode]:
        modes = dict(super().modes(ctx))
        if ctx.classes is None or ctx.clock.phase != "task_end":
            return modes
        reads = {"tip_sample": SAMPLE, "tip_batch": batch(self.batch_size)}
        if self.tip_window is not None:
            reads["tip_window"] = window(self.tip_window)
        return modes | {
            n: Mode(partial(self.predict_by_vote, reading), reading, self.features_and_logits)
            for n, reading in reads.items()
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
        tasks = predict_tasks(omega, self.references_by_client(reads, published), self.vote_ties).expand(len(logits))
        heads = torch.zeros(len(published.spaces), logits.shape[1], dtype=torch.bool, device=logits.device)
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
