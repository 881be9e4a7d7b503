"""Theorems of the papers as functions of gradients and probabilities: FedSOL's Propositions 1 and 2, FedProj's
Proposition 5.3 with its exact threshold, and the kappa of its Assumption 5.5.

The probes `propositions`, `memory` and `heterogeneity` apply them in runs.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from flray.ops.project import project


class Loss(Protocol):
    """A twice differentiable function of the parameters `w [P]`."""

    def value(self, w: Tensor) -> float:
        """The loss at `w`."""

    def gradient(self, w: Tensor) -> Tensor:
        """Its gradient `[P]` at `w`."""

    def product(self, w: Tensor, v: Tensor) -> Tensor:
        """Its Hessian at `w`, times `v [P]`."""


class ProximalChange(NamedTuple):
    """Proposition 1 of FedSOL at a point w: the change of the proximal loss L_p by a step of length gamma.

    `avg`, `sol`: to first order, -gamma <g_p, u>, with FedAvg's u = g_l(w) and FedSOL's u = g_l(w + rho ghat);
    `predicted`: `sol` by Eq. 11, avg - gamma rho ||g_p|| curvature; `avg_real`, `sol_real`:
    L_p(w - gamma u) - L_p(w); `curvature`: ghat' H_l ghat of the local loss. ghat = g_p / ||g_p||.
    """

    avg: float
    sol: float
    predicted: float
    avg_real: float
    sol_real: float
    curvature: float


class LocalChange(NamedTuple):
    """Proposition 2 of FedSOL at a point w: the change of the local loss L_l by FedSOL's step.

    `sol`: to first order at w, -gamma <g_l(w), g_l(w + rho ghat)>; `shifted`: Eq. 12's right side, FedAvg's
    -gamma ||g_l||^2 at w + (rho / 2) ghat; their difference is O(rho^2), and gamma rho^2 ||H ghat||^2 / 4 for a
    quadratic loss. `sol_real`, `shifted_real`: the exact changes of L_l by these two steps.
    """

    sol: float
    shifted: float
    sol_real: float
    shifted_real: float


def proposition_1(local: Loss, proximal: Loss, w: Tensor, rho: float, gamma: float) -> ProximalChange | None:
    """FedSOL's Proposition 1 (Eq. 11) at `w [P]`, with the same rho for all parameters (Eq. 5); None if g_p is 0."""
    g_p = proximal.gradient(w)
    along = _unit(g_p)
    if along is None:
        return None
    directions = local.gradient(w), local.gradient(w + rho * along)
    curvature, size = dot(along, local.product(w, along)), float(g_p.double().norm())
    avg, sol = (-gamma * dot(g_p, u) for u in directions)
    base = proximal.value(w)
    avg_real, sol_real = (proximal.value(w - gamma * u) - base for u in directions)
    return ProximalChange(avg, sol, avg - gamma * rho * size * curvature, avg_real, sol_real, curvature)


def proposition_2(local: Loss, proximal: Loss, w: Tensor, rho: float, gamma: float) -> LocalChange | None:
    """FedSOL's Proposition 2 (Eq. 12) at `w [P]`; None if g_p is 0."""
    along = _unit(proximal.gradient(w))
    if along is None:
        return None
    there = w + rho / 2 * along
    here, u, half = local.gradient(w), local.gradient(w + rho * along), local.gradient(there)
    sol_real = local.value(w - gamma * u) - local.value(w)
    shifted_real = local.value(there - gamma * half) - local.value(there)
    return LocalChange(-gamma * dot(here, u), -gamma * dot(half, half), sol_real, shifted_real)


def flip_bound(p: Tensor) -> Tensor:
    """gap^2 / 8 `[n]` of the probabilities `p [n, C]`: below it no KL(p || q) changes the top label (Proposition 5.3).

    With gap = p1 - p2 of the two largest: Pinsker's inequality gives ||p - q||_1 <= sqrt(2 KL), and the top label stays
    if that is below gap / 2.
    """
    top = _two(p)
    return (top[:, 0] - top[:, 1]) ** 2 / 8


def flip_threshold(p: Tensor) -> Tensor:
    """The smallest KL(p || q) `[n]` at which the top label of q can differ from that of `p [n, C]`.

    The nearest q with two equal largest entries has q1 = q2 = (p1 + p2) / 2 and q_i = p_i otherwise, so it is
    p1 ln(2 p1 / (p1 + p2)) + p2 ln(2 p2 / (p1 + p2)), which is at least gap^2 / 2: four times :func:`flip_bound`.
    """
    top = _two(p)
    middle = top.mean(dim=1, keepdim=True)
    return (torch.xlogy(top, top) - torch.xlogy(top, middle)).sum(dim=1)


class Agreement(NamedTuple):
    """Agreement of a client's gradient g_k with the gradient g of the global loss, at one point.

    `zeta`: ||g_k - g||, heterogeneity. `descent`: <d_k, g> / ||g||^2, the share of the global descent in the client's
    direction d_k, which is g_k or its projection off the memory gradient; NaN if g is 0.
    """

    zeta: float
    descent: float


def agreement(g_k: Tensor, g: Tensor, g_mem: Tensor | None = None) -> Agreement:
    """The agreement of a client's gradient with the global one, both `[P]`; without `g_mem` there is no projection.

    zeta bounds FedProj's heterogeneity, sum_k p_k ||g_k - g||^2 <= zeta^2 with g the gradient of F = sum_k p_k F_k; the
    sum follows from the clients' own numbers. `descent` is not the paper's kappa, which is :func:`kappa`.
    """
    direction = g_k if g_mem is None else project(g_k, g_mem)[0]
    square = dot(g, g)
    descent = dot(direction, g) / square if square else float("nan")
    return Agreement(float((g_k - g).double().norm()), descent)


def kappa(g: Tensor, g_mem: Tensor) -> float:
    """<g, g_mem> / (||g|| ||g_mem||) of the global gradient and the memory gradient `[P]`; NaN if one is 0.

    FedProj (journal version), Assumption 5.5: <grad F, g_glob> >= kappa ||grad F|| ||g_glob|| with a kappa > 0, where
    g_glob is the gradient of the memory loss. The assumption fails if this cosine is not above 0.
    """
    norms = float(g.double().norm()) * float(g_mem.double().norm())
    return dot(g, g_mem) / norms if norms else float("nan")


def dot(left: Tensor, right: Tensor) -> float:
    """<left, right> of vectors `[P]`, in float64."""
    return float(left.double() @ right.double())


def _unit(g: Tensor) -> Tensor | None:
    norm = g.norm()
    return g / norm if norm else None


def _two(p: Tensor) -> Tensor:
    """The two largest `[n, 2]` of the probabilities `p [n, C]`; of a single class, 1 and 0."""
    top = p.topk(min(2, p.shape[1]), dim=1).values
    return top if top.shape[1] == 2 else torch.cat([top, torch.zeros_like(top)], dim=1)
