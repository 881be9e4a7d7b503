"""Who takes part in an exchange, in which chunks, and when each client delivers on the virtual clock: known before
anybody trains, from the devices and the planned work."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch

from flray.config.experiment import Experiment
from flray.core.messages import map_tensors, nbytes
from flray.core.protocol.clock import Clock
from flray.core.protocol.generators import preserve_globals
from flray.engine import cohort as cohorts
from flray.engine.blame import errors_of
from flray.engine.client import Client
from flray.engine.exchanges import Chunk, ExchangePlan, Turn
from flray.engine.flops import count_step_flops
from flray.engine.message_sizes import client_sizes, first_broadcast
from flray.engine.runtime import Runtime
from flray.engine.tickets import (
    NobodyComesError,
    Schedule,
    ServerStep,
    Ticket,
    draw,
    next_arrival,
    planned_steps,
    who_is_there,
)
from flray.scenario import Scenario, Work


def planned_work(runtime: Runtime, chunk: Chunk) -> Work:
    """What a round asks of a client, counted on the one client of `chunk` in the state before round 1, so that a resume
    finds the same."""
    with errors_of(runtime.algorithm, "step", chunk.clock), preserve_globals():
        broadcast = first_broadcast(runtime)
        down = nbytes(broadcast)
        sent = client_sizes(runtime, broadcast, chunk.clients[0], chunk.samples(0))[0]
        flops = count_step_flops(Client(runtime), chunk, map_tensors(torch.clone, broadcast), None)
    return Work(flops.step, flops.example, down, sum(sent.values()))


Fate = Literal["delivers", "stops early", "late", "leaves", "too old"]


class Delivery(NamedTuple):
    """The work of a client, which `began` and ends (`until`) at virtual seconds of the run, and what comes of it:
    `late` work ends with its round, that of a client which `leaves` when it does."""

    client: int
    began: float
    until: float
    fate: Fate


class InTime(NamedTuple):
    """The clients of a round whose updates the server waits for, in cohort order, and those without a sample.

    `sampled`: the number of drawn clients, of which `dropped` drop out, `late` come too late, and `lost` leave before
    they deliver. `taken`: the local steps of the clients that stop before the end of their work, to be in time.
    `seconds`: how long the round takes on the virtual clock, with the wait for somebody who is there. `all_seconds`:
    how long the whole work takes each client with a sample. `work`: theirs, from the seconds since the round's start.
    """

    clients: np.ndarray
    sampled: int
    dropped: int
    late: int
    lost: int
    seconds: float
    all_seconds: np.ndarray
    taken: Mapping[int, int] = {}
    work: tuple[Delivery, ...] = ()


class Participants(NamedTuple):
    """The clients that an exchange names, its turns, and the number of these clients without a sample."""

    clients: np.ndarray
    turns: list[Turn]
    empty: int


class Participation:
    """Which clients take part in the exchanges of a run, in which chunks, and when they deliver."""

    def __init__(
        self,
        experiment: Experiment,
        scenario: Scenario,
        planned_work: Callable[[Chunk], Work],
        stateful: Callable[[], Sequence[int]],
    ) -> None:
        """`planned_work`, `stateful`: those of :class:`Server`, wherever it is."""
        self.experiment, self.scenario = experiment, scenario
        self._planned_work, self._stateful = planned_work, stateful

    def _work(self) -> Work:
        return self._planned_work(cohorts.costliest_client(self.experiment, self.scenario))

    @functools.cached_property
    def arrivals(self) -> Arrivals:
        return Arrivals(self.experiment, self.scenario, self._work())

    @functools.cached_property
    def steps(self) -> Schedule:
        return Schedule(self.experiment, self.scenario, self._work())

    def step(self, clock: Clock) -> ServerStep | None:
        """The server step at this moment; None: it is no round under `coordination: buffered`."""
        buffered = self.experiment.coordination.size is not None and clock.phase == "round"
        return self.steps.step(clock.done) if buffered else None

    def versions_after(self, clock: Clock) -> tuple[int, ...]:
        """The versions of the clients that are at work after this moment."""
        return () if (step := self.step(clock)) is None else step.held

    def delivering(self, clock: Clock) -> np.ndarray:
        """Ids `[K]` of the clients that deliver in a round, in cohort order."""
        if (step := self.step(clock)) is not None:
            return np.array([ticket.client for ticket in step.tickets], dtype=np.int64)
        return self.of_round(clock).clients

    def of_round(self, clock: Clock) -> InTime:
        """The clients that are drawn for a round and deliver; without devices it takes no time."""
        if self.scenario.devices is not None:
            return self.arrivals.of_round(clock)
        sampled, clients = cohorts.draw_cohort(self.experiment, self.scenario, clock)
        return InTime(clients, len(sampled), len(sampled) - len(clients), 0, 0, 0.0, np.zeros(0))

    def of_exchange(self, plan: ExchangePlan, cohort: np.ndarray | None, num_chunks: int) -> Participants:
        """`cohort`: the clients that deliver; None: all with samples in the task."""
        clock, exchange, members = plan.clock, plan.exchange, self.scenario.members(plan.clock.task)
        drawn = np.asarray(members, dtype=np.int64) if cohort is None else cohort
        if (step := self.step(clock)) is not None:
            turn = cohorts.turn_of_step(self.experiment, self.scenario, clock, step, num_chunks, plan.uplink)
            return Participants(drawn, [turn], 0)
        clients = cohorts.participants(exchange, clock, drawn, members, self._stateful, self.experiment.seed)
        timed = self.scenario.devices is not None and clock.phase == "round"
        taken = self.arrivals.of_round(clock).taken if timed else None
        way = num_chunks, self.scenario.batch_orders, plan.uplink, plan.even_empty, taken
        turns, empty = cohorts.turns(self.scenario, self.experiment.algorithm, clients, clock, exchange, *way)
        return Participants(clients, turns, empty)

    def deliveries(self, rounds: int) -> Iterator[list[Delivery]]:
        """The work of the clients of each of the first rounds, or of those whose updates a server step gets or
        loses."""
        for number in range(rounds):
            clock = Clock(0, number, done=number)
            if (step := self.step(clock)) is not None:
                parts: tuple[tuple[Fate, list[Ticket]], ...] = (
                    ("delivers", step.tickets), ("too old", step.stale), ("leaves", step.lost)
                )  # fmt: skip
                yield [Delivery(t.client, t.began, t.arrives, fate) for fate, tickets in parts for t in tickets]
            else:
                begins, work = self.arrivals.elapsed(clock), self.arrivals.of_round(clock).work
                yield [one._replace(began=begins + one.began, until=begins + one.until) for one in work]


class Arrivals:
    """The arrivals of a run's updates."""

    def __init__(self, experiment: Experiment, scenario: Scenario, work: Work) -> None:
        assert scenario.devices is not None
        self._experiment, self._scenario, self._devices, self._work = experiment, scenario, scenario.devices, work
        self._elapsed = [0.0]  # seconds before each round
        self._last: tuple[Clock, InTime] | None = None  # a run asks twice for a round

    def of_round(self, clock: Clock) -> InTime:
        """Those of the clients drawn for a round that deliver as `coordination` says."""
        if self._last is None or self._last[0] != clock.transaction:
            self._last = clock.transaction, self._of_round(clock)
        return self._last[1]

    def _of_round(self, clock: Clock) -> InTime:
        experiment, algorithm = self._experiment, self._experiment.algorithm
        members = self._scenario.members(clock.task)
        wait, sampled, leaves = self._sampled(clock, members)
        clients = cohorts.without_dropouts(experiment.cohort, experiment.seed, clock, sampled)
        shares = self._scenario.shares(clock, clients)
        steps, batches = planned_steps(algorithm, clock, shares.sizes)
        seconds = self._devices.seconds(shares.clients, steps, batches, self._work)
        dropped = len(sampled) - len(clients)
        if algorithm.training.order == "sequential":
            by_id = np.argsort(shares.clients)
            stops = [wait, *(wait + np.cumsum(seconds[by_id])).tolist()]
            turns = zip(shares.clients[by_id].tolist(), itertools.pairwise(stops), strict=True)
            work = tuple(Delivery(client, *span, "delivers") for client, span in turns)
            return InTime(clients, len(sampled), dropped, 0, 0, wait + float(seconds.sum()), seconds, {}, work)
        whole, cut = seconds, np.zeros(len(steps), dtype=bool)
        if experiment.coordination.late == "partial":
            assert experiment.coordination.seconds is not None
            limit, managed = experiment.coordination.seconds, steps.copy()
            cut = seconds > limit
            managed[cut] = self._devices.steps_within(limit, shares.clients[cut], batches[cut], self._work)
            cut &= managed > 0
            steps = np.where(cut, managed, steps)
            seconds = self._devices.seconds(shares.clients, steps, batches, self._work)
        ends = dict(zip(sampled.tolist(), leaves.tolist(), strict=True))
        lost = seconds > np.array([ends[client] for client in shares.clients.tolist()], dtype=np.float64)
        size = experiment.cohort.count(len(members))
        come = np.where(lost, np.inf, seconds) if experiment.coordination.share is not None else seconds
        within, took = experiment.coordination.delivered(come, size, dropped + int(cut.sum()) + int(lost.sum()))
        if experiment.coordination.share is not None and lost.all():
            took = float(seconds.max(initial=0.0))  # as `synchronous` does, so that the clock goes on
        stays = clients[~np.isin(clients, shares.clients[lost | ~within])]
        late, gone = int((~within & ~lost).sum()), int(lost.sum())
        fates = np.select([lost, ~within, cut], ["leaves", "late", "stops early"], "delivers").tolist()
        stop = np.minimum(seconds, [took if fate == "late" else np.inf for fate in fates])
        stop = np.minimum(stop, [ends[client] for client in shares.clients.tolist()])
        each = zip(shares.clients.tolist(), (wait + stop).tolist(), fates, strict=True)
        work = tuple(Delivery(client, wait, until, fate) for client, until, fate in each)
        taken = dict(zip(shares.clients[cut & ~lost].tolist(), steps[cut & ~lost].tolist(), strict=True))
        return InTime(stays, len(sampled), dropped, late, gone, wait + took, whole, taken, work)

    def _sampled(self, clock: Clock, members: range | np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """(virtual seconds until somebody is there, ids of the drawn clients, in how many seconds each leaves)."""
        experiment = self._experiment
        if self._devices.presence is None:
            cohort = experiment.cohort, experiment.seed, clock, members, self._scenario.cohorts, experiment.coordination
            sampled = cohorts.sample_cohort(*cohort)
            return 0.0, sampled, np.full(len(sampled), np.inf)
        begins = now = self.elapsed(clock)
        size = experiment.coordination.drawn(experiment.cohort.count(len(members)), len(members))
        while not len((there := self._present(clock, members, size, now))[0]):
            comes = next_arrival(self._devices, np.asarray(members, dtype=np.int64), now)
            if comes is None:
                do = f"lower rounds to {clock.round}" if clock.round else "change it"
                raise NobodyComesError(f"devices.availability: no client is there after {now:g} virtual seconds; {do}")
            now = comes
        found, leaves = there
        return now - begins, found, leaves - now

    def _present(
        self, clock: Clock, members: range | np.ndarray, size: int, now: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """(at most `size` clients that are there, in the order of their draws, when each leaves)."""
        passed, found, leaves, attempt = set[int](), list[int](), list[float](), 0
        while len(found) < size and len(found) + len(passed) < len(members):
            key = (clock.task, clock.round, *((attempt,) if attempt else ()))
            wanted = min(size + len(passed), len(members))
            numbers = draw(self._experiment.seed, key, members, wanted).tolist()
            drawn = [k for k in numbers if k not in passed and k not in found][: size - len(found)]
            there, ends = who_is_there(self._devices, np.array(drawn, dtype=np.int64), now)
            found, leaves = [*found, *there.tolist()], [*leaves, *ends.tolist()]
            passed |= set(drawn) - set(found)
            attempt += 1
        return np.array(found, dtype=np.int64), np.array(leaves, dtype=np.float64)

    def elapsed(self, clock: Clock) -> float:
        """Virtual seconds before a round of the run, of one task: the sum over the rounds before it."""
        for round in range(len(self._elapsed), clock.round + 1):
            before = Clock(clock.task, round - 1, done=round - 1)
            self._elapsed.append(self._elapsed[-1] + self.of_round(before).seconds)
        return self._elapsed[clock.round]
