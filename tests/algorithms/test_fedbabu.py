"""FedBABU against FedSOL's frozen classifier in plain torch; what it sends; heads in any place."""

import pytest
import torch
from torch import nn

from flray.algorithms.fedbabu import BodyMessage, FedBABU
from flray.core.messages import nbytes
from flray.core.network.objective import Objective
from flray.models.base import Classifier
from tests.support.networks import Mlp, Norm, assert_same, build, federated
from tests.support.personal import Epochs, assert_predicts, client_context, optimise
from tests.support.rounds import batches_of, play
from tests.support.small_cases import context
from tests.support.unequal import pair


class FirstHead(Classifier):
    """The head is registered first and consists of two layers; `heading` is a body layer whose name starts with
    `head`."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3))
        self.heading = nn.Linear(5, 7)

    def features(self, x):
        return torch.tanh(self.heading(x))


def head_of(objective, w):
    return {n: v.clone() for n, v in objective.views(w).items() if n.startswith("head.")}


@pytest.mark.parametrize("kind", [Norm, FirstHead])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_two_rounds_against_modules_with_a_frozen_head(kind, weighting):
    objective, data = Objective(build(kind)), pair(kind)
    algorithm = FedBABU(
        lr=0.1, momentum=0.9, weight_decay=0.05, lr_decay=0.5, local_epochs=2, batch_size=4, weighting=weighting
    )
    states, _, _ = play(algorithm, objective, data, 2)

    def train(module, k, round):
        module.head.requires_grad_(False)
        optimizer = torch.optim.SGD(module.parameters(), 0.1 * 0.5**round, 0.9, weight_decay=0.05)
        return optimise(module, optimizer, batches_of(*data[k], 4, 2))

    share = [7 / 18, 11 / 18] if weighting == "examples" else [0.5, 0.5]
    assert_same(objective, states[-1], federated(build(kind), 2, share, train))


@pytest.mark.parametrize("kind", [Mlp, FirstHead])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_head_never_moves_and_the_body_does(kind, optimizer):
    objective = Objective(build(kind))
    states, _, _ = play(
        FedBABU(lr=0.1, weight_decay=0.5, optimizer=optimizer, local_epochs=2, batch_size=4),
        objective,
        pair(kind),
        3,
    )
    first, last = head_of(objective, states[0].w), head_of(objective, states[-1].w)
    assert first and all(torch.equal(first[n], last[n]) for n in first)
    assert all(
        not torch.equal(v, objective.views(states[0].w)[n])
        for n, v in objective.views(states[-1].w).items()
        if n not in first
    )


@pytest.mark.parametrize("kind", [Norm, FirstHead])
def test_both_messages_hold_the_body_and_the_statistics_and_nothing_else(kind):
    """P - P_head numbers without the gaps of the flat vector, and Q: 4 bytes each; completed, they are the model."""
    module = build(kind)
    objective, algorithm = Objective(module), FedBABU(lr=0.1, local_epochs=1, batch_size=4)
    states, updates, _ = play(algorithm, objective, pair(kind), 1)
    body = sum(p.numel() for p in module.parameters()) - sum(p.numel() for p in module.head.parameters())
    broadcast = algorithm.broadcast(context(objective), states[-1])
    for message in (broadcast, *updates[0]):
        assert message.body.numel() == body
        assert nbytes(message) == 4 * (body + message.b.numel())
    w, b = algorithm.model_of(context(objective), broadcast)
    assert torch.equal(w, states[-1].w) and torch.equal(b, states[-1].b)
    for update in updates[0]:
        whole, _ = algorithm.model_of(context(objective), update)
        assert not torch.equal(whole, w)
        assert all(torch.equal(v, head_of(objective, w)[n]) for n, v in head_of(objective, whole).items())


def test_fine_tuning_trains_head_and_body_together():
    """From the common head and the averaged body, SGD on all parameters at the decayed rate."""
    objective, data = Objective(build(Norm)), pair(Norm)
    algorithm = FedBABU(lr=0.1, momentum=0.9, weight_decay=0.01, lr_decay=0.5, local_epochs=1, batch_size=4)
    states, _, _ = play(algorithm, objective, data, 2)
    x, y = data[1]
    module = build(Norm)
    module.load_state_dict(objective.state_dict(states[-1].w, states[-1].b), strict=False)
    head = module.head.weight.detach().clone()
    batches = Epochs(x, y, 4, 2)
    optimise(module, torch.optim.SGD(module.parameters(), 0.1 * 0.5**2, 0.9, weight_decay=0.01), batches)
    assert not torch.allclose(module.head.weight, head, atol=1e-3)
    broadcast = algorithm.broadcast(context(objective), states[-1])
    predictor = algorithm.personalize(client_context(objective, x, round=2), broadcast, (), batches)
    assert_predicts(predictor, module, x)


def test_statistics_of_its_own_stay_on_the_client():
    """`buffers: local` works on the completed broadcast: the update's statistics are those of training from the
    client's own."""
    objective, data = Objective(build(Norm)), pair(Norm)
    kept = play(FedBABU(lr=0.1, local_epochs=1, batch_size=4, buffers="local"), objective, data, 2)[1][1]
    shared = play(FedBABU(lr=0.1, local_epochs=1, batch_size=4), objective, data, 2)[1][1]
    assert isinstance(kept[0], BodyMessage)
    assert not torch.equal(kept[0].b, shared[0].b)
