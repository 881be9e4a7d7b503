"""Local training: rounds of one optimiser, as one plain torch loop."""

import pytest
import torch

from flray.algorithms.local import Local
from flray.core.messages import equal, map_tensors, nbytes
from flray.core.network.objective import Objective
from flray.engine.client import train
from tests.support.networks import Norm, assert_same, build, inputs
from tests.support.personal import Epochs, assert_predicts, client_context, optimise
from tests.support.rounds import alone, batches_of, held, play
from tests.support.small_cases import context


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"momentum": 0.9, "weight_decay": 0.01}, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        ({"momentum": 0.0}, lambda p: torch.optim.SGD(p, 0.1)),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, 0.1)),
    ],
    ids=["momentum", "plain", "adam"],
)
def test_four_rounds_are_four_epochs_of_one_optimiser(options, optimizer):
    """FedSOL: StepLR(gamma=0.99 there, 0.7 here) after every epoch, momentum kept, from the common initial
    parameters."""
    objective = Objective(build(Norm))
    # no batch of two: of two samples batch norm makes +-1, their gradient is rounding, and Adam enlarges it
    x, y = inputs(Norm, 11)
    algorithm = Local(lr=0.1, lr_decay=0.7, local_epochs=1, batch_size=4, **options)
    _, clients = alone(algorithm, objective, x, y, 4)
    module = build(Norm)
    steps = optimizer(module.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(steps, step_size=1, gamma=0.7)
    for epoch in range(4):
        assert_same(objective, clients[epoch], module, rtol=1e-5, atol=1e-5)
        optimise(module, steps, batches_of(x, y, 4, 1))
        schedule.step()
    assert_same(objective, clients[4], module, rtol=1e-5, atol=1e-5)
    # a new optimiser in every round, FedAvg's habit, ends elsewhere
    if options != {"momentum": 0.0}:
        fresh = clients[3].replace(moments=algorithm.init_client(context(objective)).moments)
        ctx = client_context(objective, x, round=3, num_steps=3)
        again = train(algorithm, ctx, (), fresh, held(x, y)).state
        assert not torch.allclose(again.w, clients[4].w, atol=1e-4)


def test_nothing_travels_and_nobody_predicts_for_all():
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 16)
    algorithm = Local(lr=0.1, local_epochs=2, batch_size=4)
    states, updates, reports = play(algorithm, objective, [(x[:6], y[:6]), (x[6:], y[6:])], 2)
    assert nbytes(algorithm.broadcast(context(objective), states[0])) == 0
    assert all(nbytes(update) == 0 for of_round in updates for update in of_round)
    assert states == [(), (), ()] and not algorithm.global_model
    with pytest.raises(RuntimeError, match="no global model"):
        algorithm.predict(context(objective), states[-1], x)
    assert 0 < reports[0]["train/loss"] < 3


def test_the_loss_is_that_of_the_rounds_own_steps():
    """Two full batches: the mean of the losses at the two points, also in round 2, where the optimiser has 2 steps
    behind it."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 8)
    algorithm = Local(lr=0.1, momentum=0.0, local_epochs=2, batch_size=8)
    module, losses = build(Norm), []
    steps = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(4):
        module.train()
        losses.append(float(torch.nn.functional.cross_entropy(module(x), y).detach()))
        optimise(module, steps, batches_of(x, y, 8, 1))
    assert play(algorithm, objective, [(x, y)], 2)[2][0]["train/loss"] == pytest.approx(sum(losses[2:]) / 2, rel=1e-5)


def test_clients_keep_their_own_models():
    """Trained in turn or each by itself: the same states; scratch of one does not leak into another."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 16)
    algorithm = Local(lr=0.1, local_epochs=1, batch_size=4)
    first = alone(algorithm, objective, x[:6], y[:6], 2)[1][2]
    kept = map_tensors(torch.clone, first)
    alone(algorithm, objective, x[6:], y[6:], 2)
    assert equal(first, kept)


@pytest.mark.parametrize(
    ("options", "sizes"), [({"momentum": 0.0}, (0, 0)), ({}, (1, 0)), ({"optimizer": "adam"}, (1, 1))]
)
def test_a_client_stores_only_the_moments_that_its_optimiser_reads(options, sizes):
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 8)
    _, clients = alone(Local(lr=0.1, local_epochs=1, batch_size=4, **options), objective, x, y, 1)
    for client in clients:
        assert [len(m) for m in (client.moments.first, client.moments.second)] == [
            size * len(client.w) for size in sizes
        ]
    assert (clients[0].moments.steps, clients[1].moments.steps) == (0, 2)


@pytest.mark.parametrize("finetune_epochs", [0, 2])
def test_the_predictor_is_the_clients_own_model(finetune_epochs):
    """Fine-tuned further by a new optimiser at the rate after 2 rounds; the initial model of a client that never took
    part."""
    objective = Objective(build(Norm))
    x, y = inputs(Norm, 11)
    algorithm = Local(lr=0.1, momentum=0.9, lr_decay=0.5, local_epochs=1, batch_size=4)
    _, clients = alone(algorithm, objective, x, y, 2)
    ctx, batches = client_context(objective, x, round=2), Epochs(x, y, 4, finetune_epochs)
    for client in (clients[2], clients[0]):
        module = build(Norm)
        module.load_state_dict(objective.state_dict(client.w, client.b), strict=False)
        optimise(module, torch.optim.SGD(module.parameters(), 0.1 * 0.5**2, 0.9), batches)
        predictor = algorithm.personalize(ctx, (), client, batches)
        assert_predicts(predictor, module, x)
