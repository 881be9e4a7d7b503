"""EWC and FedCurv: the penalties against sums over points, one at a time."""

import numpy as np
import torch

from flray.contracts.played import Local
from tests.contracts.table import experiment

TASKS = {
    "rounds": 1,
    "tasks": {"num_tasks": 3},
    "data": {"source": "synthetic", "options": {"shape": 4, "num_classes": 6, "num_train": 180, "num_test": 30}},
    "partition": {"name": "iid", "clients": 3},
}


def penalty_gradient(w, points, factor):
    """The gradient of factor / 2 sum_j sum_i F_ji (w_i - w_ji)^2, in NumPy."""
    w = w.double().numpy()
    return factor * sum(np.float64(f) * (w - np.float64(at)) for f, at in points)


def added(local, client, at):
    """What the penalty adds `[P]` to FedAvg's gradient at `at [P]`, on the client's first samples in the next round."""
    algorithm, runtime, clock = local.experiment.algorithm, local.server.runtime, next(local.schedule())
    assert clock.phase == "round"
    samples = local.scenario.partitions[clock.task].client(client)
    ctx = local.executor.client.context(clock, client, 1.0, samples)
    data, broadcast = runtime.client_data(ctx, samples), algorithm.broadcast(runtime.context(clock), local.state)
    state = local.client_states().get(client) or algorithm.init_client(ctx)
    batch, found = next(iter(data.plain)), []
    for used in (algorithm, algorithm.model_copy(update={"lam": 0.0})):
        carried = used.begin(ctx, broadcast, state, data)
        carried.w.copy_(at)
        found.append(used.gradient(ctx, broadcast, state, carried, batch)[1].double().numpy().copy())
    return found[0] - found[1]


def near(w):
    return w + 0.1 * torch.randn(len(w), generator=torch.Generator().manual_seed(0))


def test_ewc_pulls_to_every_tasks_model_by_that_tasks_information(tmp_path):
    local = Local(experiment("ewc", {"lam": 30.0}, **TASKS), tmp_path)
    points = {k: [] for k in range(3)}
    sums = {k: 0.0 for k in range(3)}
    for task in range(2):
        local.play(1)
        local.task_end()
        row = local.rows[-1]
        traces = []
        for k, state in local.client_states().items():
            f = state.fisher.numpy() - sums[k]
            sums[k] = state.fisher.numpy()
            assert (f >= -1e-6).all() and f.max() > 1e-3
            points[k].append((f, local.state.w.numpy().copy()))
            traces.append(f.sum())
        sizes = [len(local.scenario.partitions[task].client(k)) for k in range(3)]
        np.testing.assert_allclose(row["ewc/fisher_trace"], np.average(traces, weights=sizes), rtol=1e-4)
    while next(local.schedule()).phase != "round":
        local.transaction()
    at = near(local.state.w)
    expected = penalty_gradient(at, points[1], 30.0)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(added(local, 1, at), expected, rtol=1e-3, atol=1e-4)


def test_fedcurv_pulls_to_the_other_clients_of_the_round_before(tmp_path):
    """2 lambda sum_{k != s} F_k (w - w_k), from what each client sent; one that was not there has all of them."""
    sent = {}

    def watch(half, function, *arguments):
        done = function(*arguments)
        if half == "client":
            u = done.update
            sent[arguments[0].client] = (u.fisher.numpy().copy(), u.w.numpy().copy())
        return done

    local = Local(experiment("fedcurv", {"lam": 3.0}, cohort={"size": 3}), tmp_path, watch)
    local.play(1)
    there = list(sent)
    absent = next(k for k in range(5) if k not in there)
    np.testing.assert_allclose(local.state.fisher, sum(f for f, _ in sent.values()), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(local.state.anchor, sum(f * w for f, w in sent.values()), rtol=1e-4, atol=1e-6)
    at = near(local.state.w)
    for client in (there[0], absent):
        expected = penalty_gradient(at, [point for k, point in sent.items() if k != client], 6.0)
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(added(local, client, at), expected, rtol=1e-3, atol=1e-4)
