"""FedOpt (Reddi et al., ICLR 2021, Algorithm 2): a server optimiser uses the mean update as its negative gradient. What
`fedavgm`, `fedadam`, `fedyogi` and `fedadagrad` share; not a rule by itself.

Element by element, with Delta = sum_k p_k (w_k - w_g) and m_0 = 0. Weights: p_k, those of the algorithm. Statistics
`b`: their mean with the same weights.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from flray.core.messages import Cohort, HasModel, Record
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp


class OptState(Record):
    """Momentum `m [P]` and second moment `v [P]` (None: FedAvgM)."""

    m: Tensor
    v: Tensor | None


class ServerOptimizer(Aggregation[OptState], frozen=True):
    """The mean, and an optimiser's step along the mean update."""

    server_lr: float = hp(1.0, log=(1e-3, 10.0), gt=0, doc="server learning rate (eta)")

    def initial(self, ctx: Context, w: Tensor, b: Tensor) -> OptState:
        return OptState(torch.zeros_like(w), None)

    def combine(
        self, ctx: Context, own: OptState, before: HasModel, updates: HasModel, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        direction, after = self.optimize(own, torch.sub(updates.w, before.w))
        return Aggregated(torch.add(before.w, direction, alpha=self.server_lr), updates.b, after)

    @abstractmethod
    def optimize(self, own: OptState, delta: Tensor) -> tuple[Tensor, OptState]:
        """(direction `[P]` of the server's step, the next moments) for the mean update `delta [P]`, which may be
        overwritten."""


class Adaptive(ServerOptimizer, frozen=True):
    """Algorithm 2 without its second moment v, in which the three methods differ: m <- beta_1 m + (1 - beta_1) Delta;
    w_g <- w_g + eta m / (sqrt(v) + tau), with v updated first."""

    server_lr: float = hp(0.01, log=(1e-3, 10.0), gt=0, doc="server learning rate (eta)")
    beta_1: float = hp(0.9, choice=(0.0, 0.9), ge=0, lt=1, doc="momentum of the server (beta_1)")
    tau: float = hp(1e-3, log=(1e-5, 1e-1), gt=0, doc="degree of adaptivity (tau), added to the root of v")
    v_0: float | None = hp(None, ge=0, doc="v before round 1; none: tau^2, the smallest value of the paper")

    def initial(self, ctx: Context, w: Tensor, b: Tensor) -> OptState:
        start = self.tau**2 if self.v_0 is None else self.v_0
        return OptState(torch.zeros_like(w), start * ctx.mask("all"))  # 0 in the gaps between tensors

    def optimize(self, own: OptState, delta: Tensor) -> tuple[Tensor, OptState]:
        assert own.v is not None  # of initial
        m = torch.lerp(own.m, delta, 1 - self.beta_1)
        v = self.second_moment(own.v, delta.square_())
        return m / v.sqrt().add_(self.tau), OptState(m, v)

    @abstractmethod
    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v `[P]` from v and Delta^2 `[P]`."""
