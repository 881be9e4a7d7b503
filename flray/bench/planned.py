"""`flray bench --only plan`: the plan of rounds on 1 to 8 nodes beside what then happens, on simulated nodes.

`python -m flray.bench.planned NODES ROUNDS` runs one cluster in a process of its own and prints the seconds of a round.
Each node has one client actor; all of them share this machine's cores, and so has the plan.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from flray.api import play
from flray.bench.bare import WARM_UP, Workload
from flray.config.experiment import Experiment
from flray.core.schema.errors import FlrayError
from flray.engine.threads import cores
from flray.planning.machines import TRANSFER_RATE, Cluster
from flray.planning.measure import measure
from flray.planning.plan import plan

NODES = (1, 2, 4, 8)
WORKLOAD = Workload(32, 100, (32, 32, 3), 16, 50, {"name": "fedavg_cnn"}, executor="calls")
STORE_BYTES = 400 * 2**20  # of a node


def experiment(nodes: int, rounds: int, address: str | None = None) -> Experiment:
    resources = {"executor": "calls", "client_actors": nodes}
    return WORKLOAD.experiment(rounds + WARM_UP + 1, resources=resources, address=address)


def planned(seconds: float) -> dict[int, float]:
    """The seconds of a round on each number of nodes, from one measurement in this process."""
    from flray.data import load_dataset

    first = experiment(1, 1)
    measured, scenario, dataset = measure(first, seconds), WORKLOAD.scenario(first), load_dataset(first.data)
    found = {}
    for nodes in NODES:
        cluster = Cluster(nodes, 0, cores(), TRANSFER_RATE, simulated=True)
        found[nodes] = plan(experiment(nodes, 1), scenario, dataset, measured, cluster, None).row["round_s"]
    return found


def happened(nodes: int, rounds: int) -> float:
    """Median seconds of a round of a run on so many simulated nodes; starts and ends their Ray."""
    from flray.engine.ray.simulated import simulated_nodes

    with tempfile.TemporaryDirectory(prefix="flray-bench-") as home, simulated_nodes(nodes, 1, STORE_BYTES) as cluster:
        rows = list(play(experiment(nodes, rounds, cluster.address), Path(home) / "run"))
    return float(median(row["time/round_s"] for row in rows[WARM_UP:-1]))


def error(repeats: int, rounds: int | None) -> tuple[float, str]:
    """(the plan's largest relative error, the seconds of a round on each number of nodes, planned and measured); of
    `repeats` plans and runs in turn the shortest ones."""
    plans, runs = list[dict[int, float]](), list[dict[int, float]]()
    for _ in range(repeats):
        plans.append(planned(2.0))
        runs.append({nodes: _in_a_process(nodes, rounds or 10) for nodes in NODES})
    pairs = {nodes: (min(each[nodes] for each in plans), min(each[nodes] for each in runs)) for nodes in NODES}
    errors = [abs(ours - true) / true for ours, true in pairs.values()]
    lines = [f"{nodes}: {ours * 1e3:.0f} and {true * 1e3:.0f} ms" for nodes, (ours, true) in pairs.items()]
    return max(errors), f"a round on so many simulated nodes, planned and measured: {', '.join(lines)}"


def _in_a_process(nodes: int, rounds: int) -> float:
    """What `happened` measures, in a process that has its own Ray."""
    from flray.engine.ray.simulated import environment

    known = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    command = [sys.executable, "-m", "flray.bench.planned", str(nodes), str(rounds)]
    done = subprocess.run(command, env={**known, **environment()}, capture_output=True, text=True)
    if done.returncode:
        raise FlrayError(f"bench plan: {nodes} nodes: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(happened(*map(int, sys.argv[1:])))
