"""Subspaces of a layer's inputs: sampling, extraction, merging, projection (FedProTIP, Cha et al.; FOT, Bakman et al.
2024; both after GPM, Saha et al. 2021).

`A [d, m]` are a layer's inputs as columns; `basis [d, q]` (Phi) is orthonormal, with q = 0 before the first task's end.
Functions compute in the dtype of their arguments: float64 for bases, the model's for gradients. None forms a matrix
`[d, d]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flray.core.network.layers import LayerInputs

Criterion = Literal["energy", "residual_energy", "sigma_sum"]
CountRule = Literal["inclusive", "gpm_strict_first"]
Svd = Literal["exact", "randomized"]
OVERSAMPLED, POWER_STEPS, FIRST_RANK = 10, 2, 64  # p, q and the first k of the randomised SVD
LARGE = 2**22  # multiply-adds; for smaller products oneDNN's call costs more than it saves
# directions of the final layer that a task's clients add together, in the first task all but the first client
SPACE_SHARE = 20


# sampling -------------------------------------------------------------------------------------
class ColumnSample:
    """A uniform sample without replacement of `count` columns of a layer's inputs, over batches.

    Every column draws a key, and the columns with the smallest keys stay. Memory: `count` columns and one batch.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.count, self._rng = count, rng
        self._keys = np.zeros(0)
        self._columns: Tensor | None = None

    def add(self, inputs: LayerInputs) -> None:
        """Add the layer's inputs on a batch."""
        keys = self._rng.random(len(inputs))
        most = self._keys.max() if len(self._keys) == self.count else math.inf
        near = np.flatnonzero(keys < most)
        near = np.sort(near[np.argsort(keys[near], kind="stable")[: self.count]])
        if not len(near):
            return
        columns = inputs.columns(torch.from_numpy(near))
        self._keys = np.concatenate([self._keys, keys[near]])
        self._columns = columns if self._columns is None else torch.cat([self._columns, columns], dim=2)
        stays = np.sort(np.argsort(self._keys, kind="stable")[: self.count])
        self._keys, self._columns = self._keys[stays], self._columns[..., torch.from_numpy(stays)]

    @property
    def columns(self) -> Tensor:
        """The sampled columns `[groups, d, n]`. Raises `ValueError` before the first batch."""
        if self._columns is None:
            raise ValueError("there are no columns: add at least one batch")
        return self._columns


# extraction -----------------------------------------------------------------------------------
def residual(a: Tensor, basis: Tensor | None) -> Tensor:
    """`A - Phi (Phi^T A)`: the columns `a [d, m]` without their part in the span of `basis [d, q]` (Eq. 6)."""
    return a if basis is None or not basis.shape[1] else a - basis @ (basis.T @ a)


