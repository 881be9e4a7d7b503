"""`algorithm=centralized` with a real trainer: an ordinary run folder, the bits of one worker, also after a kill and a
resume."""

import time

import pytest

import flray
from flray.core.messages import equal, to_numpy
from flray.core.schema.errors import ClientError, NonFiniteError
from flray.engine.prepare import build_data, build_scenario
from flray.results import compare
from flray.rundir import checkpoint
from flray.running import simulate
from tests.support import outcome
from tests.support.centralized import config
from tests.support.heads import facts_of
from tests.support.learners import rounds_by_hand
from tests.support.messages import facts
from tests.support.stopped import continued

pytestmark = pytest.mark.usefixtures("ray_cluster")


def contents(folder):
    """What must not depend on who computed it."""
    found = outcome.contents(flray.load(folder))
    return {part: found[part] for part in ("model", "server", "rounds")}


@pytest.fixture(scope="module")
def by_hand():
    """The state and rows after four rounds of one worker in this process."""
    experiment = config()
    data = build_data(experiment)
    scenario = build_scenario(experiment, data)
    assert len(data.private) == scenario.total_examples(0) == 96, (
        "150 samples, of which 30 are tested on and 24 are public"
    )
    state, rows = rounds_by_hand(experiment)
    return to_numpy(state), rows


