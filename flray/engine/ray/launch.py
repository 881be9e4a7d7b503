"""Start the actors of a run: how many, with which share of the machine, ready for the experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flray.core.disk import checksum
from flray.core.errors import ResourceError
from flray.engine import cohort as cohorts
from flray.engine.prepare import how_many
from flray.engine.ray.actors import Recipe
from flray.engine.ray.cluster import cores, ray
from flray.engine.ray.pool import LESS, Pool, ServerLostError, reserved
from flray.engine.workbench import Moment
from flray.experiment import Experiment
from flray.scenario import Partition


def launch(
    experiment: Experiment, folder: Path, partition: Partition, fingerprints: dict[str, Any], lock: str
) -> tuple[Pool, dict[str, Any], Experiment]:
    """(actors set up, facts about them, the experiment with the thread counts that decide its bits written out).

    `lock`: the id under which this process holds the folder, in which the server actor writes as well.
    Raises `ResourceError` when the cluster cannot hold them.
    """
    resources = experiment.resources
    threads = cores() if resources.server.threads == "auto" else resources.server.threads
    client_threads = max(1, int(resources.client.num_cpus))
    gpus = resources.client.num_gpus
    key = checksum((experiment.yaml() + str(fingerprints)).encode())
    if gpus == "auto":
        gpus = _measured_gpu_share(experiment, partition, key, client_threads)
    client = {"num_cpus": resources.client.num_cpus, "num_gpus": gpus}
    server = {"num_cpus": resources.server.num_cpus, "num_gpus": resources.server.num_gpus}
    cohort_size = experiment.cohort.count(partition.num_clients)
    places = reserved()
    actors = how_many(resources.client_actors, client, server, cohort_size) if places is None else min(places, cohort_size)
    for attempt in range(2):
        pool = Pool.acquire(actors, client, server)
        try:
            facts = pool.setup(experiment, partition.held, key, client_threads, threads, str(folder.absolute()), lock)
            break
        except ServerLostError as error:  # of a pool whose server died with the run before
            if attempt:
                raise ResourceError(f"{error} as it started; if memory ran out, {LESS}, or use a larger machine") from error
            pool.kill()
    facts.update(client_actors=actors, client_resources=client, server_resources=server, client_threads=client_threads)
    fixed = resources.model_copy(update={"server": resources.server.model_copy(update={"threads": threads})})
    return pool, facts, experiment.model_copy(update={"resources": fixed})


def _measured_gpu_share(experiment: Experiment, partition: Partition, key: str, threads: int) -> float:
    """GPU share of one client actor: how many of the costliest client fit a GPU, at 90 % of its memory."""
    if not ray.cluster_resources().get("GPU"):
        return 0.0
    largest = int(np.argmax(partition.sizes))
    moment = Moment(0, 0, 0, False, partition.num_clients, 1, len(partition.indices))
    job = cohorts.work(partition, experiment.algorithm, np.array([largest]), moment, 1).jobs[0]
    probe = Pool(1, {"num_cpus": experiment.resources.client.num_cpus, "num_gpus": 1.0}, {"num_cpus": 0.0, "num_gpus": 0.0})
    actor = probe.clients[0]
    try:
        ray.get(actor.setup.remote(Recipe.of(experiment), key, threads))
        peak, total = ray.get(actor.peak_gpu_memory.remote(job))
    finally:
        probe.kill()
    return 1.0 / max(1, int(0.9 * total / max(peak, 1)))
