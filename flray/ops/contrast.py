"""Contrastive losses on representations: of models (MOON) and of samples (FedRCL, SCR)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

RCLForm = Literal["code", "paper"]

HARDEST = 2  # negatives per sample (FedRCL's code: topk_neg)
ABSENT = -1e9  # similarity of an excluded pair: its exponential is 0; finite, so that a row of these has no NaN


def info_nce(similarities: Tensor, tau: float) -> Tensor:
    """Mean over rows of -log(e^{s_0/tau} / sum_n e^{s_n/tau}) of `similarities [..., 1 + N]`; column 0 is the
    positive."""
    rows = similarities.flatten(0, -2) / tau
    return F.cross_entropy(rows, torch.zeros(len(rows), dtype=torch.long, device=rows.device))


def model_contrast(z: Tensor, positive: Tensor, negatives: Sequence[Tensor], tau: float) -> Tensor:
    """MOON's term (Li et al. 2021, section 3) of representations `[B, F]`: the local, the global, earlier local
    models'.

    By cosine; every norm is at least 1e-8. Without negatives the term and its gradient are 0.
    """
    return info_nce(
        torch.stack([F.cosine_similarity(z, other, dim=1, eps=1e-8) for other in (positive, *negatives)], dim=1), tau
    )


def cosine_matrices(levels: Sequence[Tensor]) -> Tensor:
    """`[L, B, B]`: cosine similarities of the batch's samples at every level `[B, F_l]`."""
    units = [F.normalize(level, dim=1) for level in levels]
    return torch.stack([u @ u.T for u in units])


def relaxed_contrast(s: Tensor, y: Tensor, tau: float, form: RCLForm = "code") -> Tensor:
    """FedRCL's supervised contrastive loss of similarities `s [L, B, B]` and labels `y [B]`: mean over levels and
    samples.

    With Neg_i the samples of other classes and l_ij = -log(e^{s_ij/tau} / (e^{s_ij/tau} + sum_{n in Neg}
    e^{s_in/tau})): `code`: l_ij of the least similar j of the class (i itself among them) against the two most similar
    of Neg_i; `paper`: the sum of l_ij over every other j of the class, against all of Neg_i. 0 where Neg_i is empty.
    """
    same = y[:, None] == y
    negatives = s.masked_fill(same, ABSENT)
    if form == "code":
        positive = s.masked_fill(~same, torch.inf).topk(1, dim=2, largest=False).values
        return info_nce(torch.cat([positive, negatives.topk(min(HARDEST, len(y)), dim=2).values], dim=2), tau)
    each = F.softplus(torch.logsumexp(negatives / tau, dim=2, keepdim=True) - s / tau)
    return (each * _others(same)).sum(2).mean()


def divergence_penalty(s: Tensor, y: Tensor, tau: float, threshold: float, form: RCLForm = "code") -> Tensor:
    """FedRCL's penalty on pairs of a class that are too similar, of `s [L, B, B]`, `y [B]`: mean over levels and
    samples.

    -log(e^{s_ii/tau} / (e^{s_ii/tau} + sum_r e^{r/tau})); `code`: one r, the similarity to the least similar other
    sample of the class if that is at least `threshold`, otherwise -1; `paper`: every s_ij of the class, j != i, that is
    at least `threshold`.
    """
    others = _others(y[:, None] == y)
    own = s.diagonal(dim1=1, dim2=2)[..., None]
    if form == "code":
        r = s.masked_fill(~others, torch.inf).topk(1, dim=2, largest=False).values
        r = torch.where((r >= threshold) & (r < torch.inf), r, -1.0)
    else:
        r = s.masked_fill(~(others & (s >= threshold)), ABSENT)
    return info_nce(torch.cat([own, r], dim=2), tau)


def supervised_contrast(z: Tensor, y: Tensor, tau: float) -> Tensor:
    """The supervised contrastive loss (Khosla et al. 2020, L_out) of unit vectors `z [N, D]` with labels `y [N]`.

    mean_i -(1 / |P(i)|) sum_{p in P(i)} log( e^{z_i z_p / tau} / sum_{a != i} e^{z_i z_a / tau} ), P(i) the other
    vectors of i's class; 0 for an i without any.
    """
    others = _others(y[:, None] == y)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_share = torch.log_softmax((z @ z.T / tau).masked_fill(itself, ABSENT), dim=1)
    return -((log_share * others).sum(dim=1) / others.sum(dim=1).clamp_min(1)).mean()


def _others(same: Tensor) -> Tensor:
    """`same [B, B]` (bool) without the diagonal."""
    return same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
