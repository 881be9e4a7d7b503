"""How many trials a cluster holds, against cases worked out by hand; and trials that Ray Tune really starts on what was
reserved."""

import faulthandler
import logging
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.tune.schedulers import FIFOScheduler

from flray.config.experiment import Experiment
from flray.config.loader import load_config
from flray.core.schema.errors import ResourceError
from flray.core.schema.plain import read
from flray.log import quieter
from flray.rundir.reader import Run
from flray.tuning import drive as module
from flray.tuning.drive import NOTHING, WORDS, Cells, Show, _fit, drive, place
from flray.tuning.trainable import Job
from tests.support.iris_sweep import EXPERIMENT
from tests.support.messages import assert_says, mistakes

MB = {"memory": 8.0 * 2**30}  # every node has some


def experiment(**overrides: Any) -> Experiment:
    return load_config(EXPERIMENT, overrides)[0]


def cluster(monkeypatch: pytest.MonkeyPatch, *nodes: dict[str, float]) -> None:
    """A cluster that this machine is not; a node that went away is still listed by Ray."""
    found = [{"Alive": True, "Resources": {**MB, **node}} for node in nodes]
    monkeypatch.setattr(module.ray, "nodes", lambda: [*found, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}])


# packing -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("nodes", "bundles", "fits"),
    [
        ([{"CPU": 4.0}], [{"CPU": 1.0}], 4),
        ([{"CPU": 4.0}], [{"CPU": 1.0}, {"CPU": 2.0}], 1),
        ([{"CPU": 4.0}, {"CPU": 2.0}], [{"CPU": 1.0}, {"CPU": 2.0}], 2),  # 1 + 2 on the first; 1 on it, 2 on the second
        ([{"CPU": 2.0}, {"CPU": 2.0}], [{"CPU": 3.0}], 0),  # no single node has three
        ([{"CPU": 2.0}, {"CPU": 2.0}], [{"CPU": 1.0}] * 3, 1),  # 2 on one and 1 on the other; one CPU is left
        ([{"CPU": 3.0}], [{"CPU": 0.6}], 5),  # 3 - 0.6 - 0.6 - 0.6 - 0.6 is less than 0.6 in floats
        ([{"CPU": 8.0, "GPU": 1.0}], [{"CPU": 1.0, "GPU": 0.25}, {"CPU": 1.0, "GPU": 0.25}], 2),
        # a quarter of each is left, and three quarters of three are of no use
        ([{"CPU": 8.0, "GPU": 3.0}], [{"GPU": 0.75}], 3),
        ([{"CPU": 8.0, "GPU": 3.0}], [{"GPU": 0.5}, {"GPU": 1.0}], 2),  # the halves share the first
        # two whole ones behind the quarter, and one more
        ([{"CPU": 8.0, "GPU": 4.0}], [{"GPU": 0.25}, {"GPU": 2.0}], 1),
        # the GPU's node has one CPU
        ([{"CPU": 8.0}, {"CPU": 1.0, "GPU": 1.0}], [{"CPU": 1.0}, {"CPU": 1.0, "GPU": 0.5}], 1),
        ([{"CPU": 4.0}], [{"GPU": 1.0}], 0),
        ([], [{"CPU": 1.0}], 0),
    ],
)
def test_trials_that_fit(nodes: list[dict[str, float]], bundles: list[dict[str, float]], fits: int) -> None:
    before = [dict(node) for node in nodes]
    assert _fit(nodes, bundles) == fits
    assert nodes == before


def test_no_more_are_counted_than_asked_for() -> None:
    assert _fit([{"CPU": 64.0}], [{"CPU": 1.0}], 3) == 3


