"""Two actors on each of three nodes, in a process of its own: how often a broadcast crosses to a node.

`python -m tests.engine.ray.broadcasts OUT fedavg|with_table`: rounds without combiners, so that only broadcasts, and
their shared parts, go to the raylets of the two nodes without the server. Prints as JSON the bytes that the kernel
counted on their sockets in a round, the bytes of a broadcast, and the number of objects that were given to the six
actors as their broadcast.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from flray.bench.bare import Workload
from flray.engine.ray import combiners
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.cluster import ray
from flray.running import play
from tests.support.simulated import simulated_nodes

NODES, ACTORS, ROUNDS = 3, 6, 4
WORKLOAD = Workload(12, 1, (28, 28, 1), 12, 1, {"name": "mlp", "hidden": [2000]})


def received(pids: list[int]) -> int:
    """Bytes that the open TCP sockets of these processes have received so far."""
    lines = subprocess.run(["ss", "-tinp"], capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = zip(lines[1::2], lines[2::2], strict=True)  # a socket with its process, and its counters
    ours = [counters for socket, counters in pairs if any(f"pid={pid}," in socket for pid in pids)]
    return sum(int(match[1]) for counters in ours if (match := re.search(r"bytes_received:(\d+)", counters)))


def main(out: Path, algorithm: str) -> None:
    given: list[tuple[int, str]] = []
    original = CallsExecutor._work

    def noted(self: CallsExecutor, chunk: Any, plan: Any, broadcast: Any, *rest: Any) -> Any:
        given.append((chunk[0].clock.round, broadcast.hex()))
        return original(self, chunk, plan, broadcast, *rest)

    never = patch.object(combiners, "worth_it", lambda chunks, size: False)
    with simulated_nodes(NODES, ACTORS // NODES, 200 * 2**20) as cluster, never:
        raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.worker_nodes]
        resources = {"executor": "calls", "client_actors": ACTORS}
        own = {"algorithm": {"name": algorithm, "local_epochs": 1, "batch_size": 1}}
        imports = [f"tests.engine.ray.{algorithm}"] if algorithm == "with_table" else []
        experiment = WORKLOAD.experiment(ROUNDS, resources=resources, address=cluster.address, imports=imports, **own)
        rows, counts = [], []
        with patch.object(CallsExecutor, "_work", noted):
            for row in play(experiment, out):
                rows.append(row)
                counts.append(received(raylets))
        nodes = [node["NodeID"] for node in ray.nodes()]
    found = {
        "nodes": len(nodes),
        "received": np.diff(counts).tolist(),
        "broadcast": rows[1]["comm/down_bytes"] // 12,
        "objects": [len({ref for round, ref in given if round == r}) for r in range(ROUNDS)],
        "calls": [len([ref for round, ref in given if round == r]) for r in range(ROUNDS)],
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
