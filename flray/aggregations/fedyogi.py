"""FedYogi (Reddi et al., ICLR 2021, Algorithm 2): v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2); the rest as in
`server_optimizer.py`."""

from __future__ import annotations

import torch
from torch import Tensor

from flray.aggregations.fedadam import FedAdam


class FedYogi(FedAdam, frozen=True):
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return torch.addcmul(v, square, torch.sign(v - square), value=self.beta_2 - 1)
