"""A campaign against the run folder: drivers killed at random moments while they replace a run, and two drivers with
one folder.

Each driver is a process of its own, as on a command line. Seeded, and the moment is in the test's name.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import flray
from tests.support.runs import model, on_actors as config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LONGEST_S = 12.0  # until a driver is killed: it starts, runs 60 rounds, ends
MOMENTS = np.random.default_rng(20261122).uniform(0.0, LONGEST_S, 12).round(2).tolist()


def driver(folder, settings, *, overwrite=False):
    code = f"import flray; flray.run({str(settings)!r}, out={str(folder)!r}, overwrite={overwrite})"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def contents(folder):
    """Everything in a run folder but the lock, which a killed process leaves behind."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "config.yaml"
    path.write_text(config(rounds=60, checkpoint={"every": 5, "keep": 2}).yaml())
    return path


@pytest.fixture(scope="module")
def whole(ray_cluster, settings, tmp_path_factory):
    return flray.run(settings, out=tmp_path_factory.mktemp("whole") / "run", progress=False)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_driver_killed_while_it_replaces_a_run(ray_cluster, tmp_path, settings, whole, moment):
    """The old run is there to the last byte, or the new one is and goes on to the bits of one that was never killed."""
    folder = tmp_path / "run"
    flray.run(config(rounds=1, seed=7), out=folder, progress=False)
    before = contents(folder)
    process = driver(folder, settings, overwrite=True)
    time.sleep(moment)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if contents(folder) != before:
        run = flray.resume(folder, progress=False)
        assert model(run.folder) == model(whole.folder)
        assert run.rounds["done"].tolist() == list(range(1, 61))
        assert run.rounds["test/acc"].tolist() == whole.rounds["test/acc"].tolist()
    again = flray.run(settings, out=folder, overwrite=True, progress=False)
    assert model(again.folder) == model(whole.folder)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".run.old-")) == ["run"]


@pytest.mark.parametrize("delay", [0.0, 0.7, 3.0, 6.0])
def test_two_drivers_with_one_folder(ray_cluster, tmp_path, settings, whole, delay):
    """One has it, the other says in one line who; nothing of the one is lost."""
    first = driver(tmp_path / "run", settings)
    time.sleep(delay)
    second = driver(tmp_path / "run", settings)
    errors = [process.communicate()[1] for process in (first, second)]
    codes = [process.returncode for process in (first, second)]
    assert sorted(codes) == [0, 1], errors  # a Python program ends with 1 where the command line ends with 2
    loser = errors[codes.index(1)].strip().splitlines()[-1]
    assert "is in use: process" in loser or "already holds a run" in loser
    assert model(tmp_path / "run") == model(whole.folder)
    assert flray.load(tmp_path / "run").rounds["done"].tolist() == list(range(1, 61))