@pytest.fixture(scope="module")
def two_workers(ray_cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "run"
    simulate(config(2), folder)
    return folder


def free_cpus(ray):
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        assert time.monotonic() < deadline, "something still holds CPUs"
        time.sleep(0.1)


@pytest.mark.slow
def test_two_workers_leave_an_ordinary_run_folder_with_the_bits_of_one(two_workers, by_hand, ray_cluster):
    """96 samples, 2 epochs of 12 batches of 8: 24 steps a round."""
    run = flray.load(two_workers)
    state, rows = by_hand
    assert run.status == "finished"
    saved = checkpoint.latest(run.folder)
    assert saved.position.done == 4 and {p.name for p in checkpoint.checkpoints(run.folder)} == {
        "round-000002",
        "round-000004",
    }
    assert equal(saved.server.message(), to_numpy(state)) and state.moments.steps == 96
    assert run.tests["done"].tolist() == [0, 1, 2, 3, 4]  # 0: the server reads the initial model
    table = run.rounds
    assert list(zip(*(table[c] for c in ("train/loss", "client_steps", "test/acc", "test/loss")), strict=True)) == rows
    assert table["round"].tolist() == [1, 2, 3, 4] and table["client_steps"].tolist() == [24] * 4
    assert table["cohort_size"].tolist() == [5] * 4 and not table[["comm/up_bytes", "comm/down_bytes"]].to_numpy().any()
    assert run.environment["actors"]["client_actors"] == 2 and run.environment["actors"]["repeated_work"] == 0
    assert compare([run])["test/acc"].tolist() == [rows[-1][2]] and any((run.folder / "tensorboard").iterdir())
    free_cpus(ray_cluster)


@pytest.mark.slow
def test_stop_and_resume_by_one_worker_is_uninterrupted(two_workers, tmp_path):
    run = continued(config(1), tmp_path / "run", 3)
    assert run.status == "finished" and contents(run.folder) == contents(two_workers)


@pytest.mark.slow
def test_tasks_follow_one_another_and_clients_fine_tune_at_the_end_of_each(tmp_path, ray_cluster):
    """Two tasks of two rounds; 96 private samples, 32 a class: 64 in task 0 are 16 steps a round, 32 in task 1 are 8.

    A run that is stopped in task 1, and whose clients do not fine-tune, goes on with the same bits.
    """
    tasks = {"num_tasks": 2, "class_order": [2, 0, 1]}
    simulate(config(1, 2, tasks=tasks, evaluate={"finetune_epochs": [0, 1]}), tmp_path / "run")
    run = flray.load(tmp_path / "run")
    rounds = run.rounds[run.rounds["round"] > 0]
    assert (
        run.status == "finished" and rounds["done"].tolist() == [1, 2, 3, 4] and rounds["task"].tolist() == [0, 0, 1, 1]
    )
    assert rounds["client_steps"].tolist() == [16, 16, 8, 8]
    assert run.personal["task"].tolist() == [0] * 10 + [1] * 10
    assert run.personal["finetune_epochs"].tolist() == [0, 1] * 10
    stopped = continued(config(1, 2, tasks=tasks), tmp_path / "stopped", 3)
    assert contents(stopped.folder) == contents(run.folder)
    free_cpus(ray_cluster)


# faults -----------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_worker_changes_nothing(workers, two_workers, tmp_path, ray_cluster):
    """In round 3 of 4: Ray Train replaces a group; a worker alone comes back with the server, from the last
    checkpoint."""
    passes = 24 * 4 // workers  # of one worker in a round: 24 batches of 4 parts
    simulate(config(workers, model={"kill": str(tmp_path / "killed"), "at": 2 * passes + 24}), tmp_path / "run")
    assert (tmp_path / "killed").exists()
    run = flray.load(tmp_path / "run")
    assert run.status == "finished" and contents(run.folder) == contents(two_workers)
    assert run.environment["actors"]["repeated_work"] == (1 if workers == 2 else 0)
    free_cpus(ray_cluster)


@pytest.mark.slow
def test_a_killed_conductor_is_replaced_from_the_last_checkpoint(two_workers, tmp_path, ray_cluster):
    from flray.engine.ray.train.driver import CentralizedSimulation

    original, killed = CentralizedSimulation._round, []

    def dying(self, run, clock, ahead):
        if clock.round == 3 and not killed:
            killed.append(clock.round)
            ray_cluster.kill(self.pool.server)
        return original(self, run, clock, ahead)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CentralizedSimulation, "_round", dying)
        simulate(config(2), tmp_path / "run")
    assert killed and contents(tmp_path / "run") == contents(two_workers)
    free_cpus(ray_cluster)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_model_fails_the_run_with_its_traceback(workers, tmp_path, ray_cluster):
    with pytest.raises(
        ClientError,
        match=r"training failed in task 0, round 2, seed 3, worker \d of \d: ZeroDivisionError: made up by the test",
    ):
        simulate(config(workers, model={"at": 24 * 4 // workers + 24, "fault": True}), tmp_path / "run")
    run = flray.load(tmp_path / "run")
    assert run.status.startswith("failed: training failed in task 0, round 2")
    assert run.rounds["round"].tolist() == [1] and checkpoint.latest(run.folder).position.done == 1
    free_cpus(ray_cluster)


@pytest.mark.slow
def test_divergence_is_a_result_or_an_error(tmp_path, ray_cluster):
    wild = {"lr": 1e30, "momentum": 0.0, "shards": 1}
    simulate(config(1, algorithm=wild), tmp_path / "stop")
    run = flray.load(tmp_path / "stop")
    assert run.status.startswith("diverged in round 1") and bool(run.rounds["diverged"].iloc[-1])
    with pytest.raises(NonFiniteError, match=facts("round 1", "not finite")):
        simulate(config(1, algorithm=wild, on_nonfinite="fail"), tmp_path / "fail")
    free_cpus(ray_cluster)


@pytest.mark.slow
def test_a_lost_node_leaves_fewer_workers_and_the_same_bits(tmp_path):
    """Sixty rounds: the workers are not through before the node is gone."""
    simulate(config(1, 60), tmp_path / "whole")
    assert facts_of("tests.engine.ray.train.lost_node", tmp_path / "run", "60")["client_actors"] == 2
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_cell_of_a_grid_trains_inside_its_bundle(two_workers, tmp_path, ray_cluster):
    """Beside FedAvg on the same cluster: the grid's trial owns the CPUs, and Ray Train must not ask for others."""
    from flray.tuning.ablate import run_grid

    cells = [config(2), config(2, algorithm={"name": "fedavg"}, evaluate={"clients": False})]
    table = run_grid(cells, tmp_path / "grid")
    assert table["status"].tolist() == ["finished"] * 2 and table["algorithm"].tolist() == ["centralized", "fedavg"]
    assert contents(table["folder"].iloc[0]) == contents(two_workers)
    free_cpus(ray_cluster)
