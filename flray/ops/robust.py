"""Statistics of K vectors that a few bad ones move little: the maths of `flray/aggregations/`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flray.ops.average import tree_mean

BLOCK = 2**16  # coordinates at once: the copies stay small beside the K vectors


def trimmed_mean(vectors: Sequence[Tensor], drop: int) -> Tensor:
    """The mean `[P]` of each coordinate over K vectors `[P]` without its `drop` smallest and `drop` largest values
    (Yin et al., ICML 2018, Definition 2); 2 drop < K."""
    out = torch.empty_like(vectors[0])
    for start in range(0, out.numel(), BLOCK):
        part = slice(start, start + BLOCK)
        values = torch.stack([vector[part] for vector in vectors], dim=1).sort(dim=1).values
        torch.mean(values[:, drop : len(vectors) - drop], dim=1, out=out[part])
    return out


def squared_distances(vectors: Sequence[Tensor]) -> Tensor:
    """`[K, K]`, float64: the squared distance of every two of K vectors `[P]`.

    From the scalar products of the differences to the first one, which do not lose digits as those of the vectors do.
    """
    first = vectors[0]
    products = torch.zeros(len(vectors), len(vectors), dtype=torch.float64, device=first.device)
    for start in range(0, first.numel(), BLOCK):
        part = slice(start, start + BLOCK)
        apart = torch.stack([vector[part].double() - first[part].double() for vector in vectors])
        products += apart @ apart.T
    own = products.diagonal()
    return (own[:, None] + own[None, :] - 2 * products).clamp_min_(0.0)


def krum_scores(vectors: Sequence[Tensor], faulty: int) -> Tensor:
    """`[K]`, float64: the sum of each vector's squared distances to its K - f - 2 nearest others, f = `faulty`
    (Blanchard et al., NeurIPS 2017, section 4); to at least one."""
    distances, K = squared_distances(vectors), len(vectors)
    others = distances.fill_diagonal_(torch.inf).sort(dim=1).values[:, : K - 1]
    return others[:, : max(K - faulty - 2, 1)].sum(dim=1)


def weiszfeld_weights(vectors: Sequence[Tensor], weights: Tensor, nu: float, steps: int) -> Tensor:
    """`[K]`, float64, of sum 1: the weights whose mean is the smoothed geometric median of K vectors `[P]`, after
    `steps` steps from their weighted mean (Pillutla et al., IEEE TSP 2022, Algorithm 2).

    A step: beta_k = alpha_k / max(nu, norm(v - w_k)), then v = sum_k beta_k w_k / sum_k beta_k. One vector is read at a
    time.
    """
    beta = weights
    for _ in range(steps):
        v = tree_mean(vectors, beta)
        distances = torch.stack([torch.dist(v, vector).double().cpu() for vector in vectors])
        beta = weights / distances.clamp_min(nu)
        beta = beta / beta.sum()
    return beta
