"""A campaign: every kind of process that a run consists of is killed at a random moment; the run goes on, or resumes,
to the same bits.

`FLRAY_FAULTS=30 pytest -m slow tests/faults/test_processes.py` plays 30 seeds of each kind instead of one.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import flray
from tests.support import heads

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
ROUNDS, ROUND_S = 5, 2.0
NAMES = {
    "client": "ray::ClientActor",
    "server": "ray::ServerActor",
    "raylet": "raylet",
    "gcs": "gcs_server",
    "driver": "",
}
RESTARTED = ("client", "server")  # the run itself goes on
SETTINGS = (
    f"rounds={ROUNDS}",
    "algorithm=slow",
    "algorithm.local_epochs=1",
    "partition.clients=6",
    "cohort.size=4",
    "evaluate.clients=false",
    "resources.client_actors=2",
    "resources.server.threads=1",
)


def words(out: Path, *more: str) -> list[str]:
    config = str(ROOT / "configs" / "quickstart.yaml")
    return [
        sys.executable,
        "-m",
        "flray",
        "run",
        config,
        "--import",
        "tests.faults.slow",
        *SETTINGS,
        *more,
        "--out",
        str(out),
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody disturbs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = subprocess.run(words(out), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return flray.load(out)


@pytest.mark.parametrize("seed", range(int(os.environ.get("FLRAY_FAULTS", "1"))))
@pytest.mark.parametrize("who", NAMES)
def test_a_process_killed_at_a_random_moment_costs_no_bit(whole, home, tmp_path, who, seed):
    draw = random.Random(f"{who} {seed}")
    out, moment = tmp_path / "run", draw.uniform(0, ROUNDS * ROUND_S)
    settings = [f"checkpoint.every={draw.choice([0, 1, 2])}", f"resources.store={draw.choice(['memory', 'files'])}"]
    told = f"{who}, seed {seed}: killed {moment:.1f} s after the actors were ready, {', '.join(settings)}"
    environment = {**os.environ, "RAY_TMPDIR": str(home)}
    process = subprocess.Popen(
        words(out, *settings), cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until = time.monotonic() + 240
        while not (out / "config.yaml").exists():
            assert process.poll() is None and time.monotonic() < until, f"{told}: {process.communicate(timeout=60)}"
            time.sleep(0.05)
        time.sleep(moment)
        victims = heads.named(home, NAMES[who]) if NAMES[who] else [process.pid]
        if process.poll() is None and victims:
            os.kill(draw.choice(sorted(victims)), signal.SIGKILL)
        output, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    finished = flray.load(out).status == "finished"
    if who in RESTARTED:
        assert process.returncode == 0 and finished, f"{told}: {errors}"
    if not finished:
        if who != "driver":
            assert process.returncode == 2 and errors.splitlines()[-1].endswith(f"go on with: flray resume {out}"), (
                f"{told}: {errors}"
            )
            assert "state-dump" not in output + errors, told
        resume = [sys.executable, "-m", "flray", "resume", str(out)]
        again = subprocess.run(resume, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert again.returncode == 0, f"{told}: {again.stderr}"
    run = flray.load(out)
    assert run.status == "finished" and run.rounds["done"].tolist() == list(range(1, ROUNDS + 1)), told
    assert run.rounds["test/acc"].tolist() == whole.rounds["test/acc"].tolist(), told
    assert (out / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes(), told
