"""Repeat any part of a finished or failed run in this process, without Ray, to the same bits.

Randomness is addressed and state is a value, so a round needs only the state before it: the nearest checkpoint, and the rounds between.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flray.core.errors import ClientError, ConfigError
from flray.core.messages import to_numpy, to_torch
from flray.engine import cohort
from flray.engine.server_actor import Plan, Server
from flray.engine.workbench import Moment, in_folder
from flray.rundir import checkpoint
from flray.rundir.reader import load
from flray.scenario import load_partition
from flray.whereabouts import started_in


class Replay:
    """A run's server and clients in one process; `state` is the server state before round `round + 1` (`round` rounds are done)."""

    def __init__(self, folder: str | Path) -> None:
        run = load(folder)
        if run.experiment.algorithm.centralized:
            raise ConfigError(f"{folder}: centralized training has no clients to repeat; the whole run is: flray run {folder}/config.yaml")
        self.folder, self.experiment = run.folder, run.experiment
        facts = run.environment["actors"]
        self._counts = {"client": facts["client_threads"], "server": facts["threads"]}
        device = "cuda" if facts["device"] == "cuda" and torch.cuda.is_available() else "cpu"
        self._scratch = tempfile.TemporaryDirectory(prefix="flray-replay-")  # client states of the replay; the run folder stays as it is
        with started_in(run.folder):  # for relative paths to data
            self.server = Server(self.experiment, run.folder.absolute(), device, Path(self._scratch.name))
        self.bench = self.server.bench
        data, before = self.bench.dataset.fingerprint, run.environment["fingerprints"]["data"]
        if data != before:
            warnings.warn(f"{folder}: the data changed since it ran (fingerprint {data}, was {before}); no replay of it", stacklevel=2)
        self.partition = load_partition(run.folder / "partition")
        self.round = 0
        self._initial = self.server.state

    @property
    def state(self) -> Any:
        return self.server.state

    def goto(self, round: int) -> Replay:
        """The state after `round` rounds, from the nearest checkpoint before it and the rounds between."""
        if round < 0 or round > self.experiment.rounds:
            raise ConfigError(f"the state after {round} rounds: the run has {self.experiment.rounds}")
        saved = self.server.load(at_most=round, task_end=False)
        if saved is not None:
            self.round = saved[2]
        elif round < self.round:
            self.server.state, self.round = self._initial, 0
        while self.round < round:
            self._step()
        return self

    def cohort(self) -> np.ndarray:
        """Client ids `[K]` of the next round, in cohort order, without those that drop out."""
        config, seed = self.experiment.cohort, self.experiment.seed
        sampled = cohort.sample(config, seed, 0, self.round, self.partition.num_clients)
        return cohort.delivering(config, seed, 0, self.round, sampled)

    def clients(self, only: int | None = None) -> Iterator[tuple[int, Any, dict[str, Any]]]:
        """(client, update, row) for the cohort of the next round's first exchange, one after the other.

        The update's tensors are used again for the next client: clone what is kept. Raises the client's own `ClientError` again,
        `ConfigError` when the client `only` is not in the cohort.
        """
        members = self.cohort()
        if only is not None and only not in members:
            raise ConfigError(f"client {only} is not in the cohort of round {self.round + 1}: {', '.join(map(str, members))}")
        if not len(members):
            return
        moment = self._moment()
        plan, work, down = self._plan(moment, members)
        down = to_torch(down, self.bench.objective.device)
        with _threads(self._counts["client"]):
            for job in work.jobs:
                for i, client in enumerate(job.clients):
                    if only in (None, client):
                        state = self.bench.client_state(job, client, self.server.states([client])[0])
                        indices = job.indices[job.offsets[i] : job.offsets[i + 1]]
                        try:
                            update, _, row = self.bench.train_client(job, plan.exchange, down, state, client, job.weights[i], indices)
                        except ClientError as error:
                            raise in_folder(error, self.folder) from None
                        yield client, update, row

    def _moment(self) -> Moment:
        population = self.partition.num_clients
        return Moment(0, self.round, 0, False, population, self.experiment.cohort.count(population), len(self.partition.indices))

    def _plan(self, moment: Moment, group: np.ndarray) -> tuple[Plan, cohort.Work, Any]:
        down, plan = self.server.plan(moment)
        assert plan is not None, f"round {moment.round + 1} has no exchange {moment.exchange}"
        return plan, cohort.work(self.partition, self.experiment.algorithm, group, moment, 1), down

    def _step(self) -> None:
        """One whole round."""
        members, moment, last = self.cohort(), self._moment(), False
        while not last:
            _, plan = self.server.plan(moment)
            assert plan is not None, f"round {moment.round + 1} has no exchange {moment.exchange}"
            for group in cohort.groups(members, plan.exchange.order):
                plan, work, down = self._plan(moment, group)
                with _threads(self._counts["client"]):
                    deliveries = [self.bench.train_run(job, plan.exchange, down, self.server.states(job.clients))[0] for job in work.jobs]
                with _threads(self._counts["server"]):
                    self.server.aggregate(moment, plan.exchange, to_numpy(work.cohort), *deliveries)
            moment, last = moment._replace(exchange=moment.exchange + 1), plan.last
        self.round += 1


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """With the number of torch threads that this half of the run used: it decides the bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def at_failure(folder: str | Path) -> int:
    """Rounds done in the newest checkpoint: the round after it is the one that failed or would come next."""
    saved = checkpoint.checkpoints(Path(folder))
    return checkpoint.rounds_done(saved[-1]) if saved else 0
