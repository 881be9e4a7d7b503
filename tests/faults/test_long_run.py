"""2,000 rounds: what grows with a round would end a long run. Memory, open files and names in /dev/shm stay where they
are, and no row is missing."""

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import flray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parents[2]
ROUNDS = 2000
GROWTH_KB = 2048  # between the medians of rounds 501 to 1000 and 1501 to 2000: 2 kB a round, less than one row's dict
OWN = "mount -t tmpfs -o size=2g tmpfs /dev/shm && exec"  # a /dev/shm that no other process of the machine writes to
MAIN = "import sys; from tests.faults.weighed import main; main(*sys.argv[1:])"

SETTINGS: dict[str, Any] = {
    "seed": 1,
    "rounds": ROUNDS,
    "imports": ["tests.faults.weighed"],
    "data": {"source": "digits"},
    "partition": {"name": "iid", "clients": 10},
    "model": {"name": "mlp", "hidden": [4]},
    "cohort": {"size": 2},
    "algorithm": {"name": "weighed", "lr": 0.05, "local_epochs": 1, "batch_size": 64},
    "checkpoint": {"every": 100, "keep": 2},
    "resources": {"client_actors": 2, "server": {"threads": 1}},
}


def has_own_mounts() -> bool:
    words = ["unshare", "--mount", "sh", "-c", f"{OWN} true"]
    return shutil.which("unshare") is not None and subprocess.run(words, capture_output=True).returncode == 0


def test_nothing_grows_over_2000_rounds(home: Path) -> None:
    if not has_own_mounts():
        pytest.skip("needs the right to mount a /dev/shm of its own: names of other processes would count")
    # not tmp_path: that may be in the /dev/shm that the run does not see
    config, folder, weights = home / "config.yaml", home / "run", home / "weights"
    resources = {**SETTINGS["resources"], "executor": "calls"}
    config.write_text(yaml.safe_dump({**SETTINGS, "resources": resources}))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(home)}
    words = ["unshare", "--mount", "sh", "-c", f'{OWN} "$@"', "sh", sys.executable, "-c", MAIN, config, folder, weights]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in weights.read_text().splitlines()]
    assert [row["done"] for row in rows] == list(range(1, ROUNDS + 1))
    quarter = ROUNDS // 4
    for name in ("driver/memory", "server/memory", "client/memory"):
        early, late = (statistics.median(row[name] for row in rows[at : at + quarter]) for at in (quarter, 3 * quarter))
        assert late - early < GROWTH_KB, f"{name}: {early:.0f} kB, then {late:.0f} kB"
    for name in ("driver/files", "server/files", "client/files", "shared"):
        assert max(row[name] for row in rows[3 * quarter :]) <= max(row[name] for row in rows[quarter : 2 * quarter])
    run = flray.load(folder)
    assert run.status == "finished" and run.rounds["done"].tolist() == list(range(1, ROUNDS + 1))
    assert run.clients["done"].tolist() == [done for done in range(1, ROUNDS + 1) for _ in range(2)]
    assert sorted(run.tests["done"]) == list(range(ROUNDS + 1))
