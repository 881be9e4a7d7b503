"""The contrastive losses against NumPy and against double loops over samples, with their gradients and their degenerate
batches."""

import math

import numpy as np
import pytest
import torch

from flray.ops.contrast import (
    cosine_matrices,
    divergence_penalty,
    info_nce,
    model_contrast,
    relaxed_contrast,
    supervised_contrast,
)
from tests.support.contrast import by_loops
from tests.support.small_cases import normal

Y = torch.tensor([0, 1, 0, 2, 1, 0, 3, 1])  # classes of three, three, one and one samples


# MOON -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("negatives", [1, 2])
def test_model_contrast(negatives):
    """NumPy: mean_x -log(e^{c_0/tau} / sum_p e^{c_p/tau}), c_p the cosine of z with the p-th other representation."""
    z, others = normal(6, 4), [normal(6, 4, seed=1 + i) for i in range(1 + negatives)]
    u = [t.double().numpy() / np.linalg.norm(t.double().numpy(), axis=1, keepdims=True) for t in (z, *others)]
    e = np.exp(np.stack([(u[0] * other).sum(1) for other in u[1:]]) / 0.5)
    assert float(model_contrast(z, others[0], others[1:], 0.5)) == pytest.approx(
        -np.log(e[0] / e.sum(0)).mean(), rel=1e-6
    )


def test_every_norm_of_the_cosine_is_at_least_1e_8_by_itself():
    """z = 1e-9 (1, 0), z_g = 4 (1, 0), z_p = 0: cosines 1e-9 * 4 / (1e-8 * 4) = 0.1 and 0; l = -log(e^0.2 / (e^0.2 +
    1))."""
    z, positive, negative = torch.tensor([[1e-9, 0.0]]), torch.tensor([[4.0, 0.0]]), torch.zeros(1, 2)
    expected = -math.log(math.exp(0.2) / (math.exp(0.2) + 1))
    assert float(model_contrast(z, positive, [negative], 0.5)) == pytest.approx(expected, rel=1e-6)


def test_without_negatives_the_term_and_its_gradient_are_0():
    z = normal(3, 4).requires_grad_()
    value = model_contrast(z, normal(3, 4, seed=1), [], 0.5)
    (gradient,) = torch.autograd.grad(value, z)
    assert value.item() == 0 and not gradient.any()


# FedRCL ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize("threshold", [0.7, 0.2, -0.9])
def test_both_terms_and_their_gradients_are_those_of_loops_over_samples(form, threshold):
    """Two levels of different width, their mean; similarities of one class around the threshold."""
    levels = [normal(8, 3) + 0.5, normal(8, 5, seed=1)]
    single = [level.clone().requires_grad_() for level in levels]
    double = [level.double().requires_grad_() for level in levels]
    s = cosine_matrices(single)
    found = relaxed_contrast(s, Y, 0.3, form), divergence_penalty(s, Y, 0.3, threshold, form)
    expected = [
        sum(terms) / 2 for terms in zip(*(by_loops(z, Y.tolist(), 0.3, threshold, form) for z in double), strict=True)
    ]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.item() == pytest.approx(theirs.item(), rel=5e-6, abs=1e-6)
        gradients = torch.autograd.grad(mine, single, retain_graph=True)
        for a, b in zip(gradients, torch.autograd.grad(theirs, double, retain_graph=True), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)


def test_code_form_at_its_own_temperature():
    """tau = 0.05, threshold 0.7: exponents up to 20, 1e-6 relative."""
    z = normal(8, 3) + 0.5
    s = cosine_matrices([z])
    scl, penalty = by_loops(z.double(), Y.tolist(), 0.05, 0.7, "code")
    assert float(relaxed_contrast(s, Y, 0.05)) == pytest.approx(float(scl), rel=1e-6)
    assert float(divergence_penalty(s, Y, 0.05, 0.7)) == pytest.approx(float(penalty), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_a_pair_is_penalised_from_the_threshold_on(form):
    """Two samples of a class with cosine 0.8: log(1 + e^{(0.8 - 1)/tau}), and above 0.8 log(1 + e^{(-1 - 1)/tau})
    (code) or 0 (paper)."""
    z, y = torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.tensor([1, 1])
    s = cosine_matrices([z])
    assert float(divergence_penalty(s, y, 0.5, 0.79, form)) == pytest.approx(math.log1p(math.exp(-0.4)), rel=1e-6)
    rest = math.log1p(math.exp(-4.0)) if form == "code" else 0.0
    assert float(divergence_penalty(s, y, 0.5, 0.81, form)) == pytest.approx(rest, rel=1e-5)


@pytest.mark.parametrize("form", ["code", "paper"])
@pytest.mark.parametrize("y", [[2, 2, 2, 2], [0, 1, 2, 3], [0]], ids=["one class", "all different", "one sample"])
def test_degenerate_batches_have_finite_gradients(form, y):
    """One class: no negatives, scl = 0.

    All different: nothing to penalise, -log(e^{1/tau} / (e^{1/tau} + e^{-1/tau})) or 0.
    """
    z = normal(len(y), 3).requires_grad_()
    s = cosine_matrices([z])
    scl, penalty = (
        relaxed_contrast(s, torch.tensor(y), 0.5, form),
        divergence_penalty(s, torch.tensor(y), 0.5, 0.7, form),
    )
    (gradient,) = torch.autograd.grad(scl + penalty, z)
    assert torch.isfinite(gradient).all()
    if len(set(y)) == 1:
        assert scl.item() == 0
    if len(set(y)) == len(y):
        assert penalty.item() == pytest.approx(math.log1p(math.exp(-4.0)) if form == "code" else 0.0, rel=1e-5)
        assert len(y) == 1 or form == "paper" or scl.item() > 0


def test_info_nce_is_the_mean_over_all_leading_axes():
    s = normal(2, 3, 4)
    e = np.exp(s.double().numpy() / 0.2)
    assert float(info_nce(s, 0.2)) == pytest.approx(-np.log(e[..., 0] / e.sum(-1)).mean(), rel=1e-6)


# SCR ------------------------------------------------------------------------------------------
def test_supervised_contrast_is_its_formula():
    """Loops in double precision; class 2 and class 3 have one sample each, whose term is 0."""
    z = torch.nn.functional.normalize(normal(8, 5), dim=1)
    e, tau, total = z.double().numpy(), 0.1, 0.0
    for i in range(8):
        positives = [p for p in range(8) if p != i and Y[p] == Y[i]]
        whole = sum(math.exp(e[i] @ e[a] / tau) for a in range(8) if a != i)
        total -= sum(e[i] @ e[p] / tau - math.log(whole) for p in positives) / max(len(positives), 1)
    assert float(supervised_contrast(z, Y, tau)) == pytest.approx(total / 8, rel=1e-5)


def test_supervised_contrast_of_two_views_that_are_all_alike():
    """Four equal vectors: log(3) each, and a gradient without NaN."""
    z = torch.nn.functional.normalize(torch.ones(4, 3), dim=1).requires_grad_()
    value = supervised_contrast(z, torch.tensor([0, 1, 0, 1]), 0.1)
    assert value.item() == pytest.approx(math.log(3), rel=1e-5)
    assert torch.isfinite(torch.autograd.grad(value, z)[0]).all()
