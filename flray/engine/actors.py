"""The two Ray actors: thin shells around :class:`Workbench` and :class:`Server`, which know no Ray.

An actor survives a run: `setup` makes it ready for the next experiment, so a grid pays for its processes once.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flray.core.algorithm import Exchange
from flray.engine.server_actor import Moment, Plan, Server
from flray.engine.workbench import Assignment, Delivery, Workbench
from flray.experiment import Experiment


def _prepare(experiment: Experiment, threads: int) -> str:
    """Import the user's modules, fix threads and determinism; returns the device this actor computes on."""
    import torch

    for module in experiment.imports:
        importlib.import_module(module)
    torch.set_num_threads(threads)
    if torch.cuda.is_available() and os.environ.get("CUDA_VISIBLE_DEVICES", "") != "":
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True  # the same bits on every actor
        return "cuda"
    return "cpu"


class ClientActor:
    """Trains runs of the cohort. Holds data, model and algorithm; nothing about a client."""

    def __init__(self) -> None:
        self._bench: Workbench | None = None
        self._key = ""

    def setup(self, experiment: Experiment, key: str, threads: int) -> int:
        """Make ready for an experiment; `key` names it, so that a second call costs nothing. Returns the process id."""
        if key != self._key:
            self._bench = Workbench(experiment, _prepare(experiment, threads))
            self._key = key
        return os.getpid()

    def train(self, job: Assignment, exchange: Exchange, down: Any, states: Sequence[Any] | None) -> tuple[Delivery, list[dict[str, Any]]]:
        assert self._bench is not None
        return self._bench.train_run(job, exchange, down, states)

    def evaluate(self, state: Any, moment: Moment, first: int, last: int) -> tuple[None, np.ndarray]:
        """Test batches `first..last-1` of a state that came as NumPy arrays."""
        from flray.core.messages import to_torch

        assert self._bench is not None
        ctx = self._bench.context(moment.task, moment.round, moment.exchange, moment.population, moment.cohort_size)
        return None, self._bench.evaluate(to_torch(state, self._bench.objective.device), ctx, first, last)

    def peak_gpu_memory(self, job: Assignment) -> tuple[int, int]:
        """(bytes that training the job's client took, bytes of the GPU); needs a GPU."""
        import torch

        assert self._bench is not None
        bench = self._bench
        free, total = torch.cuda.mem_get_info()
        ctx = bench.context(0, 0, 0, job.population, job.cohort_size)
        state = bench.algorithm.init_server(ctx, *bench.objective.initial())
        exchange = bench.algorithm.exchanges(ctx, state)[0]
        torch.cuda.reset_peak_memory_stats()
        bench.train_run(job, exchange, exchange.broadcast(ctx, state), None)
        context = total - free - torch.cuda.memory_reserved()  # the CUDA context itself, and other processes
        return torch.cuda.max_memory_reserved() + max(context, 0), total


class ServerActor:
    """Holds the global state; see :class:`Server`."""

    def __init__(self) -> None:
        self._server: Server | None = None

    def setup(self, experiment: Experiment, folder: str, threads: int) -> dict[str, Any]:
        self._server = Server(experiment, Path(folder), _prepare(experiment, threads), threads)
        return self._server.facts()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def plan(self, moment: Moment) -> Plan | None:
        return self.server.plan(moment)

    def broadcast(self) -> Any:
        return self.server.broadcast()

    def states(self, clients: Sequence[int]) -> list[Any]:
        return self.server.states(clients)

    def aggregate(self, moment: Moment, exchange: Exchange, cohort: Any, *deliveries: Delivery) -> dict[str, Any]:
        return self.server.aggregate(moment, exchange, cohort, *deliveries)

    def snapshot(self) -> Any:
        return self.server.snapshot()

    def evaluate(self, moment: Moment) -> np.ndarray:
        return self.server.evaluate(moment)

    def save(self, task: int, round: int, done: int, keep: int) -> str:
        return self.server.save(task, round, done, keep)

    def load(self, at_most: int | None = None) -> tuple[int, int, int] | None:
        return self.server.load(at_most)

    def save_model(self) -> str:
        return self.server.save_model()
