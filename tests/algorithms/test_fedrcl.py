"""FedRCL against a plain loop in which every sample's terms are computed one by one."""

import pytest
import torch

from flray.algorithms.fedrcl import FedRCL
from flray.core.network.objective import Objective
from flray.models.mlp import MLP
from tests.support.contrast import by_loops
from tests.support.networks import Mlp, assert_same, federated
from tests.support.personal import optimise, plain_loss
from tests.support.rounds import batches_of, play
from tests.support.unequal import pair

LOCAL = {"lr": 0.05, "momentum": 0.9, "local_epochs": 2, "batch_size": 6}


def network():
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return MLP((5,), 3, hidden=(7, 4))


def world():
    return Objective(network()), pair(Mlp, 6, 12)


def transcription(data, rounds, levels=(0, 1), clip=None, tau=0.05, threshold=0.7, rcl="code", weights=(1.0, 1.0)):
    """Hooks take what the hidden layers return, before the activation; the terms of :func:`by_loops`, mean over
    levels."""

    def train(net, k, round):
        seen = []

        def loss(net, batch):
            seen.clear()
            value = plain_loss(net, batch)
            for z in seen:
                terms = by_loops(z.double(), batch.y.tolist(), tau, threshold, rcl)
                value = value + sum(weight * term for weight, term in zip(weights, terms, strict=True)) / len(seen)
            return value

        for level in levels:
            net.layers[level].register_forward_hook(lambda module, taken, given: seen.append(given))
        optimizer = torch.optim.SGD(net.parameters(), LOCAL["lr"], LOCAL["momentum"])
        return optimise(net, optimizer, batches_of(*data[k], 6, 2), loss, clip)

    return federated(network(), rounds, [6 / 18, 12 / 18], train)


@pytest.mark.parametrize(
    ("options", "plain"),
    [
        ({}, {}),
        ({"levels": (1,), "clip": 0.5}, {"levels": (1,), "clip": 0.5}),
        ({"rcl": "paper", "tau": 0.3, "threshold": 0.4}, {"rcl": "paper", "tau": 0.3, "threshold": 0.4}),
        ({"scl_weight": 0.5, "penalty_weight": 2.0, "threshold": 0.2}, {"weights": (0.5, 2.0), "threshold": 0.2}),
    ],
    ids=["code", "one level, clipped", "paper", "weights"],
)
def test_two_rounds_against_loops_over_samples(options, plain):
    objective, data = world()
    states, _, _ = play(FedRCL(**LOCAL, **options), objective, data, 2)
    assert_same(objective, states[-1], transcription(data, 2, **plain), rtol=1e-5, atol=1e-6)


def test_batches_of_one_class_train_without_nan():
    objective, data = world()
    data = [(x, torch.full_like(y, k)) for k, (x, y) in enumerate(data)]
    for rcl in ("code", "paper"):
        states, _, reports = play(FedRCL(**LOCAL, rcl=rcl), objective, data, 2)
        assert torch.isfinite(states[-1].w).all()
        assert all(torch.isfinite(torch.tensor(r["train/loss"])) for r in reports)
