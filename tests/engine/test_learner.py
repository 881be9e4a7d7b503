"""Training on all data in one place, without Ray: against a plain torch loop, and split over workers."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from flray.algorithms import ALGORITHMS
from flray.config.loader import load_config
from flray.core.messages import equal, map_tensors
from flray.core.protocol.clock import Clock
from flray.core.protocol.seeding import rng, torch_seed
from flray.core.schema.hp import hyperparameters
from flray.engine.learner import Learner
from flray.engine.prepare import build_data, build_scenario
from flray.engine.runtime import Runtime, TaskSummary
from flray.models import build_model

NORM = {"name": "tests.contracts.networks:NormNet"}


def config(model=NORM, **algorithm):
    options = {"name": "centralized", "lr": 0.05, "local_epochs": 2, "batch_size": 8, **algorithm}
    return load_config(
        {
            "seed": 3,
            "rounds": 2,
            "data": {"source": "iris", "standardize": True},
            "partition": {"name": "iid", "clients": 5},
            "model": model,
            "algorithm": options,
            "evaluate": {"batch_size": 8},  # of 30 test samples: every worker has some
        }
    )[0]


INDICES = np.arange(0, 100, 2)  # 50 samples: batches of 8, the last one of 2


def learner(experiment, rank=0, world=1, gather=None, samples=INDICES):
    scenario = build_scenario(experiment, build_data(experiment))
    return Learner(Runtime(experiment, TaskSummary.of(scenario)), [samples], rank, world, gather)


def train(worker, rounds=2, state=None, first=0):
    """(state, what each round gave, test)."""
    if state is None:
        state = worker.algorithm.init_server(worker.context(Clock()), *worker.runtime.objective.initial())
    rows = []
    for clock in (Clock(0, round, done=round) for round in range(first, rounds)):
        state, metrics, steps = worker.round(state, clock)
        (counts,) = worker.test(state, clock).values()
        rows.append(({name: float(value) for name, value in metrics.items()}, steps, (counts.accuracy, counts.loss)))
    return state, rows


def split(experiment, world, **options):
    """The same on `world` workers, each in a thread of its own."""
    barrier, sent = threading.Barrier(world), [None] * world

    def gatherer(rank):
        def gather(tensor):
            sent[rank] = tensor.clone()
            barrier.wait()
            found = [theirs.clone() for theirs in sent]
            barrier.wait()
            return found

        return gather

    # one after the other: torch's generator is the process's
    workers = [learner(experiment, rank, world, gatherer(rank)) for rank in range(world)]
    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(lambda worker: train(worker, **options), workers))


# maths ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("model", "shards", "optimizer"),
    [
        (NORM, 1, "sgd"),
        (NORM, 1, "adam"),
        ({"name": "mlp", "hidden": [8]}, 4, "sgd"),
        ({"name": "mlp", "hidden": [8]}, 3, "adam"),
    ],
)
def test_it_is_a_plain_torch_loop(model, shards, optimizer):
    """One `torch.optim` object over both rounds, the rate halved in the second; batch norm only where a batch is one
    part."""
    experiment = config(model, shards=shards, optimizer=optimizer, momentum=0.5, weight_decay=0.01, lr_decay=0.5)
    worker = learner(experiment)
    state, rows = train(worker)

    data = worker.runtime.dataset
    net = build_model(experiment.model, (4,), 3, torch_seed(3, "model")).train()
    optim = {
        "sgd": lambda p: torch.optim.SGD(p, momentum=0.5, weight_decay=0.01, lr=0.05),
        "adam": lambda p: torch.optim.Adam(p, 0.05, weight_decay=0.01),
    }
    optimiser = optim[optimizer](net.parameters())
    for round in range(2):
        optimiser.param_groups[0]["lr"] = 0.05 * 0.5**round
        losses = []
        for epoch in range(2):
            order = INDICES[rng(3, 0, round, 0, -1, "batches", epoch).permutation(50)]
            for start in range(0, 50, 8):
                batch = order[start : start + 8]
                loss = F.cross_entropy(net(torch.tensor(data.train.x[batch])), torch.tensor(data.train.y[batch]))
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(loss.item())
        assert rows[round][0]["train/loss"] == pytest.approx(np.mean(losses), abs=1e-5)
        assert rows[round][1] == len(losses) == 14
    found = worker.runtime.objective.state_dict(state.w, state.b)
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=2e-6, msg=name)
    net.eval()
    with torch.no_grad():
        logits = net(torch.tensor(np.array(data.test.x)))
    assert rows[1][2][0] == pytest.approx((logits.argmax(1).numpy() == data.test.y).mean())
    assert rows[1][2][1] == pytest.approx(F.cross_entropy(logits, torch.tensor(data.test.y)).item(), abs=1e-5)


def test_a_part_has_its_own_batch_norm_and_the_statistics_are_the_weighted_mean():
    """One batch of 5 in parts of ceil(5 / 2) = 3 and 2: mean' = 0.9 mean + 0.1 (3/5 m_1 + 2/5 m_2)."""
    experiment = config(batch_size=5, local_epochs=1, shards=2, lr=1e-12, momentum=0.0)
    worker = learner(experiment, samples=INDICES[:5])
    state, _ = train(worker, 1)
    data, net = worker.runtime.dataset, build_model(experiment.model, (4,), 3, torch_seed(3, "model"))
    order = INDICES[:5][rng(3, 0, 0, 0, -1, "batches", 0).permutation(5)]
    means = [
        net.hidden(torch.tensor(data.train.x[part])).view(-1, 4, 2).mean((0, 2)) for part in (order[:3], order[3:])
    ]
    want = 0.1 * (0.6 * means[0] + 0.4 * means[1])
    found = worker.runtime.objective.buffer_layout.views(state.b)["norm.running_mean"]
    torch.testing.assert_close(found, want.detach(), rtol=0, atol=1e-6)


