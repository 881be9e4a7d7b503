"""The terms of other methods that FedSOL climbs: value and gradient are those of the printed term, by autograd."""

from __future__ import annotations

import pytest
import torch

from flray.algorithms.feddyn import FedDyn
from flray.algorithms.fednova import FedNova
from flray.algorithms.fedprox import FedProx
from flray.algorithms.scaffold import Scaffold
from flray.core.network.objective import Objective
from tests.support.networks import Mlp, build
from tests.support.small_cases import context, normal

OF_SIX = {"num_examples": 6, "population": 4, "total_examples": 48}  # the mean client has 12 samples


def squared(w, start):
    return 0.5 * ((w - start) ** 2).sum()


# the method, what its server and its client hold, and the term at w from `start`: without a factor mu, with alpha
TERMS = {
    "fedprox": (FedProx(mu=0.3), (), (), {}, lambda w, start, server, client: squared(w, start)),
    "scaffold": (Scaffold(), ("c",), ("c",), {}, lambda w, start, server, client: ((server - client) * w).sum()),
    "fednova": (
        FedNova(ccvr="fixed"),
        ("dbar",),
        ("d",),
        {},
        lambda w, start, server, client: ((server - client) * w).sum(),
    ),
    "fednova without ccvr": (FedNova(), (), (), {}, lambda w, start, server, client: 0 * w.sum()),
    "feddyn": (
        FedDyn(alpha=0.3),
        (),
        ("h",),
        OF_SIX,
        lambda w, start, server, client: 0.3 * squared(w, start) - (client * w).sum(),
    ),
    "feddyn, official": (  # alpha is 0.3 times 12 / 6
        FedDyn(alpha=0.3, official=True),
        (),
        ("h",),
        OF_SIX,
        lambda w, start, server, client: 0.6 * squared(w, start) - (client * w).sum(),
    ),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_and_its_gradient_are_those_of_autograd(name):
    algorithm, of_server, of_client, facts, printed = TERMS[name]
    objective = Objective(build(Mlp))
    ctx, size = context(objective, **facts), objective.layout.size
    held = normal(size), normal(size, seed=1)
    state = algorithm.init_server(ctx, *objective.initial()).replace(**dict.fromkeys(of_server, held[0]))
    client = algorithm.init_client(ctx)
    client = client.replace(**dict.fromkeys(of_client, held[1])) if of_client else client
    broadcast = algorithm.broadcast(ctx, state)
    local = algorithm.begin(ctx, broadcast, client, None)
    w = (local.w + normal(size, seed=2)).requires_grad_()
    expected = printed(w, broadcast.w, *held)
    term = algorithm.proximal_term(ctx, broadcast, client, local.replace(w=w.detach()))
    torch.testing.assert_close(term.value(w.detach()), expected.detach(), check_dtype=False)
    found = term.gradient(w.detach(), torch.empty(size))
    torch.testing.assert_close(found, torch.autograd.grad(expected, w)[0])
