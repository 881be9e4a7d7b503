"""Who delivers when, on the virtual clock: known before anybody trains, from the devices and the planned work."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from flray.config.experiment import Experiment
from flray.core.messages import map_tensors, nbytes
from flray.core.protocol.clock import Clock
from flray.core.protocol.generators import preserve_globals
from flray.engine import cohort as cohorts
from flray.engine.blame import errors_of
from flray.engine.client import Client
from flray.engine.exchanges import Chunk
from flray.engine.flops import count_step_flops
from flray.engine.message_sizes import client_sizes, first_broadcast
from flray.engine.runtime import Runtime
from flray.engine.tickets import planned_steps
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


class InTime(NamedTuple):
    """The clients of a round whose updates the server waits for, in cohort order, and those without a sample.

    `late`: the number of the others. `seconds`: how long the round takes on the virtual clock. `all_seconds`: how long
    each client with a sample takes, late or not.
    """

    clients: np.ndarray
    late: int
    seconds: float
    all_seconds: np.ndarray


class Arrivals:
    """The arrivals of a run's updates."""

    def __init__(self, experiment: Experiment, scenario: Scenario, work: Work) -> None:
        assert scenario.devices is not None
        self._experiment, self._scenario, self._devices, self._work = experiment, scenario, scenario.devices, work
        self._elapsed = [0.0]  # seconds before each round
        self._last: tuple[Clock | None, InTime | None] = (
            None,
            None,
        )  # a run asks twice for a round

    def of_round(self, clock: Clock) -> InTime:
        """Those of the clients drawn for a round that deliver as `coordination` says."""
        if self._last[0] != clock.transaction:
            self._last = clock.transaction, self._of_round(clock)
        found = self._last[1]
        assert found is not None
        return found

    def _of_round(self, clock: Clock) -> InTime:
        experiment, algorithm = self._experiment, self._experiment.algorithm
        members = self._scenario.members(clock.task)
        sampled, clients = cohorts.draw_cohort(experiment, clock, members, self._scenario.cohorts)
        shares = self._scenario.shares(clock, clients)
        steps, batches = planned_steps(algorithm, clock, shares.sizes)
        seconds = self._devices.seconds(shares.clients, steps, batches, self._work)
        if algorithm.training.order == "sequential":
            return InTime(clients, 0, float(seconds.sum()), seconds)
        size, dropped = experiment.cohort.count(len(members)), len(sampled) - len(clients)
        within, took = experiment.coordination.delivered(seconds, size, dropped)
        late = shares.clients[~within]
        return InTime(clients[~np.isin(clients, late)], len(late), took, seconds)

    def elapsed(self, clock: Clock) -> float:
        """Virtual seconds before a round of the run, of one task: the sum over the rounds before it."""
        for round in range(len(self._elapsed), clock.round + 1):
            before = Clock(clock.task, round - 1, done=round - 1)
            self._elapsed.append(self._elapsed[-1] + self.of_round(before).seconds)
        return self._elapsed[clock.round]
