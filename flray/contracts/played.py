"""The rounds of an experiment in this process, without Ray: the engine's own protocol on its local executor, with
someone watching."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flray.core.messages import Record, leaves, to_numpy, to_torch
from flray.core.protocol.clock import START, Clock, schedule
from flray.core.protocol.exchange import Exchange
from flray.engine import cohort as cohorts, local_executor as local
from flray.engine.arrivals import Participation
from flray.engine.client import Client, ClientResult
from flray.engine.exchanges import Chunk, ExchangePlan, Turn
from flray.engine.prepare import build_data, build_scenario
from flray.engine.rounds import TurnResult, transact
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.server import Server
from flray.engine.this_process import elsewhere, in_compute_thread
from flray.rundir.run_store import RunStore
from flray.scenario.devices import Coordination

Watch = Callable[..., Any]


class ObservedClient(Client):
    """Both kinds of work, local training and an exchange's own, are called as `exchange(work, ctx, exchange, broadcast,
    client state, data)`."""

    def exchange(self, work: Callable[..., ClientResult], *arguments: Any) -> ClientResult:
        return work(*arguments)

    def run_client(self, chunk: Chunk, i: int, exchange: Exchange, *others: Any) -> Any:
        self.running = exchange
        return super().run_client(chunk, i, exchange, *others)

    def train(self, algorithm: Any, ctx: Any, broadcast: Any, client: Any, data: Any, *others: Any) -> ClientResult:
        def work(ctx: Any, _: Exchange, broadcast: Any, client: Any, data: Any) -> ClientResult:
            return Client.train(algorithm, ctx, broadcast, client, data, *others)

        return self.exchange(work, ctx, self.running, broadcast, client, data)

    def own_work(self, own: Any, ctx: Any, broadcast: Any, client: Any, data: Any) -> ClientResult:
        def work(ctx: Any, _: Exchange, *others: Any) -> ClientResult:
            return Client.own_work(self, own, ctx, *others)

        return self.exchange(work, ctx, self.running, broadcast, client, data)


class Watched(ObservedClient):
    """Clients whose every exchange is shown, and whose updates are measured as they are."""

    def __init__(self, runtime: Runtime, watch: Watch, sent: dict[str, int]) -> None:
        super().__init__(runtime)
        self.watch, self.sent = watch, sent

    def exchange(self, work: Callable[..., ClientResult], *arguments: Any) -> ClientResult:
        done: ClientResult = self.watch("client", work, *arguments)
        self.sent["up"] += size(done.update)
        return done


class Executor(local.LocalExecutor):
    """The local executor, watched; `sent` counts the bytes of what is in its hands."""

    def __init__(self, server: Server, store: RunStore, watch: Watch) -> None:
        super().__init__(server, store)
        self.watch, self.sent = watch, {"up": 0, "down": 0}
        self.held: dict[str, set[int]] = {}  # shared part -> who has it
        self.named: tuple[Clock | None, set[str]] = (None, set())  # the transaction, and the parts that it named
        self.client = Watched(server.runtime, watch, self.sent)

    def run(self, plan: ExchangePlan, turn: Turn, ahead: Sequence[Clock] = ()) -> TurnResult:
        if elsewhere():
            return in_compute_thread(lambda: self.run(plan, turn, ahead))
        assert self._broadcast is not None
        clients = turn.cohort.client_ids.tolist()
        self.sent["down"] += size(self._broadcast[1]) * len(clients) - self.known(plan, set(clients))
        finish = plan.exchange.finish
        watched = functools.wraps(finish)(lambda *arguments: self.watch("server", finish, *arguments))
        exchange = plan.exchange._replace(finish=watched)
        return super().run(plan._replace(exchange=exchange), turn, ahead)

    def known(self, plan: ExchangePlan, clients: set[int]) -> int:
        """Bytes of shared parts that these clients have from before; they have them from now on. What a whole round
        does not name is dropped."""
        before, named = self.named
        if before != plan.clock.transaction:
            if before is not None and before.phase == "round":
                self.held = {hash: holders for hash, holders in self.held.items() if hash in named}
            self.named = plan.clock.transaction, set()
        self.named[1].update(plan.shared)
        there = 0
        for hash in plan.shared:
            holders = self.held.setdefault(hash, set())
            there += self.server.part(hash).nbytes * len(holders & clients)
            holders |= clients
        return there


def executor_of(experiment: Any, folder: Path, lock: str | None = None) -> local.LocalExecutor:
    """A server and its store as a run makes them, with the scenario that the configuration gives."""
    runtime = Runtime(experiment, TaskSummary.of(build_scenario(experiment, build_data(experiment))))
    store = RunStore(experiment, folder, lock)
    return local.LocalExecutor(Server(runtime, store.clients, store.progress), store)


class Local:
    """An experiment that is played transaction by transaction, and what travelled in it."""

    def __init__(
        self,
        experiment: Any,
        folder: Path,
        watch: Watch | None = None,
        device: torch.device | str = "cpu",
        chunks: int = 1,
    ) -> None:
        """`chunks`: into how many a cohort is cut, as for so many actors."""
        self.experiment, self.chunks = experiment, chunks
        self.scenario = build_scenario(experiment, build_data(experiment))
        store = RunStore(experiment, folder)
        runtime = Runtime(experiment, TaskSummary.of(self.scenario), device)
        self.server = Server(runtime, store.clients, store.progress)
        planned_work, stateful = self.server.planned_work, self.server.stateful
        # all updates of a round start from its model, whatever the coordination: the contracts compare whole rounds
        synchronous = experiment
        if experiment.coordination.size is not None:
            synchronous = experiment.model_copy(update={"coordination": Coordination()})
        self.participation = Participation(synchronous, self.scenario, planned_work, stateful)
        self.watch = watch or (lambda name, function, *arguments: function(*arguments))
        self.executor = Executor(self.server, store, self.watch)
        self.position = START
        self.rows: list[dict[str, Any]] = []
        self.sent: list[dict[str, int]] = []
        self.probed: list[tuple[str, dict[str, Any]]] = []  # (probe, row)

    @property
    def state(self) -> Any:
        return self.server.state

    def play(self, rounds: int) -> Any:
        """So many rounds more, and what lies between them."""
        for _ in range(rounds):
            while self.transaction().phase != "round":
                pass
        return self.state

    def task_end(self) -> Any:
        """The end of the present task, from wherever in it."""
        clock = Clock(self.position.task, self.position.round, "task_end", done=self.position.done)
        self.exchanges(clock)
        return self.state

    def transaction(self) -> Clock:
        """The next one of the schedule, committed."""
        clock = next(schedule(self.position, 10**6, 1) if len(self.scenario.stages) == 1 else self.schedule())
        self.exchanges(clock)
        return clock

    def schedule(self) -> Any:
        return schedule(self.position, self.experiment.rounds, len(self.scenario.stages))

    def exchanges(self, clock: Clock) -> None:
        cohort = self.participation.delivering(clock) if clock.phase == "round" else None
        row: dict[str, Any] = {"down": 0, "up": 0}
        self.executor.sent.update(up=0, down=0)

        def turns(plan: ExchangePlan) -> list[Turn]:
            return self.participation.of_exchange(plan, cohort, self.chunks).turns

        played = False
        for exchanged in transact(self.executor, clock, turns):
            counted: dict[str, Any] = {"comm/down_bytes": 0, "client_steps": 0, "time/server_s": 0.0}
            exchanged.add_to(counted)
            row["down"] += counted["comm/down_bytes"]
            row["up"] += counted["comm/up_bytes"]
            row.update(exchanged.metrics)
            if exchanged.turns:
                row.update({name: counted[name] for name in ("clients_skipped", "diverged")})
            if exchanged.turns and exchanged.plan.shared:
                row["comm/shared_bytes"] = sum(result.server.shared_bytes for result in exchanged.results)
            played = True
            self.probed += exchanged.probe_rows
        self.probed += self.server.observe(clock)
        self.position = clock.complete
        self.server.commit(self.position)
        if played:
            self.rows.append(row)
            self.sent.append(dict(self.executor.sent))

    def personal(self, finetune_epochs: int = 1) -> Any:
        """Scores of every client's own predictor on the whole test set, `[N, n, C]`, as the engine's personalised
        evaluation makes it."""
        runtime, client = self.server.runtime, self.executor.client
        clock = Clock(self.position.task, self.position.round, "personal", done=self.position.done)
        algorithm, clients = self.experiment.algorithm, np.arange(self.scenario.population)
        ((turn,), _) = cohorts.turns(self.scenario, algorithm, clients, clock, algorithm.training)
        broadcast = to_torch(self.server.broadcast(clock, algorithm.training)[0], runtime.objective.device)
        x, scores = runtime.normalizer(np.array(runtime.dataset.test.x)), []
        for chunk in turn.chunks:
            for i, (number, stored) in enumerate(zip(chunk.clients, self.server.states(chunk.clients), strict=True)):
                ctx = client.context(clock, number, chunk.weights[i], chunk.samples(i))
                state = client.state(ctx, stored)
                batches = runtime.client_data(ctx, chunk.samples(i)).batches(
                    algorithm.local_batches[0], finetune_epochs
                )
                ctx = replace(ctx, num_steps=len(batches))
                runtime.seed_modules(runtime.module_seed(ctx))
                predictor = self.watch("personalize", algorithm.personalize, ctx, broadcast, state, batches)
                with torch.no_grad():
                    scores.append(predictor(x))
        return torch.stack(scores)

    def client_states(self) -> dict[int, Any]:
        everyone = range(self.scenario.population)
        return {
            k: to_torch(s, self.server.runtime.objective.device)
            for k, s in zip(everyone, self.server.client_store.gather(everyone), strict=True)
            if isinstance(s, Record)
        }


class Unchanging:
    """A `Watch` that notes which halves of an algorithm were called, and which of them changed an argument."""

    def __init__(self) -> None:
        self.halves: set[str] = set()
        self.changed: list[str] = []

    def __call__(self, half: str, function: Callable[..., Any], *arguments: Any) -> Any:
        before = [bits(argument) for argument in arguments if isinstance(argument, Record)]
        result = function(*arguments)
        if before != [bits(argument) for argument in arguments if isinstance(argument, Record)]:
            self.changed.append(half)
        self.halves.add(half)
        return result


def size(message: Any) -> int:
    """Bytes of everything in a message that a checkpoint would keep."""
    return sum(array.nbytes for array in flatten(message).values())


def bits(message: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """A message as comparable bytes, by field; NaN and -0.0 are their own bits."""
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in flatten(message).items()}


def flatten(message: Any) -> dict[str, np.ndarray]:
    """Name -> array of everything in a message, numbers as 0-dim arrays; None is left out."""
    return {name: np.asarray(to_numpy(leaf)) for name, leaf in leaves(message) if leaf is not None}
