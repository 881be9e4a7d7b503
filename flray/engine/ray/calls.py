"""The executor by ordinary calls of Ray actors: one call a chunk of the cohort, repeated if its actor died.

The driver has references only. With the server half it sends the test, and the work of the next round's clients where
their turn does not depend on its plan (`ExchangePlan.kind`): both wait for the server, not for the driver. It sends the
server half when the clients have done their work, not before: a checkpoint after Ctrl-C would wait behind it, and a
repeated chunk behind the tests.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, TypeVar, cast

from ray.exceptions import ObjectLostError

from flray.config.experiment import Experiment
from flray.core.messages import Message, to_numpy
from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.core.schema.errors import FlrayError, ServerLostError, shown, warn
from flray.engine import cohort as cohorts, devices
from flray.engine.blame import server_never_started
from flray.engine.counts import TestCounts, merge_counts
from flray.engine.exchanges import Chunk, ExchangePlan, Turn
from flray.engine.ray import alive, by_value, combiners, leases
from flray.engine.ray.actors import ClientActor, Recipe, ServerActor
from flray.engine.ray.capacity import gpu_share
from flray.engine.ray.cluster import ray, started
from flray.engine.ray.combiners import ChunkReport, Part
from flray.engine.ray.pool import ActorCall, ActorPool, SentCall, call_name
from flray.engine.rounds import P, TurnResult
from flray.engine.server import Server
from flray.engine.threads import cores
from flray.files import checksum
from flray.rundir.provenance import imported_sources
from flray.rundir.run_store import RunStore
from flray.scenario import Scenario

LOST_RESULTS = 3  # times that one piece of work is computed
SAVE_S = 10.0  # for a checkpoint after a death of Ray's own processes
END_S = 1.0  # for work that was begun and is not wanted; actors that take longer end
SENT_AHEAD = 4096  # samples of a chunk, whose numbers have 8 bytes each: it is sent once more with its work
NAMED_ROUNDS = 500  # the first ones, whose calls have a name each; those after them share one with so many

T = TypeVar("T")


class ChunkRefs(NamedTuple):
    """References to a chunk's sums and to the rest of its result, and the report."""

    sums: Any
    own: Any
    report: ChunkReport


Sums = tuple[Any, Part]  # a reference to them, and where they are


class Begun(NamedTuple):
    """A turn whose chunks were sent before it was planned, the kind of its plan, and the calls."""

    turn: Turn
    kind: tuple[Any, ...]
    calls: list[SentCall]


