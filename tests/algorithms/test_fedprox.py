"""FedProx in closed form, and against FedSOL's way of writing it: the penalty in the loss of a module."""

import numpy as np
import torch

from flray.algorithms.fedprox import FedProx
from flray.core.network.objective import Objective
from tests.support.losses import Quadratic, two_clients
from tests.support.networks import Mlp, Norm, assert_same, build, federated
from tests.support.personal import optimise, plain_loss
from tests.support.rounds import batches_of, play
from tests.support.unequal import clients


class QuadraticProx(FedProx, Quadratic, frozen=True):
    """On f_k(w) = 1/2 ||w - a_k||^2."""


def test_closed_form_on_quadratics():
    """Gradient (w - a) + mu (w - w_g) = (1 + mu) (w - p), p = (a + mu w_g) / (1 + mu); tau steps contract to p by (1 -
    lr (1 + mu))^tau:

    mu, lr = 0.5, 0.1; w0 = w; for _ in range(2): w = sum(q * (p + (1 - lr * (1 + mu)) ** t * (w - p)) ...)
    """
    objective = Objective(build(Mlp))
    prox = QuadraticProx(lr=0.1, momentum=0.0, local_epochs=2, batch_size=3, mu=0.5)
    states, _, _ = play(prox, objective, two_clients(), 2)
    w = states[0].w.double().numpy()
    for round in range(2):
        points = [(a + 0.5 * w) / 1.5 for a in (2, -1)]
        w = 0.25 * (points[0] + 0.85**2 * (w - points[0])) + 0.75 * (points[1] + 0.85**6 * (w - points[1]))
        np.testing.assert_allclose(states[round + 1].w.numpy(), w, rtol=1e-5, atol=1e-6)


def test_three_rounds_against_the_penalty_in_the_loss():
    """loss = CE + mu/2 sum (p - p_g)^2 over `parameters()`, SGD with momentum and weight decay, states averaged by n_k
    / n."""
    objective, data = Objective(build(Norm)), clients(2)
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2, "batch_size": 4}
    states, _, _ = play(FedProx(mu=0.7, **options), objective, data, 3)

    def train(module, k, round):
        start = [p.detach().clone() for p in module.parameters()]

        def loss(module, batch):
            near = sum(((p - g) ** 2).sum() for p, g in zip(module.parameters(), start, strict=True))
            return plain_loss(module, batch) + 0.35 * near

        optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9, weight_decay=0.01)
        return optimise(module, optimizer, batches_of(*data[k], 4, 2), loss)

    server = federated(build(Norm), 3, [11 / 14, 3 / 14], train)
    assert_same(objective, states[-1], server, rtol=1e-6, atol=1e-6)
