"""Many runs in a process of their own, which dies at a moment if one is given.

`python -m tests.faults.many grid|ablate|sweep FOLDER [WHERE FUNCTION CALL]`; the same command again goes on.
"""

import sys
from pathlib import Path
from typing import Any

import yaml

from tests.faults.moments import Moment, at, die
from tests.support.iris_sweep import EXPERIMENT

LOCAL = {**EXPERIMENT, "rounds": 4, "resources": {"executor": "local", "server": {"threads": 1}}}
RATES = "0.01,0.05,0.1"
TESTED = {**LOCAL, "evaluate": {"clients": False}}  # no validation split
SWEEP: dict[str, Any] = {
    "name": "tiny",
    "experiment": LOCAL,
    "space": {"algorithm.lr": {"log": [0.01, 0.1]}},
    "trials": 3,
    "concurrency": 1,
    "final": {"top": 2, "seeds": 2},
}


def grid(folder: Path) -> None:
    from flray.config.loader import load_config
    from flray.tuning.ablate import run_grid

    cells = load_config({"name": "grid", **TESTED}, [f"algorithm.lr={RATES}"])
    run_grid(cells, folder, 1, progress=False).to_csv(folder / "table.csv")


def ablate(folder: Path) -> None:
    from flray.cli import app

    config = folder.with_suffix(".yaml")
    config.write_text(yaml.safe_dump({"name": "iris", **TESTED}))
    words = ["ablate", str(config), "algorithm.lr=0.01,0.1", "seed=0..1", "--out", str(folder), "--concurrency", "1"]
    app(words, standalone_mode=False)


def sweep(folder: Path) -> None:
    from flray.tuning.sweep import resume_sweep, run_sweep
    from flray.tuning.sweep_file import load_sweep

    if (folder / "sweep.yaml").exists():
        resume_sweep(folder, [], progress=False)
    else:
        run_sweep(load_sweep(SWEEP), folder, progress=False)


if __name__ == "__main__":
    kind, home, *moment = sys.argv[1:]
    if moment:
        at(Moment(moment[0], moment[1], int(moment[2])), die)
    {"grid": grid, "ablate": ablate, "sweep": sweep}[kind](Path(home))