def test_a_round_of_a_drift_trains_on_what_is_left_and_one_without_samples_changes_nothing():
    """Round 1 of 20 samples is 3 steps an epoch, two epochs; round 2 of none keeps the state; round 3 of 50 is 14."""
    experiment = config()
    worker, same = learner(experiment), learner(experiment, samples=INDICES[:20])
    worker.drifted = {0: INDICES[:20], 1: INDICES[:0]}
    states, rows = [], []
    for rounds in (1, 2, 3):
        state, found = train(worker, rounds, states[-1] if states else None, rounds - 1)
        states.append(state)
        rows += found
    assert [steps for _, steps, _ in rows] == [6, 0, 14] and rows[1][0] == {} and rows[1][2] == rows[0][2]
    assert torch.equal(states[0].w, train(same, 1)[0].w) and states[1] is states[0]
    assert not torch.equal(states[2].w, states[1].w)


# workers --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shards", "worlds", "batch"), [(4, (2, 3, 4), 8), (5, (2, 3, 5), 8), (8, (3,), 10), (2, (2,), 64)]
)
def test_the_bits_do_not_depend_on_the_number_of_workers(shards, worlds, batch):
    """With batch norm, short last batches and workers that have no sample of them."""
    experiment = config(shards=shards, batch_size=batch)
    alone = train(learner(experiment))
    for world in worlds:
        for state, rows in split(experiment, world):
            assert equal(state, alone[0]) and rows == alone[1]


def test_a_round_needs_only_the_state_before_it():
    """The optimiser is part of the state: going on from a copy in another process is going on."""
    experiment = config(optimizer="adam")
    whole, _ = train(learner(experiment), 4)
    half, _ = train(learner(experiment), 2)
    assert equal(train(learner(experiment), 4, map_tensors(torch.clone, half), 2)[0], whole)
    begun = half.replace(moments=half.moments.replace(steps=0))
    assert not torch.equal(train(learner(experiment), 4, begun, 2)[0].w, whole.w)


def test_the_state_that_was_given_stays_as_it_is():
    worker = learner(config())
    state, _ = train(worker, 1)
    before = map_tensors(torch.clone, state)
    train(worker, 3, state, 1)
    assert equal(state, before)


CHANGES = {
    "last_batch": "drop",
    "lr": 0.06, "lr_decay": 0.9, "optimizer": "adam", "momentum": 0.5, "weight_decay": 0.1, "local_epochs": 3,
    "batch_size": 5, "shards": 2,
}  # fmt: skip


@pytest.mark.parametrize("parameter", [p.name for p in hyperparameters(ALGORITHMS.get("centralized"))])
def test_every_hyper_parameter_changes_the_outcome(parameter):
    assert not torch.equal(
        train(learner(config()))[0].w, train(learner(config(**{parameter: CHANGES[parameter]})))[0].w
    )
