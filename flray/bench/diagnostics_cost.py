"""`flray bench --only diagnostics`: the cost of each diagnostic, as the ratio of a round with it to a round without
it."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from flray.api import simulate
from flray.bench.bare import Workload
from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.core.network.threads import threads
from flray.core.schema.errors import FlrayError
from flray.engine.live_bytes import Alive
from flray.metrics.probes import PROBES
from flray.rundir.reader import load

PROXY = 500  # public samples
# 10 clients of 100 samples beside the public ones, 4 of them a round: 100 steps, and a test of 500 samples
WORK = Workload(10, 100 + PROXY // 10, (28, 28, 1), 4, 20, {"name": "mlp", "hidden": [200]}, epochs=5, tested=500)


def costs(repeats: int, home: Path, workload: Workload = WORK) -> list[dict[str, Any]]:
    """One row a diagnostic, with its defaults: the ratio of a round with it to a round without it (median over
    `repeats` interleaved runs of the first round, in which each of them is due), the added milliseconds, and the
    megabytes added to the largest total size of tensors alive at once (counted, not measured by the system).

    FedAvg in this process on one thread. A row says what its diagnostic cannot observe.
    """
    plain: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in PROBES.names()}
    bytes_: dict[str, int] = {}
    failed: dict[str, str] = {}
    with threads(1):
        nothing = _peak(_experiment(workload, ()), home)  # and work that is done once in a process
        for name in seconds:
            try:
                bytes_[name] = _peak(_experiment(workload, (name,)), home)
            except FlrayError as error:
                failed[name] = str(error)
        for _ in range(repeats):
            plain.append(_seconds(_experiment(workload, ()), home))
            for name in bytes_:
                seconds[name].append(_seconds(_experiment(workload, (name,)), home))
    rows: list[dict[str, Any]] = []
    for name, times in seconds.items():
        row: dict[str, Any] = {"diagnostic": name}
        if name in failed:
            rows.append({**row, "note": failed[name]})
            continue
        ratios = sorted(one / without for one, without in zip(times, plain, strict=True))
        rows.append(
            {
                **row,
                "round / without": round(median(ratios), 2),
                "spread": f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                "adds ms": round(1e3 * (median(times) - median(plain)), 1),
                "adds MB": round((bytes_[name] - nothing) / 1e6, 1),
                "looks": _looks(name),
            }
        )
    return rows


def _experiment(workload: Workload, diagnostics: tuple[str, ...]) -> Experiment:
    proxy = {"source": "holdout", "size": min(PROXY, workload.clients * workload.images // 2)}
    sections = {"proxy": proxy, "resources": {"executor": "local", "server": {"threads": 1}}}
    return load_config(workload.experiment(1), {**sections, "diagnostics": list(diagnostics)})[0]


def _seconds(experiment: Experiment, home: Path) -> float:
    simulate(experiment, home / "run", overwrite=True)
    return float(load(home / "run").rounds["time/round_s"].iloc[0])


def _peak(experiment: Experiment, home: Path) -> int:
    with Alive() as alive:
        simulate(experiment, home / "run", overwrite=True)
    return int(alive.most)


def _looks(name: str) -> str:
    """The place of the diagnostic, and its interval unless it is every time."""
    kind = PROBES.get(name)
    probe = kind()
    often = f", every {probe.every}" if getattr(probe, "every", 1) > 1 else ""
    return ", ".join(sorted(probe.at)) + often
