"""The two Ray actors: thin shells around :class:`Workbench` and :class:`Server`, which know no Ray.

An actor survives a run: `setup` makes it ready for the next experiment, so a grid pays for its processes once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flray.core.algorithm import Exchange
from flray.engine.counts import Tally
from flray.engine.server_actor import Plan, Server
from flray.engine.workbench import Assignment, Delivery, Moment, Workbench
from flray.experiment import Experiment


class Recipe(NamedTuple):
    """An experiment on its way to an actor: pickled, because it can only be read where the driver's modules are found."""

    experiment: bytes
    imports: tuple[str, ...]
    path: tuple[str, ...]
    folder: str  # where relative paths begin
    held: np.ndarray | None  # the validation split

    @classmethod
    def of(cls, experiment: Experiment, held: np.ndarray | None = None) -> Recipe:
        return cls(pickle.dumps(experiment), experiment.imports, tuple(sys.path), os.getcwd(), held)

    def read(self) -> Experiment:
        """The experiment, in the driver's working directory, its module path behind this process's own and the user's modules imported."""
        sys.path.extend(entry for entry in self.path if entry not in sys.path)
        with contextlib.suppress(OSError):  # on another node
            os.chdir(self.folder)
        for module in self.imports:
            importlib.import_module(module)
        found: Experiment = pickle.loads(self.experiment)
        return found


def prepare(threads: int) -> str:
    """Fix threads and determinism; returns the device this process computes on."""
    import ray
    import torch

    torch.set_num_threads(threads)
    # an actor without a GPU share may still see the cards; one with a share of a fake GPU (tests) sees none
    if ray.get_gpu_ids() and torch.cuda.is_available():
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True  # the same bits on every actor
        return "cuda"
    return "cpu"


class FreshActorError(Exception):
    """Work for a client actor that Ray has started again and that nobody has set up since."""


class ClientActor:
    """Trains runs of the cohort. Holds data, model and algorithm; nothing about a client."""

    def __init__(self) -> None:
        self._bench: Workbench | None = None
        self._key = ""

    def setup(self, recipe: Recipe, key: str, threads: int) -> int:
        """Make ready for an experiment; `key` names it, so that a second call costs nothing. Returns the process id."""
        if key != self._key:
            self._bench = Workbench(recipe.read(), prepare(threads), recipe.held)
            self._key = key
        return os.getpid()

    @property
    def bench(self) -> Workbench:
        if self._bench is None:
            raise FreshActorError
        return self._bench

    def train(self, job: Assignment, exchange: Exchange, down: Any, states: Sequence[Any] | None) -> tuple[Delivery, list[dict[str, Any]]]:
        return self.bench.train_run(job, exchange, down, states)

    def evaluate(self, published: Any, moment: Moment, part: int, parts: int) -> tuple[None, Tally]:
        """One of `parts` parts of all tests of what the server published, a message of NumPy arrays."""
        return None, self.bench.evaluate(published, self.bench.server_context(moment), part, parts)

    def personal(
        self, job: Assignment, down: Any, states: Sequence[Any], finetune_epochs: Sequence[int]
    ) -> tuple[None, list[dict[str, Any]]]:
        return None, self.bench.personal(job, down, states, finetune_epochs)

    def peak_gpu_memory(self, job: Assignment) -> tuple[int, int]:
        """(bytes that training the job's client took, bytes of the GPU); needs a GPU."""
        import torch

        bench = self.bench
        free, total = torch.cuda.mem_get_info()
        ctx = bench.context(0, 0, 0, job.population, job.cohort_size, job.total_examples)
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

    def setup(self, recipe: Recipe, folder: str, threads: int, lock: str) -> dict[str, Any]:
        self._server = Server(recipe.read(), Path(folder), prepare(threads), held=recipe.held, lock=lock)
        return self._server.facts()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def plan(self, moment: Moment) -> tuple[Any, Plan | None]:
        return self.server.plan(moment)

    def states(self, clients: Sequence[int]) -> list[Any]:
        return self.server.states(clients)

    def aggregate(
        self, moment: Moment, exchange: Exchange, cohort: Any, ahead: Moment | None, *deliveries: Delivery
    ) -> tuple[Any, tuple[dict[str, Any], Plan | None]]:
        """Aggregate, and plan the moment `ahead` in the same call: (its message down, (metrics, its plan))."""
        metrics = self.server.aggregate(moment, exchange, cohort, *deliveries)
        down, plan = (None, None) if ahead is None else self.server.plan(ahead)
        return down, (metrics, plan)

    def published(self, moment: Moment) -> Any:
        return self.server.published(moment)

    def evaluate(self, moment: Moment) -> Tally:
        return self.server.evaluate(moment)

    def commit(self, task: int, round: int, done: int) -> None:
        self.server.commit(task, round, done)

    def save(self, keep: int, task_end: bool = False) -> int:
        return self.server.save(keep, task_end)

    def load(self, at_most: int | None = None, task_end: bool = True) -> tuple[int, int, int] | None:
        return self.server.load(at_most, task_end)

    def moved(self, folder: str) -> None:
        self.server.moved(Path(folder))

    def save_model(self) -> str:
        return self.server.save_model()

    def probe_storage(self) -> None:
        self.server.probe_storage()

    def push(self) -> str | None:
        return self.server.push()
