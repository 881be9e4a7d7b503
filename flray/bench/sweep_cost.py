"""The wall time of a sweep beside the same runs in a row: its fixed cost, and the cost of each trial.

A sweep of `n` trials takes `fixed + n * each`. `fixed` is the time before the first trial trains (imports, Ray, the
trial's process, its actors) and after the last (tables, figures, exit).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from flray.bench.processes import HOME, python, succeeded

TRIALS = 8  # of the sweep that is compared; beside it one of a single trial
IN_A_ROW = """
import sys, yaml
from pathlib import Path
from flray.api import simulate
from flray.config.loader import load_config
spec = yaml.safe_load(open(sys.argv[1]))
for i, lr in enumerate(spec["space"]["algorithm.lr"][: spec["trials"]]):
    simulate(load_config(spec["experiment"], {"algorithm.lr": lr})[0], Path(sys.argv[2]) / str(i), overwrite=True)
"""


def ratio(home: Path, repeats: int, rounds: int | None) -> tuple[float, str]:
    """(wall time of `flray sweep` over that of the same runs in one process, its spread), for `TRIALS` trials of the
    quickstart one at a time, with tables and figures; each from the start of the process to its end, with a Ray of its
    own and every core for one run."""
    times = clocked(home, repeats, rounds, [TRIALS])
    lasts = {way: times[way, TRIALS] for way in ("sweep", "row")}
    detail = "; ".join(f"{way}: " + ", ".join(f"{t:.1f}" for t in seconds) + " s" for way, seconds in lasts.items())
    return median(a / b for a, b in zip(lasts["sweep"], lasts["row"], strict=True)), detail


def costs(home: Path, repeats: int, rounds: int | None) -> list[dict[str, Any]]:
    """Rows of what, seconds as a sweep, seconds in a row, and their ratio: the fixed cost, that of a trial, of all."""
    times = clocked(home, repeats, rounds, [1, TRIALS])
    parts: dict[str, dict[str, float]] = {}
    for way in ("sweep", "row"):
        seconds = {trials: median(times[way, trials]) for trials in (1, TRIALS)}
        fixed, each = apart(seconds)
        parts[way] = {"fixed cost": fixed, "cost per trial": each}
        parts[way] |= {"1 trial": seconds[1], f"{TRIALS} trials": seconds[TRIALS]}
    return [
        {"what": what, "sweep, s": value, "in a row, s": parts["row"][what], "ratio": value / parts["row"][what]}
        for what, value in parts["sweep"].items()
    ]


def apart(seconds: Mapping[int, float]) -> tuple[float, float]:
    """(fixed cost, cost of each) from the seconds for a few and for many: the line through both."""
    few, many = min(seconds), max(seconds)
    each = (seconds[many] - seconds[few]) / (many - few)
    return seconds[few] - few * each, each


def clocked(home: Path, repeats: int, rounds: int | None, sizes: Sequence[int]) -> dict[tuple[str, int], list[float]]:
    """Wall seconds of whole processes by (way, trials), `repeats` of each, in turn."""
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(repeats):
        for trials in sizes:
            config = _written(home, trials, rounds)
            out = home / f"sweep-{time.time_ns()}"
            sweep = ("from flray.cli import main; main()", "sweep", str(config), "--out", str(out))
            for way, (code, *arguments) in {"row": (IN_A_ROW, str(config), str(home / "row")), "sweep": sweep}.items():
                began = time.perf_counter()
                succeeded(python(code, *arguments), way)
                times.setdefault((way, trials), []).append(time.perf_counter() - began)
    return times


def _written(home: Path, trials: int, rounds: int | None) -> Path:
    """The sweep's file: learning rates of the quickstart."""
    import yaml

    from flray.engine.threads import cores

    experiment = {
        "extends": str(HOME / "configs" / "quickstart.yaml"),
        "evaluate": {"validation": {"fraction": 0.1}},
        "resources": {"client_actors": cores()},
        **({} if rounds is None else {"rounds": rounds}),
    }
    values = [0.01 * (i + 1) for i in range(TRIALS)]
    budget = {"trials": trials, "concurrency": 1, "sampler": "random", "final": {"top": 0}}
    config = home / f"sweep-{trials}.yaml"
    config.write_text(
        yaml.safe_dump({"name": "bench", "experiment": experiment, "space": {"algorithm.lr": values}, **budget})
    )
    return config
