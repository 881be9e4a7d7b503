"""FedAdam (Reddi et al., ICLR 2021, Algorithm 2): v <- beta_2 v + (1 - beta_2) Delta^2; the rest as in
`server_optimizer.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from flray.aggregations.server_optimizer import Adaptive
from flray.core.schema.hp import hp


class FedAdam(Adaptive, frozen=True):
    beta_2: float = hp(0.99, choice=(0.9, 0.99, 0.999), ge=0, lt=1, doc="decay of the second moment (beta_2)")

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return torch.lerp(v, square, 1 - self.beta_2)
