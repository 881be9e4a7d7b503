"""Per-FedAvg against FedSOL's loop, against double backward, and in closed form on quadratics."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from flray.algorithms.perfedavg import PerFedAvg
from flray.core.messages import Broadcast
from flray.core.network.objective import Objective
from tests.support.networks import Mlp, Norm, assert_same, build, federated, inputs
from tests.support.personal import Epochs, assert_predicts, client_context, optimise
from tests.support.rounds import batches_of, play
from tests.support.unequal import pair


def loss_at(module, batch):
    module.zero_grad()
    loss = cross_entropy(module(batch.x), batch.y)
    loss.backward()


def code_pairs(module, batches, batch_pairs, lr, beta, momentum, weight_decay):
    """FedSOL's `train`: one SGD object, its rate switched; the parameters are put back before the second step, buffers
    are not."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0, momentum=momentum, weight_decay=weight_decay)
    endless = itertools.cycle(batches)
    module.train()
    for _ in range(batch_pairs):
        kept = copy.deepcopy(list(module.parameters()))
        optimizer.param_groups[0]["lr"] = lr
        loss_at(module, next(endless))
        optimizer.step()
        optimizer.param_groups[0]["lr"] = beta
        loss_at(module, next(endless))
        for parameter, old in zip(module.parameters(), kept, strict=True):
            parameter.data = old.data.clone()
        optimizer.step()
    return module


def clean_pairs(module, batches, batch_pairs, lr, outer, weight_decay):
    """Two optimisers: plain SGD leads to w', `outer` never sees that step."""
    inner = torch.optim.SGD(module.parameters(), lr=lr, weight_decay=weight_decay)
    optimizer = outer(module.parameters())
    endless = itertools.cycle(batches)
    module.train()
    for _ in range(batch_pairs):
        kept = [p.detach().clone() for p in module.parameters()]
        loss_at(module, next(endless))
        inner.step()
        loss_at(module, next(endless))
        with torch.no_grad():
            torch._foreach_copy_(list(module.parameters()), kept)
        optimizer.step()
    return module


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_form_code_is_the_loop_of_fedsol(epochs):
    """E ceil(n_b / E) pairs of an endless iterator; the inner rate decays, beta does not."""
    objective, data = Objective(build(Norm)), pair(Norm)
    algorithm = PerFedAvg(
        form="code",
        lr=0.05,
        lr_decay=0.5,
        beta=0.02,
        momentum=0.9,
        weight_decay=0.01,
        local_epochs=epochs,
        batch_size=4,
    )
    states, _, _ = play(algorithm, objective, data, 2)

    def train(module, k, round):
        batches = batches_of(*data[k], 4, 1)
        batch_pairs = epochs * math.ceil(len(batches) / epochs)
        return code_pairs(module, batches, batch_pairs, 0.05 * 0.5**round, 0.02, 0.9, 0.01)

    assert_same(objective, states[-1], federated(build(Norm), 2, [7 / 18, 11 / 18], train))


@pytest.mark.parametrize(
    ("options", "outer"),
    [
        ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01)),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.01)),
    ],
    ids=["sgd", "adam"],
)
def test_form_clean_keeps_the_inner_step_out_of_the_optimiser(options, outer):
    """3 epochs of 2 and 3 batches: 3 and ceil(9 / 2) = 5 pairs."""
    objective, data = Objective(build(Norm)), pair(Norm)
    algorithm = PerFedAvg(lr=0.1, beta=0.05, weight_decay=0.01, local_epochs=3, batch_size=4, **options)
    states, _, _ = play(algorithm, objective, data, 2)

    def train(module, k, round):
        return clean_pairs(module, batches_of(*data[k], 4, 1), (3, 5)[k], 0.1, outer, 0.01)

    server = federated(build(Norm), 2, [7 / 18, 11 / 18], train)
    assert_same(objective, states[-1], server, rtol=1e-4, atol=1e-5)


class Quadratic(PerFedAvg, frozen=True):
    """On L(w; B) = h/2 norm(w - c)^2 with (h, c) the first sample of the batch."""

    def gradient(self, ctx, broadcast, client, local, batch):
        h, c = batch.x[0]
        difference = local.w - c
        return 0.5 * h * (difference**2).sum(), difference * h


@pytest.mark.parametrize("hf", [False, True])
def test_closed_form_on_quadratics(hf):
    """Two pairs from w with (h1, c1) = (2, 1), (h2, c2) = (0.5, -3), gamma = 0.3, beta = 0.2:

    for _ in range(2):
        v = 0.5 * (w - 0.3 * 2 * (w - 1) + 3)
        w = w - 0.2 * ((1 - 0.3 * 2) * v if hf else v)
    """
    objective = Objective(build(Mlp))
    x, y = torch.tensor([[2.0, 1.0], [0.5, -3.0]]), torch.zeros(2, dtype=torch.long)
    states, _, _ = play(
        Quadratic(lr=0.3, beta=0.2, hf=hf, momentum=0.0, local_epochs=2, batch_size=1), objective, [(x, y)], 1
    )
    w = states[0].w.double().numpy()
    for _ in range(2):
        v = 0.5 * (w - 0.6 * (w - 1) + 3)
        w = w - 0.2 * (0.4 * v if hf else v)
    np.testing.assert_allclose(states[1].w.numpy(), w, rtol=1e-4, atol=1e-4)