# a placement -------------------------------------------------------------------------------------
def test_a_trial_has_a_bundle_for_each_of_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trials of 1 + 3 x 0.5 CPUs on the first node, none on the second, which has no 1 for the server."""
    cluster(monkeypatch, {"CPU": 5.0}, {"CPU": 0.5})
    found = place(
        experiment(**{"resources.client_actors": 3, "resources.client.num_cpus": 0.5, "resources.server.num_cpus": 1}),
        "auto",
    )
    assert found.group.bundles == [NOTHING, {"CPU": 1.0}, {"CPU": 0.5}, {"CPU": 0.5}, {"CPU": 0.5}]
    assert found.at_once == 2
    assert found.why == (
        "2 at a time: a trial takes a server actor (1 CPU) and 3 client actors (0.5 CPU each); "
        "the cluster has 5.5 CPUs and 0 GPUs on 2 nodes"
    )


def test_a_limit_of_trials_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, {"CPU": 4.0})
    assert [place(experiment(), limit).at_once for limit in ("auto", 3, 9)] == [4, 3, 4]
    assert place(experiment(), 9).why == (
        "4 at a time: a trial takes a server actor (no CPU) and 1 client actor (1 CPU each); the cluster has 4 CPUs "
        "and 0 GPUs on 1 node; concurrency: 9"
    )


@pytest.mark.parametrize(
    ("concurrency", "changes", "actors", "at_once"),
    [
        ("auto", {}, 1, 10),  # many small trials
        (1, {}, 4, 1),  # as many as there are clients in a round
        (2, {}, 4, 2),
        (3, {}, 3, 3),  # nine of ten CPUs: the third trial has two actors on the first node and one on the other
        (5, {}, 2, 5),
        (6, {}, 1, 6),
        (20, {}, 1, 10),
        (1, {"cohort.fraction": 0.75}, 3, 1),
        (1, {"cohort.size": 2}, 2, 1),
        # a second actor of 4 has no node with room for it
        (1, {"resources.server.num_cpus": 1, "resources.client.num_cpus": 4}, 1, 1),
    ],
)
def test_automatic_client_actors_share_the_cluster_out(
    monkeypatch: pytest.MonkeyPatch, concurrency: int | str, changes: dict[str, Any], actors: int, at_once: int
) -> None:
    """Four clients on nodes of 8 and 2 CPUs."""
    cluster(monkeypatch, {"CPU": 8.0}, {"CPU": 2.0})
    found = place(experiment(**{"resources.client_actors": "auto", **changes}), concurrency)
    assert (len(found.group.bundles) - 2, found.at_once) == (actors, at_once)


def test_trials_that_reserve_nothing_are_as_many_as_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster(monkeypatch, {"CPU": 3.0})
    nothing = {"resources.client.num_cpus": 0, "resources.client_actors": "auto"}
    assert place(experiment(**nothing), "auto").at_once == 3
    assert len(place(experiment(**nothing), 1).group.bundles) - 2 == 3


def test_fractional_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter for the server and three eighths for each of two clients fill a GPU; each node has a GPU, the last one
    no CPU for it."""
    cluster(monkeypatch, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 2.0, "GPU": 1.0}, {"CPU": 1.0, "GPU": 1.0})
    gpus = {"resources.client.num_gpus": 0.375, "resources.server.num_gpus": 0.25, "resources.client_actors": 2}
    found = place(experiment(**gpus), "auto")
    assert found.group.bundles[1:] == [{"GPU": 0.25}, {"CPU": 1.0, "GPU": 0.375}, {"CPU": 1.0, "GPU": 0.375}]
    assert (
        found.at_once == 2 and "a server actor (0.25 GPU) and 2 client actors (1 CPU and 0.375 GPU each)" in found.why
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    mistakes("""
{resources.client_actors: 3, resources.client.num_cpus: 2} | no trial fits: a trial takes a server actor (no CPU) and
    | 3 client actors (2 CPU each), and the cluster has 6 CPUs and 0 GPUs on 2 nodes; lower resources.client_actors or
{resources.client.num_gpus: 1} | no trial fits: a trial takes a server actor (no CPU) and 1 client actor (1 CPU and 1
    | GPU each), and
{resources.server.num_cpus: 4} | a trial takes a server actor (4 CPU) and 1 client actor (1 CPU each), and
{resources.client.num_gpus: auto} | resources.client.num_gpus: auto is measured by a run of its own; run one
    """),
)
def test_what_the_cluster_cannot_hold_is_one_line(
    monkeypatch: pytest.MonkeyPatch, changes: str, words: list[str]
) -> None:
    """Nodes of 3 CPUs: the third actor of two CPUs has one on each left."""
    cluster(monkeypatch, {"CPU": 3.0}, {"CPU": 3.0})
    with pytest.raises(ResourceError) as error:
        place(experiment(**read(changes, "")), "auto")
    assert_says(error.value, *words)


