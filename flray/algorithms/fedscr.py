"""Fed+SCR: supervised contrastive replay (Mai et al., CVPR workshops 2021), federated as in FedProTIP's Table 4.

Client: a step reads a batch of the task and a batch of the client's reservoir of old and new samples, and a random view
of each sample; L = mean_i -(1 / |P(i)|) sum_{p in P(i)} log( e^{z_i z_p / tau} / sum_{a != i} e^{z_i z_a / tau} ),
z = normalised projection of the features (linear, ReLU, linear to 128), P(i) = the other samples of i's class.
Server: FedAvg of encoder and projection. Prediction: the nearest class mean of normalised features
(`nearest_means.py`), with the means over the clients' reservoirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.algorithms.fedavg import LocalStatistics, SGDState
from flray.algorithms.nearest_means import NearestMeans
from flray.core.messages import Batch, Broadcast, Update
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.models.base import linear_head, projected
from flray.ops.contrast import supervised_contrast
from flray.ops.exemplars import reservoir
from flray.ops.views import random_views

PROJECTION = "contrast_projection"  # the name of the layers in the network


class SCRClient(LocalStatistics):
    """The reservoir: sample `numbers [m]` (int64), how many samples it has `seen`, and the `task` of the last ones."""

    numbers: Tensor
    seen: int
    task: int


class SCRLocalState(SGDState):
    """FedAvg's local state, the client with its new reservoir, and the reservoir's samples `x [m, ...]`, `y [m]`."""

    client: SCRClient
    x: Tensor
    y: Tensor


class FedSCR(NearestMeans[SCRClient, SCRLocalState], frozen=True):
    keeps_exemplars: ClassVar[bool] = True
    keeps: ClassVar[str] = "samples of all tasks on the clients; class means of features on the server"

    tau: float = hp(0.1, log=(0.01, 1.0), gt=0, doc="temperature of the similarities")
    memory_size: int = hp(2000, choice=(200, 500, 1000, 2000), ge=1, doc="samples in a client's reservoir (M)")
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

    # client -----------------------------------------------------------------------------------
    def step_cost(self) -> float:
        return 2 * (1 + self.memory_batch / self.batch_size)

    def init_client(self, ctx: Context) -> SCRClient:
        statistics = self.own_statistics(ctx.objective.initial()[1])
        return SCRClient.of(statistics, numbers=torch.zeros(0, dtype=torch.int64, device=ctx.device), seen=0, task=-1)

    def num_exemplars(self, client: SCRClient) -> int:
        return len(client.numbers)

    def memory_data(self, client: SCRClient, data: ClientData) -> ClientData:
        return data.only(client.numbers.cpu().numpy())

    def begin(self, ctx: ClientContext, broadcast: Broadcast, client: SCRClient, data: ClientData) -> SCRLocalState:
        client, numbers = self.update_reservoir(ctx, client, data)
        x, y = samples(data.only(numbers))
        return SCRLocalState.of(super().begin(ctx, broadcast, client, data), client=client, x=x, y=y)

    def update_reservoir(self, ctx: Context, client: SCRClient, data: ClientData) -> tuple[SCRClient, np.ndarray]:
        """(the client, the sample numbers in its reservoir) after it has seen its samples in a drawn order: once in a
        task, at its first training."""
        stored = client.numbers.cpu().numpy()
        if client.task == ctx.clock.task:
            return client, stored
        stream = ctx.rng("stream").permutation(data.numbers)
        numbers = reservoir(stored, stream, client.seen, self.memory_size, ctx.rng("reservoir"))
        there = torch.from_numpy(numbers).to(ctx.device)
        return client.replace(numbers=there, seen=client.seen + len(stream), task=ctx.clock.task), numbers

    def batches(
        self, ctx: ClientContext, broadcast: Broadcast, client: SCRClient, local: SCRLocalState, data: ClientData
    ) -> Iterator[Batch]:
        draws, size = ctx.rng("memory"), min(self.memory_batch, len(local.y))
        for batch in data.batches(self.batch_size, steps=ctx.num_steps):
            chosen = torch.from_numpy(draws.choice(len(local.y), size, replace=False)).to(ctx.device)
            yield Batch(torch.cat([batch.x, local.x[chosen]]), torch.cat([batch.y, local.y[chosen]]))

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: SCRClient, local: SCRLocalState, batch: Batch
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

    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: SCRClient, local: SCRLocalState, data: ClientData
    ) -> tuple[Update, SCRClient]:
        return Update(local.w, local.b), local.client.replace(b=self.own_statistics(local.b).b)


def samples(data: ClientData) -> tuple[Tensor, Tensor]:
    """All samples of a client `x [n, ...]`, `y [n]`, without augmentation."""
    x, y = zip(*((batch.x, batch.y) for batch in data.plain), strict=True)
    return torch.cat(x), torch.cat(y)
