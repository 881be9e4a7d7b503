"""Centralized training on three nodes, one of which is lost behind round 2:
`python -m tests.engine.ray.train.lost_node OUT ROUNDS`."""

import json
import sys
from pathlib import Path

from flray.engine.ray.cluster import ray
from flray.running import play
from tests.support.centralized import config


def main(out: Path, rounds: int) -> None:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={**small, "include_dashboard": False})
    others = [cluster.add_node(**small) for _ in range(2)]
    try:
        for row in play(config(3, rounds, address=cluster.address), out):
            if row["round"] == 2:
                cluster.remove_node(others[1], allow_graceful=False)
        print(json.dumps(json.loads((out / "environment.json").read_text())["actors"]))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