@pytest.mark.parametrize("name", ["ray", "ray.tune", "ray.tune.tune"])
def test_a_higher_level_of_the_users_own_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of the logger itself, or of one above it. Without one there are warnings alone."""
    logger = logging.getLogger("ray.tune.tune")
    monkeypatch.setattr(logging.getLogger("ray"), "level", logging.INFO)
    with quieter(WORDS):
        assert logger.getEffectiveLevel() == logging.WARNING
    own = logging.getLogger(name)
    before = own.level
    try:
        own.setLevel(logging.CRITICAL)
        with quieter(WORDS):
            assert logger.getEffectiveLevel() == logging.CRITICAL
        assert own.level == logging.CRITICAL and logger.level == (own.level if own is logger else logging.NOTSET)
    finally:
        own.setLevel(before)


# on a real Ray -----------------------------------------------------------------------------------
@pytest.mark.slow
def test_trials_run_and_ray_tune_leaves_nothing_behind(
    ray_cluster: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two trials, one at a time. Ray Tune's own folder and words are gone: stdout is the command's. Its loggers speak
    where a user's own `ray.init` lets them."""
    monkeypatch.setattr(logging.getLogger("ray"), "propagate", True)
    caplog.set_level(logging.INFO, "ray")
    cells = [experiment(rounds=2, seed=seed) for seed in (0, 1)]
    placement = place(cells[0], 1)
    jobs = [Job.of(f"{seed}", tmp_path / f"{seed}", cell, ("val/acc",), ((2, 1),)) for seed, cell in enumerate(cells)]
    before = os.environ.get("TUNE_MAX_PENDING_TRIALS_PG")
    with Show("drive", 2, 0, {"val/acc": "max"}) as show:
        drive(tmp_path, Cells(jobs), FIFOScheduler(), placement, 2, lambda: False, show)
    assert show.ended == ["finished", "finished"]
    runs = [Run(tmp_path / f"{seed}") for seed in (0, 1)]
    assert [run.rounds["round"].tolist() for run in runs] == [[1, 2], [1, 2]]
    assert ".flray-tune" not in caplog.text and logging.getLogger("ray.tune.tune").level == logging.NOTSET
    assert not (tmp_path / ".flray-tune").exists() and os.environ.get("TUNE_MAX_PENDING_TRIALS_PG") == before
    out, error = capfd.readouterr()
    assert out == "" and [line.split("  ")[:3] for line in error.splitlines() if " trial " in line] == [
        ["drive", "trial 0", "finished"],
        ["drive", "trial 1", "finished"],
    ]


@pytest.mark.slow
def test_signals_and_draws_of_the_process_are_its_own_again(ray_cluster: Any, tmp_path: Path) -> None:
    """Ray Tune sets handlers of both signals, and shuffles with Python's generator. `signal` does not know the handler
    of `faulthandler`."""
    cell, seen = experiment(rounds=1), list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with (tmp_path / "traceback").open("w") as file:
            faulthandler.register(signal.SIGUSR1, file)
            random.seed(5)
            jobs = [Job.of("0", tmp_path / "0", cell, (), ((1, 1),))]
            drive(tmp_path, Cells(jobs), FIFOScheduler(), place(cell, 1), 1, lambda: False, Show("", 1, 0, {}, False))
            assert random.random() == random.Random(5).random()
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGINT, before)
        faulthandler.unregister(signal.SIGUSR1)
    assert seen == [signal.SIGINT] and "most recent call first" in (tmp_path / "traceback").read_text()


@pytest.mark.slow
def test_after_a_grid_sigterm_is_the_users_own_again(tmp_path: Path) -> None:
    """In a process that starts Ray itself. During each grid it saves what is done."""
    code = """
import signal, sys
from pathlib import Path
from flray.config.loader import load_config
from flray.tuning import drive as module
from tests.support.iris_sweep import EXPERIMENT

seen, place = [], module.place
def noted(*args):
    seen.append(signal.getsignal(signal.SIGTERM))
    return place(*args)
module.place = noted
for name in "ab":
    (cell,) = load_config({**EXPERIMENT, "rounds": 1})
    module.on_cluster([(cell, Path(sys.argv[1]) / name)], 1, False, name, 0, False)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
assert len(seen) == 2 and signal.SIG_DFL not in seen
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_spent_budget_ends_all_trials(ray_cluster: Any, tmp_path: Path) -> None:
    """The trial is stopped after its first report; its run can be resumed."""
    cell = experiment(rounds=50)
    show = Show("drive", 1, 0, {}, enabled=False)
    jobs = [Job.of("0", tmp_path / "0", cell, (), ((50, 1),))]
    drive(tmp_path, Cells(jobs), FIFOScheduler(), place(cell, 1), 1, lambda: bool(show._rounds), show)
    assert show.ended == []
    run = Run(tmp_path / "0")
    assert run.status.startswith("paused after round") and 1 <= len(run.rounds) < 50
