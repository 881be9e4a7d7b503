"""The papers' statements on quadratics and on probabilities, where both sides are known in closed form."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from flray.metrics.theory import agreement, flip_bound, flip_threshold, kappa, proposition_1, proposition_2


class Quadratic:
    """(w - a)^T H (w - a) / 2, in float64."""

    def __init__(self, hessian: np.ndarray, centre: np.ndarray) -> None:
        self.hessian, self.centre = torch.from_numpy(hessian), torch.from_numpy(centre)

    def value(self, w: torch.Tensor) -> float:
        return float((w - self.centre) @ self.hessian @ (w - self.centre) / 2)

    def gradient(self, w: torch.Tensor) -> torch.Tensor:
        return self.hessian @ (w - self.centre)

    def product(self, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.hessian @ v


H, A, W_G = np.array([[3.0, 1.0], [1.0, 0.5]]), np.array([2.0, -1.0]), np.array([0.5, 0.5])
W, RHO, GAMMA = np.array([0.3, 0.9]), 0.7, 0.05
LOCAL, PROXIMAL = Quadratic(H, A), Quadratic(np.eye(2), W_G)  # L_p = ||w - w_g||^2 / 2


def test_proposition_1_is_exact_on_a_quadratic() -> None:
    """There g_l(w + rho ghat) = g_l(w) + rho H ghat, so Eq. 11 has no remainder; and L_p's real change is the
    first-order one and gamma^2 ||u||^2 / 2."""
    g_p, g_l = W - W_G, H @ (W - A)
    unit = g_p / np.linalg.norm(g_p)
    u = H @ (W + RHO * unit - A)
    found = proposition_1(LOCAL, PROXIMAL, torch.from_numpy(W), RHO, GAMMA)
    assert found.avg == pytest.approx(-GAMMA * g_p @ g_l) and found.sol == pytest.approx(-GAMMA * g_p @ u)
    assert found.predicted == pytest.approx(found.sol) and found.curvature == pytest.approx(unit @ H @ unit)
    assert found.avg_real == pytest.approx(found.avg + GAMMA**2 * g_l @ g_l / 2)
    assert found.sol_real == pytest.approx(found.sol + GAMMA**2 * u @ u / 2)
    assert found.sol < found.avg, "H is positive definite: FedSOL's step raises L_p by less"


def test_proposition_2_misses_a_quadratic_by_the_square_of_rho() -> None:
    """With h = H ghat: <g, g + rho h> - ||g + rho h / 2||^2 = -rho^2 ||h||^2 / 4, so sol - shifted is gamma times that,
    with the other sign."""
    unit = (W - W_G) / np.linalg.norm(W - W_G)
    for rho in (RHO, RHO / 10):
        found = proposition_2(LOCAL, PROXIMAL, torch.from_numpy(W), rho, GAMMA)
        assert found.shifted - found.sol == pytest.approx(-GAMMA * rho**2 * (H @ unit) @ (H @ unit) / 4, rel=1e-9)
        half = H @ (W + rho / 2 * unit - A)
        assert found.shifted == pytest.approx(-GAMMA * half @ half)
        assert found.shifted_real == pytest.approx(found.shifted + GAMMA**2 * half @ H @ half / 2)
        u = H @ (W + rho * unit - A)
        assert found.sol_real == pytest.approx(found.sol + GAMMA**2 * u @ H @ u / 2)


def test_where_the_proximal_loss_is_flat_there_is_no_direction() -> None:
    at = torch.from_numpy(W_G)
    assert proposition_1(LOCAL, PROXIMAL, at, RHO, GAMMA) is None
    assert proposition_2(LOCAL, PROXIMAL, at, RHO, GAMMA) is None


def test_two_clients_with_opposite_gradients() -> None:
    """g_1 = (3, 4), g_2 = (-3, 4), g their mean (0, 4): zeta 3 for both, kappa 1. The memory's gradient (-4, 1)
    forbids what g_1 does along it: g_1 + 8/17 (-4, 1) = (19, 76) / 17 is left, 19/17 of g along g. It lets g_2 pass."""
    g, g_mem = torch.tensor([0.0, 4.0]), torch.tensor([-4.0, 1.0])
    first, second = torch.tensor([3.0, 4.0]), torch.tensor([-3.0, 4.0])
    assert agreement(first, g) == agreement(second, g) == (3.0, 1.0)
    assert agreement(first, g, g_mem).descent == pytest.approx(19 / 17) and agreement(second, g, g_mem) == (3.0, 1.0)
    opposite = agreement(-g, g)
    assert (opposite.zeta, opposite.descent) == (8.0, -1.0)
    assert agreement(torch.tensor([0.0, 2.0]), g, torch.tensor([0.0, -1.0])).descent == 0.0, "a projection can take all"
    assert math.isnan(agreement(first, torch.zeros(2)).descent)


def test_the_papers_kappa_is_a_cosine_of_the_global_with_the_memory_gradient() -> None:
    """(3, 4) and (4, 3): 24 / 25, whatever their lengths; no client's gradient enters."""
    g, g_mem = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    assert kappa(g, g_mem) == pytest.approx(24 / 25) == kappa(7 * g, 0.1 * g_mem)
    assert kappa(g, -g_mem) == pytest.approx(-24 / 25) and math.isnan(kappa(g, torch.zeros(2)))


def test_thresholds_by_hand() -> None:
    """p = (3/4, 1/4): gap 1/2, bound 1/32; level at (1/2, 1/2), KL = 3/4 ln(3/2) + 1/4 ln(1/2)."""
    p = torch.tensor([[0.75, 0.25], [1.0, 0.0]], dtype=torch.float64)
    assert flip_bound(p).tolist() == pytest.approx([1 / 32, 1 / 8])
    assert flip_threshold(p).tolist() == pytest.approx([0.75 * math.log(1.5) + 0.25 * math.log(0.5), math.log(2)])
    assert flip_bound(p[:, :1]).tolist() == pytest.approx([0.75**2 / 8, 1 / 8]), "a single class"


PROBABILITIES = arrays.arrays(np.float64, (5, 4), elements=st.floats(0.01, 1)).map(
    lambda x: x / x.sum(1, keepdims=True)
)


@given(PROBABILITIES, PROBABILITIES)
def test_no_answer_flips_below_the_exact_threshold_which_is_four_times_the_bound(p: np.ndarray, q: np.ndarray) -> None:
    exact, bound = flip_threshold(torch.from_numpy(p)).numpy(), flip_bound(torch.from_numpy(p)).numpy()
    assert (exact >= 4 * bound - 1e-12).all()
    flipped = p.argmax(1) != q.argmax(1)
    assert ((p * np.log(p / q)).sum(1)[flipped] >= exact[flipped] - 1e-12).all()


@given(PROBABILITIES)
def test_the_exact_threshold_is_met(p: np.ndarray) -> None:
    """By p with its two largest entries level, of which either may be called the top label."""
    order = np.argsort(-p, axis=1)[:, :2]
    q = p.copy()
    np.put_along_axis(q, order, np.take_along_axis(p, order, 1).mean(1, keepdims=True), 1)
    assert flip_threshold(torch.from_numpy(p)).numpy() == pytest.approx((p * np.log(p / q)).sum(1), abs=1e-12)
