"""FedOpt's server optimisers by their printed recursions, in NumPy and against `torch.optim` where it has the same."""

import itertools

import numpy as np
import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from flray.core.messages import Cohort, Update, equal
from flray.core.network.objective import Objective
from tests.support.networks import Mlp, Norm, build
from tests.support.rounds import play
from tests.support.small_cases import context, normal
from tests.support.unequal import clients

LOCAL = {"lr": 0.05, "local_epochs": 2, "batch_size": 4}
COHORT = Cohort(torch.tensor([0]), torch.tensor([4]), torch.tensor([1]), torch.ones(1, dtype=torch.float64))


def server(algorithm, moves):
    """w after every round `[R + 1, P]`, float64, when the clients' mean moves by `moves [R, P]`."""
    ctx = context(Objective(build(Mlp)))
    state = algorithm.init_server(ctx, *ctx.objective.initial())
    path = [state.w]
    for move in moves:
        state, _ = algorithm.aggregate(ctx, state, Update(state.w + move, state.b), COHORT)
        path.append(state.w)
    return torch.stack(path).double().numpy()


def moves(rounds=5, scale=0.1):
    """Seeded, larger in some rounds, so that v - Delta^2 has both signs."""
    objective = Objective(build(Mlp))
    return [
        scale * (1 + 3 * (t % 2)) * normal(objective.layout.size, seed=t) * objective.mask("all") for t in range(rounds)
    ]


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_the_gaps_between_tensors_stay_zero_in_both_moments(kind):
    """v_0 = 0.02 on the 66 numbers of an Mlp makes |v_0| = 0.02 sqrt(66), whatever the layout adds between tensors."""
    ctx = context(Objective(build(Mlp)))
    layout, gaps = ctx.objective.layout, ctx.objective.mask("all") == 0
    state = kind(v_0=0.02).init_server(ctx, *ctx.objective.initial())
    assert (layout.count, layout.size) == (66, 112) and float(state.rule.v.norm()) == pytest.approx(
        0.02 * 66**0.5, rel=1e-6
    )
    for move in moves(3):
        state, _ = kind(v_0=0.02).aggregate(ctx, state, Update(state.w + move, state.b), COHORT)
        assert not any(moment[gaps].any() for moment in (state.w, state.rule.m, state.rule.v))


@pytest.mark.parametrize("v_0", [None, 0.02])
@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
def test_algorithm_2(kind, v_0):
    """m <- b1 m + (1 - b1) D; v by name; w <- w + eta m / (sqrt(v) + tau); m_0 = 0, v_0 = tau^2 unless told, no bias
    correction."""
    eta, b1, b2, tau = 0.03, 0.8, 0.95, 0.01
    deltas = moves()
    options = {} if kind is FedAdagrad else {"beta_2": b2}
    found = server(kind(server_lr=eta, beta_1=b1, tau=tau, v_0=v_0, **options), deltas)
    w, m, v = found[0], 0.0, tau**2 if v_0 is None else v_0
    signs = set()
    for t, delta in enumerate(deltas):
        d = delta.double().numpy()
        m = b1 * m + (1 - b1) * d
        signs |= set(np.sign((v - d**2)[d != 0])) if t else set()
        if kind is FedAdagrad:
            v = v + d**2
        elif kind is FedAdam:
            v = b2 * v + (1 - b2) * d**2
        else:
            v = v - (1 - b2) * d**2 * np.sign(v - d**2)
        w = w + eta * m / (np.sqrt(v) + tau)
        np.testing.assert_allclose(found[t + 1], w, rtol=1e-5, atol=1e-6)
    assert signs == {-1.0, 1.0}, "the case has both branches of Yogi"


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_one_round_in_numbers(kind):
    """D = 0.5 everywhere, tau = 0.25, the paper's betas: m = 0.1 0.5 = 0.05; v_0 = 0.0625, D^2 = 0.25.

    Adam: v = 0.99 0.0625 + 0.01 0.25 = 0.064375; Yogi: v = 0.0625 + 0.01 0.25 = 0.065. w moves by 0.01 0.05 / (sqrt(v)
    + 0.25).
    """
    used = Objective(build(Mlp)).mask("all")
    path = server(kind(tau=0.25), [0.5 * used])
    v = 0.064375 if kind is FedAdam else 0.065
    np.testing.assert_allclose(path[1] - path[0], used * 0.01 * 0.05 / (v**0.5 + 0.25), rtol=1e-3)


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm_is_sgd_on_the_negative_move(nesterov):
    """Hsu et al.: v <- beta v + D, w <- w + v (there D = w_g - mean, w <- w - v), as torch.optim.SGD without
    dampening."""
    deltas = moves()
    found = server(FedAvgM(server_lr=0.7, beta=0.9, nesterov=nesterov), deltas)
    w = torch.nn.Parameter(torch.from_numpy(found[0]))
    optimizer = torch.optim.SGD([w], 0.7, 0.9, nesterov=nesterov)
    for t, delta in enumerate(deltas):
        w.grad = -delta.double()
        optimizer.step()
        np.testing.assert_allclose(found[t + 1], w.detach().numpy(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [Mlp, Norm])
def test_without_momentum_and_with_rate_1_it_is_fedavg_up_to_rounding(kind):
    """The clients' half, the weights and the batch-norm statistics are FedAvg's."""
    objective, data = Objective(build(kind)), clients()
    ours = play(FedAvgM(**LOCAL, beta=0.0), objective, data, 2)[0][-1]
    plain = play(FedAvg(**LOCAL), objective, data, 2)[0][-1]
    torch.testing.assert_close(ours.w, plain.w, rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(ours.b, plain.b, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("algorithm", [FedAvgM(**LOCAL), FedAdagrad(**LOCAL), FedAdam(**LOCAL), FedYogi(**LOCAL)])
def test_the_state_of_earlier_rounds_is_not_touched(algorithm):
    """Three rounds give the states of two and one more; the gaps of the flat vector hold zeros."""
    objective, data = Objective(build(Mlp)), clients()
    two, three = (play(algorithm, objective, data, rounds)[0] for rounds in (2, 3))
    for a, b in zip(two, three, strict=False):
        assert equal(a, b)
    for old, new in itertools.pairwise(three):
        assert not torch.equal(old.w, new.w)
    assert not three[-1].w[objective.mask("all") == 0].any()
