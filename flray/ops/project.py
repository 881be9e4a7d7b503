"""Projection of one gradient off another (FedProj section 5.4; FedSOL Eq. 3 is its rule without a threshold)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from flray.core.network.layout import Entry

ProjectionRule = Literal["threshold", "epsilon", "always"]


class Conflict(NamedTuple):
    """Both 0-dim: whether the gradient was `projected` (0 or 1), and its `cosine` with the memory gradient before."""

    projected: Tensor
    cosine: Tensor


def dot(left: Tensor, right: Tensor) -> Tensor:
    """<left, right> of float32 vectors `[P]`, as 0-dim float64; summed in float32, pairwise by torch: twice as fast as
    in float64."""
    return (left * right).sum().double()


def project(
    g: Tensor,
    g_mem: Tensor,
    rule: ProjectionRule = "threshold",
    delta: float = 1e-12,
    eps: float = 1e-8,
    out: Tensor | None = None,
    entries: Iterable[Entry] | None = None,
) -> tuple[Tensor, Conflict]:
    """`g [P]` without its component against `g_mem [P]`, in `out` or a new tensor; a = <g, g_mem>, q = ||g_mem||^2.

    * `threshold` (journal version, three-way): g if q <= delta or a >= 0, else g - (a/q) g_mem: the exact minimiser of
      1/2 ||g' - g||^2 subject to <g', g_mem> >= 0.
    * `epsilon` (preprint, text): g if a >= 0, else g - a/(q + eps) g_mem.
    * `always` (preprint, Algorithm 1): g - a/(q + eps) g_mem, no branch.

    With `entries` each of these tensors is projected by itself, in a new vector; the conflict is their mean.
    Branch-free on the device: no synchronisation with a GPU."""
    if entries is not None:
        result, conflicts = torch.zeros_like(g), []
        for entry in entries:
            place = slice(entry.offset, entry.offset + entry.numel)
            result[place], conflict = project(g[place], g_mem[place], rule, delta, eps)
            conflicts.append(torch.stack(conflict))
        return result, Conflict(*torch.stack(conflicts).mean(dim=0).unbind())
    a, q = dot(g, g_mem), dot(g_mem, g_mem)
    if rule == "threshold":
        active = (q > delta) & (a < 0)
        ratio = a / torch.where(q > delta, q, 1.0)
    else:
        active = a < 0 if rule == "epsilon" else torch.ones_like(a, dtype=torch.bool)
        ratio = a / (q + eps)
    coefficient = torch.where(active, ratio, 0.0).to(g.dtype)
    cosine = a / (dot(g, g) * q).sqrt().clamp_min(1e-30)
    return torch.addcmul(g, g_mem, coefficient, value=-1, out=out), Conflict(active.float(), cosine.float())
