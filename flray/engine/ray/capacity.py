"""The number of actors that fit the cluster, and the size of the cluster that a run needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from flray.config.experiment import Experiment
from flray.core.schema.errors import ResourceError
from flray.engine.ray.cluster import ray, starts_here
from flray.engine.threads import PROCESS_BYTES, cores, memory

PARTS = 10_000  # of a CPU or a GPU, in which Ray counts


def in_parts(amount: float) -> int:
    """An amount of CPUs or GPUs as Ray counts it."""
    return round(amount * PARTS)


def times(have: float, share: float, one_gpu: bool = False) -> int:
    """How often a share fits into what is there; `one_gpu`: a share of a GPU is of one of them."""
    parts, each = in_parts(have), max(in_parts(share), 1)
    if not one_gpu or each > PARTS:
        return parts // each
    whole, rest = divmod(parts, PARTS)
    return whole * (PARTS // each) + rest // each


def gpu_share(actors: int) -> float:
    """The share of a GPU that so many actors have beside each other; six times 0.1667 would be more than one."""
    return (PARTS // actors) / PARTS


def shares(need: Mapping[str, float]) -> str:
    """What an actor takes, in words."""
    return f"{need['num_cpus']:g} CPUs and {need['num_gpus']:g} GPUs"


def num_client_actors(
    wanted: int | str,
    client: dict[str, float],
    server: dict[str, float],
    cohort_size: int,
    taken: Sequence[dict[str, float]] = (),
) -> int:
    """The number of client actors of this run. Raises `ResourceError` if they do not fit; an actor is on one node.

    `taken`: shares of the cluster that others have; as many fit as they leave, 0 if they leave too little.
    """
    nodes = node_resources()
    cpus, gpus = (sum(column) for column in zip(*nodes, strict=True))
    for who, need in (("client", client), ("server", server)):
        if need["num_gpus"] > gpus:
            raise ResourceError(
                f"resources.{who}.num_gpus: {need['num_gpus']:g} asked for, but the cluster has {gpus:g}; "
                f"set it to {gpus:g} or use another machine"
            )
    most = _most(nodes, client, server)
    if most < 1:
        largest = (
            ""
            if len(nodes) == 1
            else f" on {len(nodes)} nodes (the largest: {max(nodes)[0]:g} CPUs, {max(nodes)[1]:g} GPUs)"
        )
        raise ResourceError(
            f"no client actor fits: each needs {shares(client)}, the server {shares(server)}, and the cluster has "
            f"{cpus:g} CPUs and {gpus:g} GPUs{largest}; lower resources.client or resources.server (num_cpus, "
            "num_gpus), or give the cluster more"
        )
    if wanted != "auto" and int(wanted) > most:
        raise ResourceError(
            f"resources.client_actors: {wanted} of {shares(client)} do not fit {cpus:g} CPUs and {gpus:g} GPUs; "
            f"write at most {most}"
        )
    asked = cohort_size if wanted == "auto" else min(int(wanted), cohort_size)
    return min(asked, _most(_without(nodes, taken), client, server) if taken else most)


def _most(nodes: list[tuple[float, float]], client: dict[str, float], server: dict[str, float]) -> int:
    """The most client actors that nodes with these (CPUs, GPUs) hold beside the server."""
    return max((count_fitting(rest, client) for rest in _without_server(nodes, server)), default=0)


def _without(nodes: list[tuple[float, float]], taken: Sequence[dict[str, float]]) -> list[tuple[float, float]]:
    """What the nodes have left when each of the shares is on the first node with room for it."""
    left = list(nodes)
    for share in sorted(taken, key=lambda share: -share["num_cpus"]):
        need = in_parts(share["num_cpus"]), in_parts(share["num_gpus"])
        room = (i for i, (cpus, gpus) in enumerate(left) if in_parts(cpus) >= need[0] and in_parts(gpus) >= need[1])
        place = next(room, max(range(len(left)), key=left.__getitem__))
        cpus, gpus = left[place]
        left[place] = (max(cpus - share["num_cpus"], 0.0), max(gpus - share["num_gpus"], 0.0))
    return left


def node_resources() -> list[tuple[float, float]]:
    return [(n["Resources"].get("CPU", 0.0), n["Resources"].get("GPU", 0.0)) for n in ray.nodes() if n["Alive"]]


def count_fitting(nodes: list[tuple[float, float]], need: dict[str, float]) -> int:
    """The number of actors of a kind that fit nodes with these (CPUs, GPUs); one a CPU if they need nothing."""
    cpu, gpu = need["num_cpus"], need["num_gpus"]
    if not cpu and not gpu:
        return max(int(sum(cpus for cpus, _ in nodes)), 1)
    by_gpu = [times(gpus, gpu, one_gpu=True) if gpu else math.inf for _, gpus in nodes]
    by_cpu = [times(cpus, cpu) if cpu else math.inf for cpus, _ in nodes]
    return sum(int(min(fits)) for fits in zip(by_cpu, by_gpu, strict=True))


def _without_server(nodes: list[tuple[float, float]], server: dict[str, float]) -> Iterator[list[tuple[float, float]]]:
    """The nodes' remaining (CPUs, GPUs) with the server on each node that it fits."""
    for i, (cpus, gpus) in enumerate(nodes):
        left = (cpus - server["num_cpus"], gpus - server["num_gpus"])
        if min(map(in_parts, left)) >= 0:
            yield [*nodes[:i], left, *nodes[i + 1 :]]


def cpus_needed(experiment: Experiment) -> int:
    """CPUs of a cluster that flray starts: the cores, or what the actors that were asked for need (then they share
    cores).

    Raises `ResourceError` before anything starts when this machine's memory cannot hold as many processes.
    """
    resources = experiment.resources
    wanted = resources.client_actors if isinstance(resources.client_actors, int) else 0
    asked = wanted * resources.client.num_cpus + resources.server.num_cpus
    most = memory() // PROCESS_BYTES
    if max(asked, wanted) > most and starts_here(experiment.address):
        raise ResourceError(
            f"resources: {wanted or 'automatic'} client actors of {resources.client.num_cpus:g} CPUs and a server of "
            f"{resources.server.num_cpus:g} ask for {asked:g} CPUs; Ray starts a process for each, and the memory of "
            f"this machine ({cores()} cores) holds {most}: lower resources.client_actors or num_cpus"
        )
    return max(cores(), math.ceil(in_parts(asked) / PARTS))
