"""The terms of other methods that FedSOL climbs: value and gradient are those of the printed term, by autograd."""

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


def squared(w, start, *_):
    return 0.5 * ((w - start) ** 2).sum()


def linear(w, _, server, client):
    return ((server - client) * w).sum()


def of_feddyn(alpha):
    return lambda w, start, _, client: alpha * squared(w, start) - (client * w).sum()


# the method, what its server and its client hold, and the term without a factor mu, but with alpha
TERMS = {
    "fedprox": (FedProx(mu=0.3), (), (), squared),
    "scaffold": (Scaffold(), ("c",), ("c",), linear),
    "fednova": (FedNova(ccvr="fixed"), ("dbar",), ("d",), linear),
    "fednova without ccvr": (FedNova(), (), (), lambda w, *_: 0 * w.sum()),
    "feddyn": (FedDyn(alpha=0.3), (), ("h",), of_feddyn(0.3)),
    "feddyn, official": (FedDyn(alpha=0.3, official=True), (), ("h",), of_feddyn(0.3 * 12 / 6)),
}


@pytest.mark.parametrize("name", TERMS)
def test_a_term_and_its_gradient_are_those_of_autograd(name):
    algorithm, of_server, of_client, printed = TERMS[name]
    objective = Objective(build(Mlp))
    ctx, size = context(objective, **OF_SIX), objective.layout.size
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
