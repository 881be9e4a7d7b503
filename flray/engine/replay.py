"""Repeat any part of a finished or failed run in this process, without Ray, to the same bits.

Randomness is addressed and state is a value, so a round needs only the state before it: the nearest checkpoint, and the rounds between.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flray.core.algorithm import Exchange
from flray.core.errors import CheckpointError, ConfigError
from flray.core.messages import to_torch
from flray.data import load_partition
from flray.engine import checkpoint, cohort
from flray.engine.server_actor import Moment, Server
from flray.engine.workbench import Assignment, cohort_of
from flray.results.read import load


class Replay:
    """A run's server and clients in one process; `state` is the server state before round `round + 1` (`round` rounds are done)."""

    def __init__(self, folder: str | Path) -> None:
        run = load(folder)
        self.folder, self.experiment = run.folder, run.experiment
        facts = run.environment["actors"]
        self._threads = {"client": facts["client_threads"], "server": facts["threads"]}
        device = "cuda" if facts["device"] == "cuda" and torch.cuda.is_available() else "cpu"
        self.server = Server(self.experiment, run.folder, device)
        self.bench = self.server.bench
        self.partition = load_partition(run.folder / "partition")
        self.round = 0
        self._initial = self.server.state

    @property
    def state(self) -> Any:
        return self.server.state

    def goto(self, round: int) -> Replay:
        """The state after `round` rounds, from the nearest checkpoint before it and the rounds between."""
        if round < 0 or round > self.experiment.rounds:
            raise ConfigError(f"round {round}: the run has rounds 1 to {self.experiment.rounds}")
        if round < self.round or checkpoint.checkpoints(self.folder):
            saved = self.server.load(at_most=round)
            if saved is not None:
                self.round = saved[1]
            elif round < self.round:
                self.server.state, self.round = self._initial, 0
        while self.round < round:
            self._step()
        return self

    def clients(self, only: int | None = None) -> Iterator[tuple[int, Any, dict[str, Any]]]:
        """(client, update, row) for the cohort of the next round's first exchange, one after the other.

        Raises the client's own `ClientError` again. `ConfigError` when the client `only` is not in the cohort.
        """
        moment, exchange, down, jobs = self._plan(0)
        members = [client for job in jobs for client in job.clients]
        if only is not None and only not in members:
            raise ConfigError(f"client {only} is not in the cohort of round {moment.round + 1}: {', '.join(map(str, members))}")
        with self._threaded("client"):
            for job in jobs:
                states = self.server.states(job.clients)
                for i, client in enumerate(job.clients):
                    if only not in (None, client):
                        continue
                    state = self.bench.client_state(job, client, states[i])
                    indices = job.indices[job.offsets[i] : job.offsets[i + 1]]
                    update, _, row = self.bench.train_client(job, exchange, to_torch(down, self.bench.objective.device), state, client, job.weights[i], indices)
                    yield client, update, row

    def _plan(self, number: int) -> tuple[Moment, Exchange, Any, list[Assignment]]:
        experiment, population = self.experiment, self.partition.num_clients
        clients = cohort.sample(experiment.cohort, experiment.seed, 0, self.round, population)
        moment = Moment(0, self.round, number, False, population, len(clients))
        plan = self.server.plan(moment)
        if plan is None:
            raise CheckpointError(f"round {self.round + 1} has no exchange {number}")
        self._last, self._clients = plan.last, clients
        self._sizes = cohort.sizes_of(self.partition, clients)
        self._steps = cohort.local_steps(self._sizes, *experiment.algorithm.local_batches)
        self._weights = experiment.algorithm.weights(torch.from_numpy(self._sizes)).numpy()
        jobs = cohort.assignments(self.partition, clients, self._weights, self._steps, 1, 0, self.round, number)
        return moment, plan.exchange, self.server.broadcast(), jobs

    def _step(self) -> None:
        """One whole round."""
        number, last = 0, False
        while not last:
            moment, exchange, down, jobs = self._plan(number)
            with self._threaded("client"):
                deliveries = [self.bench.train_run(job, exchange, down, self.server.states(job.clients))[0] for job in jobs]
            with self._threaded("server"):
                self.server.aggregate(moment, exchange, cohort_of(self._clients, self._sizes, self._steps, self._weights), *deliveries)
            number, last = number + 1, self._last
        self.round += 1

    def _threaded(self, who: str) -> _Threads:
        return _Threads(self._threads[who])


class _Threads:
    """The number of torch threads that this half of the run used: it decides the bits."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(self.count)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._before)


def at_failure(folder: str | Path) -> int:
    """Rounds done in the newest checkpoint: the round after it is the one that failed or would come next."""
    saved = checkpoint.checkpoints(Path(folder))
    return int(np.max([int(p.name.removeprefix("round-")) for p in saved])) if saved else 0
