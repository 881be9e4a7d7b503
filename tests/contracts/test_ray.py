"""Contracts 1 and 2 with real actors: the same bits with 1 and 3 client actors, after a kill, after stop and resume,
and without Ray."""

import shutil
from functools import cache

import pytest

import flray
from flray.algorithms import ALGORITHMS
from flray.contracts.played import Local, flatten
from flray.core.messages import equal, to_numpy
from flray.engine.replay import Replay
from flray.rundir import checkpoint
from tests.contracts.table import TABLE, experiment
from tests.support.combining import sums_combined
from tests.support.faults import client_killed_in_round, client_lost_in_round, interrupted
from tests.support.kinds import STATES, by_default
from tests.support.outcome import contents

# every kind of message: means, single updates, shared parts, states of clients, generators, bases, exemplars, alarms.
# In test_continual.py each algorithm has the same bits in one chunk and three, and messages that come back equal.
TRAVELLING = (
    *STATES,
    "feddf",
    "fedprotip",
    "fedmemo",
    "mfcl",
)
NAMES = by_default(TRAVELLING, TABLE)
pytestmark = pytest.mark.usefixtures("ray_cluster")


def config(name, actors, store="memory", rounds=4):
    processes = {"client_actors": actors, "client": {"num_cpus": 1}, "server": {"threads": 1}}
    resources = {"executor": "calls", **processes, "store": store}
    evaluate = {"finetune_epochs": [0, 1], "batch_size": 7}  # of 30 test samples: every actor tests some
    return experiment(name, resources=resources, rounds=rounds, checkpoint={"every": 2, "keep": 0}, evaluate=evaluate)


def client_states(run, experiment_):
    """The client states of the last checkpoint, read through the store that wrote them."""
    local = Local(experiment_, run.folder)
    local.executor.store.load()
    return {k: {n: a.tobytes() for n, a in flatten(s).items()} for k, s in local.client_states().items()}


@pytest.fixture(scope="module")
def reference(ray_cluster, tmp_path_factory):
    """The uninterrupted run of an algorithm with 3 client actors, made once; the runs share the actors."""
    return cache(lambda name: flray.run(config(name, 3), out=tmp_path_factory.mktemp("three") / name))


TWO_EXCHANGES = {"own", "fedscr"}  # in each round
TASK_END = {"own", "fedscr", "glfc", "lga"}  # an exchange of all clients when the one task ends


@pytest.mark.parametrize("name", NAMES)
def test_a_run_leaves_complete_tables(name, reference):
    run = reference(name)
    assert run.status == "finished"
    assert run.rounds["round"].tolist() == [1, 2, 3, 4]
    # three clients in each exchange of a round, all five at the task's end
    assert len(run.clients) == 4 * 3 * (2 if name in TWO_EXCHANGES else 1) + 5 * (name in TASK_END)
    assert run.personal["finetune_epochs"].tolist() == [0, 1] * 5 and run.personal["test/acc"].between(0, 1).all()
    has_model = ALGORITHMS.get(name).global_model
    tests = [(done, "round") for done in range(5)] + [(4, "task_end")] * (name in TASK_END)
    assert (list(zip(run.tests["done"], run.tests["phase"], strict=True)) == tests) if has_model else not len(run.tests)
    assert (run.folder / "model.safetensors").exists() == has_model
    assert run.rounds["test/acc"].between(0, 1).all() if has_model else run.rounds["test/acc"].isna().all()


@pytest.mark.parametrize("name", NAMES)
def test_without_ray_the_bits_are_the_same(name, reference, tmp_path):
    run = reference(name)
    replay, local = Replay(run.folder), Local(config(name, 1), tmp_path / "local")
    shutil.copytree(run.folder, tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    bare = Replay(tmp_path / "bare")  # without checkpoints every round is computed
    for round in (2, 4):
        saved = checkpoint.read(run.folder / "checkpoints" / f"round-{round:06d}")
        local.play(2)
        assert equal(saved.server.message(), to_numpy(local.state))
        assert equal(saved.server.message(), to_numpy(bare.goto(round).state))
        if name == "own" and round == 4:
            local.task_end()
            ended = checkpoint.read(run.folder / "checkpoints" / "round-000004-task-end")
            assert equal(ended.server.message(), to_numpy(local.state))
    assert replay.goto(3).round == 3


# what a killed process leaves to be done again depends on the algorithm no more than lost work
FAULTS = [
    *by_default(STATES, [(name, client_lost_in_round) for name in TABLE]),
    *by_default(("scaffold",), [(name, client_killed_in_round) for name in TABLE]),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_work_that_is_done_again_elsewhere_changes_nothing(name, fault, reference, tmp_path):
    with fault(1) as happened:
        run = flray.run(config(name, 3), out=tmp_path / "run")
    assert happened and run.environment["actors"]["repeated_work"] >= 1
    assert contents(run) == contents(reference(name))


# every algorithm resumes to the same bits in test_continual.py; here a row of every kind of state, on actors
@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_stop_and_resume_is_uninterrupted(name, reference, tmp_path):
    with interrupted("before", 3), pytest.raises(KeyboardInterrupt):
        flray.run(config(name, 3), out=tmp_path / "run")
    assert flray.load(tmp_path / "run").status.startswith("interrupted after round 3")
    run = flray.resume(tmp_path / "run")
    assert run.status == "finished"
    assert contents(run) == contents(reference(name))


@pytest.mark.slow
def test_client_state_in_files_is_that_in_memory(reference, tmp_path):
    """Also through a stop: the files of rounds after the checkpoint do not count."""
    with interrupted("before", 3), pytest.raises(KeyboardInterrupt):
        flray.run(config("own", 3, "files"), out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "round-000003")  # back to round 2
    run = flray.resume(tmp_path / "run")
    assert contents(run) == contents(reference("own"))
    assert client_states(run, config("own", 3, "files")) == client_states(reference("own"), config("own", 3))


NOTHING_ADDED = {"feddf", "fedproj", "fedet", "local"}  # whose updates are all each(), or empty


@pytest.mark.parametrize("name", by_default(("scaffold", "fedproj", "own"), TABLE))
def test_combiners_change_nothing(name, reference, tmp_path):
    with sums_combined(always=True) as merged:
        run = flray.run(config(name, 3), out=tmp_path / "run")
    assert bool(merged) == (name not in NOTHING_ADDED)
    assert contents(run) == contents(reference(name))


# one actor last: another number of actors means new actors; in test_continual.py each has the same bits in three chunks
@pytest.mark.parametrize("name", by_default(STATES, TABLE))
def test_one_client_actor_has_the_bits_of_three(name, reference, tmp_path):
    run = flray.run(config(name, 1), out=tmp_path / "run")
    assert contents(run) == contents(reference(name))
