"""What a run takes on several nodes like this machine: the table of `flray doctor CONFIG --nodes 1,100`.

Two clients train a few batches here, in one process. Their seconds, those of the server half and of a test, and the
memory of the process are measured; the bytes of messages are counted (`engine/message_sizes.py`). The cohort is cut
into chunks as in a run, and a run's own rule says whether nodes add up sums before they reach the server. The network
is stated, not measured: `NOTES` says how.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import resource
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from flray.config.experiment import Experiment
from flray.core.protocol.batching import FULL
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError, ResourceError
from flray.engine import cohort as cohorts
from flray.engine.exchanges import Chunk
from flray.engine.message_sizes import MessageSizes, message_sizes
from flray.engine.prepare import build_data, build_scenario
from flray.engine.progress import size
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.threads import cores
from flray.engine.tickets import concurrency, draw
from flray.rundir.reader import load
from flray.running import play
from flray.scenario import Coordination, Partition, Scenario
from flray.scenario.devices import DevicesConfig

BATCHES = (1, 3)  # of the two measured clients
WARM_UP, MOST_ROUNDS = 2, 20
RATE = 1.25e9  # bytes a second out of a node: 10 Gbit
CALL_S = 3e-3  # until the bytes of an object from another node flow, measured between two of Ray's nodes
START_S = 6.6  # to the end of round 1, measured on a small model: `flray bench --only startup`
NOTES = (
    "measured: seconds of two clients of one and three batches of the first task, of the server half and of a test, in "
    "one process here, from the third round on; counted: bytes",
    f"assumed: a node has this machine's cores, memory and GPUs; it sends {RATE / 1e9:g} GB/s, and an object waits "
    f"{CALL_S * 1e3:g} ms; actors with a core each do not slow each other; the start takes {START_S:g} s",
    "not counted: beginnings and ends of tasks, checkpoints, diagnostics, personalised tests",
)


class Measured(NamedTuple):
    """Seconds of a client besides its local steps, of a local step, of the server half of a round, of a test of the
    global model; bytes of a process that has imported torch, and those that training added at its peak."""

    client_s: float
    step_s: float
    server_s: float
    test_s: float
    process: int
    training: int


class Load(NamedTuple):
    """Of a round on some nodes: seconds by part; bytes out of the server's node and into it; vectors that reach the
    server; client actors and chunks by node."""

    client_s: float
    network_s: float
    down: int
    up: int
    vectors: int
    actors: list[int]
    nodes: list[list[Chunk]]


def table(experiment: Experiment, numbers: list[int], seconds: float = 10.0) -> list[dict[str, Any]]:
    """A row for each number of nodes, from about so many seconds of measurement; numbers are not rounded.

    Raises `ConfigError` for a run that has no actors, `ResourceError` if no client actor fits, and the errors of a run.
    """
    resources = experiment.resources
    if experiment.algorithm.centralized or resources.executor == "local":
        what = "algorithm centralized" if experiment.algorithm.centralized else "resources.executor=local"
        raise ConfigError(
            f"--nodes: {what} trains in one process; choose another algorithm, or resources.executor=calls"
        )
    scenario = build_scenario(experiment, build_data(experiment))
    layouts = [actors_by_node(experiment, nodes, cohorts.largest_cohort(experiment, scenario)) for nodes in numbers]
    sizes = message_sizes(Runtime(experiment, TaskSummary.of(scenario)), scenario)
    measured = measure(experiment, scenario, seconds)
    states = 0 if resources.store == "files" else sizes.state * scenario.population * len(scenario.stages)
    return [row(experiment, measured, sizes, states, round_of(experiment, scenario, measured, sizes, actors))
            for actors in layouts]  # fmt: skip


def measure(experiment: Experiment, scenario: Scenario, seconds: float) -> Measured:
    """A run of two clients in this process, of which the first rounds are not counted."""
    before = _status("RssAnon")
    local = {"executor": "local", "client_actors": "auto"}
    short = experiment.model_copy(
        update={
            "rounds": MOST_ROUNDS, "storage": None, "track": (), "diagnostics": (), "profile": None,
            "resources": experiment.resources.model_copy(update=local),
            "evaluate": experiment.evaluate.model_copy(update={"every": 1, "on": "server"}),
            "cohort": type(experiment.cohort)(), "until": None, **_clock_of_few(experiment),
        }
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="flray-nodes-") as home:
        began = time.perf_counter()
        with contextlib.closing(play(short, Path(home) / "run", scenario=_few(experiment, scenario))) as rounds:
            for done, _ in enumerate(rounds, 1):
                if done > WARM_UP and time.perf_counter() - began > seconds:
                    break
        run = load(Path(home) / "run")
        clients, counted = run.clients, run.rounds[run.rounds["done"] > WARM_UP]
    by_client = clients[clients["done"] > WARM_UP].groupby("client")[["num_steps", "time/client_s"]].median()
    client_s, step_s = line_through(by_client["num_steps"].tolist(), by_client["time/client_s"].tolist())
    test_s = counted["time/evaluate_s"].median() if "time/evaluate_s" in counted else 0.0
    training = max(_peak_bytes() - before, 0)
    return Measured(client_s, step_s, float(counted["time/server_s"].median()), float(test_s), before, training)


def _clock_of_few(experiment: Experiment) -> dict[str, Any]:
    """The sections of a clock with which each of the two clients works in every round: it changes no time of ours."""
    arrivals = experiment.coordination.size
    if arrivals is None:
        return {"devices": None, "coordination": Coordination()}
    less = {"size": min(arrivals, len(BATCHES)), "concurrency": None, "max_staleness": None}
    return {"devices": DevicesConfig(), "coordination": experiment.coordination.model_copy(update=less)}


def _few(experiment: Experiment, scenario: Scenario) -> Scenario:
    """The scenario in which only the two clients with the most samples of the first task have any: `BATCHES`."""
    batch = experiment.algorithm.local_batches[0]
    if batch == FULL:
        batch = int(max(part.sizes.max() for part in scenario.partitions))
    largest = np.argsort(-scenario.partitions[0].sizes, kind="stable")[: len(BATCHES)]

    def cut(partition: Partition) -> Partition:
        parts = {int(c): partition.client(int(c))[: n * int(batch)] for c, n in zip(largest, BATCHES, strict=False)}
        sizes = np.zeros(partition.num_clients, dtype=np.int64)
        for client, numbers in parts.items():
            sizes[client] = len(numbers)
        return Partition(
            np.concatenate([parts[client] for client in sorted(parts)]), np.concatenate([[0], np.cumsum(sizes)])
        )

    return Scenario(scenario.stages, [cut(partition) for partition in scenario.partitions])


def line_through(steps: list[float], seconds: list[float]) -> tuple[float, float]:
    """(seconds of a client without its steps, seconds of a step), neither below 0.

    >>> line_through([10, 30], [1.5, 3.5])
    (0.5, 0.1)
    >>> line_through([10, 30], [1.0, 4.0])  # a line through 0
    (0.0, 0.125)
    """
    if len(set(steps)) > 1:
        step_s, client_s = np.polyfit(steps, seconds, 1).tolist()
        if step_s > 0 and client_s >= 0:
            return round(client_s, 12), round(step_s, 12)
    return 0.0, sum(seconds) / max(sum(steps), 1)


def actors_by_node(experiment: Experiment, nodes: int, cohort: int) -> list[int]:
    """Client actors of each node, as even as possible; the server is on the first one. Raises `ResourceError`."""
    from flray.engine.ray.capacity import count_fitting  # it imports Ray

    resources = experiment.resources
    client, server, wanted = resources.client, resources.server, resources.client_actors
    share = 1.0 if isinstance(client.num_gpus, str) else client.num_gpus
    if isinstance(client.num_gpus, str) and not torch.cuda.is_available():
        share = 0.0
    cpus, gpus = cores(), torch.cuda.device_count()
    need = {"num_cpus": client.num_cpus, "num_gpus": share}
    each = count_fitting([(cpus, gpus)], need)
    beside = count_fitting([(cpus - server.num_cpus, gpus - server.num_gpus)], need)
    most = beside + each * (nodes - 1)
    asked = cohort if wanted == "auto" else min(int(wanted), cohort)
    if nodes == 1 and not share and wanted != "auto":
        most = max(most, asked)  # an own Ray of one machine has as many CPUs as its actors need
    if most < (1 if wanted == "auto" else asked):
        raise ResourceError(
            f"--nodes {nodes}: {1 if wanted == 'auto' else asked} client actors ({client.num_cpus:g} CPUs, {share:g} "
            f"GPUs each) do not fit so many nodes of {cpus} CPUs and {gpus} GPUs, which hold {most}; lower "
            "resources.client_actors or resources.client, or ask on a machine like the cluster's"
        )
    actors = min(most, asked)
    if nodes == 1:
        return [actors]
    first = min(beside, math.ceil(actors / nodes))
    others = actors - first
    return [first, *(others // (nodes - 1) + (i < others % (nodes - 1)) for i in range(nodes - 1))]


def round_of(
    experiment: Experiment, scenario: Scenario, measured: Measured, sizes: MessageSizes, actors: list[int]
) -> Load:
    """The first round, with the engine's own cohort and chunks, on nodes of so many actors."""
    from flray.engine.ray.combiners import num_subtrees, worth_it  # it imports Ray

    clock = Clock()
    if experiment.coordination.size is None:
        clients = cohorts.draw_cohort(experiment, scenario, clock)[1]
    else:  # the first to start; whose updates come first is not asked
        members = np.asarray(scenario.members(0), dtype=np.int64)
        clients = draw(experiment.seed, (0, 0), members, concurrency(experiment, len(members)))
    clients = clients[: cohorts.largest_cohort(experiment, scenario)]  # of those drawn, late ones do not train
    exchange = experiment.algorithm.training
    (turn,) = cohorts.turns(scenario, experiment.algorithm, clients, clock, exchange, sum(actors))[0]
    left = iter(turn.chunks)
    nodes = [list(itertools.islice(left, count)) for count in actors]
    steps, threads = turn.cohort.num_steps.tolist(), max(1, int(experiment.resources.client.num_cpus))
    slowest = 0.0
    for chunks in nodes:
        times = [
            sum(measured.client_s + measured.step_s * steps[chunk.first + i] for i in range(len(chunk.weights)))
            for chunk in chunks
        ]
        slowest = max(slowest, sum(times) * threads / cores(), *times, 0.0)
    away = [chunk for chunks in nodes[1:] for chunk in chunks]
    served, own = sum(len(chunk.weights) for chunk in away), sizes.single_bytes + sizes.state
    down = sizes.broadcast * sum(map(bool, nodes[1:])) + sizes.state * served
    levels, vectors = 0, sum(num_subtrees(chunk.first, len(chunk.weights)) for chunk in turn.chunks)
    sent = sum(num_subtrees(chunk.first, len(chunk.weights)) for chunk in away)
    if away and worth_it(turn.chunks, sizes.summed_bytes):
        levels = math.ceil(math.log2(sum(map(bool, nodes))))
        vectors = sent = num_subtrees(0, len(steps))
    up = sizes.summed_bytes * sent + own * served
    network_s = (down + up + levels * sizes.summed_bytes) / RATE + CALL_S * (2 + levels) if away else 0.0
    return Load(slowest, network_s, down, up, vectors, actors, nodes)


