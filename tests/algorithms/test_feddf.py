"""FedDF: what the server half starts from, and how it is told to differ."""

from __future__ import annotations

import pytest
import torch

from flray.algorithms.fedavg import FedAvg
from flray.algorithms.feddf import FedDF
from flray.core.network.objective import Objective
from flray.ops.losses import kl
from tests.support.networks import Mlp, Norm, build, inputs
from tests.support.rounds import play
from tests.support.small_cases import ListProxy

LOCAL = {"lr": 0.2, "local_epochs": 2, "batch_size": 4}


def world(kind):
    x, y = inputs(kind, 18)  # no batch of two, in which batch norm enlarges a rounding error a thousandfold
    return Objective(build(kind)), [(x[:7], y[:7]), (2 * x[7:], y[7:])], ListProxy(inputs(kind, 11, seed=7)[0])


@pytest.mark.parametrize("kind", [Mlp, Norm])
def test_with_a_tiny_distillation_rate_the_student_is_the_average(kind):
    """w_feddf -> w_fedavg as distill_lr -> 0: Adam's steps have length at most lr in every place."""
    objective, data, proxy = world(kind)
    (_, plain), _, _ = play(FedAvg(**LOCAL), objective, data, 1)
    distances = []
    for rate in (1e-3, 1e-9):
        (_, fused), _, _ = play(FedDF(**LOCAL, distill_lr=rate), objective, data, 1, proxy)
        distances.append(float((fused.w - plain.w).abs().max()))
    assert distances[1] < 1e-6 < distances[0] <= 1.5e-3


def test_distillation_brings_the_student_nearer_to_the_ensemble():
    """memory/drift is KL(ensemble || student) at T = 1 over the whole proxy set, from its own definition."""
    objective, data, proxy = world(Mlp)
    drifts = {}
    for epochs, rate in ((1, 1e-9), (30, 0.01)):
        states, updates, _ = play(
            FedDF(**LOCAL, distill_lr=rate, distill_epochs=epochs, temperature=1.0), objective, data, 1, proxy
        )
        with torch.no_grad():
            each = torch.stack([objective.at(u.w, u.b)(proxy.x) for u in updates[0]])
            drifts[rate] = float(kl(each.mean(0), objective.at(states[1].w, states[1].b)(proxy.x)))
    assert drifts[0.01] < 0.5 * drifts[1e-9]


def test_statistics_of_the_server_follow_the_policy():
    objective, data, proxy = world(Norm)
    b = {}
    for policy in ("average", "keep"):
        states, _, _ = play(FedDF(**LOCAL, buffers=policy, distill_lr=1e-3), objective, data, 1, proxy)
        b[policy] = states[1].b
    assert torch.equal(b["keep"], objective.initial()[1])
    assert not torch.equal(b["average"], b["keep"])
