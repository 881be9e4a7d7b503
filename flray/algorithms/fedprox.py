"""FedProx (Li et al., MLSys 2020, Eq. 2): keep the local parameters near the global ones with a quadratic penalty.

Client: min CE(w) + mu/2 norm(w - w_g)^2, over the trainable parameters; the gradient gets mu (w - w_g). Server: FedAvg.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flray.algorithms.fedavg import Carry, FedAvg, OwnStatistics
from flray.core.messages import Batch, Broadcast
from flray.core.protocol.context import ClientContext, Context
from flray.core.schema.hp import hp


class FedProx(FedAvg, frozen=True):
    mu: float = hp(0.01, choice=(0.001, 0.01, 0.1, 1.0), ge=0, doc="weight of the proximal term (mu, Eq. 2); 0: FedAvg")

    def gradient(
        self, ctx: ClientContext, down: Broadcast, client: OwnStatistics, carry: Carry, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, down, client, carry, batch)
        if self.mu:
            g.add_(self.drift(ctx, down, carry), alpha=self.mu)
        return loss, g

    def proximal(
        self, ctx: Context, down: Broadcast, client: OwnStatistics, carry: Carry, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """(1/2 norm(w - w_g)^2, its gradient `[P]`, scratch), without mu (FedSOL Table 4)."""
        drift = self.drift(ctx, down, carry)
        return 0.5 * torch.dot(drift, drift), drift

    def drift(self, ctx: Context, down: Broadcast, carry: Carry) -> Tensor:
        """w - w_g `[P]`, scratch."""
        return torch.sub(carry.w, down.w, out=ctx.objective.scratch("proximal gradient", carry.w))
