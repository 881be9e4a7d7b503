"""Fed+SCR: supervised contrastive replay (Mai et al., CVPR workshops 2021), federated as in FedProTIP's Table 4.

Client: a step reads a batch of the task and a batch of the client's reservoir of old and new samples, and a random view
of each sample; L = mean_i -(1 / |P(i)|) sum_{p in P(i)} log( e^{z_i z_p / tau} / sum_{a != i} e^{z_i z_a / tau} ),
z = normalised projection of the features (linear, ReLU, linear to 128), P(i) = the other samples of i's class.
Server: FedAvg of encoder and projection. Prediction: the nearest class mean of normalised features. A client's mean of
a class is over the samples of its reservoir, normalised to length 1; the server's is the plain mean of the clients'
means, normalised again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.algorithms.reservoir_replay import ReplayLocalState, ReservoirClient, ReservoirReplay
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Published, Record, ServerState
from flray.core.messages.fields import sum
from flray.core.network.objective import BoundModel
from flray.core.protocol.algorithm import Predictor
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange, Who
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData, FineTuning
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.models.base import linear_head, projected
from flray.ops.contrast import supervised_contrast
from flray.ops.exemplars import class_means, extract_features, nearest_mean
from flray.ops.views import random_views

PROJECTION = "contrast_projection"  # the name of the layers in the network


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


class FedSCR(ReservoirReplay[MeansState, ReservoirClient, ReplayLocalState], frozen=True):
    keeps: ClassVar[str] = "samples of all tasks on the clients; class means of features on the server"

    tau: float = hp(0.1, log=(0.01, 1.0), gt=0, doc="temperature of the similarities")
    memory_batch: int = hp(
        100, choice=(10, 50, 100), ge=0, doc="samples of the reservoir in a local step; 0: no replay"
    )
    projection: int = hp(128, choice=(64, 128, 256), ge=1, doc="width of the projection")

    def module(self, model: nn.Module, inputs: Inputs) -> nn.Module:
        if inputs.text:
            raise ConfigError("fedscr contrasts random views of images, the data are texts; choose another algorithm")
        head = linear_head(model, "fedscr")
        model.add_module(PROJECTION, projected(head.in_features, self.projection)[0])
        head.requires_grad_(False)  # predictions do not read it
        return model

    # when -------------------------------------------------------------------------------------
    def next_exchange(self, ctx: Context, state: MeansState) -> Exchange | None:
        """After training the cohort sends means by the new model; at a task's end every client with stored samples
        does."""
        if ctx.clock.phase == "round":
            more = self.exchange_of_rule(ctx, state)
            exchanges = (self.training, *(() if more is None else (more,)), self.means_exchange("cohort"))
            return exchanges[ctx.clock.exchange] if ctx.clock.exchange < len(exchanges) else None
        return self.means_exchange("stateful") if (ctx.clock.phase, ctx.clock.exchange) == ("task_end", 0) else None

    def means_exchange(self, who: Who) -> Exchange[MeansState, Broadcast, Means, ReservoirClient, Means]:
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
    def step_cost(self) -> float:
        return 2 * (1 + self.memory_batch / self.batch_size)

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: ReservoirClient, local: ReplayLocalState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x = torch.cat([batch.x, self.view(ctx, batch.x, ctx.rng("views", local.moments.steps))])
        y = torch.cat([batch.y, batch.y])

        def loss(f: BoundModel) -> Tensor:
            return supervised_contrast(F.normalize(f.run(PROJECTION, f.features(x)), dim=1), y, self.tau)

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)

    def view(self, ctx: Context, x: Tensor, draws: np.random.Generator) -> Tensor:
        """A random view of the inputs `x [B, ...]`; feature vectors are returned as they are."""
        if not ctx.inputs.is_image:
            return x
        return ctx.inputs.normalised(random_views(ctx.inputs.pixels(x).clamp(0, 1), draws))

    def client_means(
        self, ctx: ClientContext, broadcast: Broadcast, client: ReservoirClient, data: ClientData
    ) -> tuple[Means, ReservoirClient, Metrics]:
        """The client's class means by the global model."""
        model = ctx.objective.at(broadcast.w, broadcast.b)
        return Means(*self.means(ctx, model, data.only(client.numbers.cpu().numpy()).plain)), client, {}

    def means(self, ctx: Context, model: BoundModel, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """(class means `[C, F]`, 1 for classes with a mean `[C]`) by a model."""
        return class_means(*extract_features(model, batches), len(ctx.inputs.classes))

    def finetune(self, ctx: ClientContext, w: Tensor, b: Tensor, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        return self.continued(ctx, w, b, batches)

    def personalize(
        self, ctx: ClientContext, broadcast: Broadcast, client: ReservoirClient, batches: FineTuning
    ) -> Predictor:
        """The nearest class mean of the client's own samples, after fine-tuning on them."""
        model = ctx.objective.at(*self.finetune(ctx, broadcast.w, self.statistics_before(broadcast, client), batches))
        means, known = self.means(ctx, model, batches.plain)
        return lambda x: nearest_mean(model.features(x), means, known)
