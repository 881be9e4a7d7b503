"""FedSAM in closed form, and against a loop over modules that perturbs in place, steps, and averages (both public
codes' forms)."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flray.algorithms.fedsam import FedSAM
from flray.core.errors import ConfigError
from flray.core.objective import Objective
from tests.algorithms.rounds import play
from tests.algorithms.test_fedavg import Quadratic
from tests.core.networks import Conv, Mlp, Norm, build, inputs
from tests.ops.support import context


class QuadraticSAM(FedSAM, Quadratic, frozen=True):
    """On f_k(w) = 1/2 ||w - a_k||^2."""


def test_closed_form_on_a_quadratic():
    """e = rho (w - a) / r with r = ||w - a||, so a step keeps the direction and maps the radius: r' = (1 - lr) r - lr
    rho.

    for _ in range(3): r = 0.9 * r - 0.1 * 0.5
    """
    objective = Objective(build(Mlp))
    data = [(torch.full((3, 5), 2.0), torch.zeros(3, dtype=torch.long))]
    sam = QuadraticSAM(lr=0.1, momentum=0.0, local_epochs=3, batch_size=3, rho=0.5, eps=0.0)
    states, _, _ = play(sam, objective, data, 1)
    start = states[0].w.double().numpy() - 2
    r = np.linalg.norm(start)
    direction = start / r
    for _ in range(3):
        r = 0.9 * r - 0.1 * 0.5
    np.testing.assert_allclose(states[1].w.numpy(), 2 + r * direction, rtol=1e-5, atol=1e-6)


def split_statistics(module, moving):
    """`momentum = 0`, as FedSOL's code does it, or the momentum of construction."""
    for m in module.modules():
        if isinstance(m, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            m.momentum = 0.1 if moving else 0.0


def chosen(named, part):
    """Whether a parameter is in the perturbed part, one after the other."""
    return [part == "all" or n.startswith("head.") == (part == "head") for n, _ in named]


def perturb_sam(named, rho, eps, part="all"):
    gradients = [p.grad * inside for (_, p), inside in zip(named, chosen(named, part), strict=True)]
    norm = torch.stack([g.norm() for g in gradients]).norm() + eps
    return [rho / norm * g for g in gradients]


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
            local.append((len(x) / total, module.state_dict()))
        server.load_state_dict(
            {n: sum(p * s[n] for p, s in local) if t.is_floating_point() else t for n, t in server.state_dict().items()}
        )
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
    found = objective.state_dict(states[-1].w, states[-1].b)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(
                found[name], tensor, rtol=1e-5, atol=2e-6, msg=lambda m, name=name: f"{name}: {m}"
            )
    assert reports[-1]["train/loss"] == pytest.approx(loss, rel=1e-5), "the loss at w"


@pytest.mark.parametrize("kind", [Mlp, Norm, Conv])
@pytest.mark.parametrize(("rho", "eps", "both"), [(0.1, 1e-12, False), (0.5, 1e-16, True), (0.5, 1.0, False)])
def test_two_rounds_against_a_loop_over_modules(kind, rho, eps, both):
    algorithm = FedSAM(rho=rho, eps=eps, bn_passes="both" if both else "first")
    assert_equal_to_a_loop(algorithm, kind, lambda named: perturb_sam(named, rho, eps), both)


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_part_alone_is_perturbed(kind, part):
    assert_equal_to_a_loop(
        FedSAM(rho=0.5, eps=1e-12, perturb=part), kind, lambda named: perturb_sam(named, 0.5, 1e-12, part), True
    )


def test_a_part_of_a_network_without_a_head_is_refused():
    objective = Objective(torch.nn.Linear(5, 3))
    with pytest.raises(ConfigError, match="declares no trainable `head`: perturb: head or body needs one"):
        FedSAM(perturb="head").init_server(context(objective), *objective.initial())
