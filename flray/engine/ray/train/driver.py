"""A run on all data in one place: the rounds of `simulation.py`, each of them computed by the workers of a trainer."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

from flray.config.experiment import Experiment
from flray.core.protocol.clock import Clock
from flray.engine.centralized import CentralizedRounds
from flray.engine.progress import Progress
from flray.engine.ray import cluster, leases
from flray.engine.ray.actors import Recipe
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.capacity import num_client_actors
from flray.engine.ray.cluster import ray
from flray.engine.ray.placement import num_client_bundles
from flray.engine.ray.train.workers import TrainPool, TrainServer
from flray.engine.rounds import Executor
from flray.engine.simulation import Attempt
from flray.engine.threads import cores


class CentralizedSimulation(CentralizedRounds):
    """One run of an algorithm that is `centralized`, on Ray."""

    pool: TrainPool | None = None

    def go(self, progress: bool, resume: bool) -> Generator[dict[str, Any], None, None]:
        try:
            yield from super().go(progress, resume)
        finally:
            self._end()

    def _end(self) -> None:
        """End the processes of the part before: workers, or clients that fine-tuned."""
        if self._executor is not None:
            self._executor.close(busy=False)
            self._executor = None
        if self.pool is not None:
            leases.end(self.pool)
            self.pool = None

    def _launch(self) -> tuple[Executor, Experiment]:
        """The server, ready; the workers start with the first round."""
        again = self.pool is not None
        self._end()
        samples, drifted = self.training_samples()
        resources = self.experiment.resources
        server = {"num_cpus": resources.server.num_cpus, "num_gpus": 0.0}
        threads = max(1, int(resources.client.num_cpus))
        with cluster.lock:
            leases.alone(str(self.folder))  # a trainer cannot begin with fewer workers
            workers, share = _num_workers(self.experiment, server, again)
            self.pool = TrainPool(self.experiment.name, workers, share, server)
            self.pool.begin(str(self.folder))
            leases.register(self.pool)
        recipe = Recipe.of(self.experiment, self.scenario)
        self.pool.prepare(recipe, samples, drifted, threads)
        facts = self.pool.call(TrainServer.setup, recipe, str(self.folder.absolute()), cores(), self.home.lock_id)
        facts["processes"] = [{"actor": "server", **facts.pop("process")}]
        facts.update(client_actors=workers, client_resources=share, server_resources=server, client_threads=threads)
        return CallsExecutor(self.pool, self.experiment, facts), self.experiment

    def _computed(self, run: Attempt, clock: Clock) -> dict[str, Any]:
        if self.pool is None:  # clients fine-tuned at the end of the task before, in the workers' place
            run.executor, _ = self._launch()
            self._executor = run.executor
            self._load(run.executor)
            assert self.pool is not None
        return self.pool.round(clock, clock.done + 1 == self.experiment.total_rounds)

    def _task(self, run: Attempt, clock: Clock, show: Progress) -> dict[str, Any]:
        if clock.phase == "task_end" and self.experiment.personal_epochs:
            self._end()  # clients fine-tune: they need their actors, in the workers' place
            run.executor, _ = super()._launch()
            self._executor = run.executor
            self._load(run.executor)
        return super()._task(run, clock, show)


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
