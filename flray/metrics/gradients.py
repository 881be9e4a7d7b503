"""The gradient measures of FedMemo's section G at the global model: variance, agreement of the public data's gradient
with the clients', and the trace of the Fisher information."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from flray.core.network.objective import Objective
from flray.core.protocol.classes import ClassSet
from flray.ops.detect import variance

FisherLabels = Literal["sampled", "empirical"]


def gradient_variance(objective: Objective, g: Tensor) -> float:
    """GV = (1/d) sum_j (g_j - mean g)^2 of a gradient `[P]` over the d trained elements, in float64."""
    return variance(objective.views(g).values())


def pseudo_gradient_cosine(g_proxy: Tensor, before: Tensor, after: Tensor) -> float:
    """cos(G_p(w^t), -(w^{t+1} - w^t) / eta), the clients' aggregated pseudo-gradient, all `[P]`; NaN if one is 0.

    It does not depend on eta > 0.
    """
    left, right = g_proxy.double(), (before - after).double()
    if not left.any() or not right.any():
        return float("nan")
    return float(cosine_similarity(left, right, dim=0))


def fisher_trace(
    objective: Objective,
    w: Tensor,
    b: Tensor,
    x: Tensor,
    y: Tensor | None = None,
    draws: np.random.Generator | None = None,
    classes: ClassSet | None = None,
) -> float:
    """tr F = E_x E_y ||grad_w log p(y | x)||^2 over inputs `x [n, ...]`, one y each, in eval mode.

    y is drawn from the model's own p(. | x) with `draws` (a sum over the cumulated probabilities), or the labels
    `y [n]` are given (the empirical Fisher). `classes`: the classes of p; None: all. n backward passes.
    """
    model, total, g = objective.at(w, b, grad=True), 0.0, torch.zeros_like(w)
    chance = None if draws is None else draws.random(len(x))
    for i in range(len(x)):
        logits = model(x[i : i + 1])
        logits = logits if classes is None else classes.narrow(logits)
        if y is not None:
            label = y[i : i + 1] if classes is None else classes.local(y[i : i + 1])
        else:
            assert chance is not None, "sampled labels need a generator"
            below = logits.detach().double().softmax(1).cumsum(1) < chance[i]
            label = below.sum(1).clamp_max(logits.shape[1] - 1)
        g = objective.gradient(cross_entropy(logits, label), model.leaves, g)
        total += float(g.double() @ g.double())
    return total / len(x)
