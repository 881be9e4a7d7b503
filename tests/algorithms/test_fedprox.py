"""FedProx in closed form, and against FedSOL's way of writing it: the penalty in the loss of a module."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from flray.algorithms.fedprox import FedProx
from flray.core.network.objective import Objective
from tests.support.losses import Quadratic
from tests.support.networks import Mlp, Norm, assert_same, averaged, build
from tests.support.rounds import play
from tests.support.small_cases import context, normal
from tests.support.unequal import clients


class QuadraticProx(FedProx, Quadratic, frozen=True):
    """On f_k(w) = 1/2 ||w - a_k||^2."""


def test_closed_form_on_quadratics():
    """Gradient (w - a) + mu (w - w_g) = (1 + mu) (w - p), p = (a + mu w_g) / (1 + mu); tau steps contract to p by (1 -
    lr (1 + mu))^tau:

    mu, lr = 0.5, 0.1; w0 = w; for _ in range(2): w = sum(q * (p + (1 - lr * (1 + mu)) ** t * (w - p)) ...)
    """
    objective = Objective(build(Mlp))
    data = [
        (torch.full((3, 5), 2.0), torch.zeros(3, dtype=torch.long)),
        (torch.full((9, 5), -1.0), torch.zeros(9, dtype=torch.long)),
    ]
    states, _, _ = play(QuadraticProx(lr=0.1, momentum=0.0, local_epochs=2, batch_size=3, mu=0.5), objective, data, 2)
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
    server = build(Norm)
    for _ in range(3):
        local = []
        for cx, cy in data:
            module = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9, weight_decay=0.01)
            for _ in range(2):
                for i in range(0, len(cx), 4):
                    near = sum(
                        ((p - g.detach()) ** 2).sum()
                        for p, g in zip(module.parameters(), server.parameters(), strict=True)
                    )
                    optimizer.zero_grad()
                    (cross_entropy(module(cx[i : i + 4]), cy[i : i + 4]) + 0.35 * near).backward()
                    optimizer.step()
            local.append(module)
        server = averaged(server, local, [11 / 14, 3 / 14])
    assert_same(objective, states[-1], server, rtol=1e-6, atol=1e-6)


def test_proximal_loss_and_its_gradient_are_those_of_half_the_squared_distance():
    """autograd of 1/2 ||w - w_g||^2, without mu."""
    objective = Objective(build(Mlp))
    algorithm, ctx = FedProx(mu=0.3), context(objective)
    broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial()))
    local = algorithm.begin(ctx, broadcast, (), None)
    w = (local.w + normal(len(local.w))).requires_grad_()
    expected = 0.5 * ((w - broadcast.w) ** 2).sum()
    term = algorithm.proximal_term(ctx, broadcast, (), local)
    torch.testing.assert_close(term.value(w.detach()), expected.detach())
    torch.testing.assert_close(term.gradient(w.detach(), torch.empty(len(w))), torch.autograd.grad(expected, w)[0])
