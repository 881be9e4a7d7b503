"""FedAvgM (Hsu et al. 2019): momentum of the server.

m <- beta m + Delta;   w_g <- w_g + eta m   (`nesterov`: eta (Delta + beta m)), Delta as in `server_optimizer.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flray.aggregations.server_optimizer import OptState, ServerOptimizer
from flray.core.schema.hp import hp


class FedAvgM(ServerOptimizer, frozen=True):
    beta: float = hp(0.9, choice=(0.0, 0.7, 0.9, 0.97, 0.99), ge=0, lt=1, doc="momentum of the server (beta)")
    nesterov: bool = hp(False, doc="Nesterov's form of the momentum: Delta + beta m instead of m")

    def optimize(self, own: OptState, delta: Tensor) -> tuple[Tensor, OptState]:
        m = torch.add(delta, own.m, alpha=self.beta)
        return delta.add_(m, alpha=self.beta) if self.nesterov else m, OptState(m, None)
