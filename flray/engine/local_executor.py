"""The executor in this process, without Ray: for `executor: local`, replay, tests and debugging."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate

import torch

from flray.config.experiment import Experiment
from flray.core.messages import Message, to_numpy
from flray.core.messages.shared import join
from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.engine import devices
from flray.engine.client import Client
from flray.engine.counts import TestCounts
from flray.engine.exchanges import Chunk, ChunkResult, ClientReport, ExchangePlan, Turn
from flray.engine.rounds import P, T, TurnResult
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.server import Server
from flray.engine.this_process import alone, compute, elsewhere, in_compute_thread
from flray.engine.threads import cores
from flray.rundir.run_store import RunStore
from flray.scenario import Scenario


class LocalExecutor:
    """An executor (`rounds.Executor`) in this process. Server and clients each have their number of torch threads."""

    num_chunks = 1
    retries = 0

    def __init__(
        self,
        server: Server,
        store: RunStore,
        client_threads: int | None = None,
        server_threads: int | None = None,
    ) -> None:
        """The numbers of threads determine the bits; None: the process's own number."""
        self.meanwhile: Callable[[], object] = lambda: None  # nothing runs beside
        self.foresee: Callable[[ExchangePlan], Turn | None] = lambda _: None  # nor before
        self.server, self.client, self.store = server, Client(server.runtime), store
        store.server = server
        self.client_threads, self.server_threads = client_threads, server_threads
        self.facts = server.facts()
        self._broadcast: tuple[Clock, Any] | None = None

    def plan(self, clock: Clock) -> ExchangePlan | None:
        plan: ExchangePlan | None = self._serve(lambda: self._broadcasted(clock, *self.server.plan(clock)))
        return plan

    def broadcast(self, clock: Clock, exchange: Exchange) -> ExchangePlan:
        plan: ExchangePlan = self._serve(lambda: self._broadcasted(clock, *self.server.broadcast(clock, exchange)))
        return plan

    def _broadcasted(self, clock: Clock, broadcast: Message, plan: Any) -> Any:  # Any: a plan, or None
        self._broadcast = (clock, join(broadcast, self.server.parts()))
        return plan

    def _serve(self, work: Callable[[], T]) -> T:
        return compute(self.server_threads, work)

    def run(self, plan: ExchangePlan, turn: Turn, ahead: Sequence[Clock] = ()) -> TurnResult:
        if elsewhere():
            return in_compute_thread(lambda: self.run(plan, turn, ahead))
        assert self._broadcast is not None and self._broadcast[0] == plan.clock
        now, results, reports = self._broadcast[1], list[ChunkResult](), list[ClientReport]()
        with alone(self.client_threads):
            for chunks in turn.by_actor:
                states = [self.server.states(chunk.clients) for chunk in chunks]
                versions = [chunk.version for chunk in chunks]
                broadcasts = [now if version is None else self.server.version(version) for version in versions]
                result, own = self.client.work_neighbours(chunks, plan.exchange, broadcasts, states)
                results.append(result)
                reports += own
        began = time.perf_counter()
        report = self._serve(lambda: self.server.finish(plan, to_numpy(turn.cohort), *results))
        return TurnResult(reports, report, time.perf_counter() - began)

    def test(self, clock: Clock) -> TestCounts:
        return compute(self.client_threads, lambda: self.server.evaluate(clock))

    def personal(self, clock: Clock, chunks: Sequence[Chunk], finetune_epochs: Sequence[int]) -> list[dict[str, Any]]:
        self.broadcast(clock, self.server.algorithm.training)
        assert self._broadcast is not None
        broadcast = self._broadcast[1]

        def clients() -> list[list[dict[str, Any]]]:
            return [
                self.client.personal(chunk, broadcast, self.server.states(chunk.clients), finetune_epochs)
                for chunk in chunks
            ]

        return [row for rows in compute(self.client_threads, clients) for row in rows]

    def call(self, method: Callable[Concatenate[Server, P], T], *args: P.args, **options: P.kwargs) -> T:
        return self._serve(lambda: method(self.server, *args, **options))

    def start(self, method: Callable[Concatenate[Server, P], Any], *args: P.args, **options: P.kwargs) -> None:
        self.call(method, *args, **options)

    def call_store(self, method: Callable[Concatenate[RunStore, P], T], *args: P.args, **options: P.kwargs) -> T:
        return self._serve(lambda: method(self.store, *args, **options))

    def show(self, row: Mapping[str, Any]) -> None:
        """There is no cluster."""

    def kill(self) -> None:
        """There is no process to end."""

    def close(self, busy: bool) -> None:
        """There is no process to give back."""

    def translate_errors(self, folder: Path) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def launch(
    experiment: Experiment, folder: Path, scenario: Scenario, fingerprints: dict[str, Any], lock: str
) -> tuple[LocalExecutor, Experiment]:
    """(an executor in this process, the experiment with the executor and the numbers of threads written out)."""
    resources = experiment.resources
    server_threads = cores() if resources.server.threads == "auto" else resources.server.threads
    client_threads = max(1, int(resources.client.num_cpus))
    if resources.executor == "local":  # `auto` has found the run small
        devices.warn_of_idle(torch.cuda.device_count(), resources)

    def build() -> LocalExecutor:
        store = RunStore(experiment, folder.absolute(), lock)
        server = Server(Runtime(experiment, TaskSummary.of(scenario)), store.clients, store.progress)
        return LocalExecutor(server, store, client_threads, server_threads)

    executor = compute(server_threads, build)
    executor.facts.update(client_actors=0, client_threads=client_threads, threads=server_threads)
    written = {"server": resources.server.model_copy(update={"threads": server_threads}), "executor": "local"}
    return executor, experiment.model_copy(update={"resources": resources.model_copy(update=written)})
