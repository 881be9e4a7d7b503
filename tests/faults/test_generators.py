"""What continual algorithms keep besides a model (generators, GANs, bases, references, exemplars, alarms) comes back
exactly when the driver is killed: `kill -9` in the middle of a round of either task, and a resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import flray
from flray.core.messages import to_torch
from flray.rundir import checkpoint
from tests.support.continual import LOCAL, SCENARIOS, config, same_clients
from tests.support.inprocess import Local, bits
from tests.support.outcome import records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
NAMES = ("mfcl", "target", "lander", "fedmemo", "fedprotip", "fot", "glfc", "lga", "fedscr", "fedpec")
ACTORS = {**LOCAL, "executor": "calls", "client_actors": 2}
CASES = [
    *((name, LOCAL, dies) for name in NAMES for dies in ("0,1", "1,1")),
    *((name, ACTORS, "1,1") for name in ("mfcl", "fedmemo", "fedprotip", "glfc")),
]


@pytest.mark.parametrize(
    ("name", "resources", "dies"), CASES, ids=[f"{name}-{r['executor']}-{dies}" for name, r, dies in CASES]
)
def test_a_killed_driver_costs_no_bit(name, resources, dies, home, tmp_path):
    asked = config(
        name,
        **SCENARIOS["tasks"],
        resources=resources,
        imports=["tests.faults.dying"],
        checkpoint={"every": 1, "keep": 0},
    )
    whole = flray.run(asked, out=tmp_path / "whole", progress=False)
    out, file = tmp_path / "run", tmp_path / "config.yaml"
    file.write_text(asked.yaml())
    environment = {**os.environ, "RAY_TMPDIR": str(home), "FLRAY_DIES": dies}
    words = [sys.executable, "-m", "flray", "run", str(file), "--out", str(out)]
    died = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert flray.load(out).status != "finished"
    environment.pop("FLRAY_DIES")
    words = [sys.executable, "-m", "flray", "resume", str(out)]
    again = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    run = flray.load(out)
    assert run.status == "finished" == whole.status
    states, clients = zip(*(at_the_end(found.folder, asked) for found in (run, whole)), strict=True)
    assert bits(states[0]) == bits(states[1])
    same_clients(*clients)
    for table in ("rounds", "tests", "tasks", "clients"):
        assert records(getattr(run, table)) == records(getattr(whole, table))


def at_the_end(folder, asked):
    """(the server's state, the clients' states) of the last checkpoint."""
    local = Local(asked, folder)
    local.executor.stored.load()
    return to_torch(checkpoint.latest(folder).server.message()), local.client_states()
