"""Measures an experiment's work in this process: two clients with few batches each, on its own data and model.

Round 1 warms up, in round 2 FLOPs are counted, the rounds after them are timed. Clients are the two with the most
samples of the first task; one keeps a batch of them, the other three. Two numbers of steps give the seconds of a step
and of a client's other work.

Cores share caches and memory, so an actor is slower while others compute. Every second timed round therefore runs
beside processes that train the same two clients, one for each other actor that the cores hold (`Neighbours`).
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import platform
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from flray.config.experiment import Experiment
from flray.core.messages import nbytes, to_numpy
from flray.core.messages.shared import join
from flray.core.network.threads import threads
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError
from flray.engine.client import Client, Delivery
from flray.engine.cohort import Turn, participants, turns
from flray.engine.device_memory import largest_client_memory
from flray.engine.flops import SAMPLES, CountFlops, count_step_flops
from flray.engine.message_sizes import message_sizes
from flray.engine.prepare import build_data, build_scenario
from flray.engine.server import ExchangePlan, Server
from flray.engine.threads import cores, memory
from flray.engine.workbench import TaskSummary, Workbench
from flray.models.hugging_face import padded
from flray.planning.measured import ExchangeCost, Measured, costly
from flray.scenario import Partition, Scenario

BATCHES = (1, 3)  # of the two measured clients
MOST_ROUNDS = 20
START_S = 300.0  # that a neighbour may take until it has trained once


class _Work(NamedTuple):
    """An exchange as it was carried out: its plan, steps and seconds of each client, seconds of the server half, FLOPs
    of steps and in all, and bytes of a client's summed and single fields and of its state."""

    plan: ExchangePlan
    steps: list[int]
    seconds: list[float]
    server_s: float
    flops: int
    summed: int
    single: int
    state: int


def measure(
    experiment: Experiment,
    seconds: float = 10.0,
    timed: bool = True,
    device: str | None = None,
    on_gpu: bool = False,
    together: int | None = None,
) -> Measured:
    """Measures for about so many seconds after the first two rounds; `timed=False`: counts bytes and FLOPs alone, from
    one step of one client. `on_gpu`: also predicts the memory of a client on a GPU. `together`: processes that train at
    the same time in every second round; None: as many as the cores and the memory hold, on a GPU one.

    Raises `ConfigError` for an algorithm without clients, and the errors of a run.
    """
    if experiment.algorithm.centralized:
        raise ConfigError("algorithm centralized has no clients and no rounds between nodes: there is nothing to plan")
    device = device or ("cuda" if torch.cuda.is_available() and experiment.resources.client.num_gpus else "cpu")
    before = _private_bytes()
    dataset, _, private = build_data(experiment)
    scenario = build_scenario(experiment, dataset, private).drifting(None)
    used = max(1, int(experiment.resources.client.num_cpus))
    with threads(used):
        bench = Workbench(experiment, TaskSummary.of(scenario), device)
        batch = experiment.algorithm.local_batches[0]
        few = _few(scenario, *(number * batch for number in BATCHES) if timed else (SAMPLES, SAMPLES))
        if timed:
            limit = 1 if device != "cpu" else together
            costs, test, slowdown, beside = _timed(bench, few, seconds, limit, used)
        else:
            costs, test, slowdown, beside = _counted(bench, few), (0.0, _test_flops(bench)), 1.0, 1
        peak = max(_peak_bytes() - before, 0)
        predicted = largest_client_memory(bench, scenario).total if on_gpu and device == "cpu" else None
    return Measured(
        machine=_machine(device), device=device, cores=cores(), threads=used, torch=torch.__version__,
        experiment=costly(experiment), parameters=bench.objective.layout.count, vector=bench.objective.layout.size * 4,
        exchanges=tuple(costs), timed=timed, test_s=test[0], test_flops=test[1], process_bytes=before,
        client_bytes=peak, gpu_bytes=predicted, slowdown=slowdown, together=beside, test_batch=bench.evaluation_batch,
    )  # fmt: skip


