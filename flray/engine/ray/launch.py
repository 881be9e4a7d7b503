"""Start the actors of a run: how many, with which share of the machine, ready for the experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ResourceError, ServerLostError
from flray.engine import cohort as cohorts
from flray.engine.blame import process_ended
from flray.engine.ray.actors import Recipe
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.capacity import num_client_actors
from flray.engine.ray.cluster import ray
from flray.engine.ray.graph import GraphExecutor
from flray.engine.ray.pool import LESS_MEMORY, ActorPool, num_client_bundles
from flray.engine.threads import cores
from flray.files import checksum
from flray.scenario import Scenario

GRAPH_PARAMETERS = 1_000_000  # parameters and buffers of a model whose messages are what a graph makes cheaper


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
    key = checksum((experiment.yaml() + str(fingerprints)).encode())
    if gpus == "auto":
        gpus = _measured_gpu_share(experiment, scenario, key, client_threads)
    client = {"num_cpus": resources.client.num_cpus, "num_gpus": gpus}
    server = {"num_cpus": resources.server.num_cpus, "num_gpus": resources.server.num_gpus}
    cohort_size = max(experiment.cohort.count(len(scenario.members(task))) for task in range(len(scenario.stages)))
    places = num_client_bundles()
    actors = (
        num_client_actors(resources.client_actors, client, server, cohort_size)
        if places is None
        else min(places, cohort_size)
    )
    recipe = Recipe.of(experiment, scenario)
    for attempt in range(2):
        pool = ActorPool.acquire(experiment.name, actors, client, server)
        try:
            facts = pool.setup(recipe, key, client_threads, threads, str(folder.absolute()), lock)
            break
        except ServerLostError as error:  # of a pool whose server died with the run before
            if attempt:
                if error.call is not None:  # the same again, of another process
                    raise process_ended(error.call) from error
                raise ResourceError(
                    f"{error} as it started; if memory ran out, {LESS_MEMORY}, or use a larger machine"
                ) from error
            pool.kill()
    facts.update(client_actors=actors, client_resources=client, server_resources=server, client_threads=client_threads)
    facts["processes"] = pool.processes  # the list itself: processes of actors that are started again join it
    executor = choose_executor(experiment, facts["parameters"] + facts["buffers"])
    written = {"server": resources.server.model_copy(update={"threads": threads}), "executor": executor}
    experiment = experiment.model_copy(update={"resources": resources.model_copy(update=written)})
    return (GraphExecutor if executor == "graph" else CallsExecutor)(pool, experiment, facts), experiment


def choose_executor(experiment: Experiment, numbers: int) -> str:
    """`calls` or `graph`: what `resources.executor` says, and what it means by `auto` for a model of so many
    `numbers`.

    The configuration alone decides, never the machine. What a large model's round costs is not its messages; a
    sequential exchange goes by calls anyway; with GPUs the graph is not measured.
    """
    resources, algorithm = experiment.resources, experiment.algorithm
    if resources.executor != "auto":
        return resources.executor
    gpus = resources.client.num_gpus != 0 or resources.server.num_gpus != 0
    parallel = not algorithm.centralized and algorithm.training.order == "parallel"
    return "graph" if numbers <= GRAPH_PARAMETERS and parallel and not gpus else "calls"


def _measured_gpu_share(experiment: Experiment, scenario: Scenario, key: str, threads: int) -> float:
    """GPU share of one client actor: how many of the costliest client fit a GPU, at 90 % of its memory."""
    if not ray.cluster_resources().get("GPU"):
        return 0.0
    task = int(np.argmax([partition.sizes.max() for partition in scenario.partitions]))
    largest, algorithm = int(np.argmax(scenario.partitions[task].sizes)), experiment.algorithm
    undrifted, clock = scenario.drifting(None), Clock(task)
    chunk = cohorts.turns(undrifted, algorithm, np.array([largest]), clock, algorithm.training)[0][0].chunks[0]
    probe = ActorPool(
        experiment.name,
        1,
        {"num_cpus": experiment.resources.client.num_cpus, "num_gpus": 1.0},
        {"num_cpus": 0.0, "num_gpus": 0.0},
    )
    actor = probe.clients[0]
    try:
        ray.get(actor.setup.remote(Recipe.of(experiment, scenario), key, threads))
        peak, total = ray.get(actor.peak_gpu_memory.remote(chunk))
    finally:
        probe.kill()
    return 1.0 / max(1, int(0.9 * total / max(peak, 1)))
