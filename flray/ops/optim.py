"""First-order optimisers on one flat vector, in place.

Each `*_direction_` turns a gradient into the direction `v` of the update `w <- w - lr * v`, with the numbers of
`torch.optim`. An algorithm can change the gradient before, or the direction after.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flray.core.messages import Record

EPS = 1e-8  # of Adam


class Moments(Record):
    """The optimiser's state: `first [P]` (not read without momentum), `second [P]` (`[0]` for SGD), and the number of
    `steps` so far."""

    first: Tensor
    second: Tensor
    steps: int


def decay_(g: Tensor, w: Tensor, weight_decay: float, reached: Tensor | None) -> None:
    """g <- g + weight_decay w, in place; parameters with `reached [P]` 0 have no gradient and do not decay
    (:meth:`Objective.reached`)."""
    if weight_decay:
        g.add_(w if reached is None else w * reached, alpha=weight_decay)


def sgd_direction_(
    w: Tensor, g: Tensor, moments: Moments, momentum: float, weight_decay: float, reached: Tensor | None = None
) -> Tensor:
    """PyTorch's SGD, dampening 0, no Nesterov: g <- g + weight_decay w; buf <- momentum buf + g; v = buf.

    `g` is overwritten. At the first step buf = g; the buffer is not read.
    """
    decay_(g, w, weight_decay, reached)
    if not momentum:
        return g
    if moments.steps == 0:
        return moments.first.copy_(g)
    return torch.add(g, moments.first, alpha=momentum, out=moments.first)


def adam_direction_(
    w: Tensor,
    g: Tensor,
    moments: Moments,
    weight_decay: float,
    reached: Tensor | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
) -> Tensor:
    """Adam (Kingma and Ba 2015, Algorithm 1), bias-corrected; weight decay is added to the gradient.

    `g` is overwritten with v. `moments.steps` is the number of steps before this one.
    """
    decay_(g, w, weight_decay, reached)
    beta1, beta2 = betas
    moments.first.lerp_(g, 1 - beta1)
    moments.second.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    correction1 = 1 - beta1 ** (moments.steps + 1)
    correction2 = 1 - beta2 ** (moments.steps + 1)
    # v = (first / correction1) / (sqrt(second / correction2) + eps)
    denominator = g.copy_(moments.second).sqrt_().div_(math.sqrt(correction2)).add_(EPS)
    return denominator.reciprocal_().mul_(moments.first).div_(correction1)


def clip_(g: Tensor, largest: float) -> Tensor:
    """`g [P]` scaled to a norm of at most `largest`, in place; the same numbers as `torch.nn.utils.clip_grad_norm_`."""
    return g.mul_((largest / (g.norm() + 1e-6)).clamp_max(1.0))
