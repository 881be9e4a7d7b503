"""The two Ray actors: thin shells around :class:`Client`, :class:`Server` and :class:`RunStore`, which know no Ray.

An actor outlives a run: `setup` prepares it for the next experiment, so a grid starts its processes once.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from flray.config.experiment import Experiment
from flray.core.messages import Cohort, Message, tensors
from flray.core.messages.shared import join, referring
from flray.core.network.objective import Precision
from flray.core.protocol.clock import Clock
from flray.engine import devices
from flray.engine.client import Client
from flray.engine.counts import TestCounts
from flray.engine.exchanges import Chunk, ChunkResult, ExchangePlan, ServerReport
from flray.engine.ray import by_value
from flray.engine.ray.combiners import Part, apart, combine
from flray.engine.ray.places import Places
from flray.engine.ray.this_node import this_node, this_process
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.server import Server
from flray.rundir.run_store import RunStore
from flray.scenario import Scenario

T = TypeVar("T")


class Recipe(NamedTuple):
    """An experiment for an actor. It is pickled, because reading it needs the driver's modules."""

    experiment: bytes
    own: str  # what a script or a notebook defines
    imports: tuple[str, ...]
    path: tuple[str, ...]
    folder: str  # where relative paths begin
    summary: TaskSummary
    places: Places

    @classmethod
    def of(cls, experiment: Experiment, scenario: Scenario) -> Recipe:
        import ray.cloudpickle  # by value, what no actor could import: an algorithm and its messages in a notebook

        summary = TaskSummary.of(scenario)
        if not any("clients" in probe.reads for probe in experiment.probes().values()):
            summary = summary._replace(samples=())  # 80 bytes a client of W4, in every process
        return cls(
            ray.cloudpickle.dumps(experiment),
            by_value.dumped(experiment),
            experiment.imports,
            tuple(sys.path),
            os.getcwd(),
            summary,
            Places.here(),
        )

    def read(self) -> Experiment:
        """The experiment, in the driver's working directory, its module path behind this process's own and the user's
        modules imported."""
        self.places.adopt()
        sys.path.extend(entry for entry in self.path if entry not in sys.path)
        with contextlib.suppress(OSError):  # on another node
            os.chdir(self.folder)
        for module in self.imports:
            importlib.import_module(module)
        by_value.adopt(self.own)
        experiment: Experiment = pickle.loads(self.experiment)
        return experiment


def prepare(threads: int, precision: Precision) -> str:
    """Fix threads and determinism; returns the device this process computes on."""
    import ray
    import torch

    from flray.engine.this_process import own_process

    own_process()
    torch.set_num_threads(threads)
    # an actor without a GPU share may still see the cards; one with a share of a fake GPU (tests) sees none
    device = devices.set_up("cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu", precision)
    if device == "cuda":  # more would be what another actor counts on
        share = ray.get_runtime_context().get_assigned_resources().get("GPU", 1.0)
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0))
    return device


class FreshActorError(Exception):
    """A client actor got work after a restart, before its setup."""


