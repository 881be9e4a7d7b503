"""FedProx (Li et al., MLSys 2020, Eq. 2): keep the local parameters near the global ones with a quadratic penalty.

Client: min CE(w) + mu/2 norm(w - w_g)^2, over the trainable parameters; the gradient gets mu (w - w_g). Server: FedAvg.
"""

from __future__ import annotations

from torch import Tensor

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast
from flray.core.protocol.context import ClientContext
from flray.core.schema.hp import hp
from flray.ops.proximal import ProximalTerm


class FedProx(FedAvg, frozen=True):
    mu: float = hp(0.01, choice=(0.001, 0.01, 0.1, 1.0), ge=0, doc="weight of the proximal term (mu, Eq. 2); 0: FedAvg")

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        if self.mu:
            term = self.proximal_term(ctx, broadcast, client, local)
            g.add_(term.gradient(local.w, ctx.objective.scratch("proximal gradient", local.w)), alpha=self.mu)
        return loss, g

    def proximal_term(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: SGDState
    ) -> ProximalTerm:
        """1/2 norm(w - w_g)^2; the caller multiplies by mu (here) or uses it as L_p (FedSOL)."""
        return ProximalTerm(anchor=broadcast.w)
