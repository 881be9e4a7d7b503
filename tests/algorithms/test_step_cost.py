"""The declared cost of a local step, in steps of FedAvg, against torch's counter."""

from typing import Any

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from flray.algorithms import built_in
from flray.bench.bare import Workload
from flray.config.loader import load_config
from flray.core.protocol.clock import Clock
from flray.data import load_dataset
from flray.engine.client import Client, train
from flray.engine.runtime import Runtime, TaskSummary
from flray.scenario import Partition, Scenario

CONVOLUTIONS = Workload(1, 100, (16, 16, 3), 1, 20, {"name": "fedavg_cnn"})
# options with which the first round does the same work as later ones
STEADY: dict[str, dict[str, Any]] = {"fedproj": {"round0": "kl_init"}, "lander": {"lte": "random"}}
UNLIKE = {
    "fedpec",  # its students are networks of their own: no multiple of the model's step
    "der",  # at its first training no stored sample has logits
    "glfc",  # the old model, a third of a step, comes with the second task; a first round looks for prototypes
    "lga",  # as GLFC
}


def flops(name: str) -> tuple[float, float]:
    """(counted FLOPs of a local step of one client in its first round, the declared cost)."""
    options = {"name": name, "lr": 0.01, "momentum": 0.9, "local_epochs": 1, "batch_size": 20, **STEADY.get(name, {})}
    proxy = {"source": "holdout", "size": 50}
    experiment = load_config(CONVOLUTIONS.experiment(1), {"algorithm": options, "proxy": proxy})[0]
    index = np.arange(100)
    partition = Partition(index, np.array([0, 100]))
    scenario = Scenario.ordinary(partition, load_dataset(experiment.data).num_classes)
    runtime = Runtime(experiment, TaskSummary.of(scenario))
    clock, algorithm = Clock(), runtime.algorithm
    server = runtime.context(clock)
    broadcast = algorithm.broadcast(server, algorithm.init_server(server, *runtime.objective.initial()))
    ctx = Client(runtime).context(clock, 0, 1.0, index)
    client, data = algorithm.init_client(ctx), runtime.client_data(ctx, index)
    with FlopCounterMode(display=False) as counter:
        steps = train(algorithm, ctx, broadcast, client, data).steps
    return counter.get_total_flops() / steps, float(algorithm.step_cost())


@pytest.fixture(scope="module")
def fedavg() -> float:
    return flops("fedavg")[0]


@pytest.mark.parametrize("name", sorted({*built_in(federated=True)} - UNLIKE))
def test_the_declared_cost_of_a_step_is_what_torch_counts(name: str, fedavg: float):
    """FLOPs of matrix products and convolutions in one step over FedAvg's. The first layer has no gradient for its
    input and the head costs next to nothing, so thirds are off by a few per cent; Fed+SCR and LANDER have two."""
    counted, declared = flops(name)
    assert counted / fedavg == pytest.approx(declared, rel=0.1 if name in ("fedscr", "lander") else 0.06)
