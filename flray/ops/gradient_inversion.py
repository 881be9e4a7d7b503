"""Images sent as gradients of an encoder (GLFC, Dong et al. 2022, section 3.4): perturbed by the client, reconstructed
by gradient matching ("deep leakage from gradients", Zhu et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from flray.core.network.objective import Objective
from flray.core.network.threads import threads
from flray.core.protocol.progress import StepProgress, no_step_progress
from flray.ops.lbfgs import BatchedLBFGS

AT_ONCE = 128  # inputs reconstructed together: each has the encoder's gradients in memory


def perturb_inputs(loss: Callable[[Tensor], Tensor], x: Tensor, lr: float, steps: int) -> Tensor:
    """The inputs `x [B, ...]` after `steps` of gradient descent on `loss(x)`, 0-dim, at the rate `lr`."""
    x = x.detach().clone()
    for _ in range(steps):
        x.requires_grad_()
        (g,) = torch.autograd.grad(loss(x), x)
        x = x.detach() - lr * g
    return x.detach()


def infer_label(gradient: Tensor) -> Tensor:
    """The label `[...]` of a single sample from its gradient of the last layer's weight, `gradient [..., C, F]`.

    Row c is (p_c - 1{c = y}) h: with activations h >= 0 only the label's row is not positive, so its sum is smallest.
    """
    return gradient.sum(dim=-1).argmin(dim=-1)


def reconstruct_inputs(
    gradients: Callable[[Tensor], Sequence[Tensor]],
    target: Sequence[Tensor],
    x: Tensor,
    lr: float,
    iterations: int,
    keep: int = 20,
    progress: StepProgress = no_step_progress,
) -> Tensor:
    """The last `keep` iterates `[keep, n, ...]` (all, if there are fewer) from `x [n, ...]` towards inputs whose
    gradients are `target`, independently for each input.

    `gradients(x)` returns one tensor `[n, ...]` a layer, differentiable, with each input's own gradient. Minimises
    sum_l |gradients(x)_l - target_l|^2 by `iterations` steps of `torch.optim.LBFGS` with its defaults (at most 20 inner
    iterations each, no line search), of all inputs at once. An input that would become non-finite keeps its value.
    """
    shape = x.shape

    def evaluate(flat: Tensor) -> tuple[Tensor, Tensor]:
        at = flat.detach().view(shape).requires_grad_()
        parts = [(g - wanted).flatten(1).square().sum(dim=1) for g, wanted in zip(gradients(at), target, strict=True)]
        distance = torch.stack(parts).sum(dim=0)
        (slope,) = torch.autograd.grad(distance.sum(), at)
        return distance.detach(), slope.reshape(flat.shape)

    search, iterates = BatchedLBFGS(evaluate, x.detach().reshape(len(x), -1), lr), []
    for iteration in range(iterations):
        progress(iteration, iterations)
        before = search.x
        search.step()
        finite = torch.isfinite(search.x).all(dim=1, keepdim=True)
        search.x = torch.where(finite, search.x, before)
        iterates.append(search.x.view(shape))
    return torch.stack(iterates[-keep:])


def encoder_gradient(encoder: Objective, x: Tensor, y: Tensor) -> Tensor:
    """Gradient `[P]` of the cross-entropy of one input `x [1, ...]` with label `y [1]` at the encoder's initial
    weights, which every process has."""
    return encoder.value_and_grad(lambda f: cross_entropy(f(x), y), *encoder.initial())[1]


def invert_gradients(
    encoder: Objective,
    pool: Tensor,
    start: Tensor,
    lr: float,
    iterations: int,
    keep: int,
    progress: StepProgress = no_step_progress,
) -> tuple[Tensor, Tensor]:
    """(inputs `[keep n, ...]`, labels `[keep n]`) reconstructed from the encoder's gradients `pool [n, P]`, one input
    each.

    Each reconstruction begins at its own `start [n, ...]` and gives its last `keep` iterates
    (:func:`reconstruct_inputs`). The encoder's last layer is its `head`; it has no batch norm. Runs on one thread: in
    thousands of small steps threads would wait longer than they compute.
    """
    target = [torch.stack([entry.view(gradient) for gradient in pool]) for entry in encoder.layout.entries]
    names = [entry.name for entry in encoder.layout.entries]
    labels = infer_label(target[names.index("head.weight")])
    weights = {name: view.contiguous() for name, view in encoder.views(encoder.initial()[0]).items()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(encoder.module, weights, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    images = []
    for rows in torch.arange(len(pool)).split(AT_ONCE):

        def gradients(x: Tensor, y: Tensor = labels[rows]) -> Sequence[Tensor]:
            return list(each(weights, x, y).values())

        wanted = [part[rows] for part in target]
        with threads(1):
            images.append(reconstruct_inputs(gradients, wanted, start[rows], lr, iterations, keep, progress))
    iterates = torch.cat(images, dim=1)
    return iterates.flatten(0, 1), labels.repeat(len(iterates))
