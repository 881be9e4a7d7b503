"""SAM and its relatives as a loop over modules."""

import copy

import numpy as np
import pytest
import torch

from flray.core.network.objective import Objective
from tests.support.networks import assert_same, build, federated, in_float64, inputs
from tests.support.personal import plain_loss
from tests.support.rounds import batches_of, play

SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "local_epochs": 2, "batch_size": 4}


def split_statistics(module, moving):
    """`momentum = 0`, as FedSOL's code does it, or the momentum of construction."""
    for m in module.modules():
        if isinstance(m, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            m.momentum = 0.1 if moving else 0.0


def chosen(named, part):
    """Whether a parameter is in the perturbed part, one after the other."""
    return [part == "all" or n.startswith("head.") == (part == "head") for n, _ in named]


def loop(server, data, rounds, perturb, both=False, climbed=lambda module, teacher, batch: plain_loss(module, batch)):
    """The global module after some rounds; of each client in the last one the mean losses at w, `climbed(module,
    teacher, batch)`, and at w + e. `perturb([(name, parameter)], teacher)`: e of every parameter from its `.grad`; the
    teacher is the global module."""
    losses = {}

    def train(module, k, round):
        teacher, losses[k] = copy.deepcopy(module).eval(), []
        optimizer = torch.optim.SGD(module.parameters(), SGD["lr"], SGD["momentum"], weight_decay=SGD["weight_decay"])
        module.train()
        for batch in batches_of(*data[k], 4, 2):
            split_statistics(module, True)
            optimizer.zero_grad()
            first = climbed(module, teacher, batch)
            first.backward()
            with torch.no_grad():
                before = [p.clone() for p in module.parameters()]
                for p, e in zip(module.parameters(), perturb(list(module.named_parameters()), teacher), strict=True):
                    p += e
            optimizer.zero_grad()
            split_statistics(module, both)
            second = plain_loss(module, batch)
            second.backward()
            with torch.no_grad():
                for p, kept in zip(module.parameters(), before, strict=True):
                    p.copy_(kept)
            optimizer.step()
            losses[k].append((first.item(), second.item()))
        return module

    total = sum(len(x) for x, _ in data)
    server = federated(server, rounds, [len(x) / total for x, _ in data], train)
    return server, [np.mean(losses[k], axis=0) for k in range(len(data))]


def assert_equal_to_a_loop(algorithm, kind, perturb, both):
    """In float64, to the last digits."""
    server = in_float64(build(kind))
    objective = Objective(copy.deepcopy(server), dtype=torch.float64)
    x, y = inputs(kind, 20)
    data = [(x[:8], y[:8]), (2 * x[8:], y[8:])]  # whole batches: two samples make batch norm blow rounding up
    states, _, reports = play(algorithm.model_copy(update=SGD), objective, data, 2)
    module, losses = loop(server, data, 2, perturb, both)
    assert_same(objective, states[-1], module, rtol=0, atol=1e-12)
    assert [r["train/loss"] for r in reports] == pytest.approx([at_w for at_w, _ in losses], rel=1e-5)