def row(experiment: Experiment, measured: Measured, sizes: MessageSizes, states: int, at: Load) -> dict[str, Any]:
    """The row of a number of nodes: bytes of memory, bytes and seconds of a round, seconds of the run."""
    largest = max(len(chunk.weights) for chunks in at.nodes for chunk in chunks)
    server = measured.process + sizes.server_bytes + states
    actor = measured.process + measured.training + sizes.summed_bytes * largest.bit_length()
    store = sizes.broadcast + sizes.summed_bytes * at.vectors + (sizes.single_bytes + sizes.state) * sizes.cohort
    others = max(at.actors[1:], default=0)
    tests = experiment.total_rounds // experiment.evaluate.every if experiment.evaluate.every else experiment.num_tasks
    workers = 1 if experiment.evaluate.on == "server" else sum(at.actors)
    round_s, test_s = at.client_s + at.network_s + measured.server_s, measured.test_s / workers
    run_s = START_S + experiment.total_rounds * round_s + tests * test_s
    return {
        "nodes": len(at.nodes), "actors": sum(at.actors),
        "server_bytes": server, "actor_bytes": actor,
        "node_bytes": max(measured.process + server + store + at.actors[0] * actor, sizes.broadcast + others * actor),
        "down_bytes": at.down, "up_bytes": at.up, "vectors": at.vectors, "client_s": at.client_s,
        "network_s": at.network_s, "server_s": measured.server_s, "round_s": round_s, "test_s": test_s,
        "run_s": run_s, "core_hours": len(at.nodes) * cores() * run_s / 3600,
    }  # fmt: skip


