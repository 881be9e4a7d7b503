"""FedOpt (Reddi et al., ICLR 2021, Algorithm 2; FedAvgM: Hsu et al. 2019): a server optimiser uses the mean update as
its negative gradient.

Client: FedAvg. Server, element by element, with Delta = sum_k p_k (w_k - w_g) and m_0 = 0:

    fedavgm      m <- beta m + Delta;   w_g <- w_g + eta m   (`nesterov`: eta (Delta + beta m))
    adaptive     m <- beta_1 m + (1 - beta_1) Delta;   w_g <- w_g + eta m / (sqrt(v) + tau), with v updated first:
    fedadagrad   v <- v + Delta^2
    fedadam      v <- beta_2 v + (1 - beta_2) Delta^2
    fedyogi      v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Cohort, Metrics, ServerState, Update
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp


class OptState(ServerState):
    """Global model, momentum `m [P]` and second moment `v [P]` (None: FedAvgM)."""

    m: Tensor
    v: Tensor | None


class FedOpt(FedAvg[OptState], frozen=True):
    """FedAvg whose server takes an optimiser's step along the mean update."""

    server_lr: float = hp(1.0, log=(1e-3, 10.0), gt=0, doc="server learning rate (eta)")

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> OptState:
        return OptState(w, b, torch.zeros_like(w), None)

    def aggregate(self, ctx: Context, state: OptState, updates: Update, cohort: Cohort) -> tuple[OptState, Metrics]:
        direction, m, v = self.optimize(state, torch.sub(updates.w, state.w))
        w = torch.add(state.w, direction, alpha=self.server_lr)
        return OptState(w, self.statistics(state, updates.b), m, v), {}

    @abstractmethod
    def optimize(self, state: OptState, delta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """(direction `[P]` of the server's step, m, v) for the mean update `delta [P]`, which may be overwritten."""


class FedAvgM(FedOpt, frozen=True):
    beta: float = hp(0.9, choice=(0.0, 0.7, 0.9, 0.97, 0.99), ge=0, lt=1, doc="momentum of the server (beta)")
    nesterov: bool = hp(False, doc="Nesterov's form of the momentum: Delta + beta m instead of m")

    def optimize(self, state: OptState, delta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        m = torch.add(delta, state.m, alpha=self.beta)
        return delta.add_(m, alpha=self.beta) if self.nesterov else m, m, None


class Adaptive(FedOpt, frozen=True):
    """Algorithm 2 without its second moment v, in which the three methods differ."""

    server_lr: float = hp(0.01, log=(1e-3, 10.0), gt=0, doc="server learning rate (eta)")
    beta_1: float = hp(0.9, choice=(0.0, 0.9), ge=0, lt=1, doc="momentum of the server (beta_1)")
    tau: float = hp(1e-3, log=(1e-5, 1e-1), gt=0, doc="degree of adaptivity (tau), added to the root of v")
    v_0: float | None = hp(None, ge=0, doc="v before round 1; none: tau^2, the smallest value of the paper")

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> OptState:
        start = self.tau**2 if self.v_0 is None else self.v_0
        return OptState(w, b, torch.zeros_like(w), start * ctx.mask("all"))  # 0 in the gaps between tensors

    def optimize(self, state: OptState, delta: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        assert state.v is not None  # of init_server
        m = torch.lerp(state.m, delta, 1 - self.beta_1)
        v = self.second_moment(state.v, delta.square_())
        return m / v.sqrt().add_(self.tau), m, v

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v `[P]` from v and Delta^2 `[P]`."""


class FedAdagrad(Adaptive, frozen=True):
    server_lr: float = hp(0.1, log=(1e-3, 10.0), gt=0, doc="server learning rate (eta)")
    beta_1: float = hp(0.0, choice=(0.0, 0.9), ge=0, lt=1, doc="momentum of the server (beta_1)")

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


class FedAdam(Adaptive, frozen=True):
    beta_2: float = hp(0.99, choice=(0.9, 0.99, 0.999), ge=0, lt=1, doc="decay of the second moment (beta_2)")

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return torch.lerp(v, square, 1 - self.beta_2)


class FedYogi(FedAdam, frozen=True):
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return torch.addcmul(v, square, torch.sign(v - square), value=self.beta_2 - 1)
