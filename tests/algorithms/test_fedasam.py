"""FedASAM in closed form, and against a loop over modules in both public codes' forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flray.algorithms.fedasam import FedASAM
from flray.core.network.objective import Objective
from tests.support.losses import Quadratic
from tests.support.networks import Conv, Mlp, Norm, build
from tests.support.rounds import play
from tests.support.sharpness import assert_equal_to_a_loop, chosen


class QuadraticASAM(FedASAM, Quadratic, frozen=True):
    """On f_k(w) = 1/2 ||w - a_k||^2."""


def test_steps_on_a_quadratic():
    """g = w - a; w -= lr * (w + rho * T**2 * g / norm(T * g) - a), T = abs(w) + eta."""
    objective = Objective(build(Mlp))
    data = [(torch.full((3, 5), 2.0), torch.zeros(3, dtype=torch.long))]
    asam = QuadraticASAM(lr=0.1, momentum=0.0, local_epochs=3, batch_size=3, rho=0.7, eta=0.2, scaled="all")
    states, _, _ = play(asam, objective, data, 1)
    w = states[0].w.double().numpy()
    for _ in range(3):
        g, scale = w - 2, np.abs(w) + 0.2
        w = w - 0.1 * (w + 0.7 * scale**2 * g / np.linalg.norm(scale * g) - 2)
    np.testing.assert_allclose(states[1].w.numpy(), w, rtol=1e-5, atol=1e-6)


def test_the_perturbation_does_not_see_the_scale_of_the_weights():
    """A layer's weights times c and its loss seen through them unchanged, g / c: e times c (ASAM's invariance), with
    eta = 0."""
    objective = Objective(build(Mlp))
    from tests.support.small_cases import context

    ctx, asam = context(objective), FedASAM(rho=0.5, eta=0.0, scaled="all")
    w, b = objective.initial()
    g = w.roll(3) * objective.mask("all")
    e = {}
    for c in (1.0, 4.0):
        local = asam.local_state(ctx, w, b)
        local.w.mul_(c)
        e[c] = (asam.perturbed(ctx, local, g / c) - local.w).clone()
    assert float(e[1.0].norm()) > 0.01
    torch.testing.assert_close(e[4.0], 4 * e[1.0], rtol=1e-4, atol=1e-6)


def perturb_asam(named, rho, eps, eta, only_weights, part="all"):
    """By the definition: T_w^2 g / ||T_w g||, one parameter after the other; outside the part T_w = 0."""
    scales = [p.abs() + eta if "weight" in n or not only_weights else torch.ones_like(p) for n, p in named]
    scales = [t * inside for t, inside in zip(scales, chosen(named, part), strict=True)]
    norm = torch.cat([(t * p.grad).flatten() for t, (_, p) in zip(scales, named, strict=True)]).norm() + eps
    return [rho * t**2 * p.grad / norm for t, (_, p) in zip(scales, named, strict=True)]


@pytest.mark.parametrize("kind", [Mlp, Norm, Conv])
@pytest.mark.parametrize("official", [False, True])
def test_two_rounds_against_a_loop_over_modules(kind, official):
    if official:
        algorithm, form = FedASAM(), (0.7, 1e-16, 0.2, True)
    else:
        algorithm, form = (
            FedASAM(rho=1.0, eta=0.0, scaled="all", eps=1e-12, bn_passes="first"),
            (1.0, 1e-12, 0.0, False),
        )
    assert_equal_to_a_loop(algorithm, kind, lambda named, _: perturb_asam(named, *form), official)


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_part_alone_is_perturbed(kind, part):
    assert_equal_to_a_loop(
        FedASAM(perturb=part), kind, lambda named, _: perturb_asam(named, 0.7, 1e-16, 0.2, True, part), True
    )
