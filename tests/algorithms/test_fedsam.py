"""FedSAM and FedASAM in closed form, and against a loop over modules that perturbs in place, steps, and averages (both
public codes' forms)."""

import numpy as np
import pytest
import torch

from flray.algorithms.fedasam import FedASAM
from flray.algorithms.fedsam import FedSAM
from flray.core.network.objective import Objective
from tests.support.losses import Quadratic, two_clients
from tests.support.networks import Conv, Mlp, Norm, build
from tests.support.rounds import play
from tests.support.sharpness import assert_equal_to_a_loop, chosen
from tests.support.small_cases import context


class QuadraticSAM(FedSAM, Quadratic, frozen=True):
    """On f_k(w) = 1/2 ||w - a_k||^2."""


class QuadraticASAM(FedASAM, Quadratic, frozen=True):
    """On the same."""


def on_a_quadratic(algorithm):
    """The models of the only client, with a = 2, before and after three steps."""
    options = {"lr": 0.1, "momentum": 0.0, "local_epochs": 3, "batch_size": 3}
    states, _, _ = play(algorithm.model_copy(update=options), Objective(build(Mlp)), two_clients()[:1], 1)
    return [state.w.double().numpy() for state in states]


def test_closed_form_on_a_quadratic():
    """e = rho (w - a) / r with r = ||w - a||, so a step keeps the direction and maps the radius: r' = (1 - lr) r - lr
    rho.

    for _ in range(3): r = 0.9 * r - 0.1 * 0.5
    """
    start, end = on_a_quadratic(QuadraticSAM(rho=0.5, eps=0.0))
    r = np.linalg.norm(start - 2)
    direction = (start - 2) / r
    for _ in range(3):
        r = 0.9 * r - 0.1 * 0.5
    np.testing.assert_allclose(end, 2 + r * direction, rtol=1e-5, atol=1e-6)


def test_adaptive_steps_on_a_quadratic():
    """g = w - a; w -= lr * (w + rho * T**2 * g / norm(T * g) - a), T = abs(w) + eta."""
    w, end = on_a_quadratic(QuadraticASAM(rho=0.7, eta=0.2, scaled="all"))
    for _ in range(3):
        g, scale = w - 2, np.abs(w) + 0.2
        w = w - 0.1 * (w + 0.7 * scale**2 * g / np.linalg.norm(scale * g) - 2)
    np.testing.assert_allclose(end, w, rtol=1e-5, atol=1e-6)


def test_the_perturbation_does_not_see_the_scale_of_the_weights():
    """A layer's weights times c and its loss seen through them unchanged, g / c: e times c (ASAM's invariance), with
    eta = 0."""
    objective = Objective(build(Mlp))
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


def perturbation(rho, eps, eta=None, scaled="all", part="all"):
    """By the definition: T_w^2 g / ||T_w g||, one parameter after the other; T_w = 1 without `eta`, and 0 outside the
    part."""

    def perturb(named, _):
        adaptive = [eta is not None and ("weight" in n or scaled == "all") for n, _ in named]
        scales = [p.abs() + eta if own else torch.ones_like(p) for own, (_, p) in zip(adaptive, named, strict=True)]
        scales = [t * inside for t, inside in zip(scales, chosen(named, part), strict=True)]
        norm = torch.cat([(t * p.grad).flatten() for t, (_, p) in zip(scales, named, strict=True)]).norm() + eps
        return [rho * t**2 * p.grad / norm for t, (_, p) in zip(scales, named, strict=True)]

    return perturb


FIRST = {"bn_passes": "first"}
FORMS = {  # the algorithm, its perturbation, and whether both passes move the statistics
    "sam, one pass": (FedSAM(rho=0.5, eps=1e-12, **FIRST), perturbation(0.5, 1e-12), False),
    "sam, both passes": (FedSAM(rho=0.5, eps=1e-16, bn_passes="both"), perturbation(0.5, 1e-16), True),
    "sam, a large eps": (FedSAM(rho=0.5, eps=1.0, **FIRST), perturbation(0.5, 1.0), False),
    "asam": (FedASAM(), perturbation(0.7, 1e-16, 0.2, "weights"), True),
    "asam of FedSOL": (
        FedASAM(rho=1.0, eta=0.0, scaled="all", eps=1e-12, **FIRST),
        perturbation(1.0, 1e-12, 0.0),
        False,
    ),
}


@pytest.mark.parametrize("kind", [Mlp, Norm, Conv])
@pytest.mark.parametrize("form", FORMS)
def test_two_rounds_against_a_loop_over_modules(kind, form):
    algorithm, perturb, both = FORMS[form]
    assert_equal_to_a_loop(algorithm, kind, perturb, both)


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_part_alone_is_perturbed(kind, part):
    sam = FedSAM(rho=0.5, eps=1e-12, perturb=part)
    assert_equal_to_a_loop(sam, kind, perturbation(0.5, 1e-12, part=part), True)
    asam = FedASAM(perturb=part)
    assert_equal_to_a_loop(asam, kind, perturbation(0.7, 1e-16, 0.2, "weights", part), True)
