"""Benchmarks of size: a million and ten million clients, 100,000 client states, 100,000 rounds."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from flray.bench import processes
from flray.bench.bare import WARM_UP, Workload, measure

_CHILD = """
import sys
from pathlib import Path
from flray import bench
from flray.data import load_dataset
from flray.scenario import Scenario
from flray.api import simulate
name, partition, folder = sys.argv[1:]
experiment = getattr(bench, name).experiment(12)
scenario = Scenario.load(partition, load_dataset(experiment.data).num_classes, verify=False)
simulate(experiment, Path(folder), scenario=scenario, overwrite=True)
"""
_RESUME = """
import sys, time
from pathlib import Path
from flray.api import play, resumed
from flray.engine.ray.cluster import connect
folder = Path(sys.argv[1])
experiment = resumed(folder, {"rounds": 14})
connect(experiment.address, 2, insecure=False)
began = time.perf_counter()
for row in play(experiment, folder, resume=True):
    print(f"took {time.perf_counter() - began}", file=sys.stderr, flush=True)
    break
"""


class Peak(NamedTuple):
    """Peak memory of a run's driver and actors in MB: in all, without mapped files, of the driver alone; the seconds
    that its partition took."""

    all: float
    own: float
    driver: float
    partition_s: float


def rounds(small: Workload, large: Workload, rounds: int, repeats: int, home: Path) -> tuple[float, str]:
    """Seconds of a round with the large population over those with the small one."""
    times: dict[str, list[float]] = {"small": [], "large": []}
    for _ in range(repeats):
        for name, workload in (("small", small), ("large", large)):
            experiment = workload.experiment(rounds + WARM_UP + 1)
            times[name].append(measure(experiment, workload.scenario(experiment), home / name).round_s)
    more, less = min(times["large"]), min(times["small"])
    clients = f"{large.population:,} and {small.population or small.clients:,} clients"
    return more / less, f"{more * 1e3:.1f} and {less * 1e3:.1f} ms; {clients}"


def peak_memory(name: str, workload: Workload, home: Path) -> Peak:
    """Of a run of 12 rounds in a new process; its folder is `home/NAME-memory`."""
    experiment = workload.experiment(1)
    place, began = home / f"{name}-partition", time.perf_counter()
    workload.scenario(experiment).save(place, experiment.partition)
    took = time.perf_counter() - began
    process = processes.python(_CHILD, name, str(place), str(home / f"{name}-memory"))
    peak = (0.0, 0.0, 0.0)
    while process.poll() is None:
        peak = tuple(map(max, peak, processes.pss(process.pid)))  # type: ignore[assignment]
        time.sleep(0.05)
    processes.succeeded(process, name)
    return Peak(*peak, took)


def more_memory(less: Peak, more: Peak) -> tuple[float, str]:
    parts = f"without mapped files {more.own - less.own:+.0f}, driver alone {more.driver - less.driver:+.0f}"
    return more.all - less.all, f"{more.all:.0f} and {less.all:.0f} MB (PSS), {parts}"


def resume(folder: Path) -> tuple[float, str]:
    """Seconds from the resume of a run to the end of its next round, with a Ray that is open."""
    process = processes.python(_RESUME, str(folder))
    assert process.stderr is not None
    told = [line for line in process.stderr if line.startswith("took ")]
    processes.succeeded(process, "resume")
    return float(told[0].split()[1]), "to the end of the next round; Ray is open, the actors start"


def states(home: Path, rounds: int) -> tuple[float, str]:
    """Seconds of SCAFFOLD's last rounds, with a state on disk for every client of every cohort of 100, over the first.

    A client is hardly ever drawn twice. The model is small: 100,000 states of W2's take 64 GB.
    """
    workload = Workload(1000, 20, (8, 8, 1), 100, 10, {"name": "mlp", "hidden": []}, population=10_000_000)
    algorithm = {"name": "scaffold", "lr": 0.01, "local_epochs": 1, "batch_size": 10}
    resources = {"executor": "local", "store": "files"}
    every = {"checkpoint": {"every": 20, "keep": 2}, "algorithm": algorithm, "resources": resources}
    return _last_over_first(workload, rounds, home / "states", every, f"{100 * rounds:,} states")


def long_run(home: Path, rounds: int) -> tuple[float, str]:
    """Seconds of the last rounds of a run of very many over those at the beginning; 2 clients, a linear model."""
    workload = Workload(2, 4, (4, 4, 1), 2, 4, {"name": "mlp", "hidden": []})
    every = {"checkpoint": {"every": 1000, "keep": 2}, "resources": {"executor": "local"}}
    return _last_over_first(workload, rounds, home / "long", every, "one process")


def _last_over_first(
    workload: Workload, rounds: int, folder: Path, sections: dict[str, Any], what: str
) -> tuple[float, str]:
    from flray.api import load, play

    experiment = workload.experiment(rounds, **sections)
    ends, memory = [], []
    for row in play(experiment, folder, scenario=workload.scenario(experiment), overwrite=True):
        ends.append(time.perf_counter())
        if row["round"] in (rounds // 100, rounds):
            memory.append(_own_memory())
    times = [after - before for before, after in itertools.pairwise(ends)]
    part = max(1, rounds // 100)  # of all rounds: with their checkpoints
    first, last = sum(times[part : 2 * part]) / part, sum(times[-part:]) / part
    began = time.perf_counter()
    assert len(load(folder).rounds) == rounds
    read = time.perf_counter() - began
    typical = f"median {median(times[-part:]) * 1e3:.1f} and {median(times[part : 2 * part]) * 1e3:.1f}"
    detail = f"{last * 1e3:.1f} and {first * 1e3:.1f} ms ({typical}), {what}; {memory[-1] - memory[0]:+.0f} MB"
    return last / first, f"{detail}; its rows are read in {read:.2f} s"


def _own_memory() -> float:
    """MB of this process that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon")) / 1024