class CallsExecutor:
    """An executor (`rounds.Executor`) over a pool of actors that are set up."""

    def __init__(self, pool: ActorPool, experiment: Experiment, facts: dict[str, Any]) -> None:
        self.pool, self.experiment, self.facts = pool, experiment, facts
        self.meanwhile: Callable[[], object] = lambda: None
        self._plans: dict[Clock, tuple[Any, ExchangePlan | None]] = {}  # references to broadcasts, and their plans
        self._parts: dict[str, Any] = {}  # references to the shared parts of the broadcasts, by hash
        self._versions: dict[int, Any] = {}  # references to the broadcasts of clients at work, by server step
        self._gauges: Gauges | None = None
        self._combining = False  # the chunks of this exchange
        self.foresee: Callable[[ExchangePlan], Turn | None] = lambda _: None
        self._one_exchange = False  # in the round before
        self._begun: Begun | None = None  # the work of the next round
        # references to what the test after a transaction reads, and to a broadcast with arrays of it
        self._published: dict[Clock, tuple[Any, Any]] = {}
        self._sent_tests: dict[Clock, list[SentCall]] = {}  # that test's parts, sent with the exchange

    @property
    def num_chunks(self) -> int:
        return len(self.pool.clients)

    @property
    def retries(self) -> int:
        return self.pool.retries

    def plan(self, clock: Clock) -> ExchangePlan | None:
        if clock not in self._plans:  # else the exchange before has planned it
            broadcast, plan_ref = self._ask(Server.plan, clock, returns=2)
            self._set_plans({clock: (broadcast, self.pool.wait(plan_ref))})
        return self._plans[clock][1]

    def _set_plans(self, broadcast: dict[Clock, tuple[Any, ExchangePlan | None]]) -> None:
        """Keep these broadcasts, and references to the shared parts that they name: those known are not sent again."""
        self._plans = broadcast
        named = [hash for _, plan in broadcast.values() if plan is not None for hash in plan.shared]
        if named:  # those of a round whose second exchange names none stay for the next one
            self._parts = {hash: self._parts.get(hash) or self._ask(Server.part, hash) for hash in named}

    def broadcast(self, clock: Clock, exchange: Exchange) -> ExchangePlan:
        broadcast, plan_ref = self._ask(Server.broadcast, clock, exchange, returns=2)
        plan: ExchangePlan = self.pool.wait(plan_ref)
        self._set_plans({clock: (broadcast, plan)})
        return plan

    def run(self, plan: ExchangePlan, turn: Turn, ahead: Sequence[Clock]) -> TurnResult:
        done: dict[int, Any] = {}  # by chunk: its result
        self._combining = self._combines(turn)
        return self._again(lambda: self._run(plan, turn, ahead, done), lambda: self._restore(plan, done))

    def _combines(self, turn: Turn) -> bool:
        """Whether combiners are worth it at this turn, which depends on how its cohort is cut."""
        sums = [run[0]._replace(weights=tuple(w for chunk in run for w in chunk.weights)) for run in turn.by_actor]
        return combiners.worth_it(sums, 4 * (self.facts["parameters"] + self.facts["buffers"]))

    def _restore(self, plan: ExchangePlan, done: dict[int, Any]) -> None:
        """Broadcast again, after a node was lost, and forget the results that it may have had."""
        self._parts, self._versions = {}, {}
        lost = _lost(done) if self._combining else set(done)
        for chunk in lost or set(done):  # none: it is not known which
            del done[chunk]
        self.broadcast(plan.clock, plan.exchange)

    def _run(self, plan: ExchangePlan, turn: Turn, ahead: Sequence[Clock], done: dict[int, Any]) -> TurnResult:
        broadcast, now = self._plans[plan.clock][0], plan.clock.transaction
        if plan.aged is not None:
            named = {*plan.aged.held, *plan.aged.versions}
            self._versions = {number: ref for number, ref in self._versions.items() if number in named}
            if not plan.shared and plan.clock.done in named:
                self._versions[plan.clock.done] = broadcast
        begun = self._taken(turn, plan)
        following = list[Turn]()
        left = [i for i in range(len(turn.by_actor)) if i not in done]
        work = [functools.partial(self._work, turn.by_actor[i], plan, broadcast) for i in left]
        sent = {place: begun[i] for place, i in enumerate(left) if i in begun}

        def where(place: int) -> str:
            clients = [client for chunk in turn.by_actor[left[place]] for client in chunk.clients]
            return f"clients {shown(clients)} in {plan.clock}"

        worked = self.pool.execute(
            work, begun=sent, meanwhile=lambda: following.extend(self._look_ahead(plan)), where=where
        )
        done.update(zip(left, worked, strict=True))
        results = [result for _, result in sorted(done.items())]
        began = time.perf_counter()
        if self._combining:
            name = call_name(ClientActor.combine, _task_name(plan.clock))
            apart = [ChunkRefs(sums, own, report) for (sums, own), report in results]
            payloads, reports = _combined(self.pool, apart, {"name": name}), [result.report.clients for result in apart]
        else:
            payloads, reports = [payload for (payload,), _ in results], [reports for _, reports in results]
        due = self._is_due(now)
        arguments = (plan, to_numpy(turn.cohort), ahead, due, *payloads)
        name = call_name(ServerActor.finish, _task_name(plan.clock))
        references = self.pool.start(ServerActor.finish, *arguments, returns=4, name=name)
        next_broadcast, next_plan, published, answer = references
        self._sent_tests = {}
        if due and ahead:  # else another turn comes
            tests = self._tests(published, now, self.num_chunks, next_broadcast)
            self._sent_tests = {now: [self.pool.send(*call) for call in zip(tests, self.pool.clients, strict=False)]}
        for next_turn in following:
            self._begun = self._begin(next_turn, plan, next_plan, next_broadcast)
        report, plans = self.pool.wait(answer)
        self._one_exchange = plan.clock.exchange == 0 and plans[:1] == [None]
        if plans[:1] != [None]:  # the transaction goes on: there is nothing to test
            self._sent_tests = {}
        self._published = {now: (published, next_broadcast)} if now in self._sent_tests else {}
        self._set_plans({clock: (next_broadcast, plan_ahead) for clock, plan_ahead in zip(ahead, plans, strict=False)})
        return TurnResult([one for chunk in reports for one in chunk], report, time.perf_counter() - began)

    def _look_ahead(self, plan: ExchangePlan) -> list[Turn]:
        """While the clients work: the turn of the next round, if its clients may begin before it is planned. Each actor
        gathers their batches behind its present work, while the server aggregates."""
        self.meanwhile()
        following = self.foresee(plan) if self._one_exchange else None
        if following is None or plan.kind is None:
            return []
        if len(following.chunks) > len(self.pool.clients) or self._combines(following):
            return []
        name = call_name(ClientActor.prepare_ahead, _task_name(following.clock))
        for chunk, actor in zip(following.chunks, self.pool.clients, strict=False):
            if len(chunk.shares.indices) <= SENT_AHEAD:
                actor.prepare_ahead.options(num_returns=0, name=name).remote(chunk)
        return [following]

    def _begin(self, turn: Turn, plan: ExchangePlan, next_plan: Any, broadcast: Any) -> Begun:
        """Send the chunks of a turn behind what the actors have to do, with references to its plan and broadcast."""
        assert plan.kind is not None  # `_look_ahead`

        def call_of(chunk: Chunk) -> ActorCall:
            return lambda actor: self._work([chunk], plan, broadcast, actor, next_plan)

        pairs = zip(map(call_of, turn.chunks), self.pool.clients, strict=False)
        return Begun(turn, plan.kind, [self.pool.send(*pair) for pair in pairs])

    def _taken(self, turn: Turn, plan: ExchangePlan) -> dict[int, SentCall]:
        """By chunk the calls that have begun with this turn. Those of another turn or plan are taken back."""
        begun, self._begun = self._begun, None
        if begun is None:
            return {}
        if begun.turn is turn and begun.kind == plan.kind:
            return dict(enumerate(begun.calls))
        self.pool.cancel(call.report for call in begun.calls)
        return {}

    def _work(
        self, run: Sequence[Chunk], plan: ExchangePlan, broadcast: Message, actor: Any, next_plan: Any = None
    ) -> tuple[Sequence[Any], Any]:
        """Send neighbouring chunks, which may be of several versions, to the actor that trains them. `next_plan`: a
        reference to their own plan, which will be of the kind of `plan`."""
        ahead = next_plan is not None
        stateful, whole = self.facts["stateful"], run[0].version is not None
        states = [self._ask(Server.states, chunk.clients) if stateful else None for chunk in run]
        broadcasts = [self._version(chunk.version) if chunk.version is not None else broadcast for chunk in run]
        parts = [] if ahead or whole else [self._parts[hash] for hash in plan.shared]
        combining = self._combining and not ahead
        name = call_name(ClientActor.work, _task_name(run[0].clock if ahead else plan.clock))
        call = actor.work.options(num_returns=3 if combining else 2, name=name)
        given = (next_plan, plan.kind) if ahead else (plan, None)
        *payloads, report = call.remote(run, *given, combining, *broadcasts, *states, *parts)
        return payloads, report

    def _version(self, number: int) -> Any:
        if number not in self._versions:
            self._versions[number] = self._ask(Server.version, number)
        return self._versions[number]

    def test(self, clock: Clock) -> TestCounts:
        if self.experiment.evaluate.on == "server" or not self.pool.clients:  # centralized training has none
            counts: TestCounts = self.call(Server.evaluate, clock)
            return counts
        return self._again(lambda: self._test(clock), self._published.clear)

    def _is_due(self, clock: Clock) -> bool:
        rule, tested = self.experiment.evaluate, self.experiment.algorithm.global_model and clock.phase == "round"
        return tested and rule.on == "clients" and rule.due(clock.round, self.experiment.rounds)

    def _test(self, clock: Clock) -> TestCounts:
        sent = dict(enumerate(self._sent_tests.pop(clock, [])))
        published, broadcast = self._published.get(clock) or (self._ask(Server.published, clock), None)
        work = self._tests(published, clock, len(sent) or self.num_chunks, broadcast)
        counts = self.pool.execute(work, begun=sent, where=lambda part: f"the test after {clock}")
        return merge_counts(report for _, report in counts)

    def _tests(self, published: Any, clock: Clock, parts: int, broadcast: Any) -> list[ActorCall]:
        name = call_name(ClientActor.evaluate, _task_name(clock))

        def call_of(part: int) -> ActorCall:
            return lambda actor: actor.evaluate.options(num_returns=2, name=name).remote(
                published, clock, part, parts, broadcast
            )

        return [call_of(part) for part in range(parts)]

    def personal(self, clock: Clock, chunks: Sequence[Chunk], finetune_epochs: Sequence[int]) -> list[dict[str, Any]]:
        plan = self.broadcast(clock, self.experiment.algorithm.training)
        broadcast, parts = self._plans[clock][0], [self._parts[hash] for hash in plan.shared]

        def call_of(chunk: Chunk) -> ActorCall:
            return lambda actor: actor.personal.options(num_returns=2).remote(
                chunk, plan, broadcast, self._ask(Server.states, chunk.clients), finetune_epochs, *parts
            )

        work = [call_of(chunk) for chunk in chunks]
        done = self.pool.execute(work, where=lambda i: f"the test of clients {shown(chunks[i].clients)} in {clock}")
        return [row for _, rows in done for row in rows]

    def _ask(self, method: Callable[..., Any], *args: Any, returns: int = 1) -> Any:
        """A reference to the result of a method of the server; several where it `returns` so many."""
        name = f"ServerActor.{method.__name__}"  # in Ray's dashboard
        return self.pool.start(ServerActor.call, method, args, {}, returns=returns, name=name)

    def call(self, method: Callable[Concatenate[Server, P], T], *args: P.args, **options: P.kwargs) -> T:
        result, said = self.pool.wait(self.pool.start(ServerActor.call_with_warnings, method, args, options))
        for text, category in said:
            warn(text, category)
        return cast(T, result)

    def start(self, method: Callable[Concatenate[Server, P], Any], *args: P.args, **options: P.kwargs) -> None:
        self.pool.start(ServerActor.call, method, args, options)

    def call_store(self, method: Callable[Concatenate[RunStore, P], T], *args: P.args, **options: P.kwargs) -> T:
        with self.pool.patient(SAVE_S):
            return cast(T, self.pool.wait(self.pool.start(ServerActor.call_store, method, args, options)))

    def show(self, row: Mapping[str, Any]) -> None:
        if started():
            return
        if self._gauges is None:
            self._gauges = Gauges(self.experiment.name, self.experiment.seed)
        self._gauges.set(row, self.retries)

    def kill(self) -> None:
        leases.end(self.pool)

    def close(self, busy: bool) -> None:
        if self._begun is not None and not busy and self.pool.connected():  # the next run would wait behind it
            reports = [call.report for call in self._begun.calls]
            self.pool.cancel(reports)
            busy = len(ray.wait(reports, num_returns=len(reports), timeout=END_S)[0]) < len(reports)
        self._begun = None
        for references in (self._plans, self._parts, self._versions, self._published, self._sent_tests):
            references.clear()  # what a run leaves in Ray's store
        leases.give_back(self.pool, busy=busy)

    def translate_errors(self, folder: Path) -> AbstractContextManager[None]:
        return alive.translate_errors(folder, self.pool.check_connection)

    def _again(self, compute: Callable[[], T], restore: Callable[[], Any]) -> T:
        """Compute again if a lost node had results that nobody had fetched; `restore` runs before."""
        for attempt in range(LOST_RESULTS):
            try:
                return compute()
            except ObjectLostError:
                if attempt == LOST_RESULTS - 1:
                    raise
                restore()
        raise AssertionError


