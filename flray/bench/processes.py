"""Benchmarks of whole processes, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from flray.core.errors import ConfigError, FlrayError

HOME = Path(__file__).resolve().parents[2]  # the checkout, or the folder of installed packages
TRIALS = 8  # of the sweep


def startup(home: Path, repeats: int) -> tuple[float, str]:
    """From the start of `flray run configs/quickstart.yaml` to its first finished round."""
    config = HOME / "configs" / "quickstart.yaml"
    if not config.exists():
        raise ConfigError(f"bench startup reads {config}: run it from a checkout of flray")
    code = "from flray.cli import main; main()"
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        process = python(code, "run", str(config), "rounds=1", "--out", str(home / "startup"), "--overwrite")
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if "round 1/1" in line:
                times.append(time.perf_counter() - started)
                break
        process.stderr.read()
        process.wait()
        if process.returncode or len(times) == 0:
            raise FlrayError(f"bench startup: the quickstart failed: {seen[-1].strip() if seen else 'no output'}")
    return (min(times), "quickstart; runs: " + ", ".join(f"{t:.2f}" for t in times) + " s")


def sweep(home: Path, repeats: int, rounds: int | None) -> tuple[float, str]:
    """Wall time of `flray sweep` (8 trials, one at a time, tables and figures) over that of the same 8 runs in one
    process.

    Both from the start of the process to its end, with a Ray of their own and every core for one run.
    """
    import yaml

    from flray.engine.threads import cores

    values = [0.01 * (i + 1) for i in range(TRIALS)]
    experiment = {
        "extends": str(HOME / "configs" / "quickstart.yaml"),
        "evaluate": {"validation": {"fraction": 0.1}},
        "resources": {"client_actors": cores()},
        **({} if rounds is None else {"rounds": rounds}),
    }
    config = home / "sweep.yaml"
    budget = {"trials": TRIALS, "concurrency": 1, "sampler": "random", "final": {"top": 0}}
    config.write_text(
        yaml.safe_dump({"name": "bench", "experiment": experiment, "space": {"algorithm.lr": values}, **budget})
    )
    in_a_row = (
        "import sys, yaml; from pathlib import Path\n"
        "from flray.loader import load_config; from flray.api import simulate\n"
        "spec = yaml.safe_load(open(sys.argv[1]))\n"
        "for i, lr in enumerate(spec['space']['algorithm.lr']):\n"
        "    simulate(load_config(spec['experiment'], {'algorithm.lr': lr})[0], Path(sys.argv[2]) / str(i), "
        "overwrite=True)"
    )
    times: dict[str, list[float]] = {"sweep": [], "row": []}
    for repeat in range(repeats):
        ways = {
            "row": (in_a_row, str(config), str(home / "row")),
            "sweep": (
                "from flray.cli import main; main()",
                "sweep",
                str(config),
                "--out",
                str(home / f"sweep-{repeat}-{time.time_ns()}"),
            ),
        }
        for name, (code, *arguments) in ways.items():
            started = time.perf_counter()
            process = python(code, *arguments)
            succeeded(process, name)
            times[name].append(time.perf_counter() - started)
    detail = "; ".join(f"{name}: " + ", ".join(f"{t:.1f}" for t in found) + " s" for name, found in times.items())
    return (median(a / b for a, b in zip(times["sweep"], times["row"], strict=True)), detail)


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A process that imports this flray and starts a Ray of its own."""
    home = str(HOME)
    env = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    env["PYTHONPATH"] = os.pathsep.join([home, *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def succeeded(process: subprocess.Popen[str], name: str) -> None:
    assert process.stderr is not None
    lines = process.stderr.read().strip().splitlines()
    process.wait()
    if process.returncode:
        raise FlrayError(f"bench {name}: the run failed: {lines[-1] if lines else 'no output'}")
