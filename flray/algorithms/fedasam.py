"""FedASAM (Caldarola et al., ECCV 2022): FedSAM with a perturbation that scales with the weights (ASAM), so that rho
does not depend on their size.

e = rho T_w^2 g(w) / (norm(T_w g(w)) + eps), element by element; then w <- optimiser step from w with g(w + e).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from flray.algorithms.fedavg import SGDState
from flray.algorithms.fedsam import FedSAM
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp
from flray.ops.perturb import ascend, magnitude, parameter_subset, scratch_parameters


class FedASAM(FedSAM, frozen=True):
    rho: float = hp(0.7, log=(0.05, 5.0), ge=0, doc="perturbation radius (rho), in units of the weights")
    eta: float = hp(0.2, choice=(0.0, 0.01, 0.2), ge=0, doc="added to the absolute weights (eta)")
    scaled: Literal["all", "weights"] = hp(
        "weights", doc="tensors with T_w = |w| + eta: all, or those named weight (1 on the rest)"
    )

    def perturbed(self, ctx: Context, local: SGDState, g: Tensor) -> Tensor:
        objective = ctx.objective
        entries, values = objective.layout.entries, objective.scratch("magnitude", local.w)
        scale = magnitude(local.w, entries, self.eta, self.scaled, values)
        spans = parameter_subset(objective, self.perturb).spans
        out = scratch_parameters(objective, local.w, self.perturb)
        return ascend(local.w, g.mul_(scale), self.rho, spans, scale, self.eps, out=out)