def _few(scenario: Scenario, *samples: int) -> Scenario:
    """The scenario in which only the two largest clients of the first task hold samples, so many of them."""

    def cut(partition: Partition, clients: np.ndarray) -> Partition:
        kept = {int(c): partition.client(int(c))[:n] for c, n in zip(clients, samples, strict=False)}
        sizes = np.zeros(partition.num_clients, dtype=np.int64)
        for client, numbers in kept.items():
            sizes[client] = len(numbers)
        indices = np.concatenate([kept[client] for client in sorted(kept)])
        return Partition(indices, np.concatenate([[0], np.cumsum(sizes)]))

    largest = np.argsort(-scenario.partitions[0].sizes, kind="stable")[:2]
    largest = largest[scenario.partitions[0].sizes[largest] > 0]
    return Scenario(scenario.stages, [cut(partition, largest) for partition in scenario.partitions])


def _timed(
    bench: Workbench, few: Scenario, seconds: float, together: int | None, used: int
) -> tuple[list[ExchangeCost], tuple[float, float], float, int]:
    """(costs of all exchanges, (seconds, FLOPs) of a test sample, slowdown, processes that trained together)."""
    server, client = Server(bench), Client(bench)
    costs = [_cost(work, [work], "task_begin") for work in _transaction(server, client, few, Clock(phase="task_begin"))]
    by_place: dict[int, list[_Work]] = defaultdict(list)
    counted: list[_Work] = []
    times: tuple[list[float], list[float]] = ([], [])  # of the clients of a round: alone, beside neighbours
    began = 0.0
    with contextlib.ExitStack() as stack:
        neighbours: Neighbours | None = None
        for number in range(MOST_ROUNDS):
            beside = neighbours is not None and neighbours.count > 0 and number % 2 == 1
            clock = Clock(round=number, done=number)
            with neighbours.train() if beside and neighbours is not None else contextlib.nullcontext():
                works = list(_transaction(server, client, few, clock, count=number == 1))
            if number == 1:
                others = (_most_together(used) if together is None else together) - 1
                neighbours = stack.enter_context(Neighbours(bench.experiment, bench.summary, few, others, used))
                counted, began = works, time.perf_counter()
            elif number > 1:
                times[beside].append(sum(sum(work.seconds) for work in works))
                for place, work in enumerate(works) if not beside else ():
                    by_place[place].append(work)
                if time.perf_counter() - began > seconds and (times[1] or not (neighbours and neighbours.count)):
                    break
        count = neighbours.count if neighbours else 0
    costs += [_cost(counted[min(place, len(counted) - 1)], works, "round") for place, works in by_place.items()]
    test = _test(bench, server, Clock(round=number, done=number))
    end = Clock(round=number + 1, phase="task_end", done=number + 1)
    costs += [_cost(work, [work], "task_end") for work in _transaction(server, client, few, end, count=True)]
    slowdown = max(median(times[1]) / median(times[0]), 1.0) if times[1] and median(times[0]) else 1.0
    return costs, test, slowdown, count + 1


