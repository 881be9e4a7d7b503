"""SAM and its relatives as a loop over modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

from flray.core.network.objective import Objective
from tests.support.networks import assert_same, averaged, build, inputs
from tests.support.rounds import play


def split_statistics(module, moving):
    """`momentum = 0`, as FedSOL's code does it, or the momentum of construction."""
    for m in module.modules():
        if isinstance(m, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            m.momentum = 0.1 if moving else 0.0


def chosen(named, part):
    """Whether a parameter is in the perturbed part, one after the other."""
    return [part == "all" or n.startswith("head.") == (part == "head") for n, _ in named]


def loop(kind, data, rounds, perturb, both, lr, momentum, weight_decay, epochs, size):
    """The global module after some rounds. `perturb([(name, parameter)])`: e of every parameter from its `.grad`."""
    server = build(kind)
    total = sum(len(x) for x, _ in data)
    first = []  # losses of the last client's first passes, last round
    for _ in range(rounds):
        local = []
        for x, y in data:
            module, first = copy.deepcopy(server).train(), []
            optimizer = torch.optim.SGD(module.parameters(), lr, momentum, weight_decay=weight_decay)
            for i in [i for _ in range(epochs) for i in range(0, len(x), size)]:
                bx, by = x[i : i + size], y[i : i + size]
                split_statistics(module, True)
                optimizer.zero_grad()
                loss = cross_entropy(module(bx), by)
                first.append(loss.item())
                loss.backward()
                with torch.no_grad():
                    before = [p.clone() for p in module.parameters()]
                    for p, e in zip(module.parameters(), perturb(list(module.named_parameters())), strict=True):
                        p += e
                optimizer.zero_grad()
                split_statistics(module, both)
                cross_entropy(module(bx), by).backward()
                with torch.no_grad():
                    for p, kept in zip(module.parameters(), before, strict=True):
                        p.copy_(kept)
                optimizer.step()
            local.append(module)
        server = averaged(server, local, [len(x) / total for x, _ in data])
    return server, sum(first) / len(first)


def assert_equal_to_a_loop(algorithm, kind, perturb, both):
    objective = Objective(build(kind))
    x, y = inputs(kind, 20)
    data = [(x[:8], y[:8]), (2 * x[8:], y[8:])]  # whole batches: two samples make batch norm blow rounding up
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    states, _, reports = play(
        algorithm.model_copy(update={**options, "local_epochs": 2, "batch_size": 4}), objective, data, 2
    )
    module, loss = loop(kind, data, 2, perturb, both, **options, epochs=2, size=4)
    assert_same(objective, states[-1], module, rtol=1e-5, atol=2e-6)
    assert reports[-1]["train/loss"] == pytest.approx(loss, rel=1e-5), "the loss at w"
