"""A campaign on sweeps: the driver is killed with -9 at random moments, and what the resumed sweep says is what its
runs wrote down."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support.iris_sweep import EXPERIMENT, SPACE
from tests.support.sweeps import suggested
from tests.support.truth import assert_true

SWEEP = {
    "name": "tiny",
    "experiment": {**EXPERIMENT, "rounds": 24, "checkpoint": {"every": 5}},
    "space": SPACE,
    "trials": 5,
    "scheduler": {"name": "asha", "grace": 4, "reduction": 3, "seeds": [1, 2]},
    "concurrency": 1,
    "final": {"top": 0},
}
SEEDS_AT = {12: 2, 24: 2}  # rungs at 4, 12 and 24
LIMIT_S = 280
KILLS = 3  # of one sweep, at most

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def command(folder: Path) -> list[str]:
    if (folder / "study.journal").exists():
        return [sys.executable, "-m", "flray", "sweep", str(folder), "--resume"]
    return [sys.executable, "-m", "flray", "sweep", str(folder.parent / "tiny.yaml"), "--out", str(folder)]


def drive(folder: Path, kill_at: int | None) -> bool:
    """Begin the sweep or go on with it; kill -9 once its journal has this many lines more than now.

    Whether it was killed.
    """
    journal = folder / "study.journal"
    lines = journal.read_bytes().count(b"\n") if journal.exists() else 0
    with subprocess.Popen(
        command(folder), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        until = time.monotonic() + LIMIT_S
        while kill_at is not None and process.poll() is None and time.monotonic() < until:
            if journal.exists() and journal.read_bytes().count(b"\n") >= lines + kill_at:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                return True
            time.sleep(0.001)
        _, errors = process.communicate(timeout=max(1.0, until - time.monotonic()))
        assert process.returncode == 0, errors.decode()[-3000:]
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep that nothing happened to."""
    home = tmp_path_factory.mktemp("sweep")
    (home / "tiny.yaml").write_text(yaml.safe_dump(SWEEP))
    assert not drive(home / "s", None)
    return home / "s"


@pytest.mark.parametrize("seed", range(4))
def test_a_driver_killed_at_random_moments_changes_nothing(whole: Path, tmp_path: Path, seed: int) -> None:
    """Killed up to three times, each after a random number of entries in its study: it ends with the trials, values and
    rungs of the sweep that nothing happened to, and each of them is what `rounds/` says."""
    draw, folder = random.Random(seed), tmp_path / "s"
    total = (whole / "study.journal").read_bytes().count(b"\n")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(SWEEP))
    kills = sum(drive(folder, draw.randrange(1, total)) for _ in range(KILLS))
    assert not drive(folder, None) and kills
    assert assert_true(folder, SEEDS_AT, killed=True) >= 24
    assert suggested(folder) == suggested(whole)
