"""L-BFGS on many small independent problems at once, each with the steps of `torch.optim.LBFGS`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

INNER, EVALUATIONS, HISTORY = 20, 25, 100  # torch's defaults: max_iter, max_eval, history_size
TOLERANCE_GRAD, TOLERANCE_CHANGE = 1e-7, 1e-9  # tolerance_grad, tolerance_change
MIN_CURVATURE = 1e-10  # smallest y s of a pair in the history

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]


class BatchedLBFGS:
    """L-BFGS without line search on the rows of `x [n, d]`: n independent problems.

    `evaluate(x)` returns (values `[n]`, gradients `[n, d]`) by row. The arithmetic of a row is that of
    `torch.optim.LBFGS([row], lr)`, except that a rejected pair also takes a place in the history.
    """

    def __init__(self, evaluate: Evaluate, x: Tensor, lr: float) -> None:
        self.evaluate, self.x, self.lr = evaluate, x.clone(), lr
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # (y [n, d], s [n, d], 1 / (y s) [n], 0: no pair)
        self._fresh = torch.ones(len(x), dtype=torch.bool, device=x.device)  # before its first step
        self._d, self._g, self._value = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x[:, 0])
        self._t, self._scale = torch.zeros_like(self._value), torch.ones_like(self._value)

    def step(self) -> None:
        """One call of `torch.optim.LBFGS.step` for every row: at most 20 updates, fewer once it converges."""
        value, g = self.evaluate(self.x)
        active = g.abs().amax(dim=1) > TOLERANCE_GRAD
        for inner in range(1, INNER + 1):
            if not active.any():
                return
            self._update_direction(g, active)
            first = (1 / g.abs().sum(dim=1)).clamp(max=1) * self.lr
            t = torch.where(self._fresh, first, self.lr)
            self._t, self._fresh = torch.where(active, t, self._t), self._fresh & ~active
            self._g, self._value = _where(active, g, self._g), torch.where(active, value, self._value)
            active = active & ((g * self._d).sum(dim=1) <= -TOLERANCE_CHANGE)
            move = self._t[:, None] * self._d
            self.x = _where(active, self.x + move, self.x)
            if inner == INNER:
                return
            value, g = self.evaluate(self.x)
            active = active & (g.abs().amax(dim=1) > TOLERANCE_GRAD) & (move.abs().amax(dim=1) > TOLERANCE_CHANGE)
            active = active & ((value - self._value).abs() >= TOLERANCE_CHANGE)

    def _update_direction(self, g: Tensor, active: Tensor) -> None:
        """The next direction d of the active rows, from their gradients `g [n, d]`."""
        y, s = g - self._g, self._t[:, None] * self._d
        ys = (y * s).sum(dim=1)
        good = active & ~self._fresh & (ys > MIN_CURVATURE)
        if good.any():
            rho = torch.where(good, 1 / ys, 0.0)
            self._pairs = [*self._pairs[-HISTORY + 1 :], (_where(good, y, 0 * y), _where(good, s, 0 * s), rho)]
            self._scale = torch.where(good, ys / (y * y).sum(dim=1), self._scale)
        q, alphas = -g, []
        for y, s, rho in reversed(self._pairs):
            alphas.append((s * q).sum(dim=1) * rho)
            q = q - alphas[-1][:, None] * y
        d = q * self._scale[:, None]
        for (y, s, rho), alpha in zip(self._pairs, reversed(alphas), strict=True):
            beta = (y * d).sum(dim=1) * rho
            d = d + (alpha - beta)[:, None] * s
        self._d = _where(active, d, self._d)


def _where(rows: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """`one [n, d]` in these rows (bool `[n]`), `other` in the rest."""
    return torch.where(rows[:, None], one, other)
