"""`flray bench --algorithms`: the time of each algorithm's local step relative to FedAvg's, and the ratio of their
FLOPs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from flray.algorithms import built_in
from flray.bench.bare import Workload
from flray.config.loader import load_config
from flray.core.network.threads import threads
from flray.core.protocol.clock import Clock
from flray.data import load_dataset
from flray.engine.client import Client
from flray.engine.local_loop import train
from flray.engine.workbench import TaskSummary, Workbench
from flray.scenario import Partition, Scenario

MOST = 1.3  # times its theory: beyond that an algorithm gets profiled
BATCHES = 5  # steps of one measurement
# options with which the first round does the same work as later ones
STEADY: dict[str, dict[str, Any]] = {"fedproj": {"round0": "kl_init"}, "lander": {"lte": "random"}}


def compare_steps(names: Sequence[str], workload: Workload, repeats: int) -> list[dict[str, Any]]:
    """One row per algorithm: ms a step (best), time and FLOPs relative to FedAvg (median over interleaved
    measurements), their ratio.

    One client in this process on one thread; `names` are registered algorithms, `["all"]` every federated one of flray.
    """
    chosen = built_in(federated=True) if list(names) == ["all"] else list(names)
    kinds = list(dict.fromkeys(["fedavg", *chosen]))
    with threads(1):
        trains = {name: local_training(name, workload) for name in kinds}
        times = [{name: train()[0] for name, train in trains.items()} for _ in range(1 + BATCHES * repeats)][1:]
    rows = []
    for name in kinds:
        ratio = median(row[name] / row["fedavg"] for row in times)
        theory = step_cost(name, workload)
        rows.append(
            {
                "algorithm": name,
                "ms/step": 1e3 * min(row[name] for row in times),
                "time / fedavg": ratio,
                "FLOPs / fedavg": theory,
                "time / FLOPs": ratio / theory,
                "verdict": "ok" if ratio <= MOST * theory else f"above {MOST}",
            }
        )
    return rows


def step_cost(name: str, workload: Workload) -> float:
    return float(_experiment(name, workload).algorithm.step_cost())


def local_training(name: str, workload: Workload) -> Callable[[], tuple[float, int]]:
    """Trains one client for a round each time it is called: (seconds of a local step, number of steps)."""
    experiment = _experiment(name, workload)
    index = np.arange(min(BATCHES * workload.batch, workload.images))
    alike = Partition(np.tile(index, workload.clients), np.arange(workload.clients + 1) * len(index))
    scenario = Scenario.ordinary(alike, load_dataset(experiment.data).num_classes)
    bench = Workbench(experiment, TaskSummary.of(scenario))
    clients, clock, algorithm = Client(bench), Clock(), bench.algorithm
    server = bench.context(clock)
    broadcast = algorithm.broadcast(server, algorithm.init_server(server, *bench.objective.initial()))

    def training() -> tuple[float, int]:
        ctx = clients.context(clock, 0, 1.0, index)
        client, data = algorithm.init_client(ctx), bench.client_data(ctx, index)
        started = time.perf_counter()
        steps = train(algorithm, ctx, broadcast, client, data).steps
        return (time.perf_counter() - started) / steps, steps

    return training


def _experiment(name: str, workload: Workload) -> Any:
    options = {
        "name": name,
        "lr": 0.01,
        "momentum": 0.9,
        "local_epochs": 1,
        "batch_size": workload.batch,
        **STEADY.get(name, {}),
    }
    proxy = {"source": "holdout", "size": min(2000, workload.clients * workload.images // 2)}
    return load_config(workload.experiment(1), {"algorithm": options, "proxy": proxy})[0]
