"""What my algorithm must keep to; `pytest` in this folder."""

import subprocess
import sys

import flray

SHORT = {"rounds": 2, "progress": False}


def test_it_learns(tmp_path):
    run = flray.run("my_algorithm.yaml", out=tmp_path / "run", **SHORT)
    assert run.rounds["test/acc"].iloc[-1] > 0.2, "chance is 0.1"


def test_without_the_pull_it_is_fedavg(tmp_path):
    mine = flray.run("my_algorithm.yaml", "algorithm.mu=0", out=tmp_path / "mine", **SHORT)
    theirs = flray.run("quickstart.yaml", out=tmp_path / "theirs", **SHORT)
    assert mine.rounds["test/loss"].tolist() == theirs.rounds["test/loss"].tolist()


def test_the_contracts_hold():
    done = subprocess.run([sys.executable, "-m", "flray", "check", "my_algorithm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
