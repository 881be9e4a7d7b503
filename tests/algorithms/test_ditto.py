"""Ditto in closed form, and against the authors' interleaved loop with modules and torch.optim."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flray.algorithms.ditto import Ditto
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Update, equal
from flray.core.network.objective import Objective
from tests.support.networks import Mlp, Norm, assert_same, build, inputs
from tests.support.personal import Epochs, assert_predicts, client_context, optimise
from tests.support.rounds import alone, play
from tests.support.unequal import pair


class Quadratic(Ditto, frozen=True):
    """On F(w) = 1/2 norm(w - a)^2 with a = the first number of the client's data in every place."""

    def gradient(self, ctx, broadcast, client, local, batch):
        difference = local.w - batch.x[0, 0]
        return 0.5 * (difference**2).sum(), difference.clone()


@pytest.mark.parametrize("personal_epochs", [None, 1, 4])
def test_closed_form_on_a_quadratic(personal_epochs):
    """a = 2, eta = 0.1, lam = 0.5, 2 steps an epoch, 3 local epochs, s epochs of v; w^t is the round's broadcast
    throughout:

    for _ in range(3):
        for _ in range(2 * s): v = v - 0.1 * ((v - 2) + 0.5 * (v - w))
        w = 2 + 0.9 ** 6 * (w - 2)
    """
    objective = Objective(build(Mlp))
    x, y = torch.full((4, 5), 2.0), torch.zeros(4, dtype=torch.long)
    algorithm = Quadratic(lr=0.1, lam=0.5, momentum=0.0, local_epochs=3, batch_size=2, personal_epochs=personal_epochs)
    states, clients = alone(algorithm, objective, x, y, 3)
    w = v = states[0].w.double().numpy()
    for round in range(3):
        for _ in range(2 * (personal_epochs or 3)):
            v = v - 0.1 * ((v - 2) + 0.5 * (v - w))
        w = 2 + 0.9**6 * (w - 2)
        np.testing.assert_allclose(states[round + 1].w.numpy(), w, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(clients[round + 1].v.numpy(), v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"momentum": 0.0}, lambda p: torch.optim.SGD(p, 0.1)),
        ({"momentum": 0.9, "weight_decay": 0.01}, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        ({"optimizer": "adam", "lr": 0.01}, lambda p: torch.optim.Adam(p, 0.01)),
    ],
    ids=["authors", "momentum", "adam"],
)
def test_three_rounds_against_the_authors_loop(options, optimizer):
    """litian96/ditto: on every batch first v with grad + lam (v - w^t), then the client's copy of the global model."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 11)
    states, clients = alone(
        Ditto(**{"lr": 0.1, "lam": 0.7, "local_epochs": 2, "batch_size": 4, **options}), objective, x, y, 3
    )
    server = build(Norm)
    personal = copy.deepcopy(server)
    for _ in range(3):
        local, anchor = copy.deepcopy(server).train(), [p.detach().clone() for p in server.parameters()]
        personal.train()
        for_local, for_personal = optimizer(local.parameters()), optimizer(personal.parameters())
        for _ in range(2):
            for i in range(0, 11, 4):
                personal.zero_grad()
                pull = sum(((p - a) ** 2).sum() for p, a in zip(personal.parameters(), anchor, strict=True))
                (cross_entropy(personal(x[i : i + 4]), y[i : i + 4]) + 0.35 * pull).backward()
                for_personal.step()
                local.zero_grad()
                cross_entropy(local(x[i : i + 4]), y[i : i + 4]).backward()
                for_local.step()
        server = local
    assert_same(objective, states[-1], server, rtol=1e-4, atol=1e-5)
    assert_same(objective, Update(clients[-1].v, clients[-1].statistics), personal, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"personal_epochs": 1}, {"personal_epochs": 4}, {"optimizer": "adam"}, {"buffers": "local"}]
)
def test_the_global_model_has_the_bits_of_fedavg(options):
    objective = Objective(build(Norm))
    data = pair(Norm, 6, 10)
    common = {"lr": 0.1, "local_epochs": 2, "batch_size": 4}
    states, updates, reports = play(Ditto(**common, **options), objective, data, 3)
    options = {k: v for k, v in options.items() if k != "personal_epochs"}
    plain, plain_updates, plain_reports = play(FedAvg(**common, **options), objective, data, 3)
    assert all(equal(a, b) for a, b in zip(states, plain, strict=True))
    assert all(equal(a, b) for r, s in zip(updates, plain_updates, strict=True) for a, b in zip(r, s, strict=True))
    assert [r["train/loss"] for r in reports] == [r["train/loss"] for r in plain_reports]


def test_without_a_pull_the_personal_model_trains_alone():
    """lam = 0: in round 1, from the same start, v has the bits of the client's copy of the global model; with a pull it
    has not, and a strong pull holds it nearer to the broadcast."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 10)
    first = {}
    for lam in (0.0, 0.5, 5.0):
        states, clients = alone(Ditto(lr=0.1, lam=lam, local_epochs=2, batch_size=4), objective, x, y, 1)
        first[lam] = clients[1].v
    assert torch.equal(first[0.0], states[1].w) and torch.equal(clients[0].v, states[0].w)
    distance = [float((first[lam] - states[0].w).norm()) for lam in (0.0, 0.5, 5.0)]
    assert distance[0] > distance[1] > distance[2]


def test_a_client_keeps_its_model_and_not_that_of_the_one_before():
    """Scratch is shared between clients: the states of two clients trained in turn are those of each trained by
    itself."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 16)
    algorithm = Ditto(lr=0.1, local_epochs=2, batch_size=4, optimizer="adam")
    apart = [alone(algorithm, objective, x[s], y[s], 1)[1][1] for s in (slice(0, 6), slice(6, 16))]
    alone(algorithm, objective, 3 * x, y, 1)
    again = [alone(algorithm, objective, x[s], y[s], 1)[1][1] for s in (slice(0, 6), slice(6, 16))]
    assert all(equal(a, b) for a, b in zip(apart, again, strict=True)) and not torch.equal(apart[0].v, apart[1].v)


@pytest.mark.parametrize("finetune_epochs", [0, 2])
def test_the_predictor_is_the_clients_own_model_fine_tuned_without_the_pull(finetune_epochs):
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 11)
    algorithm = Ditto(lr=0.1, momentum=0.9, local_epochs=2, batch_size=4, lr_decay=0.5)
    states, clients = alone(algorithm, objective, x, y, 2)
    ctx, batches = client_context(objective, x, round=2), Epochs(x, y, 4, finetune_epochs)
    for client in (clients[2], clients[0]):  # one that trained, and one that never took part: the initial parameters
        module = build(Norm)
        module.load_state_dict(objective.state_dict(client.v, client.statistics), strict=False)
        optimise(module, torch.optim.SGD(module.parameters(), 0.1 * 0.5**2, 0.9), batches)
        predictor = algorithm.personalize(ctx, states[2], client, batches)
        assert_predicts(predictor, module, x)
    assert torch.equal(clients[0].v, objective.initial()[0])
