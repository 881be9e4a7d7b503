"""A client's local training: what is called, and how many steps the server half is told of."""

import numpy as np
import torch

from flray.algorithms.fedavg import FedAvg
from flray.core.network.objective import Objective
from flray.engine.client import train
from tests.support.losses import Quadratic
from tests.support.networks import Mlp, build, inputs
from tests.support.personal import client_context
from tests.support.rounds import Federation, held


class Fixed(Quadratic, frozen=True):
    """So many local steps a round, whatever a client holds; on f_k(w) = 1/2 ||w - a_k||^2."""

    number: int = 50

    def local_steps(self, num_examples):
        return np.full(len(num_examples), self.number)

    def aggregate(self, ctx, state, updates, cohort):
        return super().aggregate(ctx, state, updates, cohort)[0], {"told": cohort.num_steps}


def test_fifty_steps_that_are_asked_for_are_fifty_steps_that_are_done_and_told():
    """3 and 9 samples in batches of 4 are epochs of 1 and 3 batches: 50 epochs, and 16 and two batches of a 17th.

    50 steps of gradient descent contract by 0.99 ** 50 towards a_k; w' = sum_k p_k (a_k + 0.99 ** 50 (w - a_k)).
    """
    sizes, a = (3, 9), (2.0, -1.0)
    data = [(torch.full((n, 5), s), torch.zeros(n, dtype=torch.long)) for n, s in zip(sizes, a, strict=True)]
    federation = Federation(Fixed(lr=0.01, momentum=0.0, batch_size=4), Objective(build(Mlp)), data)
    federation.round()
    (exchanged,) = federation.exchanged
    assert exchanged.metrics["told"] == [50.0, 50.0]
    assert [row["num_steps"] for row in exchanged.rows] == [50, 50]
    w = federation.states[0].w.double().numpy()
    local = [s + 0.99**50 * (w - s) for s in a]
    for update, expected in zip(federation.updates[0], local, strict=True):
        np.testing.assert_allclose(update.w.numpy(), expected, rtol=1e-4, atol=1e-5)
    after = 0.25 * local[0] + 0.75 * local[1]
    np.testing.assert_allclose(federation.states[1].w.numpy(), after, rtol=1e-4, atol=1e-5)


class Short(FedAvg, frozen=True):
    """Stops after two batches of those that were planned."""

    def batches(self, ctx, broadcast, client, local, data):
        return list(super().batches(ctx, broadcast, client, local, data))[:2]


def test_steps_and_examples_are_those_really_taken():
    objective, (x, y) = Objective(build(Mlp)), inputs(Mlp, 11)
    for algorithm, steps, examples in ((FedAvg, 6, 22), (Short, 2, 8)):
        algorithm = algorithm(local_epochs=2, batch_size=4)
        ctx = client_context(objective, x, num_steps=6)
        broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial()))
        done = train(algorithm, ctx, broadcast, (), held(x, y))
        assert (done.steps, done.examples) == (steps, examples)
    federation = Federation(algorithm, objective, [(x, y)])
    federation.round()
    assert [row["num_steps"] for row in federation.exchanged[0].rows] == [2]


CALLED = []


class Told(FedAvg, frozen=True):
    """Notes in `CALLED` what is called with which data, and the labels of every batch."""

    def begin(self, ctx, broadcast, client, data):
        CALLED.append(("begin", data))
        return super().begin(ctx, broadcast, client, data)

    def batches(self, ctx, broadcast, client, local, data):
        CALLED.append(("batches", data))
        return super().batches(ctx, broadcast, client, local, data)

    def step(self, ctx, broadcast, client, local, batch):
        CALLED.append(("step", batch.y.tolist()))
        return super().step(ctx, broadcast, client, local, batch)

    def end(self, ctx, broadcast, client, local, data):
        CALLED.append(("end", data))
        return super().end(ctx, broadcast, client, local, data)


def test_begin_batches_a_step_for_each_and_end_read_the_same_data():
    objective, (x, y) = Objective(build(Mlp)), inputs(Mlp, 7)
    algorithm, data = Told(local_epochs=2, batch_size=4), held(x, y)
    ctx = client_context(objective, x, num_steps=4)
    broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial()))
    steps = [("step", y[:4].tolist()), ("step", y[4:].tolist())]
    CALLED.clear()
    done = train(algorithm, ctx, broadcast, (), data)
    assert [("begin", data), ("batches", data), *steps, *steps, ("end", data)] == CALLED
    assert done.metrics["train/loss"] > 0


def test_without_samples_nothing_is_trained():
    objective, (x, y) = Objective(build(Mlp)), inputs(Mlp, 1)
    algorithm, ctx = FedAvg(), client_context(objective, x[:0], num_steps=0)
    broadcast = algorithm.broadcast(ctx, algorithm.init_server(ctx, *objective.initial()))
    done = train(algorithm, ctx, broadcast, (), held(x[:0], y[:0]))
    assert (done.steps, done.examples) == (0, 0) and torch.equal(done.update.w, broadcast.w)
