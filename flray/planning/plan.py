"""A plan: what a run on a cluster sends, stores and takes, from what was measured, counted and stated."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError, ResourceError
from flray.data import Dataset
from flray.engine import cohort as cohorts
from flray.engine.client import Chunk
from flray.engine.progress import size
from flray.planning import machines
from flray.planning.arithmetic import (
    Network,
    Span,
    clients_seconds,
    links,
    server_bytes,
    slowed,
    spread_over,
    store_bytes,
)
from flray.planning.machines import Cluster, Gpu
from flray.planning.measured import ExchangeCost, Measured
from flray.scenario import Scenario

ROUNDS = 3  # whose cohorts are drawn; the plan has their mean


class Seconds(NamedTuple):
    """Of a round, or of a task's beginning or end, by part."""

    clients: float
    network_down: float
    network_up: float
    server: float
    messages: float
    test: float

    @property
    def total(self) -> float:
        return sum(self)


class Plan(NamedTuple):
    """`row`: a row of the table of node numbers; the others are rows of (what, plan)."""

    row: dict[str, Any]
    rows: list[dict[str, str]]
    assumptions: list[str]


class Rates(NamedTuple):
    """Seconds of an exchange's parts: measured, or by a GPU's stated rate. `flops`: FLOP/s of a GPU, its stated peak
    times the stated utilisation. `slow`: how much longer a measured step takes beside the other actors of a node."""

    measured: Measured
    gpu: Gpu | None
    flops: float
    slow: float = 1.0

    def client(self, cost: ExchangeCost, steps: int) -> float:
        """Seconds of a client that takes so many local steps."""
        if self.gpu is None:
            return (cost.client_s + cost.step_s * steps) * self.slow
        copied = (cost.broadcast + cost.summed + cost.single) / self.gpu.transfer
        step_s = max(cost.step_flops / self.flops, machines.STEP_S)
        return machines.CLIENT_S + copied + step_s * steps + cost.client_flops / self.flops

    def server(self, cost: ExchangeCost, clients: int, vectors: int) -> float:
        """Seconds of the server half. What it does with every client's own fields grows with their number."""
        grows = cost.measured_clients and (cost.single or cost.order == "sequential")
        each = clients / cost.measured_clients if grows else 1.0
        return cost.server_s * each + cost.summed * vectors / machines.COPY_RATE

    def test(self, samples: float, workers: float) -> float:
        """Seconds of a test of so many samples by so many actors at a time, each of which takes whole batches."""
        batch = self.measured.test_batch or samples / workers
        batches = math.ceil(round(samples / batch / workers, 9))
        if self.gpu is None:
            return min(batches * batch, samples) * self.measured.test_s * self.slow
        return batches * max(min(batch, samples) * self.measured.test_flops / self.flops, machines.STEP_S)


class Layout(NamedTuple):
    """Client actors of each node; `workers`: how many compute at a time on a node, `threads` of a core each; `slots`:
    actors that a node without the server holds."""

    actors: list[int]
    workers: float
    threads: float
    local: bool
    simulated: bool = False
    slots: int = 1

    @property
    def total(self) -> int:
        return sum(self.actors)

    @property
    def at_a_time(self) -> float:
        """Actors that compute at a time on the fullest node; on simulated nodes on all of them, which share cores."""
        most = sum(self.actors) if self.simulated else max(self.actors)
        return min(most, max(self.workers / self.threads, 1.0))


