"""Start the actors of a run: how many, with which share of the machine, ready for the experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment
from flray.core.schema.errors import FlrayError, ServerLostError
from flray.engine import cohort as cohorts, devices
from flray.engine.blame import server_never_started
from flray.engine.ray import alive, by_value, leases
from flray.engine.ray.actors import Recipe
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.capacity import gpu_share
from flray.engine.ray.cluster import ray
from flray.engine.threads import cores
from flray.files import checksum
from flray.rundir.provenance import imported_sources
from flray.scenario import Scenario


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
    wanted = resources.client_actors
    for attempt in range(2):
        pool = leases.lease(experiment.name, str(folder), wanted, cohort_size, client, server, sources)
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
    probe = leases.lease(experiment.name, str(folder), 1, 1, one, nothing, sources)
    try:
        peak, total = probe.peak_gpu_memory(Recipe.of(experiment, scenario), key, threads, chunk)
    finally:
        leases.end(probe)
    return gpu_share(max(1, int(0.9 * total / max(peak, 1))))