class ClientActor:
    """Runs clients. It has data, model and algorithm, and stores nothing about a client."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._key = ""

    def setup(self, recipe: Recipe, key: str, threads: int) -> dict[str, Any]:
        """Make ready for an experiment; `key` names it, so that a second call costs nothing. Returns its process, what
        computes in it, Ray's id of its node, and the checksums of the networks' fixed tensors."""
        if key != self._key:
            experiment = recipe.read()
            with recipe.places.named_in_errors("a client actor"):
                runtime = Runtime(experiment, recipe.summary, prepare(threads, experiment.precision), one_of_many=True)
            self._client, self._key = Client(runtime), key
        tensors = self.client.runtime.fixed_tensors()
        computes = devices.arithmetic(self.client.runtime.objective.device)
        return {**this_process(), "arithmetic": computes, "node_id": this_node(), "fixed_tensors": tensors}

    @property
    def client(self) -> Client:
        if self._client is None:
            raise FreshActorError
        return self._client

    def prepare_ahead(self, chunk: Chunk) -> None:
        """See :meth:`Client.prepare_ahead`; whatever fails here fails again, and is told, in the chunk's work."""
        with contextlib.suppress(Exception):
            self.client.prepare_ahead(chunk)

    def work(
        self,
        run: Sequence[Chunk],
        plan: ExchangePlan | None,
        kind: tuple[Any, ...] | None,
        combining: bool,
        *messages: Any,
    ) -> tuple[Any, ...]:
        """The result of neighbouring chunks, trained as one; `combining`: what :func:`combiners.apart` makes of it.

        `kind`: that of the plan which the driver foresaw; with another plan nothing is trained. `messages`: their
        broadcasts, their clients' states, the broadcast's shared parts in the order of `plan.shared`.
        """
        if plan is None or (kind is not None and (plan.clock != run[0].clock or plan.kind != kind)):
            return None, []
        whole = run[0].version is not None  # a version's broadcast
        parts = dict(zip(plan.shared, messages[2 * len(run) :], strict=not whole))
        broadcasts = [join(broadcast, parts) for broadcast in messages[: len(run)]]
        done = self.client.work_neighbours(run, plan.exchange, broadcasts, messages[len(run) : 2 * len(run)])
        return apart(*done) if combining else done

    def combine(self, *runs: ChunkResult) -> tuple[ChunkResult, Part]:
        assert self.client  # set up: messages may be of the user's classes
        return combine(*runs)

    def evaluate(
        self, published: Message, clock: Clock, part: int, parts: int, broadcast: Message = None
    ) -> tuple[None, TestCounts | None]:
        """One of `parts` parts of all tests of what the server published, a message of NumPy arrays, some of which may
        be those of a `broadcast`; None: nothing."""
        runtime = self.client.runtime
        if published is None:
            return None, None
        whole = join(published, tensors(broadcast))
        return None, runtime.evaluate(whole, runtime.context(clock), part, parts)

    def personal(
        self,
        chunk: Chunk,
        plan: ExchangePlan,
        broadcast: Message,
        states: Sequence[Message],
        finetune_epochs: Sequence[int],
        *parts: np.ndarray,
    ) -> tuple[None, list[dict[str, Any]]]:
        whole = join(broadcast, dict(zip(plan.shared, parts, strict=True)))
        return None, self.client.personal(chunk, whole, states, finetune_epochs)

    def peak_gpu_memory(self, chunk: Chunk) -> tuple[int, int]:
        """(bytes that training the client of the chunk took, bytes of the GPU); needs a GPU."""
        import torch

        algorithm, runtime = self.client.algorithm, self.client.runtime
        ctx = runtime.context(chunk.clock)
        state = runtime.initial_state(ctx)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):  # the second time its steps are CUDA graphs
            self.client.work_neighbours([chunk], algorithm.training, [algorithm.training.broadcast(ctx, state)], [None])
        cached = torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved()  # given back since
        # what is in use includes CUDA, its libraries and graphs, and other processes
        free, total = torch.cuda.mem_get_info()
        return total - free + cached, total


class ServerActor:
    """The server of a run and the store of its folder, see :class:`Server` and :class:`RunStore`."""

    _server: Server | None = None
    _store: RunStore | None = None

    def setup(self, recipe: Recipe, folder: str, threads: int, lock: str) -> dict[str, Any]:
        self._server = self._store = None  # the model of an earlier run
        experiment = recipe.read()
        with recipe.places.named_in_errors("the server actor"):
            runtime = Runtime(experiment, recipe.summary, prepare(threads, experiment.precision), one_of_many=True)
        self._store = store = RunStore(experiment, Path(folder), lock)
        self._server = store.server = Server(runtime, store.clients, store.progress)
        return {**self._server.facts(), "process": this_process()}

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    # the executor's `call` and `call_store` check the arguments; a type does not survive Ray's remote call
    def call(self, method: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]) -> T:
        return method(self.server, *args, **options)

    def call_with_warnings(
        self, method: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[T, list[tuple[str, type[Warning]]]]:
        """:meth:`call`, and its warnings: what an actor writes does not reach the terminal."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = self.call(method, args, options)
        return result, [(str(each.message), each.category) for each in said if issubclass(each.category, UserWarning)]

    def call_store(self, method: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]) -> T:
        return method(self._store, *args, **options)

    # the exchange -----------------------------------------------------------------------------
    def finish(
        self, plan: ExchangePlan, cohort: Cohort, ahead: Sequence[Clock], tested: bool, *results: ChunkResult
    ) -> tuple[Message, ExchangePlan | None, Message, tuple[ServerReport, list[ExchangePlan | None]]]:
        """Finish the exchange, and plan the moments `ahead` in the same call, until one has a plan.

        Returns (its broadcast, its plan where the transaction is over, what a test reads where that is `tested`,
        (report, plans)). Arrays that a test reads and the broadcast has are in the latter alone.
        """
        report = self.server.finish(plan, cohort, *results)
        broadcast, plans = None, list[ExchangePlan | None]()
        for moment in ahead:
            broadcast, next_plan = self.server.plan(moment)
            plans.append(next_plan)
            if next_plan is not None:
                break
        if plans[:1] != [None]:
            return broadcast, None, None, (report, plans)
        published = self.server.published(plan.clock.transaction) if tested else None
        return broadcast, plans[-1], referring(published, broadcast), (report, plans)