def layout(experiment: Experiment, cluster: Cluster, cohort: int, on_gpu: bool) -> Layout:
    """How many client actors there are, and on which nodes. Raises `ResourceError` if none fits, `ConfigError` for a
    plan on GPUs of a run that uses none."""
    from flray.engine.ray.capacity import count_fitting  # it imports Ray

    resources = experiment.resources
    if on_gpu and (resources.executor == "local" or not resources.client.num_gpus):
        what = "executor: local" if resources.executor == "local" else "client.num_gpus: 0"
        raise ConfigError(
            f"a plan on GPUs, but the run would use none (resources.{what}); set resources.client.num_gpus, for "
            "example resources.client.num_gpus=1" + (", and resources.executor=auto" if "local" in what else "")
        )
    if resources.executor == "local":
        return Layout([1], 1.0, 1.0, True)
    each, share = resources.client.num_cpus, 0.0
    if on_gpu:
        share = 1.0 if isinstance(resources.client.num_gpus, str) else resources.client.num_gpus
        workers, threads = float(cluster.gpus), 1.0
    else:
        workers, threads = float(cluster.cpus), float(max(1, int(each)))
    need, server = {"num_cpus": each, "num_gpus": share}, resources.server
    slots = count_fitting([(cluster.cpus, cluster.gpus)], need)
    left = (cluster.cpus - server.num_cpus, cluster.gpus - server.num_gpus)
    if min(left) < 0:
        raise ResourceError(
            f"the server ({server.num_cpus:g} CPUs, {server.num_gpus:g} GPUs) does not fit a node of {cluster.cpus} "
            f"CPUs and {cluster.gpus} GPUs; lower resources.server, or plan larger nodes"
        )
    beside = count_fitting([left], need) if server.num_cpus or server.num_gpus else slots
    wanted = resources.client_actors
    most = beside + slots * (cluster.nodes - 1)
    # an own Ray of one machine has as many CPUs as the actors that were asked for need
    if isinstance(wanted, int) and (wanted <= most or (cluster.nodes == 1 and not on_gpu)):
        most = wanted
    elif most < 1 or isinstance(wanted, int):
        kind = f"{cluster.gpus} GPUs and {cluster.cpus} CPUs" if on_gpu else f"{cluster.cpus} CPUs"
        raise ResourceError(
            f"{wanted if wanted != 'auto' else 1} client actors do not fit {cluster.nodes} nodes of {kind} each, which "
            f"hold {most}; lower resources.client_actors or resources.client, or plan larger nodes"
        )
    actors = spread_over(min(most, cohort), cluster.nodes, beside if most > beside else None)
    return Layout(actors, workers, threads, False, cluster.simulated, slots)


class Work(NamedTuple):
    """An exchange's chunks by node, and the local steps of each chunk's clients."""

    nodes: list[list[Span]]
    steps: list[list[list[int]]]
    chunks: list[Chunk]

    @property
    def clients(self) -> int:
        return sum(span.size for spans in self.nodes for span in spans)


def work_of(experiment: Experiment, scenario: Scenario, cost: ExchangeCost, at: Layout, clock: Clock) -> Work:
    """The engine's own chunks of a cohort (`cohort.turns`), on the nodes of their actors."""
    members = np.asarray(scenario.members(clock.task), dtype=np.int64)
    clients = cohorts.draw_cohort(experiment, clock, members)[1]
    if cost.phase != "round" or cost.who in ("task", "stateful"):
        clients = members
    elif cost.who.isdigit():
        clients = members[: int(cost.who)]
    exchange = experiment.algorithm.training._replace(name=cost.name, order="parallel")
    if cost.who == "nobody" or not len(clients):
        return Work([], [], [])
    turns = cohorts.turns(scenario, experiment.algorithm, clients, clock, exchange, at.total)[0]
    if not turns:
        return Work([], [], [])
    (turn,) = turns
    planned, left = turn.cohort.num_steps.tolist(), list(turn.chunks)
    nodes: list[list[Span]] = []
    steps: list[list[list[int]]] = []
    for actors in at.actors:
        mine, left = left[:actors], left[actors:]
        nodes.append([Span(chunk.first, len(chunk.weights)) for chunk in mine])
        steps.append([planned[span.first : span.first + span.size] for span in nodes[-1]])
    return Work(nodes, steps, list(turn.chunks))


class Exchanged(NamedTuple):
    """Bytes and seconds of one exchange: see `arithmetic.Links`; `store`, `server_store`: bytes in the object store of
    the fullest node besides the server's, and of the server's; `working`: actors that have a chunk."""

    seconds: Seconds
    down: int
    between: int
    up: int
    vectors: int
    store: int
    server_store: int
    working: int