def in_words(values: dict[str, Any]) -> dict[str, str]:
    """A row as a person reads it."""
    heads = {
        "server_bytes": "server", "actor_bytes": "client actor", "node_bytes": "fullest node",
        "down_bytes": "sent down", "up_bytes": "sent up", "client_s": "clients", "network_s": "network",
        "server_s": "server half", "round_s": "a round", "test_s": "a test", "run_s": "the run",
        "core_hours": "core hours",
    }  # fmt: skip
    texts = {}
    for name, value in values.items():
        text = size(value) if name.endswith("_bytes") else duration(value) if name.endswith("_s") else f"{value:.3g}"
        texts[heads.get(name, name)] = str(value) if isinstance(value, int) and name not in heads else text
    return texts


def duration(seconds: float) -> str:
    """Seconds as text with a unit.

    Examples:
        >>> duration(0.0), duration(0.0042), duration(3.21), duration(600), duration(8000), duration(200_000)
        ('0 s', '4.2 ms', '3.21 s', '10 min', '2.22 h', '55.6 h')
    """
    for limit, unit, factor in ((1.0, "ms", 1e3), (120.0, "s", 1.0), (7200.0, "min", 1 / 60)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}" if seconds else "0 s"
    return f"{seconds / 3600:.3g} h"


def _status(*names: str) -> int:
    """Bytes of this process by the names of /proc/self/status; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))
    return 0


def _peak_bytes() -> int:
    """The most memory that this process had, without the files that are mapped now."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return max(most - _status("RssFile", "RssShmem"), 0)
