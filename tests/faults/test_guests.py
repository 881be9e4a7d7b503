"""flray in somebody else's process (`guests.py` plays the scenes, each in a process of its own): several runs at once,
a Ray that flray did not start, tasks, actors, trials, forks.

The right model is the one that a run without Ray, alone in its process, leaves for the same configuration.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}


def play(scene: str, out: Path, seconds: int = 900) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.faults.guests", scene, str(out)]
    done = subprocess.run(command, cwd=ROOT, env=KNOWN, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_local_run_is_not_changed_by_the_process_around_it_and_changes_nothing_there(tmp_path):
    """Default dtype, gradient mode, NumPy's error state, threads, hooks of all modules; the generators of torch, NumPy
    and Python."""
    found = play("state_of_the_process", tmp_path)
    assert found["plain"].startswith("finished") and found["other"] == found["plain"]
    assert found["drawn"] == found["expected"], "the user's own draws go on where they were"
    assert (found["grad"], found["dtype"], found["threads"]) == (False, "torch.float64", 1)
    assert found["doubled"] == 2, "the user's own hook is there again"


@pytest.mark.slow
def test_a_forked_process_trains_without_ray_with_several_threads_to_the_same_bits(tmp_path):
    """OpenMP waits for ever for threads that the fork did not copy."""
    found = play("forks_after_local", tmp_path)
    assert found["before"].startswith("finished")
    assert found["child"] == found["pooled"] == found["after"] == found["before"]


# with Ray: minutes ----------------------------------------------------------------------------------
slow = pytest.mark.slow
pytestmark = pytest.mark.timeout(1000)


@slow
def test_a_split_that_draws_while_ray_starts_is_that_of_a_run_without_ray(tmp_path):
    found = play("split_while_ray_starts", tmp_path)
    assert found["alone"].startswith("finished") and found["beside"] == found["alone"]
    assert found["drawn"] == found["expected"], "the user's own draws go on where they were"


@slow
def test_two_threads_in_a_ray_of_flrays_own_and_its_end(tmp_path):
    """Each takes all CPUs: the second one waits. One thread holds Ray's processes; `close` leaves none."""
    found = play("own_ray_threads", tmp_path)
    assert found["together"] == found["alone"] and found["again"] == found["alone"][0] == found["once_more"]
    assert found["running"] == ["flray-ray", "flray-watch"] == found["threads"]
    assert found["closed"] == []


@slow
def test_a_ray_of_others_has_its_cpus_back_after_every_end_of_a_run(tmp_path):
    """A task of the user's own that needs all of them starts."""
    found = play("gives_back", tmp_path)
    ends = ("run", "closed", "raised", "dropped", "diverged", "failed", "interrupted")
    assert found["after"] == dict.fromkeys(ends, "started")
    assert found["run"].startswith("finished") and found["diverged"].startswith("diverged")
    assert "Error: " in found["failed"] and "\n" not in found["failed"]
    assert found["threads"] == [], "no thread holds a Ray that is not flray's"
    assert found["sigterm"], "the handler of SIGTERM is the user's own again"


@slow
def test_a_ray_that_the_user_ends_under_a_waiting_iterator_is_one_line(tmp_path):
    found = play("shutdown_between", tmp_path)
    assert "ray.shutdown" in found["said"] and "flray resume" in found["said"] and not found["initialized"]


@slow
def test_runs_in_tasks_and_actors_of_a_users_own(tmp_path):
    """An actor that holds all CPUs keeps them while it waits: one line, at once."""
    found = play("tasks_and_actors", tmp_path)
    for where in ("task", "plain", "threaded", "async", "aside"):
        assert found[where] == found["alone"], where
    assert found["two"][-1] == found["alone"], "of two calls at a time at least one trains; the other too, or one line"
    assert found["two"][0] == found["alone"] or found["two"][0].startswith("ResourceError: ")
    assert found["full"].startswith("ResourceError: ") and "holds 2 of the cluster's CPUs itself" in found["full"]


@slow
def test_runs_in_trials_of_a_users_own_ray_tune(tmp_path):
    """One CPU a trial: the actors are beside its placement group; several bundles: they are in it."""
    found = play("user_trials", tmp_path)
    assert found["one"] == found["bundles"] == found["alone"]
    assert found["full"].startswith("ResourceError: ") and "holds 3 of the cluster's CPUs itself" in found["full"]
    assert found["free"] == 3


@slow
def test_a_fork_after_a_run_with_ray(tmp_path):
    """The child is told, trains without Ray, and ends; its parent's Ray, runs and folders do not notice."""
    found = play("forks_after_ray", tmp_path)
    assert found["child"].startswith("ResourceError: this process was forked from process ")
    assert "spawn" in found["child"] and found["exited"] == "exits"
    assert found["before"] == found["after"] == found["local"]
    assert found["continued"].startswith("FolderLostError: ") and "only that process continues it" in found["continued"]
    assert found["rest"] == [2, 3] and found["status"] == "finished"


@slow
def test_processes_that_are_spawned_train_with_a_ray_of_their_own(tmp_path):
    found = play("other_starts", tmp_path)
    assert found["spawn"] == found["forkserver"] == found["here"] == found["alone"]


@slow
def test_a_second_run_measures_a_gpu_that_the_first_one_has_held(tmp_path):
    """The card is Ray's word alone, so what is measured there stands in the test."""
    found = play("gpu_auto_twice", tmp_path)
    assert found["said"] == [found["alone"]] * 2
    assert found["share"] == 0.5, "of 90 % of the card's 100 bytes a client takes 45"
    assert found["third"].startswith("ResourceError: ") and "close its iterator" in found["third"]
