"""FedSAM (Qu et al., ICML 2022, Algorithm 1): clients take each step with the gradient at the worst nearby point, for
flat minima.

e = rho g(w) / (norm(g(w)) + eps), then w <- optimiser step from w with g(w + e); g is the gradient of the local loss.

| paper | field | default (official code, debcaldarola/fedsam) | FedSOL | searched |
|---|---|---|---|---|
| rho | `rho` | 0.1 on CIFAR-10 | 0.1 (ships 0.5) | 0.01 to 2 |
| - | `eps` | 1e-16 | 1e-12 | - |
| - | `perturb`: head, body, all | all | all | - |
| - | `bn_passes` that move the batch-norm statistics | both | first | - |

Weight decay reads w, not w + e. The official script runs lr 0.01, momentum 0, weight decay 4e-4, 1 local epoch, batch
64.
`train/loss` is the loss at w. Reduces to FedAvg at rho = 0 (with `bn_passes: first`).
Down: P + Q. Up: P + Q. State: none. Cost per step: 2 FedAvg steps. Known failure: with few local steps a large rho only
slows learning.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from flray.algorithms.fedavg import FedAvg
from flray.core.context import Context
from flray.core.hp import hp
from flray.core.messages import Batch
from flray.ops.perturb import PartName, around, ascend, check_head, part, still


class FedSAM(FedAvg, frozen=True):
    rho: float = hp(0.1, log=(0.01, 2.0), ge=0, doc="perturbation radius (rho)")
    eps: float = hp(1e-16, ge=0, doc="added to the norm of the gradient")
    perturb: PartName = hp("all", doc="what is perturbed; the norm of g is that of this part")
    bn_passes: Literal["first", "both"] = hp("both", doc="passes of a step that move the batch-norm statistics")

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        if self.perturb != "all":
            check_head(ctx.objective)
        return super().init_server(ctx, w, b)

    def step_cost(self) -> float:
        return 2.0

    def gradient(self, ctx: Context, down: Any, client: Any, carry: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, g = super().gradient(ctx, down, client, carry, batch)
        b = carry.b if self.bn_passes == "both" else still(ctx.objective, carry.b)
        there = carry.replace(w=self.perturbed(ctx, carry, g), b=b)
        return loss, super().gradient(ctx, down, client, there, batch)[1]

    def perturbed(self, ctx: Context, carry: Any, g: Tensor) -> Tensor:
        """w + e `[P]` in scratch; may overwrite `g`."""
        spans, out = part(ctx.objective, self.perturb).spans, around(ctx.objective, carry.w, self.perturb)
        return ascend(carry.w, g, self.rho, spans, eps=self.eps, out=out)