def exchange_plan(cost: ExchangeCost, work: Work, at: Layout, rates: Rates, network: Network) -> Exchanged:
    """One exchange of the plan."""
    from flray.engine.ray.combiners import worth_it

    no_steps = rates.gpu is None and not cost.step_s
    times = [
        [sum(rates.client(cost, 0 if no_steps else taken) for taken in steps) for steps in actors]
        for actors in work.steps
    ]
    if cost.order == "sequential":  # one client after the other
        times = [[sum(sum(actors) for actors in times)]] if times else []
    if at.simulated:
        times = [[seconds for actors in times for seconds in actors]]
    single = cost.single + cost.state
    if at.local or not work.clients:
        alone = clients_seconds(times, at.threads, max(at.workers, at.threads))
        seconds = Seconds(alone, 0, 0, rates.server(cost, work.clients, 0), 0, 0)
        return Exchanged(seconds, 0, 0, 0, 0, 0, 0, int(at.local))
    combined = cost.order == "parallel" and worth_it(work.chunks, cost.summed)
    sent = links(work.nodes, cost.broadcast, cost.summed, single, combined, network)
    # states go down as well, and everything through the object stores of both sides
    states = cost.state * sum(span.size for spans in work.nodes[1:] for span in spans)
    copied = (cost.broadcast + 2 * single * work.clients + sent.added) / machines.COPY_RATE
    calls = machines.CALL_S * (1 + sent.levels) + machines.ACTOR_S * len(work.chunks)
    if cost.order == "sequential":
        calls = (machines.CALL_S + machines.ACTOR_S) * work.clients
    seconds = Seconds(
        clients_seconds(times, at.threads, max(at.workers, at.threads)), sent.down_s + states / network.rate,
        sent.up_s, rates.server(cost, work.clients, sent.vectors), calls + copied, 0.0,
    )  # fmt: skip
    server, *others = (store_bytes(cost.broadcast, cost.summed, single, spans) for spans in work.nodes)
    # what comes from other nodes for a call lies in that node's store until the call is over
    server += sent.arrived + sent.up
    stores = (max(others, default=0), server)
    down = sent.down + states
    return Exchanged(seconds, down, sent.between, sent.up, sent.vectors, *stores, len(work.chunks))


def added(parts: list[Exchanged], count: int = 1) -> Exchanged:
    """Exchanges one after the other, divided by `count`; of object stores and working actors the most."""
    seconds = Seconds(*(sum(column) / count for column in zip(*(part.seconds for part in parts), strict=True)))
    down, between, up, vectors = (round(sum(column) / count) for column in zip(*(p[1:5] for p in parts), strict=True))
    most = (max(column) for column in zip(*(part[5:] for part in parts), strict=True))
    return Exchanged(seconds, down, between, up, vectors, *most)


def phase_plan(
    phase: str, experiment: Experiment, scenario: Scenario, at: Layout, rates: Rates, network: Network
) -> Exchanged | None:
    """A round (the mean of the first `ROUNDS`), or a task's beginning or end; None: it has no exchange."""
    costs = [cost for cost in rates.measured.exchanges if cost.phase == phase]
    if not costs:
        return None
    rounds = min(ROUNDS, experiment.rounds) if phase == "round" else 1
    clocks = [Clock(round=number, done=number) for number in range(max(rounds, 1))]
    plans = [
        added([exchange_plan(c, work_of(experiment, scenario, c, at, clock), at, rates, network) for c in costs])
        for clock in clocks
    ]
    return added(plans, len(plans))


def plan(
    experiment: Experiment,
    scenario: Scenario,
    dataset: Dataset,
    measured: Measured,
    cluster: Cluster,
    gpu: tuple[str, float] | None,
) -> Plan:
    """The plan of one experiment on a cluster. `gpu`: (name, utilisation); None: the seconds that were measured.

    Raises `ConfigError` if there are neither, and `ResourceError` if no client actor fits.
    """
    if gpu is None and not measured.timed:
        raise ConfigError("this file has counted bytes and FLOPs alone, no seconds; add --gpu NAME")
    kind = None if gpu is None else machines.gpu_of(gpu[0])
    peak = 0.0 if kind is None or gpu is None else getattr(kind, experiment.precision) * gpu[1]
    sizes = [len(scenario.members(task)) for task in range(len(scenario.stages))]
    cohort = max(experiment.cohort.count(count) for count in sizes)
    at = layout(experiment, cluster, cohort, kind is not None or measured.device != "cpu")
    slow = 1.0 if at.local else slowed(measured.slowdown, measured.together, at.at_a_time)
    rates = Rates(measured, kind, peak, slow)
    network = Network(min(cluster.network, machines.TRANSFER_RATE), machines.FETCH_S, cluster.simulated)
    on_a_gpu = [] if kind is None else gpu_memory(experiment, measured, at, cluster, kind)
    phases = {
        phase: phase_plan(phase, experiment, scenario, at, rates, network)
        for phase in ("round", "task_begin", "task_end")
    }
    a_round = phases["round"]
    if a_round is None:
        raise ConfigError("the measured file has no exchange of a round; measure it again")
    workers = max(min(at.total, at.workers * len([n for n in at.actors if n])), 1) if not at.local else 1
    test_s = rates.test(num_tested(scenario, dataset), 1 if experiment.evaluate.on == "server" else workers)
    if not experiment.algorithm.global_model:
        test_s = 0.0
    tests = num_tests(experiment)
    total = total_seconds(experiment, phases, test_s, tests)
    used = Totals(at, cluster, cohort, a_round, test_s, tests, total, phases)
    rows = [
        *placement(used),
        *memory(experiment, measured, used, sum(sizes)),
        *on_a_gpu,
        *bytes_rows(used),
        *seconds_rows(used, experiment),
    ]
    rows += advice(experiment, used)
    return Plan(row_of(used), [{"what": name, "plan": text} for name, text in rows], assumptions(rates, gpu, cluster))