def _task_name(clock: Clock) -> str:
    """What a call is for: `round 17`, counted over all tasks as in the rows, or a task's begin or end.

    Later rounds share a name, `rounds 501-1000`: Ray's driver counts finished calls by name and forgets none, 1.6 kB
    each.
    """
    if clock.phase != "round":
        return str(clock)
    before = clock.done - clock.done % NAMED_ROUNDS
    return f"rounds {before + 1}-{before + NAMED_ROUNDS}" if before else f"round {clock.done + 1}"


# combiners ----------------------------------------------------------------------------------------
def _combined(pool: ActorPool, results: Sequence[ChunkRefs], options: dict[str, Any]) -> list[Any]:
    """What the server gets: a reference to the sums of all chunks, then each chunk's own result (or a reference)."""
    groups = [(result.sums, result.report.part) for result in results]
    if sum(part.bytes for _, part in groups):
        by_node = [list(group) for _, group in itertools.groupby(groups, key=lambda group: group[1].node)]
        groups = _merge(pool, by_node, options)
        while len(groups) > 1:
            groups = _merge(pool, [groups[i : i + 2] for i in range(0, len(groups), 2)], options)
    own = [result.own if result.report.own is None else result.report.own for result in results]
    return [*(ref for ref, _ in groups), *own]


