"""Ensemble distillation on public data (FedDF Algorithm 1; FedProj Eq. 9 and Algorithm 1, server half; FedET section
3.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from flray.core.messages import Record
from flray.core.network.objective import Objective
from flray.core.network.parts import ModuleMode
from flray.core.protocol.context import Context
from flray.core.protocol.samples import Proxy
from flray.ops.losses import Direction, kl
from flray.ops.optim import Moments, adam_direction_, clip_

TeacherForm = Literal["avg_logits", "avg_probs", "avg_losses"]


def proxy_logits(objective: Objective, w: Tensor, b: Tensor, proxy: Proxy, batch_size: int) -> Tensor:
    """Logits `[n, C]` of one model on the whole proxy set, eval mode."""
    model = objective.at(w, b)
    with torch.no_grad():
        return torch.cat([model(proxy.inputs(index)) for index in index_batches(np.arange(proxy.size), batch_size)])


class Ensemble(Record):
    """On the proxy data: the clients' mean `logits [n, C]` (FedProj Eq. 3, unweighted), and the `teacher [n, c]`:
    logits of the classes in use, whose softmax at the distillation temperature is the student's target."""

    logits: Tensor
    teacher: Tensor


def ensemble(
    ctx: Context,
    w: Sequence[Tensor],
    b: Sequence[Tensor],
    batch_size: int,
    teacher: TeacherForm = "avg_logits",
    temperature: float = 1.0,
    direction: Direction = "forward",
) -> Ensemble:
    """The ensemble of the clients with parameters `w` (each `[P]`) and statistics `b` (each `[Q]`) on the proxy set.

    The teacher of `avg_logits` is the mean of logits; of `avg_probs` the mean of probabilities at temperature 1. That
    of `avg_losses` has the gradient of the mean of the clients' KL terms at the distillation temperature: forward,
    sum_k KL(p_k || q), the mean of probabilities; in reverse, sum_k KL(q || p_k), the mean of logits."""
    if teacher == "avg_losses" and direction == "reverse":
        teacher = "avg_logits"
    logits, mean = torch.zeros(0), torch.zeros(0)
    for k in range(len(w)):  # they are made when they are read, and gone when this call returns
        z = proxy_logits(ctx.objective, w[k], b[k], ctx.require_proxy(), batch_size)
        p = torch.softmax(ctx.seen(z) / (temperature if teacher == "avg_losses" else 1.0), dim=1)
        logits, mean = (z, p) if k == 0 else (logits.add_(z), mean.add_(p))
    logits.div_(len(w))
    if teacher == "avg_logits":
        return Ensemble(logits, ctx.seen(logits))
    return Ensemble(logits, mean.div_(len(w)).clamp_min_(1e-12).log_().mul_(temperature))


def fit(
    ctx: Context,
    w: Tensor,
    b: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    proxy: Proxy,
    *,
    lr: float,
    epochs: int,
    batch_size: int,
    cosine: bool = False,
    clip: float | None = None,
    weight_decay: float = 0.0,
    mode: ModuleMode = "train",
    penalty: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Student `(w [P], b [Q])` after Adam on loss + penalty over the proxy set, and the mean loss (0-dim).

    `loss(logits [B, C], index [B])` is a scalar of the student's logits on the samples `index`. The student runs in
    `mode`; in `train` its `b` is updated. The optimiser is new; its weight decay is added after clipping. `penalty(w)`
    returns the gradient `[P]` of a regulariser of the parameters. Arguments are not changed.
    """
    w, b = w.clone(), b.clone()
    ctx.objective.reached()  # starts anew
    moments = Moments(torch.zeros_like(w), torch.zeros_like(w), 0)
    gradient, total = torch.zeros_like(w), torch.zeros((), device=w.device)
    steps = epochs * math.ceil(proxy.size / batch_size)
    for step, index in enumerate(_epochs(ctx, proxy.size, batch_size, epochs)):
        chosen, x = torch.from_numpy(index).to(w.device), proxy.inputs(index)

        def value_of(f: Any, x: Any = x, chosen: Tensor = chosen) -> Tensor:
            return loss(f(x), chosen)

        value, g = ctx.objective.value_and_grad(value_of, w, b, mode, gradient)
        if penalty is not None:
            g.add_(penalty(w))
        if clip is not None:
            clip_(g, clip)
        moments = moments.replace(steps=step)
        rate = lr * 0.5 * (1 + math.cos(math.pi * step / steps)) if cosine else lr
        w.add_(adam_direction_(w, g, moments, weight_decay, ctx.objective.reached()), alpha=-rate)
        total.add_(value)
    return w, b, total / max(steps, 1)


def distill(
    ctx: Context,
    w: Tensor,
    b: Tensor,
    teacher: Tensor,
    proxy: Proxy,
    *,
    temperature: float,
    squared: bool,
    direction: Direction = "forward",
    **how: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`fit`, to which `how` goes, on T^2 KL(teacher || student).

    `teacher [n, c]` are logits of the classes seen so far on `proxy`.
    """
    factor = temperature**2 if squared else 1.0

    def loss(z: Tensor, index: Tensor) -> Tensor:
        return factor * kl(teacher[index], ctx.seen(z), temperature, direction)

    return fit(ctx, w, b, loss, proxy, **how)


def pull(anchor: Tensor, strength: float) -> Callable[[Tensor], Tensor]:
    """Gradient of strength ||w - anchor||^2, as `penalty` of :func:`distill`."""
    return lambda w: (w - anchor).mul_(2 * strength)


def index_batches(index: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Consecutive parts of `index` of at most `size`; the last one may be shorter."""
    for start in range(0, len(index), size):
        yield index[start : start + size]


def _epochs(ctx: Context, size: int, batch_size: int, epochs: int) -> Iterator[np.ndarray]:
    for epoch in range(epochs):
        yield from index_batches(ctx.rng("distill", epoch).permutation(size), batch_size)