class Totals(NamedTuple):
    """What the rows of a plan are written from; `test_s`: of one test of the global model, `tests`: how many."""

    at: Layout
    cluster: Cluster
    cohort: int
    round: Exchanged
    test_s: float
    tests: int
    total: float
    phases: dict[str, Exchanged | None]

    @property
    def gpu_hours(self) -> float:
        return self.cluster.nodes * self.cluster.gpus * self.total / 3600

    @property
    def core_hours(self) -> float:
        return self.cluster.nodes * self.cluster.cpus * self.total / 3600


def num_tested(scenario: Scenario, dataset: Dataset) -> float:
    """Samples of a test, in the mean over the tasks."""
    sizes = [sum(len(test.labels(dataset)) for test in stage.read(False).values()) for stage in scenario.stages]
    return sum(sizes) / len(sizes)


def num_tests(experiment: Experiment) -> int:
    """Tests of the global model in a run, the one before round 1 included."""
    evaluate, rounds = experiment.evaluate, experiment.rounds
    due = sum(evaluate.due(number, rounds) for number in range(rounds))
    return due * experiment.num_tasks + bool(evaluate.every)


def total_seconds(experiment: Experiment, phases: dict[str, Exchanged | None], test_s: float, tests: int) -> float:
    """Seconds of the run, from the start of its processes."""
    one = phases["round"]
    assert one is not None
    ends = sum(part.seconds.total for name, part in phases.items() if name != "round" and part is not None)
    rounds = experiment.total_rounds * one.seconds.total
    return machines.START_S + rounds + ends * experiment.num_tasks + tests * test_s


def row_of(t: Totals) -> dict[str, Any]:
    """The row of the table of node numbers; numbers are not rounded."""
    part, _ = bottleneck(t)
    return {
        "nodes": t.cluster.nodes, "gpus": t.cluster.nodes * t.cluster.gpus, "actors": t.at.total,
        "working": t.round.working,
        "round_s": t.round.seconds.total, "clients_s": t.round.seconds.clients,
        "network_s": t.round.seconds.network_down + t.round.seconds.network_up, "server_s": t.round.seconds.server,
        "messages_s": t.round.seconds.messages, "test_s": t.test_s, "run_s": t.total, "gpu_hours": t.gpu_hours,
        "core_hours": t.core_hours, "bytes_down": t.round.down, "bytes_between": t.round.between,
        "bytes_up": t.round.up, "vectors": t.round.vectors, "bottleneck": part,
    }  # fmt: skip


def placement(t: Totals) -> list[tuple[str, str]]:
    """The actors and where they are."""
    if t.at.local:
        return [("actors", "none: server and clients in one process (resources.executor: local)")]
    busy = [count for count in t.at.actors if count]
    most, fewest = max(busy), min(busy)
    where = f"{most}" if most == fewest else f"{fewest} to {most}"
    idle = t.cluster.nodes - len(busy)
    text = f"{t.at.total} client actors, {where} a node on {len(busy)} nodes"
    if t.round.working < t.at.total:
        text += f"; a round has work for {t.round.working} of them"
    rows = [
        ("actors", text + (f"; {idle} nodes have none" if idle else "")),
        ("node 1", "the driver, the server actor with the run folder and the clients' states, its client actors"),
    ]
    return rows