def _most_together(used: int) -> int:
    """Processes of `used` threads that this machine's cores hold, and half of its memory."""
    return max(min(cores() // used, int(memory() / 2 // max(_private_bytes(), 1))), 1)


class Neighbours:
    """Processes that train the same clients, as the other actors of a node do. They wait outside of `train`."""

    def __init__(self, experiment: Experiment, summary: TaskSummary, few: Scenario, count: int, threads: int) -> None:
        """Starts `count` processes; fewer where one ends before it has trained (`self.count`)."""
        self._wanted, self._threads, self._processes = count, threads, list[Any]()
        self._what = (experiment, summary, few)

    @property
    def count(self) -> int:
        return len(self._processes)

    def __enter__(self) -> Neighbours:
        if self._wanted < 1:
            return self
        from flray.engine.ray.actors import Recipe  # it imports Ray

        experiment, summary, few = self._what
        recipe = Recipe.of(experiment, few)._replace(summary=summary)
        context = multiprocessing.get_context("spawn")
        content, self._go = pickle.dumps((recipe, few)), context.Event()
        for _ in range(self._wanted):
            idle = context.Event()
            process = context.Process(target=_train, args=(content, self._threads, self._go, idle), daemon=True)
            process.start()
            self._processes.append((process, idle))
        started = time.monotonic()
        for process, idle in self._processes:
            while process.is_alive() and time.monotonic() - started < START_S and not idle.wait(0.2):
                pass
        self._processes = [(process, idle) for process, idle in self._processes if process.is_alive() and idle.is_set()]
        return self

    @contextlib.contextmanager
    def train(self) -> Iterator[None]:
        """They train during the block, and end the round that they are in after it."""
        self._go.set()
        yield
        self._go.clear()
        for process, idle in self._processes:
            while process.is_alive() and not idle.wait(0.2):
                pass

    def __exit__(self, *error: object) -> None:
        for process, _ in self._processes:
            process.kill()
            process.join()


def _train(content: bytes, used: int, go: Any, idle: Any) -> None:
    """In a neighbour: trains one round, then rounds while `go` is set, until the process that measures is gone."""
    parent = os.getppid()
    recipe, few = pickle.loads(content)
    with threads(used):
        bench = Workbench(recipe.read(), recipe.summary, "cpu")
        server, client = Server(bench), Client(bench)
        for number in itertools.count():
            for _ in _transaction(server, client, few, Clock(round=number, done=number)):
                pass
            while not go.wait(0.2):
                idle.set()
                if os.getppid() != parent:
                    return
            idle.clear()


def _transaction(server: Server, client: Client, few: Scenario, clock: Clock, count: bool = False) -> Iterator[_Work]:
    """Carries out the exchanges of a round or of a task's beginning or end, and commits it."""
    members = np.asarray(few.members(clock.task), dtype=np.int64)
    while True:
        broadcast, plan = server.plan(clock)
        if plan is None:
            break
        clients = participants(plan.exchange, clock, members, members, server.stateful, server.bench.experiment.seed)
        parts = [
            _turn(server, client, turn, plan, broadcast, count)
            for turn in turns(few, server.algorithm, clients, clock, plan.exchange)[0]
        ]
        if parts:
            yield parts[0]._replace(
                plan=plan,
                steps=[steps for part in parts for steps in part.steps],
                seconds=[seconds for part in parts for seconds in part.seconds],
                server_s=sum(part.server_s for part in parts),
                flops=sum(part.flops for part in parts),
            )
        clock = clock._replace(exchange=clock.exchange + 1, turn=0)
    server.commit(clock.complete)


def _turn(server: Server, client: Client, turn: Turn, plan: ExchangePlan, broadcast: Any, count: bool) -> _Work:
    """One turn of an exchange; `broadcast` is that of the first one."""
    if turn.clock.turn:
        broadcast, plan = server.broadcast(turn.clock, plan.exchange)
    joined, rows, deliveries = join(broadcast, server.parts()), list[dict[str, Any]](), list[Delivery]()
    with contextlib.ExitStack() as stack:
        counter = _counting(stack) if count else None
        for chunk in turn.chunks:
            delivery, more = client.work(chunk, plan.exchange, joined, server.states(chunk.clients))
            deliveries.append(delivery)
            rows += more
    started = time.perf_counter()
    server.finish(plan, to_numpy(turn.cohort), *deliveries)
    took = time.perf_counter() - started
    sums = [node.value for d in deliveries for node in d.sent.nodes if node.value is not None]
    own = [values for d in deliveries for _, values in d.sent.each]
    states = [state for d in deliveries for state in d.states]
    steps, seconds = [row["num_steps"] for row in rows], [row["time/client_s"] for row in rows]
    flops = 0 if counter is None else counter.total
    summed, single, state = (nbytes(part[0]) if part else 0 for part in (sums, own, states))
    return _Work(plan, steps, seconds, took, flops, summed, single, state)


def _counting(stack: contextlib.ExitStack) -> CountFlops:
    """Counts FLOPs until the stack is left, of texts with their padding, as on a GPU."""
    stack.enter_context(padded())
    counter = CountFlops()
    stack.enter_context(counter)
    return counter


def _cost(counted: _Work, works: list[_Work], phase: Any) -> ExchangeCost:
    """The cost of an exchange that was carried out several times; FLOPs are those of `counted`."""
    steps, exchange = works[0].steps, works[0].plan.exchange
    times = [median(column) for column in zip(*(work.seconds for work in works), strict=True)]
    client_s, step_s = line_through(steps, times)
    total, clients = sum(counted.steps), max(len(counted.steps), 1)
    return ExchangeCost(
        name=exchange.name, phase=phase, order=exchange.order, who=str(exchange.who),
        broadcast=sum(counted.plan.down_bytes.values()), summed=works[0].summed, single=works[0].single,
        state=works[0].state, client_s=client_s, step_s=step_s, server_s=median(work.server_s for work in works),
        measured_clients=len(times), step_flops=counted.flops / total if total else 0.0,
        client_flops=0.0 if total else counted.flops / clients,
    )  # fmt: skip


def line_through(steps: list[int], seconds: list[float]) -> tuple[float, float]:
    """(seconds of a client without its steps, seconds of a step), neither below 0.

    >>> line_through([10, 30], [1.5, 3.5])
    (0.5, 0.1)
    >>> line_through([10, 30], [1.0, 4.0])  # a line through 0
    (0.0, 0.125)
    >>> line_through([0, 0], [1.0, 3.0])
    (2.0, 0.0)
    """
    if not any(steps):
        return (sum(seconds) / len(seconds) if seconds else 0.0), 0.0
    if len(set(steps)) > 1:
        step_s, client_s = np.polyfit(steps, seconds, 1).tolist()
        if step_s > 0 and client_s >= 0:
            return round(client_s, 12), round(step_s, 12)
    return 0.0, sum(seconds) / sum(steps)


def _counted(bench: Workbench, few: Scenario) -> list[ExchangeCost]:
    """The training exchange without a second of it: bytes of its messages, FLOPs of a step."""
    algorithm, exchange, sizes = bench.algorithm, bench.algorithm.training, message_sizes(bench, few, cohort=1)
    clock, clients = Clock(), np.asarray(few.members(0), dtype=np.int64)[:1]
    state = algorithm.init_server(bench.context(clock), *bench.objective.initial())
    chunk = turns(few, algorithm, clients, clock, exchange)[0][0].chunks[0]
    broadcast = exchange.broadcast(bench.context(clock), state)
    with padded():
        flops = count_step_flops(Client(bench), chunk, broadcast, None)
    batch, epochs = algorithm.local_batches
    own_tests = 2 * batch / max(epochs, 1) * _test_flops(bench) if bench.experiment.evaluate.clients else 0.0
    return [
        ExchangeCost(
            name=exchange.name, phase="round", order=exchange.order, who=str(exchange.who), broadcast=sizes.broadcast,
            summed=sizes.summed_bytes, single=sizes.single_bytes, state=sizes.state, client_s=0.0, step_s=0.0,
            server_s=0.0, measured_clients=0, step_flops=flops.step + flops.example * batch + own_tests,
            client_flops=0.0,
        )
    ]  # fmt: skip


def _test_flops(bench: Workbench) -> float:
    """FLOPs of a forward pass on one sample."""
    x = bench.normalizer(np.array(bench.dataset.test.x[:2]))
    with torch.no_grad(), padded(), CountFlops() as counter:
        bench.objective.at(*bench.objective.initial())(x)
    return float(counter.total / len(x))


def _test(bench: Workbench, server: Server, clock: Clock) -> tuple[float, float]:
    """(seconds, FLOPs) of a test of one sample, from the first block of the tests; (0, 0) without a global model."""
    if not bench.algorithm.global_model:
        return 0.0, 0.0
    published, ctx = server.published(clock), bench.context(clock)
    samples = sum(len(test.labels(bench.dataset)) for test in bench.summary.stages[0].read(False).values())
    parts = max(1, samples // bench.evaluation_batch)
    with padded(), CountFlops() as counter:
        bench.evaluate(published, ctx, 0, parts)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        bench.evaluate(published, ctx, 0, parts)
        times.append(time.perf_counter() - started)
    return median(times) * parts / samples, counter.total * parts / samples


def _machine(device: str) -> str:
    """The processor's or the GPU's name."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _private_bytes() -> int:
    """Bytes of this process that are in no file; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
    return 0


def _peak_bytes() -> int:
    """The most memory that this process had, without the files that are mapped now."""
    mapped = 0
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(("RssFile", "RssShmem")):
                mapped += int(line.split()[1]) * 1024
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - mapped, 0)
