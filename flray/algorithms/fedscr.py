"""Fed+SCR: supervised contrastive replay (Mai et al., CVPR workshops 2021), federated as in FedProTIP's Table 4.

Client: a step reads a batch of the task and a batch of the client's reservoir of old and new samples, each with a
random view of it; L = mean_i -(1 / |P(i)|) sum_{p in P(i)} log( e^{z_i z_p / tau} / sum_{a != i} e^{z_i z_a / tau} ),
z = unit vectors behind a projection of the features (linear, ReLU, linear to 128), P(i) = the others of i's class.
Server: FedAvg of encoder and projection. Prediction: the nearest class mean, of features of unit length. A client's
mean is that over its reservoir, brought to unit length; the server's is their plain mean, brought to unit length again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.algorithms.fedavg import Carry, FedAvg, LocalStatistics
from flray.core.algorithm import Predictor
from flray.core.context import Context
from flray.core.errors import ConfigError
from flray.core.exchange import Exchange, Who
from flray.core.fields import sum
from flray.core.hp import hp
from flray.core.inputs import Inputs
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Published, Record, ServerState, Update
from flray.core.point import Model
from flray.core.samples import ClientData, FineTuning
from flray.models.base import projected
from flray.ops.contrast import supervised_contrast
from flray.ops.exemplars import class_means, nearest_mean, represented, reservoir
from flray.ops.views import random_views

PROJECTION = "contrast_projection"  # the name of the layers in the network


class SCRState(ServerState):
    """The global model; class means `[C, F]` of unit length, and 1 for the classes that have one, `known [C]`."""

    means: Tensor
    known: Tensor


class SCRPublished(Published):
    means: Tensor
    known: Tensor


class SCRClient(LocalStatistics):
    """The reservoir: `numbers [m]` of samples (int64), how many passed it by, and the task of those that did last."""

    numbers: Tensor
    seen: int
    task: int


class SCRCarry(Carry):
    """FedAvg's carry, the client's reservoir, and the samples `x [m, ...]`, `y [m]` in it."""

    client: SCRClient
    x: Tensor
    y: Tensor


class Means(Record):
    """The sum of the clients' means `[C, F]`, and how many clients have one, `holders [C]`."""

    means: Tensor = sum()
    holders: Tensor = sum()


