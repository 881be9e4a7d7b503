"""FedMemo's step 2: the aggregate mixed with the same model after training on proxy data (Prop. 3.2)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from flray.core.network.objective import Objective
from flray.core.network.parts import ModuleMode
from flray.core.protocol.classes import ClassSet
from flray.core.protocol.samples import Proxy
from flray.ops.distill import index_batches
from flray.ops.losses import cross_entropy


def mixing_weight(examples: float, proxy_examples: float) -> float:
    """gamma = N_p / (sum_i N_i + N_p), from the clients' sample count sum_i N_i and the proxy samples N_p; 0 without
    any."""
    return proxy_examples / (examples + proxy_examples) if proxy_examples else 0.0


def two_step(w: Tensor, w_proxy: Tensor, gamma: float) -> Tensor:
    """(1 - gamma) w + gamma w_p: the weighted mean of the clients' models and the proxy model, w being the clients'
    weighted mean. For parameters and statistics."""
    return torch.lerp(w, w_proxy, gamma)


def train_on_proxy(
    objective: Objective,
    w: Tensor,
    b: Tensor,
    proxy: Proxy,
    order: Iterable[np.ndarray],
    *,
    lr: float = 0.01,
    mode: ModuleMode = "eval",
    classes: ClassSet | None = None,
) -> tuple[Tensor, Tensor]:
    """`(w_p [P], b_p [Q])`: plain SGD from `(w, b)` on the cross-entropy of labelled proxy data, a step a batch.

    `order` gives the batches as numbers of proxy samples. In the mode `eval` batch norm uses its statistics and does
    not update them. Arguments are not changed.
    """
    w, b, g = w.clone(), b.clone(), torch.zeros_like(w)
    for index in order:
        _, g = _gradient(objective, w, b, proxy, index, mode, classes, g)
        w.add_(g, alpha=-lr)
    return w, b


def full_gradient(
    objective: Objective,
    w: Tensor,
    b: Tensor,
    proxy: Proxy,
    index: np.ndarray,
    *,
    batch_size: int = 500,
    mode: ModuleMode = "eval",
    classes: ClassSet | None = None,
) -> tuple[Tensor, Tensor]:
    """(mean loss, its gradient `[P]`) at `(w, b)` over the proxy samples `index [n]`, batch by batch.

    The paper's single gradient step is w_p = w - lr times it. Statistics are not changed, whatever the mode.
    """
    total, g, loss = torch.zeros_like(w), torch.zeros_like(w), torch.zeros((), device=w.device)
    b = b.clone()
    for part in index_batches(index, batch_size):
        value, g = _gradient(objective, w, b, proxy, part, mode, classes, g)
        total.add_(g, alpha=len(part) / len(index))
        loss += value * (len(part) / len(index))
    return loss, total


def _gradient(
    objective: Objective,
    w: Tensor,
    b: Tensor,
    proxy: Proxy,
    index: np.ndarray,
    mode: ModuleMode,
    classes: ClassSet | None,
    out: Tensor,
) -> tuple[Tensor, Tensor]:
    x, y = proxy.inputs(index), proxy.labels(index)
    return objective.value_and_grad(lambda f: cross_entropy(f(x), y, classes), w, b, mode, out)