def _lost(done: Mapping[int, Any]) -> set[int]:
    """The chunks whose results were on nodes that are gone; `done`: (references, report) by chunk."""
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return {chunk for chunk, (_, report) in done.items() if report.part.node not in alive}


def _merge(pool: ActorPool, groups: Sequence[list[Sums]], options: dict[str, Any]) -> list[Sums]:
    """Each group's sums as one, by an actor of the node that has most of them; a group of one stays as it is."""

    def call(group: list[Sums]) -> Callable[[Any], Any]:
        refs = [ref for ref, _ in group]
        return lambda actor: actor.combine.options(num_returns=2, **options).remote(*refs)

    several = [group for group in groups if len(group) > 1]
    nodes = [max((part for _, part in group), key=lambda part: part.bytes).node for group in several]
    done = iter(pool.execute([call(group) for group in several], nodes))
    return [group[0] if len(group) == 1 else next(done) for group in groups]


# gauges -------------------------------------------------------------------------------------------
# for the Prometheus that watches a cluster (`configs/cluster/grafana.json` draws them): Ray exports them from every
# node, with the prefix `ray_`; a Ray that flray starts has no such export
GAUGES = {
    "flray_round": "rounds done, over all tasks",
    "flray_accuracy": "accuracy of the global model, 0 to 1",
    "flray_loss": "mean training loss of the last round's clients",
    "flray_clients_per_second": "clients that the last round trained, by its seconds",
    "flray_up_bytes": "bytes that the last round's clients sent",
    "flray_down_bytes": "bytes that the last round's clients were sent",
    "flray_repeated_work": "pieces of work that were repeated because a process died",
}


