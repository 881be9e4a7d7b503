"""LGA's augmentation of features (Dong et al. 2023; after PASS, Zhu et al. 2021): noisy copies, with the spread of the
first task's classes as the radius of the noise."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

Deviation = Literal["std", "official"]

COPIES = 5  # of a feature vector
MAX_REJECTED = 100  # draws of a class
SHARE = 0.1  # of the sum of the deviations: the largest squared norm of a noise


def scatter_sums(features: Tensor, y: Tensor, num_classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """By class the number `[C]`, the sum `[C, F]` and the sum of squared norms `[C]` of `features [n, F]` with labels
    `y [n]`, in double precision. Those of several clients add up; :func:`feature_radius` reads the sums.
    """
    z = features.double()
    counts = z.new_zeros(num_classes).index_add_(0, y, torch.ones_like(z[:, 0]))
    sums = z.new_zeros(num_classes, z.shape[1]).index_add_(0, y, z)
    return counts, sums, z.new_zeros(num_classes).index_add_(0, y, z.square().sum(dim=1))


def feature_radius(counts: Tensor, sums: Tensor, squares: Tensor) -> float:
    """rho = sqrt( mean over classes of tr(cov) / F ), cov the unbiased covariance of a class (divisor n - 1).

    From `counts [C]`, `sums [C, F]` and `squares [C]` of :func:`scatter_sums`; classes with fewer than two samples are
    left out; without any class rho is 0.
    """
    enough = counts > 1
    if not enough.any():
        return 0.0
    n = counts[enough]
    trace = (squares[enough] - sums[enough].square().sum(dim=1) / n) / (n - 1)
    return float((trace.clamp_min(0).mean() / sums.shape[1]).sqrt())


def deviations(features: Tensor, kind: Deviation = "std") -> Tensor:
    """The vector c `[F]` of one class's `features [n, F]`: the standard deviation of each (unbiased); `official`: its
    variance, squared. One sample has none: 0."""
    variance = features.var(dim=0) if len(features) > 1 else torch.zeros_like(features[0])
    return variance.sqrt() if kind == "std" else variance.square()


def noisy_copies(
    features: Tensor,
    y: Tensor,
    rho: float,
    draws: np.random.Generator,
    kind: Deviation = "std",
) -> tuple[Tensor, Tensor]:
    """(`[m, F]`, labels `[m]`): `COPIES` noisy copies f + rho N(0, diag(c^2)) of every one of `features [n, F]`.

    c are the :func:`deviations` of the features of the same label in `y [n]`. A noise of squared norm above 0.1 sum c
    is drawn again; after 100 such draws a class gets no more copies.
    """
    by_class = {int(c): deviations(features[y == c], kind) for c in torch.unique(y)}
    rejected, copies, labels = dict.fromkeys(by_class, 0), [], []
    for f, c in zip(features, y.tolist(), strict=True):
        count = 0
        while count < COPIES and rejected[c] < MAX_REJECTED:
            noise = rho * by_class[c] * torch.from_numpy(draws.standard_normal(len(f))).to(f)
            if noise.square().sum() > SHARE * by_class[c].sum():
                rejected[c] += 1
                continue
            copies.append(f + noise)
            labels.append(c)
            count += 1
    noisy = torch.stack(copies) if copies else features[:0]
    return noisy, torch.tensor(labels, dtype=torch.int64, device=y.device)
