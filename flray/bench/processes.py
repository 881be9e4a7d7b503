"""Benchmarks of whole processes, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from flray.core.errors import ConfigError, FlrayError

HOME = Path(__file__).resolve().parents[2]  # the checkout, or the folder of installed packages


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