class FedSCR(FedAvg, frozen=True):
    keeps_exemplars: ClassVar[bool] = True
    keeps: ClassVar[str] = "samples of all tasks on the clients; class means of features on the server"

    tau: float = hp(0.1, log=(0.01, 1.0), gt=0, doc="temperature of the similarities")
    memory_size: int = hp(2000, choice=(200, 500, 1000, 2000), ge=1, doc="samples in a client's reservoir (M)")
    memory_batch: int = hp(100, choice=(10, 50, 100), ge=0, doc="samples of it in a local step; 0: no replay")
    projection: int = hp(128, choice=(64, 128, 256), ge=1, doc="width of the projection that is contrasted")

    def module(self, model: nn.Module, inputs: Inputs) -> nn.Module:
        if inputs.text:
            raise ConfigError("fedscr contrasts random views of images, the data are texts; choose another algorithm")
        head = getattr(model, "head", None)
        if not isinstance(head, nn.Linear):
            raise ConfigError(f"fedscr reads features, and {type(model).__name__} has no linear head behind them")
        model.add_module(PROJECTION, projected(head.in_features, self.projection)[0])
        head.requires_grad_(False)  # nobody reads it
        return model

    # when -------------------------------------------------------------------------------------
    def next_exchange(self, ctx: Context, state: SCRState) -> Exchange | None:
        """After training the cohort sends means of the new model; at a task's end every client that keeps samples."""
        if ctx.clock.phase == "round":
            return (self.training, self.means_of("cohort"), None)[min(ctx.clock.exchange, 2)]
        return self.means_of("stateful") if (ctx.clock.phase, ctx.clock.exchange) == ("task_end", 0) else None

    def means_of(self, who: Who) -> Exchange:
        """The exchange in which clients send the means of what they keep."""
        return Exchange("means", self.broadcast, self.finish_means, self.own_means, who)

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> SCRState:
        head = cast(nn.Linear, ctx.objective.module.head)
        return SCRState(w, b, torch.zeros_like(head.weight), torch.zeros_like(head.weight[:, 0]))

    def finish_means(self, ctx: Context, state: SCRState, updates: Means, cohort: Cohort) -> tuple[SCRState, Metrics]:
        new = updates.holders > 0
        means = torch.where(new[:, None], F.normalize(updates.means, dim=1), state.means)
        return state.replace(means=means, known=torch.where(new, 1.0, state.known)), {}

    def published(self, ctx: Context, state: SCRState) -> SCRPublished:
        return SCRPublished(state.w, state.b, state.means, state.known)

    def predict(self, ctx: Context, published: SCRPublished, x: Tensor) -> Tensor:
        return nearest_mean(ctx.objective.at(published.w, published.b).features(x), published.means, published.known)

    # client -----------------------------------------------------------------------------------
    def step_cost(self) -> float:
        return 2 * (1 + self.memory_batch / self.batch_size)

    def init_client(self, ctx: Context) -> SCRClient:
        kept = self.own_statistics(ctx.objective.initial()[1])
        return SCRClient.of(kept, numbers=torch.zeros(0, dtype=torch.int64, device=ctx.device), seen=0, task=-1)

    def num_exemplars(self, client: SCRClient) -> int:
        return len(client.numbers)

    def begin(self, ctx: Context, down: Broadcast, client: SCRClient, data: ClientData) -> SCRCarry:
        client = self.passed(ctx, client, data)
        x, y = samples(data.only(client.numbers.cpu().numpy()))
        return SCRCarry.of(super().begin(ctx, down, client, data), client=client, x=x, y=y)

    def passed(self, ctx: Context, client: SCRClient, data: ClientData) -> SCRClient:
        """The client after its samples passed its reservoir by, in a drawn order, the first time that it trains in a
        task."""
        if client.task == ctx.clock.task:
            return client
        kept, stream = client.numbers.cpu().numpy(), ctx.rng("stream").permutation(data.numbers)
        kept = reservoir(kept, stream, client.seen, self.memory_size, ctx.rng("reservoir"))
        numbers = torch.from_numpy(kept).to(ctx.device)
        return client.replace(numbers=numbers, seen=client.seen + len(stream), task=ctx.clock.task)

    def batches(
        self, ctx: Context, down: Broadcast, client: SCRClient, carry: SCRCarry, data: ClientData
    ) -> Iterator[Batch]:
        draws, size = ctx.rng("memory"), min(self.memory_batch, len(carry.y))
        for batch in data.batches(self.batch_size, steps=ctx.num_steps):
            chosen = torch.from_numpy(draws.choice(len(carry.y), size, replace=False)).to(ctx.device)
            yield Batch(torch.cat([batch.x, carry.x[chosen]]), torch.cat([batch.y, carry.y[chosen]]))

    def gradient(self, ctx: Context, down: Any, client: Any, carry: Carry, batch: Batch) -> tuple[Tensor, Tensor]:
        x = torch.cat([batch.x, self.view(ctx, batch.x, ctx.rng("views", carry.moments.steps))])
        y = torch.cat([batch.y, batch.y])

        def loss(f: Model) -> Tensor:
            return supervised_contrast(F.normalize(f.run(PROJECTION, f.features(x)), dim=1), y, self.tau)

        return ctx.objective.value_and_grad(loss, carry.w, carry.b, out=carry.grad)

    def view(self, ctx: Context, x: Tensor, draws: np.random.Generator) -> Tensor:
        """The second view of `x [B, ...]`; feature vectors have none but themselves."""
        if not ctx.inputs.is_image:
            return x
        return ctx.inputs.normalised(random_views(ctx.inputs.pixels(x).clamp(0, 1), draws))

    def end(self, ctx: Context, down: Any, client: Any, carry: SCRCarry, data: ClientData) -> tuple[Update, SCRClient]:
        return Update(carry.w, carry.b), carry.client.replace(b=self.own_statistics(carry.b).b)

    def own_means(
        self, ctx: Context, down: Broadcast, client: SCRClient, data: ClientData
    ) -> tuple[Means, SCRClient, Metrics]:
        """The means of what the client keeps, of the global model."""
        model = ctx.objective.at(down.w, down.b)
        return Means(*self.means(ctx, model, data.only(client.numbers.cpu().numpy()).plain)), client, {}

    def means(self, ctx: Context, model: Model, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """Class means `[C, F]` of a model, and 1 for the classes that have one, `[C]`."""
        return class_means(*represented(model, batches), len(ctx.inputs.classes))

    # personalised evaluation ------------------------------------------------------------------
    def finetune(self, ctx: Context, w: Tensor, b: Tensor, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        return self.continued(ctx, w, b, batches)

    def personalize(self, ctx: Context, down: Broadcast, client: SCRClient, batches: FineTuning) -> Predictor:
        """The nearest mean of the client's own samples, after contrastive steps on them."""
        model = ctx.objective.at(*self.finetune(ctx, down.w, self.statistics_before(down, client), batches))
        means, known = self.means(ctx, model, batches.plain)
        return lambda x: nearest_mean(model.features(x), means, known)


def samples(data: ClientData) -> tuple[Tensor, Tensor]:
    """All samples of a client `x [n, ...]`, `y [n]`, without augmentation."""
    x, y = zip(*((batch.x, batch.y) for batch in data.plain), strict=True)
    return torch.cat(x), torch.cat(y)
