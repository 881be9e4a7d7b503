"""FedSAM (Qu et al., ICML 2022, Algorithm 1): each local step uses the gradient at the worst nearby point, which
favours flat minima.

e = rho g(w) / (norm(g(w)) + eps), then w <- optimiser step from w with g(w + e); g is the gradient of the local loss.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast, ServerState
from flray.core.protocol.context import ClientContext, Context
from flray.core.schema.hp import hp
from flray.ops.perturb import SubsetName, ascend, check_head, parameter_subset, scratch_copy, scratch_parameters


class FedSAM(FedAvg, frozen=True):
    rho: float = hp(0.1, log=(0.01, 2.0), ge=0, doc="perturbation radius (rho)")
    eps: float = hp(1e-16, ge=0, doc="added to the norm of the gradient")
    perturb: SubsetName = hp("all", doc="part that is perturbed; the norm of g is over this part")
    bn_passes: Literal["first", "both"] = hp("both", doc="passes of a step that update the batch-norm statistics")

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> ServerState:
        if self.perturb != "all":
            check_head(ctx.objective)
        return super().init_server(ctx, w, b)

    def step_cost(self) -> float:
        return 2.0

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, broadcast, client, local, batch)
        b = local.b if self.bn_passes == "both" else scratch_copy(ctx.objective, local.b)
        perturbed = local.replace(w=self.perturbed(ctx, local, g), b=b)
        return loss, super().gradient(ctx, broadcast, client, perturbed, batch)[1]

    def perturbed(self, ctx: Context, local: SGDState, g: Tensor) -> Tensor:
        """w + e `[P]` in scratch; may overwrite `g`."""
        spans = parameter_subset(ctx.objective, self.perturb).spans
        out = scratch_parameters(ctx.objective, local.w, self.perturb)
        return ascend(local.w, g, self.rho, spans, eps=self.eps, out=out)
