"""What EWC and FedCurv share: a quadratic penalty in the metric of Fisher diagonals. Not an algorithm by itself.

For points w_j with diagonals F_j the penalty c sum_j sum_i F_ji (w_i - w_ji)^2 has the gradient 2 c (F w - a), with
F = sum_j F_j and a = sum_j F_j w_j: two vectors, whatever the number of points.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import TypeVar

from flray.algorithms.fedavg import Down, FedAvg, SGDState, State, Stored
from flray.core.messages import Batch
from flray.core.protocol.algorithm import Received, Sent
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.fisher import fisher_diagonal


class PenaltyLocalState(SGDState):
    """FedAvg's local state, and F `fisher [P]`, a `anchor [P]`; None: no penalty."""

    fisher: Tensor | None
    anchor: Tensor | None


PenaltyLocalT = TypeVar("PenaltyLocalT", bound=PenaltyLocalState, default=PenaltyLocalState)


class FisherPenalty(FedAvg[State, Down, Sent, Stored, PenaltyLocalT, Received], frozen=True):
    factor: ClassVar[float]  # 2 c / lambda

    lam: float = hp(1.0, log=(1e-2, 1e4), ge=0, doc="weight of the penalty (lambda); 0: FedAvg")
    fisher_batch: int = hp(10, choice=(1, 10, 50), ge=1, doc="samples of a batch whose squared gradient is taken")
    fisher_batches: int = hp(100, choice=(20, 100, 500), ge=1, doc="such batches of a client, at most one epoch")

    def gradient(
        self, ctx: ClientContext, broadcast: Down, client: Stored, local: PenaltyLocalT, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        if self.lam and local.fisher is not None and local.anchor is not None:
            g.addcmul_(local.fisher, local.w, value=self.factor * self.lam)
            g.add_(local.anchor, alpha=-self.factor * self.lam)
        return loss, g

    def fisher(self, ctx: Context, w: Tensor, b: Tensor, data: ClientData) -> Tensor:
        """The Fisher diagonal `[P]` of the client's samples at `(w [P], b [Q])`, among the classes in use."""
        batches = data.batches(self.fisher_batch, epochs=1, steps=self.fisher_batches)
        return fisher_diagonal(ctx.objective, w, b, batches, ctx.rng("fisher"), ctx.narrow)
