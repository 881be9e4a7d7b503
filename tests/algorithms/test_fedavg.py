"""FedAvg in closed form, and against a plain loop over modules."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flray.algorithms.fedavg import FedAvg
from flray.core.messages import equal
from flray.core.network.objective import Objective
from flray.models.mlp import MLP
from tests.support.losses import Quadratic, two_clients
from tests.support.networks import Branches, Mlp, Norm, assert_same, build, federated, inputs
from tests.support.personal import optimise
from tests.support.rounds import batches_of, play
from tests.support.small_cases import context
from tests.support.unequal import pair


def test_closed_form_on_quadratics():
    """tau steps of gradient descent contract by (1 - lr)^tau towards a_k:

    w' = sum_k p_k (a_k + (1 - lr)^tau (w - a_k)); with p = (1/4, 3/4), a = (2, -1), lr = 0.1, tau = 3 * E, three
    rounds:
        c = 0.9 ** 6; w = w0; for _ in range(3): w = 0.25 * (2 + c * (w - 2)) + 0.75 * (-1 + c * (w + 1))
    """
    objective = Objective(build(Mlp))
    data = two_clients()
    states, updates, _ = play(Quadratic(lr=0.1, momentum=0.0, local_epochs=2, batch_size=3), objective, data, 3)
    w = states[0].w.double().numpy()
    first, second = 0.9**2, 0.9**6
    for round in range(3):
        local = 2 + first * (w - 2), -1 + second * (w + 1)
        for k in (0, 1):
            np.testing.assert_allclose(updates[round][k].w.numpy(), local[k], rtol=1e-5, atol=1e-6)
        w = 0.25 * local[0] + 0.75 * local[1]
        np.testing.assert_allclose(states[round + 1].w.numpy(), w, rtol=1e-5, atol=1e-6)


def test_one_full_batch_step_of_softmax_regression_is_a_step_on_the_union():
    """g = [(P - Y)^T X, sum(P - Y)] / n over all clients' data together, in NumPy."""
    module = MLP((5,), 3, hidden=())
    objective = Objective(module)
    x, y = inputs(Mlp, 12)
    states, _, _ = play(
        FedAvg(lr=0.5, momentum=0.0, local_epochs=1, batch_size=100), objective, [(x[:4], y[:4]), (x[4:], y[4:])], 1
    )
    weight, bias = (objective.views(states[0].w)[n].double().numpy() for n in ("head.weight", "head.bias"))
    z = x.double().numpy() @ weight.T + bias
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True) - np.eye(3)[y.numpy()]
    after = objective.views(states[1].w)
    np.testing.assert_allclose(after["head.weight"].numpy(), weight - 0.5 * p.T @ x.double().numpy() / 12, atol=1e-6)
    np.testing.assert_allclose(after["head.bias"].numpy(), bias - 0.5 * p.sum(0) / 12, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        (
            {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "lr_decay": 0.5},
            lambda p, r: torch.optim.SGD(p, 0.1 * 0.5**r, 0.9, weight_decay=0.01),
        ),
        ({"lr": 0.01, "optimizer": "adam", "weighting": "uniform"}, lambda p, r: torch.optim.Adam(p, 0.01)),
        ({"lr": 0.1, "buffers": "keep"}, lambda p, r: torch.optim.SGD(p, 0.1, 0.9)),
        ({"lr": 0.1, "buffers": "local"}, lambda p, r: torch.optim.SGD(p, 0.1, 0.9)),
    ],
    ids=["sgd", "adam-uniform", "keep", "local"],
)
def test_two_rounds_against_a_loop_over_modules(options, optimizer):
    """deepcopy, torch.optim, `state_dict` averaged with n_k / n: the way one would write FedAvg without flray."""
    objective = Objective(build(Norm))
    data = pair(Norm)
    algorithm = FedAvg(local_epochs=2, batch_size=4, **options)
    states, _, _ = play(algorithm, objective, data, 2)
    own = [build(Norm) for _ in data]  # whose statistics a client keeps

    def train(module, k, round):
        if options.get("buffers") == "local":
            module.load_state_dict(dict(own[k].named_buffers()), strict=False)
        own[k] = optimise(module, optimizer(module.parameters(), round), batches_of(*data[k], 4, 2))
        return own[k]

    share = [0.5, 0.5] if options.get("weighting") == "uniform" else [7 / 18, 11 / 18]
    server = federated(build(Norm), 2, share, train, statistics=options.get("buffers") != "keep")
    assert_same(objective, states[-1], server, rtol=1e-4, atol=1e-5)


def test_predict_is_the_global_model_in_eval_mode():
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 16)
    algorithm = FedAvg(local_epochs=1, batch_size=4)
    states, _, _ = play(algorithm, objective, [(x, y)], 1)
    fresh = build(Norm).eval()
    fresh.load_state_dict(objective.state_dict(states[-1].w, states[-1].b), strict=False)
    with torch.no_grad():
        torch.testing.assert_close(algorithm.predict(context(objective), states[-1], x), fresh(x))


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"momentum": 0.0}, lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.3)),
        ({"momentum": 0.9, "branch": 1}, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.3)),
        ({"optimizer": "adam", "branch": 1}, lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.3)),
    ],
    ids=["plain", "momentum", "adam"],
)
def test_a_tensor_that_the_loss_does_not_reach_does_not_decay(options, optimizer):
    """As torch.optim, which passes over a parameter without a gradient, also where only some batches reach it (`branch`
    1: all do)."""
    options = dict(options)
    objective, module = Objective(build(Branches)), build(Branches)
    x, y = inputs(Branches, 16)
    x[:, 0] = x[:, 0].abs() if options.pop("branch", None) else torch.tensor([1.0, -1.0]).repeat_interleave(4).repeat(2)
    states, _, _ = play(
        FedAvg(lr=0.1, weight_decay=0.3, local_epochs=2, batch_size=4, **options), objective, [(x, y)], 1
    )
    optimise(module, optimizer(module.parameters()), batches_of(x, y, 4, 2))
    assert_same(objective, states[-1], module)
    found = objective.state_dict(states[-1].w, states[-1].b)
    assert torch.equal(found["never.weight"], build(Branches).never.weight)
    assert not torch.equal(found["now_and_then.weight"], build(Branches).now_and_then.weight)


def test_a_round_of_another_client_does_not_change_what_decays():
    """What the gradients of one client reached is forgotten when the next one starts."""
    objective = Objective(build(Branches))
    x, y = inputs(Branches, 8)
    x[:, 0] = -1.0
    algorithm = FedAvg(lr=0.1, weight_decay=0.3, local_epochs=1, batch_size=4)
    alone = play(algorithm, objective, [(x, y)], 1)[1][0][0]
    # reaches `now_and_then` as well
    objective.value_and_grad(lambda f: cross_entropy(f(x.abs()), y), *objective.initial())
    assert equal(play(algorithm, objective, [(x, y)], 1)[1][0][0], alone)
