"""What a client keeps under FedSOL's strategies with the proximal losses of SCAFFOLD, FedNova and FedDyn
(Table 4; card of fedsol), over eight rounds."""

import itertools

import numpy as np
import pytest
import torch

from flray.algorithms.feddyn import FedDyn
from flray.algorithms.fednova import FedNova
from flray.algorithms.fedsol import FedSOL
from flray.algorithms.scaffold import Scaffold
from flray.core.network.objective import Objective
from tests.support.losses import Linear
from tests.support.networks import Mlp, build
from tests.support.rounds import play_sampled

# gradients, shares, local steps, and A for momentum 1/2
S, P, STEPS, EFFECTIVE = (2.0, -1.0), (0.25, 0.75), (2, 6), (2.5, 10.03125)
LR, BETA, ALPHA, RHO = 0.1, 0.7, 0.3, 0.5
LOCAL = {"lr": LR, "momentum": 0.5, "local_epochs": 2, "batch_size": 3}
STRATEGIES = ["S0", "S1", "S2", "S3", "S4", "S5", "S6"]


class LinearSOL(FedSOL, Linear, frozen=True):
    """Client k's local gradient is s_k everywhere."""


class LinearScaffold(Scaffold, Linear, frozen=True):
    pass


class LinearNova(FedNova, Linear, frozen=True):
    pass


class LinearDyn(FedDyn, Linear, frozen=True):
    pass


def method(proximal, strategy):
    """FedSOL with this `proximal`, or (`alone`) the method itself."""
    if strategy == "alone":
        kind, more = {
            "scaffold": (LinearScaffold, {}),
            "fednova": (LinearNova, {"ccvr": "fixed"}),
            "feddyn": (LinearDyn, {"alpha": ALPHA}),
        }[proximal]
        return kind(**LOCAL, **more)
    alpha = ALPHA if proximal == "feddyn" else None
    return LinearSOL(
        **LOCAL, proximal=proximal, strategy=strategy, beta=BETA, alpha=alpha, rho=RHO, adaptive="none", perturb="all"
    )


def used(strategy):
    """The coefficient of g_p in a local step."""
    return {"S0": 0.0, "S1": 0.0, "alone": 1.0}.get(strategy, BETA)


def rounds(algorithm, count):
    """(server states, client states at the end); samples 3 and 9 in batches of 3."""
    data = [(torch.full((n, 5), s), torch.zeros(n, dtype=torch.long)) for n, s in zip((3, 9), S, strict=True)]
    return play_sampled(algorithm, Objective(build(Mlp)), data, [(0, 1)] * count)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "alone"])
def test_scaffolds_control_variates_are_the_clients_gradients(strategy):
    """A step is s_k + u (c - c_k), u = used(strategy), and c_k+ = move - u (c - c_k) = s_k after every round; c = (2 -
    1) / 2 = 1/2.

    w <- w - lr sum_k p_k A_k s_k in round 1, where c = c_k = 0; afterwards w <- w - lr sum_k p_k A_k (s_k + u (1/2 -
    s_k)).
    """
    for count in (7, 8):
        states, kept = rounds(method("scaffold", strategy), count)
        for client, s in zip(kept, S, strict=True):
            np.testing.assert_allclose(client.c.numpy(), s, rtol=1e-4)
    for t, (old, new) in enumerate(itertools.pairwise(states)):
        u = used(strategy) if t else 0.0
        move = LR * sum(p * a * (s + u * (0.5 - s)) for p, a, s in zip(P, EFFECTIVE, S, strict=True))
        np.testing.assert_allclose(new.c.numpy(), 0.5, rtol=1e-4)
        np.testing.assert_allclose((old.w - new.w).numpy(), move, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("strategy", [*STRATEGIES, "alone"])
def test_fednovas_directions_are_the_clients_gradients(strategy):
    """d_k+ = move - u (dbar - d_k) = s_k, dbar = sum p s = -1/4, and as sum p (dbar - d) = 0 the model moves by
    lr tau_eff / 4 = 0.1 8.1484375 / 4 in every round, whatever u. (The move itself as d_k alternates for ever.)"""
    for count in (7, 8):
        states, kept = rounds(method("fednova", strategy), count)
        for client, s in zip(kept, S, strict=True):
            np.testing.assert_allclose(client.d.numpy(), s, rtol=1e-4)
    for old, new in itertools.pairwise(states):
        np.testing.assert_allclose(new.dbar.numpy(), -0.25, rtol=1e-4)
        np.testing.assert_allclose((new.w - old.w).numpy(), 0.1 * 8.1484375 / 4, rtol=1e-4)


def feddyn(strategy, size, count):
    """(moves of w, final h_k, H) under FedSOL with FedDyn: every element of every vector `[size]` is the same.

    A perturbation of length rho along a constant vector adds rho / sqrt(size) with its sign.
    """
    h, server, moves = [0.0, 0.0], 0.0, []
    for _ in range(count):
        deltas = []
        for k, (s, steps) in enumerate(zip(S, STEPS, strict=True)):
            delta = buffer = 0.0
            for _ in range(steps):
                g_p = -h[k] + ALPHA * delta
                assert g_p == 0 or abs(g_p) > 1e-4, "no sign that rounding decides"
                e_p, e_c = (RHO / np.sqrt(size) * np.sign(g) for g in (g_p, s + BETA * g_p))
                near = {"S2": g_p + ALPHA * e_p, "S3": g_p + ALPHA * e_p, "S4": g_p + ALPHA * e_c}.get(strategy, g_p)
                buffer = 0.5 * buffer + s + used(strategy) * near
                delta -= LR * buffer
            deltas.append(delta)
            h[k] = used(strategy) * h[k] - ALPHA * delta
        server -= ALPHA / 2 * sum(deltas)
        shares = (0.5, 0.5) if strategy == "alone" else P  # the defaults of `weighting`
        moves.append(sum(p * delta for p, delta in zip(shares, deltas, strict=True)) - server / ALPHA)
    return moves, h, server


@pytest.mark.parametrize("strategy", [*STRATEGIES, "alone"])
def test_feddyns_linear_terms_keep_what_the_steps_contained(strategy):
    """h_k+ = u h_k - alpha (w_k - w_g), written out in :func:`feddyn`. In S1 it is alpha lr A_k s_k after every round:
    0.3 0.1 2.5 2 and
    -0.3 0.1 10.03125."""
    states, kept = rounds(method("feddyn", strategy), 8)
    moves, h, server = feddyn(strategy, len(states[0].w), 8)
    for client, expected in zip(kept, h, strict=True):
        np.testing.assert_allclose(client.h.numpy(), expected, rtol=1e-4)
    if strategy == "S1":
        assert h == pytest.approx([0.15, -0.3009375])
    for (old, new), move in zip(itertools.pairwise(states), moves, strict=True):
        np.testing.assert_allclose((new.w - old.w).numpy(), move, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states[-1].h.numpy(), server, rtol=1e-4, atol=1e-4)
