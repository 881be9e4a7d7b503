"""MOON in closed form, and against plain loops as FedSOL's and the original code train it."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from flray.algorithms.fedavg import FedAvg
from flray.algorithms.moon import Moon, MoonClient
from flray.core.messages import Batch, Broadcast, equal
from flray.core.network.objective import Objective
from flray.models.base import Classifier
from tests.support.networks import Mlp, Norm, assert_same, build, federated
from tests.support.personal import optimise
from tests.support.rounds import batches_of, play
from tests.support.small_cases import context
from tests.support.unequal import pair

LOCAL = {"lr": 0.1, "momentum": 0.9, "local_epochs": 2, "batch_size": 4}


def world(kind):
    return Objective(build(kind)), pair(kind, 4, 12)


def transcription(kind, data, rounds, mu, tau, original=False):
    """`train_net_fedcon` (original code) and ModelContrastiveLoss (FedSOL's): CosineSimilarity, logits over tau, label
    0.

    FedSOL: the previous local of round 1 is the initial global model; original: the pool of previous models is empty
    then.
    """
    cosine, previous = nn.CosineSimilarity(dim=-1), [None if original else build(kind).eval() for _ in data]

    def train(net, k, round):
        others = [old for old in (copy.deepcopy(net).eval(), previous[k]) if old is not None]

        def loss(net, batch):
            z = net.features(batch.x)
            logits = torch.stack([cosine(z, old.features(batch.x).detach()) for old in others], dim=1)
            contrast = cross_entropy(logits / tau, torch.zeros(len(batch.x)).long())
            return cross_entropy(net.head(z), batch.y) + mu * contrast

        optimizer = torch.optim.SGD(net.parameters(), LOCAL["lr"], LOCAL["momentum"])
        previous[k] = optimise(net, optimizer, batches_of(*data[k], 4, 2), loss)
        return previous[k]

    return federated(build(kind), rounds, [4 / 16, 12 / 16], train)


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize("without_first", [False, True])  # FedSOL's rule and the original's: the same gradient
@pytest.mark.parametrize(("mu", "tau"), [(1.0, 0.5), (0.1, 1.0), (5.0, 0.5)])
def test_three_rounds_against_the_authors_loops(kind, without_first, mu, tau):
    objective, data = world(kind)
    states, _, _ = play(Moon(**LOCAL, mu=mu, tau=tau), objective, data, 3)
    assert_same(objective, states[-1], transcription(kind, data, 3, mu, tau, without_first), rtol=1e-5, atol=1e-6)


def test_the_proximal_gradient_of_round_1_is_exactly_0():
    """z_p = z_g, the term is the constant log 2: anything else, even rounding, FedSOL would scale to length rho."""
    objective, data = world(Norm)
    algorithm, ctx = Moon(**LOCAL), context(objective)
    broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial()))
    client = algorithm.init_client(ctx)
    local = algorithm.begin(ctx, broadcast, client, None)
    local.w.add_(0.1)
    value, g = algorithm.contrastive_loss(ctx, broadcast, client, local, Batch(*data[0]))
    assert float(value) == pytest.approx(math.log(2)) and not g.any()


# closed form ----------------------------------------------------------------------------------
class Scaled(Classifier):
    """z = w * x with two weights; a head that gives every class the same logit, so that cross-entropy has no
    gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.head = nn.Linear(2, 3)
        for parameter in self.head.parameters():
            parameter.data.zero_()
            parameter.requires_grad_(False)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x


def test_gradient_in_two_weights():
    """One sample x = (1, 1), so z = w.

    With grad cos(z, a) = a / (|z| |a|) - cos z / |z|^2 and q = sigmoid((cos_p - cos_g) / tau):

    grad l_con = q / tau * (grad cos(z, z_p) - grad cos(z, z_g)); l_con = log(1 + e^{(cos_p - cos_g) / tau}).
    """
    objective = Objective(Scaled())
    template = objective.initial()[0]

    def point(values):
        return objective.layout.flatten({"scale": torch.tensor(values)}, objective.device), template[:0]

    ctx, mu, tau = context(objective), 2.0, 0.4
    broadcast, client = Broadcast(*point([1.0, 0.5])), MoonClient(*point([-0.3, 1.0]))
    algorithm = Moon(mu=mu, tau=tau)
    local = algorithm.local_state(ctx, *point([0.8, 0.9]))
    batch = Batch(torch.ones(1, 2), torch.tensor([1]))
    z, z_g, z_p = np.array([0.8, 0.9]), np.array([1.0, 0.5]), np.array([-0.3, 1.0])

    def cosine(a):
        c = z @ a / (np.linalg.norm(z) * np.linalg.norm(a))
        return c, a / (np.linalg.norm(z) * np.linalg.norm(a)) - c * z / (z @ z)

    (cos_g, grad_g), (cos_p, grad_p) = cosine(z_g), cosine(z_p)
    term = np.log1p(np.exp((cos_p - cos_g) / tau))
    expected = (grad_p - grad_g) / tau / (1 + np.exp((cos_g - cos_p) / tau))

    loss, g = algorithm.gradient(ctx, broadcast, client, local, batch)
    np.testing.assert_allclose(objective.views(g)["scale"].numpy(), mu * expected, rtol=1e-5)
    assert float(loss) == pytest.approx(np.log(3) + mu * term, rel=1e-6)
    loss, g = algorithm.contrastive_loss(ctx, broadcast, client, local, batch)
    np.testing.assert_allclose(objective.views(g)["scale"].numpy(), expected, rtol=1e-5)
    assert float(loss) == pytest.approx(term, rel=1e-6)


# what FedSOL composes -------------------------------------------------------------------------
def test_the_proximal_term_is_the_loss_without_cross_entropy():
    """g_moon = g_CE + mu g_p at the same weights; g_p lies in its own scratch, and batch norm sees the batch once."""
    objective, data = world(Norm)
    ctx, batch = context(objective), Batch(*data[0])
    w, b = objective.initial()
    broadcast, client = (
        Broadcast(w, b),
        MoonClient(w + 0.3 * torch.randn(w.shape, generator=torch.Generator().manual_seed(1)), b),
    )
    moon = Moon(**LOCAL, mu=0.7)
    away = w + 0.2 * torch.randn(w.shape, generator=torch.Generator().manual_seed(2))
    gradients, statistics = [], []
    for method in (moon.gradient, FedAvg(**LOCAL).gradient, moon.contrastive_loss):
        local = moon.local_state(ctx, away, b)
        _, g = method(ctx, broadcast, client, local, batch)
        assert torch.equal(local.w, away)
        gradients.append(g.clone())
        statistics.append(local.b.clone())
    whole, plain, term = gradients
    assert term.norm() > 1e-3
    torch.testing.assert_close(whole, plain + 0.7 * term, rtol=1e-5, atol=1e-6)
    assert torch.equal(statistics[0], statistics[1]) and torch.equal(statistics[0], statistics[2])
    assert g.data_ptr() != local.grad.data_ptr(), "the local gradient of the same step is kept"


# state ----------------------------------------------------------------------------------------
def test_a_client_keeps_its_own_last_model_in_tensors_of_its_own():
    objective, algorithm = Objective(build(Norm)), Moon(**LOCAL)
    ctx = context(objective)
    assert equal(algorithm.init_client(ctx), MoonClient(*objective.initial()))
    local = algorithm.local_state(ctx, *objective.initial())
    update, state = algorithm.end(ctx, None, algorithm.init_client(ctx), local, None)
    kept = state.w.clone(), state.b.clone()
    local.w.add_(1)
    local.b.add_(1)
    assert torch.equal(update.w, local.w) and torch.equal(state.w, kept[0]) and torch.equal(state.b, kept[1])


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_mu_0_has_the_bits_of_fedavg(buffers):
    """With `buffers: local` the statistics of the kept model are the client's own."""
    objective, data = world(Norm)
    zero, plain, on = (
        play(a, objective, data, 3)
        for a in (Moon(**LOCAL, mu=0, buffers=buffers), FedAvg(**LOCAL, buffers=buffers), Moon(**LOCAL))
    )
    assert all(equal(a, b) for a, b in zip(zero[0], plain[0], strict=True))
    assert not torch.equal(on[0][-1].w, plain[0][-1].w)
