"""The wall time of a sweep beside the same runs in a row."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from flray.bench.processes import python, succeeded
from flray.shipped import shipped

TRIALS = 8
IN_A_ROW = """
import sys, yaml
from pathlib import Path
from flray.running import simulate
from flray.config.loader import load_config
spec = yaml.safe_load(open(sys.argv[1]))
for i, lr in enumerate(spec["space"]["algorithm.lr"][: spec["trials"]]):
    simulate(load_config(spec["experiment"], {"algorithm.lr": lr})[0], Path(sys.argv[2]) / str(i), overwrite=True)
"""


def ratio(home: Path, repeats: int, rounds: int | None) -> tuple[float, str]:
    """(wall time of `flray sweep` over that of the same runs in one process, its spread), for `TRIALS` trials of the
    quickstart one at a time, with tables and figures; each from the start of the process to its end, with a Ray of its
    own and every core for one run. They take turns, `repeats` times."""
    config = _written(home, rounds)
    times: dict[str, list[float]] = {"row": [], "sweep": []}
    for number in range(repeats):
        out = home / f"sweep-{number}"
        sweep = ("from flray.cli import main; main()", "sweep", str(config), "--out", str(out))
        for way, (code, *arguments) in {"row": (IN_A_ROW, str(config), str(home / "row")), "sweep": sweep}.items():
            began = time.perf_counter()
            succeeded(python(code, *arguments), way)
            times[way].append(time.perf_counter() - began)
    detail = "; ".join(f"{way}: " + ", ".join(f"{t:.1f}" for t in seconds) + " s" for way, seconds in times.items())
    return median(a / b for a, b in zip(times["sweep"], times["row"], strict=True)), detail


def _written(home: Path, rounds: int | None) -> Path:
    """The sweep's file: learning rates of the quickstart."""
    import yaml

    from flray.engine.threads import cores

    experiment = {
        "extends": str(shipped("configs") / "quickstart.yaml"),
        "evaluate": {"validation": {"fraction": 0.1}},
        "resources": {"client_actors": cores()},
        **({} if rounds is None else {"rounds": rounds}),
    }
    values = [0.01 * (i + 1) for i in range(TRIALS)]
    budget = {"trials": TRIALS, "concurrency": 1, "sampler": "random", "final": {"top": 0}}
    config = home / "sweep.yaml"
    config.write_text(
        yaml.safe_dump({"name": "bench", "experiment": experiment, "space": {"algorithm.lr": values}, **budget})
    )
    return config
