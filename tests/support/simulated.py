"""Several nodes on this machine: a raylet and an object store for each, as `ray.cluster_utils` starts them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def simulated_nodes(nodes: int, cpus: int, store_bytes: int) -> Iterator[Any]:
    """A cluster (`ray.cluster_utils.Cluster`) of so many nodes with `cpus` CPUs and an object store each.

    The first node is the driver's. Ends the cluster, and this process's connection to it.
    """
    import ray
    from ray.cluster_utils import Cluster

    size = {"num_cpus": cpus, "object_store_memory": store_bytes}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={**size, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**size)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
