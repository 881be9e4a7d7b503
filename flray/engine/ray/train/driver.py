"""A run on all data in one place: the rounds of `simulation.py`, each of them computed by the workers of a trainer."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import START, Clock, schedule
from flray.core.schema.errors import ConfigError, NonFiniteError
from flray.engine.progress import Progress
from flray.engine.ray.actors import Recipe
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.capacity import num_client_actors
from flray.engine.ray.cluster import ray
from flray.engine.ray.pool import num_client_bundles
from flray.engine.ray.train.trainers import Conductor, Trainers
from flray.engine.rounds import Executor
from flray.engine.simulation import Attempt, Simulation
from flray.engine.stored_server import StoredServer
from flray.engine.threads import cores
from flray.scenario import Scenario


class CentralizedSimulation(Simulation):
    """One run of an algorithm that is `centralized`."""

    trainers: Trainers | None = None

    def go(self, progress: bool, resume: bool) -> Generator[dict[str, Any], None, None]:
        try:
            yield from super().go(progress, resume)
        finally:
            self._end()

    def _end(self) -> None:
        if self.trainers is not None:
            self.trainers.kill()
            self.trainers = None

    def _launch(self) -> tuple[Executor, Experiment]:
        """The conductor, ready; the workers start with the first round."""
        again = self.trainers is not None
        self._end()
        if self.experiment.on_nonfinite == "skip":
            raise ConfigError(
                "on_nonfinite: skip leaves a client out, and centralized training has none; set stop or fail"
            )
        resources = self.experiment.resources
        server = {"num_cpus": resources.server.num_cpus, "num_gpus": 0.0}
        workers, share = _num_workers(self.experiment, server, again)
        threads = max(1, int(resources.client.num_cpus))
        self.trainers = Trainers(self.experiment.name, workers, share, server)
        recipe = Recipe.of(self.experiment, self.scenario)
        samples = [np.unique(part.indices) for part in self.scenario.partitions]
        drifted = _drifted_samples(
            self.scenario, samples, schedule(START, self.experiment.rounds, len(self.scenario.stages))
        )
        self.trainers.prepare(recipe, samples, drifted, threads)
        facts = self.trainers.call(Conductor.setup, recipe, str(self.folder.absolute()), cores(), self.home.lock_id)
        facts["processes"] = [{"actor": "server", **facts.pop("process")}]
        facts.update(client_actors=workers, client_resources=share, server_resources=server, client_threads=threads)
        return CallsExecutor(self.trainers, self.experiment, facts), self.experiment

    def _round(self, run: Attempt, clock: Clock, ahead: Clock | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if self.trainers is None:  # clients fine-tuned at the end of the task before, in the workers' place
            run.executor, _ = self._launch()
            run.executor.call_store(StoredServer.load)
            assert self.trainers is not None
        row = self._empty_row(clock, len(self.scenario.members(clock.task)))
        del row["client_flops"]  # a step of the workers is not counted
        result = self.trainers.round(clock, clock.done + 1 == self.experiment.total_rounds)
        counts = result.pop("counts", None)
        row.update(result)
        if counts is not None:
            self._record_test(run, counts, clock.complete, row)
        if row["diverged"] and self.experiment.on_nonfinite == "fail":
            raise NonFiniteError(
                f"round {clock.round + 1}: the parameters are not finite; lower algorithm.lr, or set on_nonfinite: stop"
            )
        return row, []

    # Any: the arguments of `Simulation._transact`, which are not read
    def _transact(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Without clients there is no exchange at the beginning or at the end of a task."""
        return []

    def _task(self, run: Attempt, clock: Clock, show: Progress) -> dict[str, Any]:
        if clock.phase == "task_end" and self.experiment.personal_epochs:
            self._end()  # clients fine-tune: they need their actors, in the workers' place
            run.executor, _ = super()._launch()
            run.executor.call_store(StoredServer.load)
        return super()._task(run, clock, show)


def _drifted_samples(
    scenario: Scenario, samples: Sequence[np.ndarray], clocks: Iterable[Clock]
) -> dict[int, np.ndarray]:
    """What all clients together hold in the rounds in which a drift takes something away, by `done`."""
    remaining: dict[int, np.ndarray] = {}
    for clock in clocks if scenario.drift is not None else ():
        assert scenario.drift is not None
        if clock.phase == "round" and scenario.drift.drift.active(clock.done + 1):
            everyone = np.asarray(scenario.members(clock.task), dtype=np.int64)
            left, before = np.unique(scenario.shares(clock, everyone).indices), remaining.get(clock.done - 1)
            if len(left) < len(samples[clock.task]):
                # rounds alike share one array, which is sent once
                remaining[clock.done] = before if before is not None and np.array_equal(before, left) else left
    return remaining


def _num_workers(experiment: Experiment, server: dict[str, float], again: bool) -> tuple[int, dict[str, float]]:
    """(workers, what each gets): at most one for each part of a batch; `again`: as many of them as a cluster that lost
    a node still holds.

    Raises `ResourceError` when it cannot hold them.
    """
    wanted, share = experiment.resources.client_actors, experiment.resources.client
    gpus = float(ray.cluster_resources().get("GPU", 0.0) > 0) if share.num_gpus == "auto" else share.num_gpus
    if num_client_bundles() is not None:  # a trial of a sweep has a bundle for one worker
        return 1, {"num_cpus": share.num_cpus, "num_gpus": gpus}
    # workers that exchange gradients cannot share a GPU
    needs = {"num_cpus": share.num_cpus, "num_gpus": float(math.ceil(gpus))}
    algorithm: Any = experiment.algorithm  # of those that are `centralized`: with `shards`
    most = algorithm.shards if wanted == "auto" else min(wanted, algorithm.shards)
    return num_client_actors("auto" if again else wanted, needs, server, most), needs
