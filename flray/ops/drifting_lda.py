"""Linear discriminant analysis of features whose network goes on learning, from moments that add over clients.

All features are brought to unit length: u of a sample under the old network, v under the new one. Class means mu and
the scatter S of N samples within classes follow the network by v = u A + e (learnable drift compensation, LDC:
Gomez-Villa et al., ECCV 2024). A minimises sum ||u A - v||^2 + p ||A - I||^2 over samples of the new task, e are its
residuals:
    mu <- mu A,  S <- A^T S A + N mean e^T e.
LDC fits A by gradient descent, without the penalty, and maps means alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from flray.core.messages import Record

# All three found on seed 100 of configs/evidence/cifar100_10tasks.yaml and cifar100_10tasks_16px.yaml.
PENALTY = 0.3
SHRINKAGE = 0.3
TEMPER = 0.3


class FeatureMoments(Record):
    """Sums over samples: `counts [C]` and `sums [C, d]` of v by class; `new [d, d]` of v^T v. After the first task also
    `old [d, d]` of u^T u and `cross [d, d]` of u^T v."""

    counts: Tensor
    sums: Tensor
    new: Tensor
    old: Tensor | None
    cross: Tensor | None


class ClassStatistics(Record):
    """By task the class means `means[t] [C_t, d]`; the `scatter [d, d]` within classes of `number` samples (0-dim). A
    class without samples has the mean 0."""

    means: dict[str, Tensor]
    scatter: Tensor
    number: Tensor


def feature_moments(features: Tensor, y: Tensor, num_classes: int, before: Tensor | None) -> FeatureMoments:
    """The moments of `features [n, d]` with labels `y [n]`; `before [n, d]`: the same under the old network."""
    v = F.normalize(features.double(), dim=1)
    sums = v.new_zeros(num_classes, v.shape[1]).index_add_(0, y, v)
    counts = v.new_zeros(num_classes).index_add_(0, y, torch.ones_like(v[:, 0]))
    old = cross = None
    if before is not None:
        u = F.normalize(before.double(), dim=1)
        old, cross = (u.T @ u).float(), (u.T @ v).float()
    return FeatureMoments(counts.float(), sums.float(), (v.T @ v).float(), old, cross)


def added(a: FeatureMoments | None, b: FeatureMoments) -> FeatureMoments:
    """The moments of both clients' samples, who both know the old network or both do not."""
    if a is None:
        return b
    old = None if a.old is None or b.old is None else a.old + b.old
    cross = None if a.cross is None or b.cross is None else a.cross + b.cross
    return FeatureMoments(a.counts + b.counts, a.sums + b.sums, a.new + b.new, old, cross)


def drift_map(old: Tensor, cross: Tensor) -> Tensor:
    """A `[d, d]`, float64; p is `PENALTY` times the mean of the diagonal of `old`."""
    old, one = old.double(), torch.eye(len(old), dtype=torch.float64, device=old.device)
    penalty = PENALTY * old.diagonal().mean().clamp(min=1e-6) * one  # features may all be 0
    change: Tensor = torch.linalg.solve(old + penalty, cross.double() - old)
    return one + change


def compensated(statistics: ClassStatistics | None, moments: FeatureMoments, task: str) -> ClassStatistics:
    """The older tasks' statistics under the new network, with those of a new `task`."""
    counts, sums, new = moments.counts.double(), moments.sums.double(), moments.new.double()
    mu = sums / counts.clamp(min=1)[:, None]
    within = new - mu.T @ sums
    if statistics is None:
        return ClassStatistics({task: mu.float()}, within.float(), counts.sum().float())
    means, scatter, number = statistics.means, statistics.scatter.double(), statistics.number.double()
    if moments.old is not None and moments.cross is not None:
        a, old, cross = drift_map(moments.old, moments.cross), moments.old.double(), moments.cross.double()
        residuals = new - a.T @ cross - cross.T @ a + a.T @ old @ a
        means = {t: (m.double() @ a).float() for t, m in means.items()}
        scatter = a.T @ scatter @ a + residuals * (number / counts.sum())
    return ClassStatistics({**means, task: mu.float()}, (scatter + within).float(), (number + counts.sum()).float())


def discriminants(statistics: ClassStatistics) -> dict[str, tuple[Tensor, Tensor]]:
    """By task (w `[d, C_t]`, c `[C_t]`): `v w + c` is `TEMPER` times the log density of a class, less the log of the
    number of the task's classes with samples, but for a term that all classes share.

    The densities are normal, with the covariance (1 - `SHRINKAGE`) S / N + `SHRINKAGE` tr(S / N) / d I.
    """
    sigma = statistics.scatter.double() / statistics.number.double()
    level = SHRINKAGE * sigma.diagonal().mean().clamp(min=1e-6)  # one sample a class has no scatter
    sigma = (1 - SHRINKAGE) * sigma + level * torch.eye(len(sigma), dtype=torch.float64, device=sigma.device)
    found = {}
    for task, mu in statistics.means.items():
        w = torch.linalg.solve(sigma, mu.double().T)
        known = (mu != 0).any(dim=1)
        c = torch.where(known, -0.5 * TEMPER * (mu.double() * w.T).sum(dim=1) - known.double().sum().log(), -torch.inf)
        found[task] = (TEMPER * w).float(), c.float()
    return found


def log_density(features: Tensor, w: Tensor, c: Tensor) -> Tensor:
    """The log `[B]` of the mean over a task's classes of their densities to the power `TEMPER`, but for that term; of
    `features [B, d]`."""
    return (F.normalize(features, dim=1) @ w + c).logsumexp(dim=1)
