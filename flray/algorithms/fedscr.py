"""Fed+SCR: supervised contrastive replay (Mai et al., CVPR workshops 2021), federated as in FedProTIP's Table 4.

Client: a step reads a batch of the task and a batch of the client's reservoir of old and new samples, and a random view
of each sample; L = mean_i -(1 / |P(i)|) sum_{p in P(i)} log( e^{z_i z_p / tau} / sum_{a != i} e^{z_i z_a / tau} ),
z = normalised projection of the features (linear, ReLU, linear to 128), P(i) = the other samples of i's class.
Server: FedAvg of encoder and projection. Prediction: the nearest class mean of normalised features
(`nearest_means.py`), with the means over the clients' reservoirs.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.algorithms.nearest_means import MeansState, NearestMeans
from flray.algorithms.reservoir_replay import ReplayLocalState, ReservoirClient, ReservoirReplay
from flray.core.messages import Batch, Broadcast
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.models.base import linear_head, projected
from flray.ops.contrast import supervised_contrast
from flray.ops.views import random_views

PROJECTION = "contrast_projection"  # the name of the layers in the network


class FedSCR(
    ReservoirReplay[MeansState, ReservoirClient, ReplayLocalState],
    NearestMeans[ReservoirClient, ReplayLocalState],
    frozen=True,
):
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

    # client -----------------------------------------------------------------------------------
    def step_cost(self) -> float:
        return 2 * (1 + self.memory_batch / self.batch_size)

    def memory_data(self, client: ReservoirClient, data: ClientData) -> ClientData:
        return data.only(client.numbers.cpu().numpy())

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
