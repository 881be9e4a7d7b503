"""`python -m flray.bench.executors [ROUNDS] [REPEATS]`: W2's evaluated round by calls and by a compiled graph.

The runs take turns. CPU time sums all threads of a kind of process; unlike wall time it varies little with other load.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import numpy as np

from flray.api import play
from flray.bench import TESTED, W2
from flray.bench.bare import WARM_UP

KINDS = {"raylet/raylet": "raylet", "gcs_server": "gcs", "ClientActor": "clients", "ServerActor": "server"}


def cpu_ms() -> dict[tuple[str, int], float]:
    """CPU time so far of this process and its descendants, by (kind, process id)."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "stat").exists():
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(entry.name))
    seconds, todo = {}, [os.getpid()]
    while todo:
        pid = todo.pop()
        todo += children[pid]
        words = Path(f"/proc/{pid}/cmdline").read_text()
        kind = next((kind for part, kind in KINDS.items() if part in words), "other")
        threads = Path(f"/proc/{pid}/task").iterdir()
        spent = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
        seconds["driver" if pid == os.getpid() else kind, pid] = spent / 1e6
    return seconds


def measure(executor: str, rounds: int, folder: Path) -> tuple[float, dict[str, float]]:
    """(median ms of a round, CPU ms of one by kind of process)."""
    workload = W2._replace(tested=TESTED)
    experiment = workload.experiment(rounds + WARM_UP + 1, resources={"executor": executor, "client_actors": 2})
    ends, spent = [], []
    for _ in play(experiment, folder, scenario=workload.scenario(experiment), overwrite=True):
        ends.append(time.perf_counter())
        if len(ends) in (WARM_UP, WARM_UP + rounds):
            spent.append(cpu_ms())
    taken: dict[str, float] = defaultdict(float)
    for (kind, pid), until in spent[1].items():
        taken[kind] += (until - spent[0].get((kind, pid), 0.0)) / rounds
    return median(np.diff(ends)[WARM_UP - 1 : -1]) * 1e3, dict(taken)


def main(rounds: int = 60, repeats: int = 4) -> None:
    with tempfile.TemporaryDirectory(prefix="flray-bench-") as folder:
        for _ in range(repeats):
            for executor in ("calls", "graph"):
                wall, taken = measure(executor, rounds, Path(folder) / executor)
                parts = ", ".join(f"{kind} {ms:.1f}" for kind, ms in sorted(taken.items()))
                print(f"{executor}: {wall:.1f} ms a round; CPU {sum(taken.values()):.1f} ms: {parts}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
