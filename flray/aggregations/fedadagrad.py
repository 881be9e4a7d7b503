"""FedAdagrad (Reddi et al., ICLR 2021, Algorithm 2): v <- v + Delta^2; the rest as in `server_optimizer.py`."""

from __future__ import annotations

from torch import Tensor

from flray.aggregations.server_optimizer import Adaptive
from flray.core.schema.hp import hp


class FedAdagrad(Adaptive, frozen=True):
    server_lr: float = hp(0.1, log=(1e-3, 10.0), gt=0, doc="server learning rate (eta)")
    beta_1: float = hp(0.0, choice=(0.0, 0.9), ge=0, lt=1, doc="momentum of the server (beta_1)")

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square
