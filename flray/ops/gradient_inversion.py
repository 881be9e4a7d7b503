"""Images that travel as gradients of an encoder (GLFC, Dong et al. 2022, section 3.4): perturbed before, found again by
matching the gradient ("deep leakage from gradients", Zhu et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def perturbed(loss: Callable[[Tensor], Tensor], x: Tensor, lr: float, steps: int) -> Tensor:
    """The inputs `x [B, ...]` after `steps` of plain gradient descent of `loss(x)`, 0-dim, with the rate `lr`."""
    x = x.detach().clone()
    for _ in range(steps):
        x.requires_grad_()
        (g,) = torch.autograd.grad(loss(x), x)
        x = x.detach() - lr * g
    return x.detach()


def label_of(gradient: Tensor) -> Tensor:
    """The label `[...]` of the one sample whose cross-entropy gave the last layer's weight the `gradient [..., C, F]`.

    Row c is (p_c - 1{c = y}) h: with activations h >= 0 that of the label alone is not positive, so its sum is least.
    """
    return gradient.sum(dim=-1).argmin(dim=-1)


def reconstructed(
    gradients: Callable[[Tensor], Sequence[Tensor]],
    target: Sequence[Tensor],
    x: Tensor,
    lr: float,
    iterations: int,
    keep: int = 20,
) -> Tensor:
    """The last `keep` iterates `[keep, ...]` (all, where there are fewer) on the way from `x [...]` to an input whose
    gradients are `target`.

    Minimises sum_l |gradients(x)_l - target_l|^2 by `iterations` steps of `torch.optim.LBFGS` with its defaults (at
    most 20 inner iterations each, no line search). `gradients` must be differentiable. An iterate that is not finite
    ends the search: the last finite one stands for the rest.
    """
    x = x.detach().clone().requires_grad_()
    optimizer = torch.optim.LBFGS([x], lr=lr)

    def closure() -> Tensor:
        optimizer.zero_grad()
        distance = torch.stack(
            [(g - wanted).square().sum() for g, wanted in zip(gradients(x), target, strict=True)]
        ).sum()
        (x.grad,) = torch.autograd.grad(distance, x)
        return distance.detach()

    kept: list[Tensor] = []
    for _ in range(iterations):
        before = x.detach().clone()
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        if not torch.isfinite(x).all():
            with torch.no_grad():
                x.copy_(before)
            kept += [before] * (keep - len(kept))
            break
        kept.append(x.detach().clone())
    return torch.stack(kept[-keep:])
