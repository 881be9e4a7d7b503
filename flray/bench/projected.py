"""The cost of FedProTIP on ResNet-18 with the bases of ten tasks: its local step beside FedAvg's, and a task's end.

The bases are random orthonormal ones, as large as those of Table 14 after ten tasks: 23.9 MiB a client, five clients,
which is 0.36 of all directions of the last two stages. In the first row the early layers are frozen and have no basis,
as in the paper; in the second nothing is frozen and every layer has that share. Seconds are CPU time on one thread, on
which other load on the machine has little influence.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from flray.algorithms.fedprotip import FedProTIP
from flray.algorithms.task_prediction import PredictingState
from flray.bench.bare import Workload
from flray.config.loader import load_config
from flray.core.messages import Cohort, nbytes
from flray.core.network.threads import threads
from flray.core.protocol.clock import Clock
from flray.data import load_dataset
from flray.engine.client import Client
from flray.engine.workbench import TaskSummary, Workbench
from flray.scenario import build

SHARE = 0.36  # q / d
BATCH, BATCHES = 64, 2  # samples of a batch; batches with collected activations
NETWORK = {"name": "resnet18", "pool_out": [2, 2]}
NOW = Clock(task=1, round=1, done=2)
Found = dict[str, tuple[float, str]]  # name -> value, detail


def costs(repeats: int, network: dict[str, Any] | None = None, side: int = 32) -> Found:
    """The rows by name; `repeats` times both algorithms take a step in turns, on one thread."""
    with threads(1):
        plain = Half("fedavg", "none", network or NETWORK, side)
        frozen = Half("fedprotip", "early", network or NETWORK, side)
        every = Half("fedprotip", "none", network or NETWORK, side)
        times = [[half.step() for half in (plain, frozen, every)] for _ in range(1 + 2 * repeats)][1:]
        rows: Found = {}
        for place, (name, half) in enumerate((("frozen", frozen), ("all layers", every)), start=1):
            ratios = sorted(row[place] / row[0] for row in times)
            best = [1e3 * min(row[i] for row in times) for i in (place, 0)]
            size = nbytes(half.state.blocks) / 2**20
            detail = f"{best[0]:.0f} and {best[1]:.0f} ms, bases of {size:.0f} MiB, begin {1e3 * half.begun:.0f} ms"
            spread = f"ratios {ratios[0]:.2f} to {ratios[-1]:.2f}"
            rows[f"FedProTIP/FedAvg step, {name}"] = (median(ratios), f"{detail}; {spread}")
        rows["FedProTIP end of a task"] = frozen.task_end()
    return rows


class Half:
    """One client of an algorithm, in the second of two tasks, with the bases of ten tasks."""

    def __init__(self, name: str, freeze: str, network: dict[str, Any], side: int) -> None:
        shape = (side, side, 3)
        images = Workload(1, 2 * BATCH * BATCHES, shape, 1, BATCH, network)
        algorithm = {"name": name, "lr": 0.01, "momentum": 0.0, "batch_size": BATCH, "weight_decay": 5e-4}
        chosen = images.experiment(2, tasks={"num_tasks": 2, "freeze": freeze})
        experiment = load_config(chosen, {"algorithm": algorithm})[0]
        scenario = build(load_dataset(experiment.data), experiment.partition, seed=0, tasks=experiment.tasks)
        self.bench = Workbench(experiment, TaskSummary.of(scenario))
        self.algorithm: Any = self.bench.algorithm
        self.ctx = Client(self.bench).context(NOW, 0, 1.0, scenario.partitions[1].client(0))
        self.data = self.bench.client_data(self.ctx, scenario.partitions[1].client(0))
        self.client = self.algorithm.init_client(self.ctx)
        self.state: Any = self.algorithm.init_server(self.ctx, *self.bench.objective.initial())
        if isinstance(self.algorithm, FedProTIP):
            draws = torch.Generator().manual_seed(0)
            keys = {key: layer.width for layer in self.algorithm.layers(self.ctx).values() for key in layer.keys}
            block = {k: torch.linalg.qr(torch.randn(d, int(SHARE * d), generator=draws)).Q for k, d in keys.items()}
            head: Any = self.bench.objective.module.get_submodule("head")
            self.state = self.state.replace(blocks=(block,), spaces=(torch.eye(head.in_features)[:, :50],))
        self.broadcast = self.algorithm.broadcast(self.ctx, self.state)
        (self.batch, *_) = self.data.batches(BATCH, epochs=1)
        self.begun = 0.0

    def step(self) -> float:
        """Seconds of a local step."""
        began = time.process_time()
        local = self.algorithm.begin(self.ctx, self.broadcast, self.client, self.data)
        ready = time.process_time()
        self.algorithm.step(self.ctx, self.broadcast, self.client, local, self.batch)
        self.begun = ready - began
        return time.process_time() - ready

    def task_end(self) -> tuple[float, str]:
        """Seconds of extraction on one client and of its merge, and the megabytes of both."""
        at = replace(self.ctx, clock=NOW._replace(phase="task_end"))
        algorithm = self.algorithm.model_copy(update={"n_batches": BATCHES})
        began = time.process_time()
        for _ in algorithm.activations(at, self.broadcast, self.data):
            pass
        collected = time.process_time()
        sent, _, _ = algorithm.extract(at, self.broadcast, self.client, self.data)
        extracted = time.process_time()
        updates = sent.replace(layers=(sent.layers,), space=(sent.space,))
        one = torch.ones(1)
        cohort = Cohort(torch.zeros(1, dtype=torch.int64), one, one, one)
        after: PredictingState = algorithm.merge_directions(at, self.state, updates, cohort)[0]
        merged = time.process_time()
        forward, extraction, merging = collected - began, extracted - collected, merged - extracted
        client = f"{extraction:.1f} s for a client's bases, {forward:.1f} of them for {BATCHES} batches"
        sizes = nbytes(sent) / 2**20, nbytes((after.blocks[1], after.spaces[1])) / 2**20
        detail = f"{client}; {merging:.1f} s to append them; {sizes[0]:.1f} MiB up, {sizes[1]:.1f} MiB down"
        return extraction + merging, detail
