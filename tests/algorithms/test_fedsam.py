"""FedSAM in closed form, and against a loop over modules that perturbs in place, steps, and averages (both public
codes' forms)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flray.algorithms.fedsam import FedSAM
from flray.core.network.objective import Objective
from tests.support.losses import Quadratic
from tests.support.networks import Conv, Mlp, Norm, build
from tests.support.rounds import play
from tests.support.sharpness import assert_equal_to_a_loop, chosen


class QuadraticSAM(FedSAM, Quadratic, frozen=True):
    """On f_k(w) = 1/2 ||w - a_k||^2."""


def test_closed_form_on_a_quadratic():
    """e = rho (w - a) / r with r = ||w - a||, so a step keeps the direction and maps the radius: r' = (1 - lr) r - lr
    rho.

    for _ in range(3): r = 0.9 * r - 0.1 * 0.5
    """
    objective = Objective(build(Mlp))
    data = [(torch.full((3, 5), 2.0), torch.zeros(3, dtype=torch.long))]
    sam = QuadraticSAM(lr=0.1, momentum=0.0, local_epochs=3, batch_size=3, rho=0.5, eps=0.0)
    states, _, _ = play(sam, objective, data, 1)
    start = states[0].w.double().numpy() - 2
    r = np.linalg.norm(start)
    direction = start / r
    for _ in range(3):
        r = 0.9 * r - 0.1 * 0.5
    np.testing.assert_allclose(states[1].w.numpy(), 2 + r * direction, rtol=1e-5, atol=1e-6)


def perturb_sam(named, rho, eps, part="all"):
    gradients = [p.grad * inside for (_, p), inside in zip(named, chosen(named, part), strict=True)]
    norm = torch.stack([g.norm() for g in gradients]).norm() + eps
    return [rho / norm * g for g in gradients]


@pytest.mark.parametrize("kind", [Mlp, Norm, Conv])
@pytest.mark.parametrize(("rho", "eps", "both"), [(0.5, 1e-12, False), (0.5, 1e-16, True), (0.5, 1.0, False)])
def test_two_rounds_against_a_loop_over_modules(kind, rho, eps, both):
    algorithm = FedSAM(rho=rho, eps=eps, bn_passes="both" if both else "first")
    assert_equal_to_a_loop(algorithm, kind, lambda named, _: perturb_sam(named, rho, eps), both)


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_part_alone_is_perturbed(kind, part):
    assert_equal_to_a_loop(
        FedSAM(rho=0.5, eps=1e-12, perturb=part), kind, lambda named, _: perturb_sam(named, 0.5, 1e-12, part), True
    )
