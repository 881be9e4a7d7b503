"""FedNTD in closed form, and against the authors' criterion in a plain loop."""

import copy

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax

from flray.algorithms.fedntd import FedNTD
from flray.core.messages import Batch, Broadcast
from flray.core.network.objective import Objective
from flray.core.protocol.classes import Classes
from flray.models.mlp import MLP
from tests.support.networks import Mlp, Norm, assert_same, build, federated
from tests.support.personal import optimise
from tests.support.rounds import batches_of, play
from tests.support.small_cases import context
from tests.support.unequal import pair

LOCAL = {"lr": 0.1, "momentum": 0.9, "local_epochs": 2, "batch_size": 4}


def world(kind):
    return Objective(build(kind)), pair(kind, 4, 12)


def not_true(logits, targets):
    """The entries of every row but the target's, by a boolean mask, as `refine_as_not_true` selects them."""
    keep = torch.arange(logits.size(1)).repeat(logits.size(0), 1) != targets.view(-1, 1)
    return logits[keep].view(-1, logits.size(1) - 1)


def ntd_loss(logits, targets, teacher, beta, tau):
    """The authors' NTD_Loss: KLDivLoss (batchmean) of log-probabilities and probabilities, times tau^2."""
    probabilities = torch.softmax(not_true(teacher, targets) / tau, dim=1)
    divergence = nn.KLDivLoss(reduction="batchmean")(log_softmax(not_true(logits, targets) / tau, dim=1), probabilities)
    return cross_entropy(logits, targets) + beta * tau**2 * divergence


@pytest.mark.parametrize("kind", [Mlp, Norm])
@pytest.mark.parametrize(("beta", "tau"), [(1.0, 1.0), (0.3, 3.0)])
def test_two_rounds_against_the_authors_criterion(kind, beta, tau):
    objective, data = world(kind)
    states, _, _ = play(FedNTD(**LOCAL, beta=beta, tau=tau), objective, data, 2)

    def train(net, k, round):
        frozen, optimizer = copy.deepcopy(net).eval(), torch.optim.SGD(net.parameters(), LOCAL["lr"], LOCAL["momentum"])

        def loss(net, batch):
            return ntd_loss(net(batch.x), batch.y, frozen(batch.x).detach(), beta, tau)

        return optimise(net, optimizer, batches_of(*data[k], 4, 2), loss)

    assert_same(objective, states[-1], federated(build(kind), 2, [4 / 16, 12 / 16], train), rtol=1e-5, atol=1e-6)


def test_gradient_of_softmax_regression():
    """Logits W x + c; dL/dz_j = p_j - [j = y] + beta tau (q_j - t_j) for j != y, q and t the not-true softmaxes at tau;
    dL/dW = dL/dz x^T.

    NumPy, one sample with y = 1, 4 classes.
    """
    objective = Objective(MLP((2,), 4, hidden=()))
    w, b = objective.initial()
    generator = torch.Generator().manual_seed(0)
    broadcast, here = Broadcast(torch.randn(w.shape, generator=generator), b), torch.randn(w.shape, generator=generator)
    algorithm, ctx = FedNTD(beta=0.6, tau=2.0), context(objective)
    x = np.array([0.5, -1.5])
    batch = Batch(torch.tensor([[0.5, -1.5]]), torch.tensor([1]))
    _, g = algorithm.gradient(ctx, broadcast, (), algorithm.local_state(ctx, here, b), batch)

    def logits(point):
        views = {n: t.double().numpy() for n, t in objective.views(point).items()}
        return views["head.weight"] @ x + views["head.bias"]

    z, z_g = logits(here), logits(broadcast.w)
    others = [0, 2, 3]
    expected = softmax(z) - np.array([0, 1, 0, 0])
    expected[others] += 0.6 * 2.0 * (softmax(z[others] / 2) - softmax(z_g[others] / 2))
    np.testing.assert_allclose(objective.views(g)["head.bias"].numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(objective.views(g)["head.weight"].numpy(), np.outer(expected, x), atol=1e-6)


def test_in_a_later_task_the_loss_reads_its_classes_and_the_distillation_all_seen():
    """Head of 4 classes, task 0 had class 3, task 1 has 0 and 1, class 2 is not seen yet. With z the logits, bias
    gradient: softmax over {0, 1} minus the label, plus beta tau (q - p) over the seen classes but the label."""
    objective = Objective(MLP((2,), 4, hidden=()))
    w, b = objective.initial()
    broadcast, here = Broadcast(torch.linspace(-1, 1, len(w)), b), torch.linspace(1, -0.5, len(w)) ** 2
    ctx, algorithm = context(objective, classes=Classes([[3], [0, 1]], 4)), FedNTD(beta=0.6, tau=2.0)
    batch = Batch(torch.tensor([[0.5, -1.5]]), torch.tensor([1]))
    _, g = algorithm.gradient(ctx, broadcast, (), algorithm.local_state(ctx, here, b), batch)

    z, z_g = (objective.at(point, b)(batch.x)[0].double().numpy() for point in (here, broadcast.w))

    expected = np.zeros(4)
    expected[[0, 1]] += softmax(z[[0, 1]]) - [0, 1]
    expected[[0, 3]] += 0.6 * 2.0 * (softmax(z[[0, 3]] / 2) - softmax(z_g[[0, 3]] / 2))
    np.testing.assert_allclose(objective.views(g)["head.bias"].numpy(), expected, atol=1e-6)