def memory(experiment: Experiment, measured: Measured, t: Totals, members: int) -> list[tuple[str, str]]:
    """Memory of each kind of process."""
    costs = [cost for cost in measured.exchanges if cost.phase == "round"]
    state = sum(cost.state for cost in costs)
    stored = 0 if experiment.resources.store == "files" else state * members
    arrays = server_bytes(measured.vector, sum(c.single for c in costs), t.cohort, stored)
    base = measured.process_bytes
    sums = max((c.summed for c in costs), default=0) * (max(t.cohort // max(t.at.total, 1), 1).bit_length() + 1)
    rows = [
        ("memory: driver", f"{size(base)}, as a process that has imported torch"),
        ("memory: server", f"{size(base + arrays)}, of which {size(arrays)} parameters and clients' parts; its model"),
    ]
    client = f"{size(base + measured.client_bytes + sums)}, of which {size(sums)} partial sums"
    if measured.timed and measured.device == "cpu":
        rows.append(("memory: client actor", client + "; the rest measured here, server half included"))
    else:
        rows.append(("memory: client actor", client + " in the host's memory"))
    if measured.gpu_bytes is not None:
        rows.append(("memory: client on a GPU", f"about {size(measured.gpu_bytes)}, predicted with its margin"))
    if not t.at.local:
        text = f"{size(t.round.server_store)} on the server's node"
        own = sum(cost.single for cost in costs)
        if own:
            text += f", with what {t.cohort} clients send unsummed, {size(own)} each"
        rows.append(("memory: object store", text + (f"; {size(t.round.store)} on others" if t.round.store else "")))
    return rows


def gpu_memory(
    experiment: Experiment, measured: Measured, at: Layout, cluster: Cluster, gpu: Gpu
) -> list[tuple[str, str]]:
    """The clients' memory on the fullest GPU, and the server's if it may be there too. Raises `ResourceError` if the
    GPU has less."""
    if measured.gpu_bytes is None:
        return [("memory: a GPU", f"{size(gpu.memory)}; a client's was not predicted: measure with --gpu NAME")]
    actors, share = math.ceil(max(at.actors) / cluster.gpus), experiment.resources.server.num_gpus
    text, need = f"{actors} client actors of about {size(measured.gpu_bytes)}", actors * measured.gpu_bytes
    if 0 < share < 1:  # its own half: the model, and four vectors
        server = 4 * measured.parameters + 4 * measured.vector
        text, need = f"{text} and the server of about {size(server)}", need + server
    text += f" on a GPU of {size(gpu.memory)}"
    if need > gpu.memory:
        raise ResourceError(
            f"{text} do not fit; raise resources.client.num_gpus, lower algorithm.batch_size, or plan a larger GPU"
        )
    return [("memory: a GPU", text)]


def bytes_rows(t: Totals) -> list[tuple[str, str]]:
    """Bytes a round by link."""
    one = t.round
    return [
        ("bytes: server's node to the others", f"{size(one.down)} a round"),
        ("bytes: between combiners of nodes", f"{size(one.between)} a round"),
        ("bytes: other nodes to the server", f"{size(one.up)} a round; {one.vectors} vectors reach it"),
    ]


def seconds_rows(t: Totals, experiment: Experiment) -> list[tuple[str, str]]:
    """Seconds of a round by part, of the run, and their cost."""
    names = {"clients": "clients", "network_down": "network down", "network_up": "network up", "server": "server half",
             "messages": "messages"}  # fmt: skip
    one = t.round.seconds
    parts = ", ".join(f"{text} {duration(getattr(one, name))}" for name, text in names.items())
    rows = [("a round", f"{duration(one.total)}: {parts}")]
    rows.append(("a test of the global model", f"{duration(t.test_s)}, {t.tests} in the run"))
    for phase in ("task_begin", "task_end"):
        part = t.phases[phase]
        if part is not None:
            rows.append((phase.replace("_", " "), f"{duration(part.seconds.total)}, once a task"))
    rows.append(("the run", f"{duration(t.total)} for {experiment.total_rounds} rounds"))
    gpus = f"{t.gpu_hours:.3g} GPU hours, " if t.cluster.gpus else ""
    rows.append(("cost", f"{gpus}{t.core_hours:.3g} CPU-core hours of all nodes"))
    return rows


def bottleneck(t: Totals) -> tuple[str, float]:
    """(the largest part of the run's rounds and tests, its share)."""
    rounds = t.round.seconds._asdict()
    per_round = t.tests * t.test_s / max(t.total - machines.START_S, 1e-9)
    total = t.round.seconds.total
    shares = {name: part / max(total, 1e-12) * (1 - per_round) for name, part in rounds.items() if name != "test"}
    shares["test"] = per_round
    name = max(shares, key=lambda part: shares[part])
    return name, shares[name]


def advice(experiment: Experiment, t: Totals) -> list[tuple[str, str]]:
    """The bottleneck, and what to change."""
    part, share = bottleneck(t)
    rows = [("bottleneck", f"{part.replace('_', ' ')}: {share:.0%} of the time of rounds and tests")]
    change = {
        "clients": "more nodes or GPUs, as long as the cohort has more clients than there are actors",
        "network_down": "a faster network, or fewer nodes: each of them gets the broadcast",
        "network_up": "a faster network, fewer nodes, or updates that are smaller",
        "server": "the server half does not get faster by nodes: fewer of them cost less; resources.server.num_gpus",
        "messages": "more work a round: more local steps or a larger cohort; fewer actors",
        "test": f"test less often: evaluate.every={max(experiment.evaluate.every, 1) * 5}",
    }
    capacity = t.cluster.nodes * t.at.slots
    needed = math.ceil(t.cohort / max(t.at.slots, 1))
    if not t.at.local and part == "clients" and t.at.total == t.cohort and needed < t.cluster.nodes:
        rows.append(
            (
                "change",
                f"nodes={needed} do the same: a cohort of {t.cohort} clients uses {t.cohort} of {capacity} actors",
            )
        )
    else:
        rows.append(("change", change[part]))
    return rows


def assumptions(rates: Rates, gpu: tuple[str, float] | None, cluster: Cluster) -> list[str]:
    """Every assumption in a sentence."""
    m, said = rates.measured, []
    if m.timed:
        said.append(
            f"measured on {m.machine} ({m.cores} cores, {m.threads} threads an actor, {m.device}, torch {m.torch}): "
            "two clients of one and three batches of the first task, from their third round on"
        )
    else:
        said.append("bytes and FLOPs were counted on one client; no second was measured")
    if gpu is not None and rates.gpu is not None:
        said.append(
            f"a GPU ({gpu[0]}) computes {gpu[1]:.0%} of its stated peak, {rates.flops / 1e12:.3g} TFLOP/s; matrix "
            "products, convolutions and attention count, nothing else; a step, and a test of a batch, takes at least "
            f"{machines.STEP_S * 1e3:g} ms"
        )
        said.append(
            f"a client takes {machines.CLIENT_S * 1e3:g} ms besides its steps, and its messages pass between host and "
            f"device at {rates.gpu.transfer / 1e9:g} GB/s"
        )
        if not m.timed:
            said.append("the server half adds vectors, and its own training or merging is not counted; nor are a "
                        "task's beginning and end")  # fmt: skip
        else:
            said.append("the server half takes the seconds that were measured, on the CPU or GPU of the measurement")
    else:
        said.append(
            f"{m.together} processes that train at a time took {m.slowdown:.2f} times as long as one alone; so do "
            "actors of a node, and tests"
            if m.together > 1
            else "one process was measured alone; actors that have a core (a GPU) of their own do not slow each other"
        )
    said += [
        f"the network carries {cluster.network / 1e9:g} GB/s into and out of each node, Ray's transfer of objects "
        f"{machines.TRANSFER_RATE / 1e9:g} GB/s at most and {machines.FETCH_S * 1e3:g} ms an object; the server's node "
        "sends the broadcast to every other node itself",
        f"a process writes, reads or adds arrays at {machines.COPY_RATE / 1e9:g} GB/s; an exchange takes "
        f"{machines.CALL_S * 1e3:g} ms, a level of combiners too, and {machines.ACTOR_S * 1e3:g} ms for each actor's "
        "call",
        f"the start takes {machines.START_S:g} s, as measured on a small model; checkpoints, diagnostics and "
        "personalised tests are not counted",
        f"all rounds cost what the first task's do; cohorts are those of the first {ROUNDS} rounds; a client's state "
        "exists",
    ]
    return said


def duration(seconds: float) -> str:
    """Seconds as text with a unit.

    Examples:
        >>> [duration(s) for s in (0.0, 0.0042, 3.21, 600, 8000, 200_000)]
        ['0 s', '4.2 ms', '3.21 s', '10 min', '2.22 h', '55.6 h']
    """
    for limit, unit, factor in ((1.0, "ms", 1e3), (120.0, "s", 1.0), (7200.0, "min", 1 / 60)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}" if seconds else "0 s"
    return f"{seconds / 3600:.3g} h"