def test_hf_is_the_gradient_through_the_inner_step():
    """One pair; the update over beta is d/dw L(w - gamma grad L(w; B1); B2) by double backward, and not the first-order
    one."""
    objective = Objective(build(Mlp))
    x, y = inputs(Mlp, 8)
    options = {"lr": 0.5, "beta": 0.1, "momentum": 0.0, "local_epochs": 1, "batch_size": 4, "delta": 1e-2}
    w0, _ = objective.initial()
    meta = {}
    for hf in (True, False):
        states, _, _ = play(PerFedAvg(hf=hf, **options), objective, [(x, y)], 1)
        meta[hf] = (w0 - states[1].w) / 0.1
    module = build(Mlp)
    names, parameters = zip(*module.named_parameters(), strict=True)

    def loss(values, rows):
        return cross_entropy(functional_call(module, dict(zip(names, values, strict=True)), (x[rows],)), y[rows])

    first = torch.autograd.grad(loss(parameters, slice(0, 4)), parameters, create_graph=True)
    adapted = [p - 0.5 * g for p, g in zip(parameters, first, strict=True)]
    exact = torch.autograd.grad(loss(adapted, slice(4, 8)), parameters)
    expected = objective.layout.flatten(dict(zip(names, exact, strict=True)))
    torch.testing.assert_close(meta[True], expected, rtol=1e-3, atol=2e-5)
    assert (meta[False] - expected).norm() > 0.05 * expected.norm()


def test_hf_leaves_the_statistics_to_the_two_steps():
    """With momentum 0 and one pair, b after HF is b after FO: the probes at w +- delta v are not seen by it."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 8)
    options = {"lr": 0.5, "momentum": 0.0, "local_epochs": 1, "batch_size": 4}
    b = [play(PerFedAvg(hf=hf, **options), objective, [(x, y)], 1)[0][1].b for hf in (False, True)]
    assert torch.equal(*b) and not torch.equal(b[0], objective.initial()[1])


@pytest.mark.parametrize("form", ["clean", "code"])
def test_every_client_gets_whole_pairs_and_the_engine_can_cut_them(form):
    """Counted as written: FedSOL's two loops, or pairs until E epochs are used up."""
    sizes = np.arange(1, 60)
    for epochs in (1, 2, 3, 5, 7):
        algorithm = PerFedAvg(form=form, local_epochs=epochs, batch_size=4)
        steps = algorithm.local_steps(sizes)
        for n, found in zip(sizes, steps, strict=True):
            batches, batch_pairs = math.ceil(n / 4), 0
            if form == "code":
                for _ in range(epochs):
                    for _ in range(math.ceil(batches / epochs)):
                        batch_pairs += 1
            else:
                while 2 * batch_pairs < epochs * batches:
                    batch_pairs += 1
            assert found == 2 * batch_pairs
            assert found <= batches * algorithm.local_batches[1], "more than the engine's epochs hold"


def by_step(module, batches, epochs):
    """w - alpha grad L(w; B) on the first batch of 4, whatever the optimiser of the outer steps."""
    return optimise(module, torch.optim.SGD(module.parameters(), RATE), batches[: bool(epochs)])


def by_code(module, batches, epochs):
    """E_ft ceil(n_b / E) pairs of the iterator, E = 2."""
    return code_pairs(module, batches, epochs * 2, RATE, 0.05, 0.9, 0.0)


def by_meta(module, batches, epochs):
    """One epoch of 3 batches: 2 pairs, the last one completed by the first batch."""
    return clean_pairs(module, batches, 2, RATE, lambda p: torch.optim.SGD(p, 0.05, 0.9), 0.0)


RATE = 0.1 * 0.5**2  # gamma after two rounds
PERSONAL = [
    *itertools.product([{}, {"optimizer": "adam"}, {"form": "code", "adaptation": "step"}], [0, 1, 3], [by_step]),
    *itertools.product([{"form": "code", "local_epochs": 2}], [0, 1, 3], [by_code]),
    ({"adaptation": "meta", "local_epochs": 5}, 1, by_meta),
]


@pytest.mark.parametrize(("options", "finetune_epochs", "adapted"), PERSONAL)
def test_a_client_adapts_by_one_plain_gradient_step_or_by_the_procedure(options, finetune_epochs, adapted):
    """From the broadcast; tested in eval mode."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 11)
    algorithm = PerFedAvg(**{"lr": 0.1, "lr_decay": 0.5, "beta": 0.05, "momentum": 0.9, "batch_size": 4, **options})
    ctx, broadcast = client_context(objective, x, round=2), Broadcast(*objective.initial())
    predictor = algorithm.personalize(ctx, broadcast, (), Epochs(x, y, 4, finetune_epochs))
    assert_predicts(predictor, adapted(build(Norm), batches_of(x, y, 4, 1), finetune_epochs).eval(), x)
