"""Losses of GLFC (Dong et al. 2022, section 3.3) and LGA (Dong et al. 2023, section 3.2): binary cross-entropy whose
sample weights balance the gradients of old and new classes; and distillation of the old classes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Activation = Literal["sigmoid", "softmax"]
Groups = Literal["cumulative", "per_task"]


def gradient_sizes(logits: Tensor, y: Tensor, activation: Activation = "sigmoid") -> Tensor:
    """g_i = |p_i - 1| `[B]`, p_i the probability of the label `y [B]`: sigmoid or softmax of the logits `[B, C]`."""
    p = logits.detach().sigmoid() if activation == "sigmoid" else logits.detach().softmax(dim=1)
    return (p.gather(1, y[:, None])[:, 0] - 1).abs()


def balancing_weights(g: Tensor, groups: Iterable[Tensor]) -> Tensor:
    """Weights `[B]` of samples with gradient sizes `g [B]`: the sum of g_i / (mean of g over the group) over the groups
    (bool `[B]` each) of sample i; 0 in a group without gradient."""
    w = torch.zeros_like(g)
    for group in groups:
        inside = group.to(g)
        w = w + g * inside * inside.sum() / (g * inside).sum().clamp_min(torch.finfo(g.dtype).tiny)
    return w


def glfc_weights(logits: Tensor, y: Tensor, old: Tensor) -> Tensor:
    """Weights `[B]` of samples with `logits [B, C]` and labels `y [B]`: g_i over the mean of g in the batch's samples
    of old, or of new classes. `old [C]` (bool): classes of earlier tasks; without any, all weights are 1.
    """
    weights = balancing_weights(gradient_sizes(logits, y), (old[y], ~old[y]))
    return torch.where(old.any(), weights, torch.ones_like(weights))  # no branch: a GPU would wait for the answer


def lga_weights(
    logits: Tensor,
    y: Tensor,
    tasks: Tensor,
    task: int,
    groups: Groups = "cumulative",
    activation: Activation = "sigmoid",
    bounds: tuple[float, float] = (0.5, 5.0),
) -> Tensor:
    """LGA's weights `[B]` in task number `task` (from 0, so t = task + 1) of samples with `logits [B, C]`, `y [B]`.

    g_i = |p_i - 1|^{(t - 1) / t} over its mean in the samples of i's group; `tasks [C]` is the task of each class.
    Groups are the new classes and each old task (`per_task`), or the new classes and, for every old task j, all samples
    of tasks up to j (`cumulative`, official code), whose weights add up. Clamped to `bounds`. In the first task 1.
    """
    if task == 0:
        return torch.ones_like(logits[:, 0])
    g, mine = gradient_sizes(logits, y, activation) ** (task / (task + 1)), tasks[y]
    older = [mine <= j if groups == "cumulative" else mine == j for j in range(task)]
    return balancing_weights(g, (mine == task, *older)).clamp(*bounds)


def weighted_bce(logits: Tensor, target: Tensor, w: Tensor | None = None) -> Tensor:
    """mean_{i, c} w_i BCE(o_ic, target_ic) of logits and targets `[B, C]` and weights `w [B]`; None: all 1."""
    each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return each.mean() if w is None else (w[:, None] * each).mean()


def distillation_target(target: Tensor, old_logits: Tensor, places: Tensor) -> Tensor:
    """One-hot targets `[B, C]` with the old model's probabilities, sigmoid of `old_logits [B, C_old]`, at the `places
    [C_old]` of the old classes."""
    return target.index_copy(1, places, old_logits.detach().sigmoid())


def mean_entropy(logits: Tensor) -> Tensor:
    """mean_i -sum_c p_ic log(p_ic + 1e-5) of the softmax of `logits [B, C]`: GLFC's signal of a new task."""
    p = logits.softmax(dim=1)
    return -(p * (p + 1e-5).log()).sum(dim=1).mean()