class Gauges:
    """The gauges of one run, tagged `run` (the experiment's name) and `seed`."""

    def __init__(self, run: str, seed: int) -> None:
        from ray.util.metrics import Gauge

        self._gauges = {name: Gauge(name, text, ("run", "seed")) for name, text in GAUGES.items()}
        self._tags = {"run": run, "seed": str(seed)}

    def set(self, row: Mapping[str, Any], repeated: int) -> None:
        clients = row["cohort_size"] - row.get("clients_dropped", 0)
        values = {
            "flray_round": row["done"],
            "flray_accuracy": row.get("test/acc", row.get("val/acc")),
            "flray_loss": row.get("train/loss"),
            "flray_clients_per_second": clients / row["time/round_s"] if row.get("time/round_s") else None,
            "flray_up_bytes": row["comm/up_bytes"],
            "flray_down_bytes": row["comm/down_bytes"],
            "flray_repeated_work": repeated,
        }
        for name, value in values.items():
            if value is not None:
                self._gauges[name].set(float(value), self._tags)


# the start ----------------------------------------------------------------------------------------
def launch(
    experiment: Experiment, folder: Path, scenario: Scenario, fingerprints: dict[str, Any], lock: str
) -> tuple[CallsExecutor, Experiment]:
    """(the executor, its actors set up; the experiment with the executor and the thread counts written out).

    `lock`: the id under which this process holds the folder, in which the server actor writes as well.
    Raises `ResourceError` when the cluster cannot hold them.
    """
    resources = experiment.resources
    threads = cores() if resources.server.threads == "auto" else resources.server.threads
    client_threads = max(1, int(resources.client.num_cpus))
    gpus = resources.client.num_gpus
    devices.warn_of_idle(ray.cluster_resources().get("GPU", 0), resources)
    key = checksum((experiment.yaml() + str(fingerprints) + by_value.dumped(experiment)).encode())
    sources = imported_sources(experiment)
    if gpus == "auto":
        gpus = _measured_gpu_share(experiment, folder, scenario, key, client_threads, sources)
    client = {"num_cpus": resources.client.num_cpus, "num_gpus": gpus}
    server = {"num_cpus": resources.server.num_cpus, "num_gpus": resources.server.num_gpus}
    cohort_size = cohorts.largest_cohort(experiment, scenario)
    recipe = Recipe.of(experiment, scenario)
    wanted = leases.Wanted(experiment.name, str(folder), resources.client_actors, cohort_size, client, server, sources)
    for attempt in range(2):
        pool = leases.lease(wanted)
        try:
            with alive.translate_errors(folder, pool.check_connection):
                facts = pool.setup(recipe, key, client_threads, threads, str(folder.absolute()), lock)
            break
        except ServerLostError as error:  # of a pool whose server died with the run before
            leases.end(pool)
            if attempt:
                raise server_never_started(error) from error
        except BaseException as error:
            leases.give_back(pool, busy=not isinstance(error, FlrayError))
            raise
    facts.update(
        client_actors=pool.num_clients, client_resources=client, server_resources=server, client_threads=client_threads
    )
    facts["processes"] = pool.processes  # the list itself: processes of actors that are started again join it
    written = {"server": resources.server.model_copy(update={"threads": threads}), "executor": "calls"}
    experiment = experiment.model_copy(update={"resources": resources.model_copy(update=written)})
    return CallsExecutor(pool, experiment, facts), experiment


def _measured_gpu_share(
    experiment: Experiment, folder: Path, scenario: Scenario, key: str, threads: int, sources: dict[str, str]
) -> float:
    """GPU share of one client actor: how many of the costliest client fit a GPU, at 90 % of its memory."""
    if not ray.cluster_resources().get("GPU"):
        return 0.0
    chunk = cohorts.costliest_client(experiment, scenario)
    one = {"num_cpus": experiment.resources.client.num_cpus, "num_gpus": 1.0}
    nothing = {"num_cpus": 0.0, "num_gpus": 0.0}
    probe = leases.lease(leases.Wanted(experiment.name, str(folder), 1, 1, one, nothing, sources))
    try:
        peak, total = probe.peak_gpu_memory(Recipe.of(experiment, scenario), key, threads, chunk)
    finally:
        leases.end(probe)
    return gpu_share(max(1, int(0.9 * total / max(peak, 1))))
