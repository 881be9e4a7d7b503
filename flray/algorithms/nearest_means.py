"""Prediction by the nearest class mean of normalised features: the base of Fed+SCR, not an algorithm by itself.

A client's mean of a class is over its stored samples, normalised to length 1. The server's is the plain mean of the
clients' means, normalised again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.algorithms.fedavg import FedAvg, Local, Stored
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Published, Record, ServerState, Update
from flray.core.messages.fields import sum
from flray.core.network.objective import BoundModel
from flray.core.protocol.algorithm import Predictor
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange, Who
from flray.core.protocol.samples import ClientData, FineTuning
from flray.ops.exemplars import class_means, extract_features, nearest_mean


class MeansState(ServerState):
    """The global model; class means `[C, F]` of length 1; `known [C]`: 1 for classes with a mean, else 0."""

    means: Tensor
    known: Tensor


class MeansPublished(Published):
    """The global model and its class means, as in `MeansState`."""

    means: Tensor
    known: Tensor


class Means(Record):
    """The sum of the clients' means `[C, F]`, and the number of clients with a mean, `holders [C]`."""

    means: Tensor = sum()
    holders: Tensor = sum()


class NearestMeans(FedAvg[MeansState, Broadcast, Update, Stored, Local], frozen=True):
    @abstractmethod
    def memory_data(self, client: Stored, data: ClientData) -> ClientData:
        """The samples that a client stores, whose means it sends."""

    # when -------------------------------------------------------------------------------------
    def next_exchange(self, ctx: Context, state: MeansState) -> Exchange | None:
        """After training the cohort sends means by the new model; at a task's end every client with stored samples
        does."""
        if ctx.clock.phase == "round":
            more = self.exchange_of_rule(ctx, state)
            exchanges = (self.training, *(() if more is None else (more,)), self.means_exchange("cohort"))
            return exchanges[ctx.clock.exchange] if ctx.clock.exchange < len(exchanges) else None
        return self.means_exchange("stateful") if (ctx.clock.phase, ctx.clock.exchange) == ("task_end", 0) else None

    def means_exchange(self, who: Who) -> Exchange[MeansState, Broadcast, Means, Stored, Means]:
        """The exchange in which these clients send their means."""
        return Exchange("means", self.broadcast, self.finish_means, self.client_means, who)

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> MeansState:
        head = cast(nn.Linear, ctx.objective.module.head)
        return MeansState(w, b, torch.zeros_like(head.weight), torch.zeros_like(head.weight[:, 0]))

    def finish_means(
        self, ctx: Context, state: MeansState, updates: Means, cohort: Cohort
    ) -> tuple[MeansState, Metrics]:
        new = updates.holders > 0
        means = torch.where(new[:, None], F.normalize(updates.means, dim=1), state.means)
        return state.replace(means=means, known=torch.where(new, 1.0, state.known)), {}

    def published(self, ctx: Context, state: MeansState) -> MeansPublished:
        return MeansPublished(state.w, state.b, state.means, state.known)

    def predict(self, ctx: Context, published: MeansPublished, x: Tensor) -> Tensor:
        return nearest_mean(ctx.objective.at(published.w, published.b).features(x), published.means, published.known)

    # client -----------------------------------------------------------------------------------
    def client_means(
        self, ctx: ClientContext, broadcast: Broadcast, client: Stored, data: ClientData
    ) -> tuple[Means, Stored, Metrics]:
        """The client's class means by the global model."""
        model = ctx.objective.at(broadcast.w, broadcast.b)
        return Means(*self.means(ctx, model, self.memory_data(client, data).plain)), client, {}

    def means(self, ctx: Context, model: BoundModel, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """(class means `[C, F]`, 1 for classes with a mean `[C]`) by a model."""
        return class_means(*extract_features(model, batches), len(ctx.inputs.classes))

    # personalised evaluation ------------------------------------------------------------------
    def finetune(self, ctx: ClientContext, w: Tensor, b: Tensor, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        return self.continued(ctx, w, b, batches)

    def personalize(self, ctx: ClientContext, broadcast: Broadcast, client: Stored, batches: FineTuning) -> Predictor:
        """The nearest class mean of the client's own samples, after fine-tuning on them."""
        model = ctx.objective.at(*self.finetune(ctx, broadcast.w, self.statistics_before(broadcast, client), batches))
        means, known = self.means(ctx, model, batches.plain)
        return lambda x: nearest_mean(model.features(x), means, known)