def extract(
    a: Tensor,
    basis: Tensor | None,
    eps: float,
    criterion: Criterion = "energy",
    count_rule: CountRule = "inclusive",
    svd: Svd = "exact",
    rank: int | None = None,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """The directions `[d, r]` that the columns `a [d, m]` need beside `basis [d, q]` (FedProTIP Eqs. 6 to 8).

    They are the first left singular vectors of the residual: :func:`rank_needed` of them, or `rank`, at most the
    residual's own rank. The randomised SVD draws from `rng`. Raises `ValueError` for a randomised SVD without `rng`, or
    with `sigma_sum`, which needs all singular values.
    """
    if svd == "randomized" and (rng is None or criterion == "sigma_sum"):
        raise ValueError("a randomized SVD needs a generator, and the criterion sigma_sum all singular values: exact")
    total, rest, first = float(a.square().sum()), residual(a, basis), basis is None or not basis.shape[1]
    share = 0.0 if first else 1 - float(rest.square().sum()) / total if total else 1.0

    def needed(sigma: Tensor, complete: bool) -> int | None:
        """The number of directions; None: it takes more singular values to know."""
        floor = max(a.shape) * 2.0**-52 * math.sqrt(total)
        if rank is not None:
            return min(rank, int((sigma > floor).sum())) if complete or rank <= len(sigma) else None
        count = rank_needed(sigma, share, total, float(rest.square().sum()), eps, criterion, count_rule, first)
        return int((sigma > floor).sum()) if count is None and complete else count

    if svd == "randomized":
        assert rng is not None
        k = min(FIRST_RANK, *a.shape)
        while k + OVERSAMPLED < min(a.shape):
            left, sigma = randomized_svd(rest, k, rng)
            count = needed(sigma, complete=False)
            if count is not None:
                return left[:, :count]
            k *= 2
    left, sigma = left_svd(rest)
    count = needed(sigma, complete=True)
    assert count is not None
    return left[:, :count]


def left_svd(a: Tensor) -> tuple[Tensor, Tensor]:
    """Left singular vectors `[d, n]` and singular values `[n]`, descending, of `a [d, m]`; n = min(d, m)."""
    u, sigma, _ = torch.linalg.svd(a, full_matrices=False)
    return u, sigma


def rank_needed(
    sigma: Tensor,
    share: float,
    total: float,
    left: float,
    eps: float,
    criterion: Criterion = "energy",
    count_rule: CountRule = "inclusive",
    first: bool = False,
) -> int | None:
    """The number of singular vectors that reach `eps`; None: all of `sigma [n]`, descending, do not (Eq. 8).

    `energy`: min{ r >= 0 : share + sum_{i<=r} sigma_i^2 / T >= eps } with `share` of the energy T = `total` in the old
    basis. `residual_energy`: of the residual's energy `left`, the share ignored. `sigma_sum`: of the sum of all sigma.
    With `gpm_strict_first` and `first` (no basis yet) the number of sums below eps, one fewer.
    """
    if criterion == "sigma_sum":
        values, denominator, begin = sigma, float(sigma.sum()), 0.0
    else:
        values, begin = sigma.square(), share if criterion == "energy" else 0.0
        denominator = total if criterion == "energy" else left
    if not denominator:  # all inputs are 0, or lie in the span of the basis
        return 0
    sums = begin + torch.cat([values.new_zeros(1), values.cumsum(0) / denominator])
    reached = int((sums < eps).sum())
    if reached > len(sigma):
        return None
    return max(reached - 1, 0) if count_rule == "gpm_strict_first" and first else reached


def randomized_svd(a: Tensor, k: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The first `k` left singular vectors `[d, k]` and singular values `[k]` of `a [d, m]`, approximately.

    Omega ~ N(0, 1)^{m x (k + 10)}, Y = A Omega, twice {Q = qr(Y), Y = A (A^T Q)}, then the SVD of Q^T A.
    """
    omega = torch.from_numpy(rng.standard_normal((a.shape[1], k + OVERSAMPLED))).to(a)
    y = a @ omega
    for _ in range(POWER_STEPS):
        y = a @ (a.T @ torch.linalg.qr(y).Q)
    q = torch.linalg.qr(y).Q
    u, sigma = left_svd(q.T @ a)
    return (q @ u)[:, :k], sigma[:k]


def space_rank(clients: int, first_task: bool, first_client: bool, first: int = 30, later: int = SPACE_SHARE) -> int:
    """The fixed number of directions of the final layer that a client adds in a task (FedProTIP's code).

    `first` (30, from scratch 20) by the first contributing client of the first task, floor(later / (K - 1)) by the
    others in it, floor(later / K) by each in later tasks, and at least 1.
    """
    if first_task and first_client:
        return first
    return max(later // max(clients - 1 if first_task else clients, 1), 1)


def block_sizes(clients: Sequence[int], first: int = 30, later: int = SPACE_SHARE) -> list[int]:
    """The directions of each task's block of the final layer by :func:`space_rank`, as many as there are at most; in
    task t `clients[t]` have samples."""
    sizes = [number * space_rank(number, task == 0, False, first, later) for task, number in enumerate(clients)]
    if clients and clients[0]:
        sizes[0] = first + (clients[0] - 1) * space_rank(clients[0], True, False, first, later)
    return sizes


def fitting_rank(clients: Sequence[int], width: int) -> int:
    """The largest number, as `first` and as `later`, with which the blocks of all tasks have at most `width` directions
    together; 0: none."""
    fit = 0
    while sum(block_sizes(clients, fit + 1, fit + 1)) <= width and fit < width:
        fit += 1
    return fit


# merging --------------------------------------------------------------------------------------
def append(
    basis: Tensor | None,
    new: Tensor,
    rank_tol: float = 1e-3,
    method: Literal["residual", "official"] = "residual",
) -> Tensor:
    """`basis [d, q]` with the directions appended that `new [d, r]` adds to its span, at most d columns (Eq. 9).

    `residual`: R = U - Phi Phi^T U = P diag(s) Q^T; the columns of P with s > `rank_tol` (sines of principal angles)
    are orthogonalised against Phi once more, by QR, and appended; the old columns keep their bits. `official`: the QR
    of [Phi, U], cut to d columns; if U adds fewer directions than columns, the rest are arbitrary.
    """
    basis = new[:, :0] if basis is None else basis
    d, q = basis.shape
    if method == "official":
        return torch.linalg.qr(torch.cat([basis, new], dim=1)).Q[:, :d] if new.shape[1] else basis
    if not new.shape[1] or q >= d:
        return basis
    p, sines = left_svd(residual(new, basis))
    added = torch.linalg.qr(residual(p[:, sines > rank_tol], basis)).Q
    return torch.cat([basis, added[:, : d - q]], dim=1)


def merge(
    basis: Tensor,
    increments: Mapping[int, Tensor],
    rank_tol: float = 1e-3,
    method: Literal["residual", "official"] = "residual",
) -> Tensor:
    """`basis [d, q]` with every client's `increments[client] [d, r_k]` appended, in the order of the clients' numbers
    (FedProTIP Algorithm 1); the order of arrival does not matter."""
    for client in sorted(increments):
        basis = append(basis, increments[client], rank_tol, method)
    return basis


# projection -----------------------------------------------------------------------------------
def project(g: Tensor, basis: Tensor) -> Tensor:
    """`G - (G Phi) Phi^T`: rows `g [..., out, d]` without their part in the span of `basis [..., d, q]` (Eqs. 4, 5)."""
    return g - (g @ basis) @ basis.mT


def project_(g: Tensor, basis: Tensor) -> Tensor:
    """:func:`project` in place, of a contiguous `g`.

    Large products use oneDNN on a CPU, which takes half of MKL's time on processors that are not Intel's (ResNet-18
    with half of its directions protected: 0.3 instead of 0.6 s, beside a step of 1.2 s)."""
    if not basis.shape[-1]:
        return g
    if g.dim() == 2 and g.device.type == "cpu" and g.numel() * basis.shape[1] > LARGE and _onednn(g):
        product = torch.ops.mkldnn._linear_pointwise  # x W^T
        inside = product(product(g, basis.mT, None, "none", [], ""), basis, None, "none", [], "")
        return g.sub_(inside)
    return (g.addmm_ if g.dim() == 2 else g.baddbmm_)(g @ basis, basis.mT, alpha=-1)


def _onednn(g: Tensor) -> bool:
    return g.dtype == torch.float32 and bool(torch.backends.mkldnn.is_available())


# FOT ------------------------------------------------------------------------------------------
def sketch_threshold(ratio: float, eps: float) -> float:
    """`(rho - (1 - eps)) / rho`: the share of the sketch's energy whose directions are added, for the clients' mean
    residual ratio rho; 0 or less: none (section 2)."""
    return (ratio - (1 - eps)) / ratio if ratio > 0 else 0.0


def extract_sketch(z: Tensor, threshold: float, count_rule: Literal["inclusive", "strict"] = "inclusive") -> Tensor:
    """The directions `[d, r]` of the mean sketch `z [d, s]` whose energy reaches `threshold`; `strict` (official code):
    the number of cumulated shares below it, one fewer."""
    if threshold <= 0:
        return z[:, :0]
    u, sigma = left_svd(z)
    energy = float(sigma.square().sum())
    rule: CountRule = "gpm_strict_first" if count_rule == "strict" else "inclusive"
    count = rank_needed(sigma, 0.0, energy, energy, threshold, "energy", rule, first=True)
    if count is None:
        count = int((sigma > max(z.shape) * 2.0**-52 * math.sqrt(energy)).sum())
    return u[:, :count]
