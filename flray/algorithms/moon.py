"""MOON (Li, He and Song, CVPR 2021, section 3): pull the representation to the global model's, push it from that of the
client's previous local model.

loss = CE + mu l_con,  l_con = mean_x -log( e^{cos(z, z_g)/tau} / (e^{cos(z, z_g)/tau} + e^{cos(z, z_p)/tau}) );
z, z_g, z_p = the inputs of the head in the local, the global and the client's previous local model; the last two are
fixed, in eval mode. A cosine divides by max(norm(z), 1e-8) max(norm(z_g), 1e-8).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, SGDState
from flray.core.messages import Batch, Broadcast, ClientState, ServerState, Update
from flray.core.network.objective import BoundModel
from flray.core.protocol.algorithm_section import of_returning_clients
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.contrast import model_contrast
from flray.ops.losses import cross_entropy


class MoonClient(ClientState):
    """The client's last local model: `w [P]`, `b [Q]`."""

    w: Tensor
    b: Tensor


class Moon(FedAvg[ServerState, Broadcast, Update, MoonClient], frozen=True):
    cautions = (of_returning_clients,)
    mu: float = hp(
        1.0, choice=(0.001, 0.01, 0.1, 1.0, 5.0, 10.0), ge=0, doc="weight of the contrastive term; 0: FedAvg"
    )
    tau: float = hp(0.5, choice=(0.1, 0.5, 1.0), gt=0, doc="temperature of the contrastive term")

    def init_client(self, ctx: Context) -> MoonClient:
        return MoonClient(*ctx.objective.initial())

    def step_cost(self) -> float:
        return 1 + 2 / 3 if self.mu else 1.0

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: MoonClient, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        if not self.mu:
            return super().gradient(ctx, broadcast, client, local, batch)
        contrast = self.contrast(ctx, broadcast, client, batch)

        def loss(f: BoundModel) -> Tensor:
            z = f.features(batch.x)
            return cross_entropy(f.head(z), batch.y, ctx.classes) + self.mu * contrast(z)

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)

    def contrastive_loss(
        self, ctx: Context, broadcast: Broadcast, client: MoonClient, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(l_con, its gradient `[P]`, scratch) at the client's weights, without cross-entropy and mu."""
        out = ctx.objective.scratch("proximal gradient", local.w)
        contrast = self.contrast(ctx, broadcast, client, batch)
        value, g = ctx.objective.value_and_grad(lambda f: contrast(f.features(batch.x)), local.w, local.b, out=out)
        # z_p = z_g in round 1, and for the only client of a round: l_con is constant, g a rounding error
        constant = (client.w == broadcast.w).all() & (client.b == broadcast.b).all()
        return value.masked_fill(constant, math.log(2.0)), g.masked_fill_(constant, 0.0)

    def contrast(
        self, ctx: Context, broadcast: Broadcast, client: MoonClient, batch: Batch
    ) -> Callable[[Tensor], Tensor]:
        """l_con as a function of the local representations `z [B, F]` of this batch."""
        with torch.no_grad():
            z_global, *z_previous = (
                ctx.objective.at(model.w, model.b).features(batch.x) for model in (broadcast, client)
            )
        return lambda z: model_contrast(z, z_global, z_previous, self.tau)

    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: MoonClient, local: SGDState, data: ClientData
    ) -> tuple[Update, MoonClient]:
        return Update(local.w, local.b), MoonClient(local.w.clone(), local.b.clone())
