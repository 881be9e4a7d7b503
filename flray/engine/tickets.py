"""Who starts from which model and when each update arrives, under `coordination: buffered`.

Arrivals are planned from the devices and the planned work, so the order of all of them is known before anybody trains.
A client trains when the server step that consumes its update is computed: from the broadcast, the clock and the samples
of its dispatch.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.clock import Clock
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError
from flray.engine.blame import errors_of
from flray.scenario import Devices, Scenario, Work, clients_at


class NobodyComesError(ConfigError):
    """A round never ends, as no client can start any more."""


class Ticket(NamedTuple):
    """A client at work: its `number` in the order of dispatches, the server step (`version`) whose model it started
    from, the virtual seconds of its dispatch and of its arrival. `lost`: it leaves before (`availability.leaving`)."""

    number: int
    client: int
    version: int
    began: float
    arrives: float
    lost: bool = False


class ServerStep(NamedTuple):
    """A server step: its virtual seconds, the tickets that it consumes, by number, and those that since the step before
    arrived too old, or not at all. `held`: the versions of the tickets that are at work or wait after it."""

    seconds: float
    tickets: list[Ticket]
    stale: list[Ticket]
    lost: list[Ticket]
    held: tuple[int, ...]


class Schedule:
    """The server steps of a run, made one after the other and kept. It depends on no result of training.

    At one moment come all arrivals, then server steps, then dispatches. A client at work, or whose update waits, is not
    drawn. The dispatches of one moment are one draw, the first of a version with the key of a round's cohort.
    """

    def __init__(self, experiment: Experiment, scenario: Scenario, work: Work) -> None:
        """Raises `ConfigError` for more clients at work, or more updates a step, than hold samples."""
        assert scenario.devices is not None and experiment.coordination.size is not None
        self._experiment, self._scenario, self._devices, self._work = experiment, scenario, scenario.devices, work
        self._members = scenario.members(0)
        config, clients = experiment.coordination, len(self._members)
        self._size, self._concurrency = experiment.coordination.size, concurrency(experiment, clients)
        if self._size > self._concurrency or self._concurrency > clients:
            raise ConfigError(
                f"coordination: size {self._size}, concurrency {self._concurrency} and {clients} clients with samples; "
                "size is at most concurrency, and concurrency at most the clients"
            )
        self._oldest = np.inf if config.max_staleness is None else config.max_staleness
        self._steps: list[ServerStep] = []
        self._now, self._version, self._dispatches, self._number = 0.0, 0, 0, 0
        self._at_work: list[tuple[float, int, Ticket]] = []  # a heap by arrival, of two at one moment by number
        self._waiting: list[Ticket] = []  # arrived, in this order
        self._busy: set[int] = set()  # clients
        self._seconds: dict[int, float] = {}  # of a client's training; see `_plan`

    def step(self, number: int) -> ServerStep:
        """Server step `number`, from 0."""
        while len(self._steps) <= number:
            self._steps.append(self._next())
        return self._steps[number]

    def _next(self) -> ServerStep:
        stale, lost = self._too_old(), list[Ticket]()
        while len(self._waiting) < self._size:
            self._dispatch(self._concurrency - len(self._at_work))
            if not self._at_work:
                self._now = self._somebody()
                continue
            self._now = self._at_work[0][0]
            while self._at_work and self._at_work[0][0] == self._now:
                ticket = heapq.heappop(self._at_work)[2]
                (lost if ticket.lost else self._waiting).append(ticket)
                if ticket.lost:
                    self._busy.discard(ticket.client)
            stale += self._too_old()
        taken, self._waiting = self._waiting[: self._size], self._waiting[self._size :]
        self._busy -= {ticket.client for ticket in taken}
        self._version, self._dispatches = self._version + 1, 0
        if len(self._waiting) < self._size:
            self._dispatch(self._concurrency - len(self._at_work))
        held = {ticket.version for _, _, ticket in self._at_work} | {ticket.version for ticket in self._waiting}
        return ServerStep(self._now, sorted(taken), stale, lost, tuple(sorted(held)))

    def _too_old(self) -> list[Ticket]:
        """The waiting tickets that are dropped at the present server step; their clients are free."""
        if self._oldest == np.inf:
            return []
        old = [ticket for ticket in self._waiting if self._version - ticket.version > self._oldest]
        self._waiting = [ticket for ticket in self._waiting if ticket not in old]
        self._busy -= {ticket.client for ticket in old}
        return old

    def _dispatch(self, count: int) -> None:
        """Draw clients for `count` tickets at this moment; fewer where the others are away or hold no sample now."""
        passed: set[int] = set()
        clock = Clock(0, self._version, done=self._version)
        while count > 0 and len(self._busy) + len(passed) < len(self._members):
            key = (0, self._version, *((self._dispatches,) if self._dispatches else ()))
            self._dispatches += 1
            size = min(count + len(self._busy) + len(passed), len(self._members))
            drawn = draw(self._experiment.seed, key, self._members, size)
            # few of many are needed: the others of the array are never made Python's
            numbers = map(drawn.item, range(size))
            at_home = (client for client in numbers if client not in self._busy and client not in passed)
            free = list(itertools.islice(at_home, count))
            started = 0
            for client, leaves, seconds in self._plan(clock, free):
                arrives = self._now + seconds
                ticket = Ticket(self._number, client, self._version, self._now, arrives, leaves < arrives)
                heapq.heappush(self._at_work, (ticket.arrives, ticket.number, ticket))
                self._number += 1
                self._busy.add(client)
                started += 1
            if started < len(free):
                passed |= {client for client in free if client not in self._busy}
            count -= started

    def _plan(self, clock: Clock, clients: list[int]) -> Iterator[tuple[int, float, float]]:
        """(client, when it leaves, seconds of its training) of those that are there now and hold a sample.

        A client's samples, so its seconds, change under a drift alone.
        """
        there, leaves = clients, [math.inf] * len(clients)
        if self._devices.presence is not None:
            present, ends = who_is_there(self._devices, np.array(clients, dtype=np.int64), self._now)
            there, leaves = present.tolist(), ends.tolist()
        if self._scenario.drift is not None:
            self._seconds.clear()
        unknown = [client for client in there if client not in self._seconds]
        if unknown:
            new = np.array(unknown, dtype=np.int64)
            sizes = self._scenario.sizes(clock, new)
            steps, batches = planned_steps(self._experiment.algorithm, clock, np.maximum(sizes, 1))
            seconds = np.where(sizes > 0, self._devices.seconds(new, steps, batches, self._work), np.nan)
            self._seconds |= zip(unknown, seconds.tolist(), strict=True)
        for client, leaving in zip(there, leaves, strict=True):
            if not math.isnan(self._seconds[client]):
                yield client, leaving, self._seconds[client]

    def _somebody(self) -> float:
        """The next moment at which a client that is not busy comes. Raises `NobodyComesError` if none ever does."""
        free = np.array([client for client in self._members if client not in self._busy], dtype=np.int64)
        comes = next_arrival(self._devices, free, self._now)
        if comes is None:
            fewer = f", or lower rounds to {len(self._steps)}" if self._steps else ""
            raise NobodyComesError(
                f"coordination: {len(self._waiting)} updates wait after {self._now:g} virtual seconds and nobody else "
                f"can start, so that no step of {self._size} is complete; lower coordination.size, or change "
                f"devices.availability{fewer}"
            )
        return comes


def draw(seed: int, key: tuple[int, ...], members: range | np.ndarray, size: int) -> np.ndarray:
    """So many of the members (int64 `[size]`), without replacement, at the address of a cohort."""
    places = rng(seed, "cohort", *key).choice(len(members), size, replace=False)
    return clients_at(members, places.astype(np.int64, copy=False))


def who_is_there(devices: Devices, clients: np.ndarray, at: float) -> tuple[np.ndarray, np.ndarray]:
    """(those of the clients that are there at a moment, when they leave; infinite if that loses nothing)."""
    if devices.presence is None:
        return clients, np.full(len(clients), np.inf)
    begins, ends = devices.presence.spans(clients, at)
    there = begins <= at
    return clients[there], ends[there] if devices.presence.loses else np.full(int(there.sum()), np.inf)


def next_arrival(devices: Devices, clients: np.ndarray, after: float) -> float | None:
    """The first moment after this one at which one of the clients comes; None: none ever does, or all are there."""
    if devices.presence is None or not len(clients):
        return None
    begins = devices.presence.spans(clients, after)[0]
    begins = begins[begins > after]
    return float(begins.min()) if begins.size and np.isfinite(begins.min()) else None


def concurrency(experiment: Experiment, clients: int) -> int:
    """The number of clients at work, of so many with samples."""
    given = experiment.coordination.concurrency
    return experiment.cohort.count(clients) if given is None else given


def planned_steps(algorithm: Algorithm, clock: Clock, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(local steps, samples of a full batch) of clients of these `sizes`, `[K]` each."""
    with errors_of(algorithm, "local_steps", clock):
        steps = np.asarray(algorithm.local_steps(sizes))
    return steps, np.minimum(sizes, algorithm.local_batches[0])
