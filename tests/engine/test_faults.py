"""What happens when something breaks: with actors where a process is the point, else in this one."""

import os
import re
import shutil

import numpy as np
import pytest

import flray
from flray.contracts.played import Local, bits
from flray.core.protocol.clock import Position
from flray.core.schema.errors import CheckpointError, ClientError, ConfigError, NonFiniteError, ResourceError
from flray.engine.local_executor import LocalExecutor
from flray.engine.replay import Replay
from flray.engine.simulation import Simulation
from flray.rundir import checkpoint
from flray.rundir.parts import RowsMissingWarning
from flray.running import play
from flray.scenario import load_partition
from tests.engine import faulty  # noqa: F401  registers the algorithms
from tests.support.faults import interrupted, server_killed_at
from tests.support.messages import facts
from tests.support.runs import cohort, config, last_state, model, on_actors

AFTER_3 = Position(0, 3, 3, "round").order


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Uninterrupted runs, by algorithm."""
    known = {}

    def get(algorithm, **sections):
        key = algorithm, str(sections)
        if key not in known:
            known[key] = flray.run(config(algorithm, **sections), out=tmp_path_factory.mktemp("finished") / algorithm)
        return known[key]

    return get


# clients --------------------------------------------------------------------------------------
def test_a_diverging_client_fails_the_run_and_its_replay_and_is_named(ray_cluster, tmp_path):
    bad = cohort(1)[2]
    with pytest.raises(NonFiniteError) as error:
        flray.run(
            on_actors({"name": "faulty", "kind": "inf update", "at": f"1/0/{bad}"}, on_nonfinite="fail"),
            out=tmp_path / "run",
        )
    text = str(error.value)
    assert f"client {bad} failed" in text and "round 2" in text and "seed 3" in text
    assert "update.w is not finite" in text
    assert re.search(rf"flray replay \S+ --client {bad}", text)
    run = flray.load(tmp_path / "run")
    assert run.status.startswith(f"failed: client {bad} failed")
    assert run.rounds["round"].tolist() == [1], "what is finished stays"
    assert checkpoint.latest(run.folder).position.done == 1
    replay = Replay(tmp_path / "run").goto(1)
    with pytest.raises(NonFiniteError) as again:
        list(replay.clients(only=bad))
    assert str(again.value) == text
    good = cohort(1)[0]
    assert [client for client, _, _ in replay.clients(only=good)] == [good]
    with pytest.raises(ConfigError, match=facts("cohort of round 2", ", ".join(map(str, cohort(1))))):
        list(replay.clients(only=next(k for k in range(5) if k not in cohort(1))))


@pytest.mark.parametrize("algorithm", ["faulty", "faulty_stack"])
def test_a_skipped_client_is_counted_named_and_left_out_of_the_mean(ray_cluster, tmp_path, algorithm):
    """w' = sum p_k w_k / sum p_k over the clients that delivered, in float64, before distillation."""
    bad = cohort(1)[1]
    options = {"name": algorithm, "kind": "inf update", "at": f"1/0/{bad}"}
    if algorithm == "faulty_stack":
        options |= {"distill_lr": 1e-12}
    settings = on_actors(options, rounds=2, on_nonfinite="skip")
    run = flray.run(settings, out=tmp_path / "run")
    rows = run.rounds
    assert rows["clients_skipped"].tolist() == [0, 1]
    assert rows["skipped_clients"].tolist()[1] == str(bad)
    assert run.clients.query("round == 2 and skipped")["client"].tolist() == [bad]
    assert not rows["diverged"].any()
    updates = []

    def watch(half, function, *arguments):
        result = function(*arguments)
        if half == "client":
            updates.append((arguments[0].client, arguments[0].num_examples, result[0].w.double().clone()))
        return result

    local = Local(settings, tmp_path / "local", watch)
    local.play(2)
    good = [(n, w) for client, n, w in updates[3:] if client != bad]
    assert len(good) == 2
    expected = sum(n * w for n, w in good) / sum(n for n, _ in good)
    np.testing.assert_allclose(local.state.w.numpy(), expected.numpy(), atol=1e-6)
    assert {n: v[2] for n, v in bits(local.state).items()} == last_state(tmp_path / "run")
    # bytes of a client that delivered nothing are not counted
    assert rows["comm/up_bytes"].tolist()[1] * 3 == rows["comm/up_bytes"].tolist()[0] * 2


def test_a_client_skipped_in_the_first_of_two_exchanges_is_counted(tmp_path):
    bad = cohort(1)[1]
    run = flray.run(
        config({"name": "faulty_own", "kind": "inf update", "at": f"1/0/{bad}"}, rounds=2, on_nonfinite="skip"),
        out=tmp_path / "run",
    )
    assert run.rounds["skipped_clients"].tolist()[1] == str(bad)
    assert run.rounds["clients_skipped"].tolist() == [0, 1]


def test_an_error_in_an_algorithm_comes_with_its_own_traceback(ray_cluster, tmp_path):
    bad, resources = cohort(2)[0], {"executor": "calls"}
    with pytest.raises(ClientError) as error:
        flray.run(on_actors({"name": "faulty", "at": f"2/0/{bad}"}, resources=resources), out=tmp_path / "run")
    text = str(error.value)
    assert not isinstance(error.value, NonFiniteError)
    assert f"client {bad} failed in task 0, round 3" in text
    assert "ZeroDivisionError: made up by the test" in text
    assert "faulty.py" in text and "in spoiled" in text, "the line of the algorithm, not of Ray"
    assert "RayTaskError" not in text
    run = flray.load(tmp_path / "run")
    assert run.rounds["round"].tolist() == [1, 2] and run.status.startswith("failed")


@pytest.mark.parametrize(("made", "exchange"), [(on_actors, 0), (config, 1)])
def test_after_an_error_in_a_client_the_run_resumes_to_the_same_bits(ray_cluster, tmp_path, finished, made, exchange):
    """The fault goes away (a file appears), the exchange of round 3 is repeated."""
    repair = tmp_path / "repaired"
    options = {"name": "faulty_own", "at": f"2/{exchange}/{cohort(2)[0]}", "unless": str(repair)}
    with pytest.raises(ClientError):
        flray.run(made(options), out=tmp_path / "run")
    repair.touch()
    flray.resume(tmp_path / "run")
    assert last_state(tmp_path / "run") == last_state(finished("own").folder)


# the server -----------------------------------------------------------------------------------
def test_rows_of_a_failed_run_end_with_its_checkpoint(tmp_path, monkeypatch):
    """Ray dies when the third round is recorded and the server has not been told to commit it."""
    start, told = LocalExecutor.start, []

    def dies(self, method, *arguments, **options):
        told.append(method.__name__)
        if told.count("commit") == 3:
            raise ResourceError("Ray's raylet has died")
        return start(self, method, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(ResourceError, match="raylet"):
        patch.setattr(LocalExecutor, "start", dies)
        flray.run(config(), out=tmp_path / "run")
    assert flray.load(tmp_path / "run").rounds["round"].tolist() == [1, 2]
    assert [path.name for path in checkpoint.checkpoints(tmp_path / "run")] == ["round-000002"]


def test_a_killed_server_actor_starts_again_from_the_checkpoint(ray_cluster, tmp_path, finished):
    """At the task's end; what comes in and after a round is planned as an exchange ends. Other moments:
    tests/faults/test_server_actor.py."""
    with server_killed_at("plan", 2) as killed:
        by_calls = {"executor": "calls", "store": "memory"}
        run = flray.run(on_actors("own", resources=by_calls), out=tmp_path / "run")
    assert killed
    assert run.status == "finished" and run.rounds["round"].tolist() == [1, 2, 3, 4]
    assert last_state(run.folder) == last_state(finished("own").folder)


def test_testing_on_the_server_or_on_the_clients_gives_the_same_numbers(ray_cluster, finished):
    actors = {"resources": {"client_actors": 2}}
    clients, server = finished("fedavg", **actors), finished("fedavg", evaluate={"on": "server"}, **actors)
    assert model(clients.folder) == model(server.folder)
    assert clients.rounds["test/acc"].tolist() == server.rounds["test/acc"].tolist()
    np.testing.assert_allclose(clients.rounds["test/loss"], server.rounds["test/loss"], rtol=1e-12)


@pytest.mark.parametrize(
    "word", ["seed=1", "algorithm.lr=1", "data.source=1", "partition.alpha=1", "resources.store=files"]
)
def test_resume_refuses_what_would_make_another_experiment(finished, word):
    with pytest.raises(ConfigError, match=facts(f"resume: {word.partition('=')[0]} ")):
        flray.resume(finished("fedavg").folder, word)


def test_resume_of_no_run_says_so(tmp_path):
    with pytest.raises(ConfigError, match=facts(tmp_path)):
        flray.resume(tmp_path)


def test_more_rounds_go_on_as_if_they_had_been_asked_for_at_once(tmp_path, finished):
    """From before the task's end."""
    flray.run(config("own", rounds=2), out=tmp_path / "run")
    run = flray.resume(tmp_path / "run", rounds=4)
    assert run.rounds["round"].tolist() == [1, 2, 3, 4] and len(run.tasks) == 1
    assert model(run.folder) == model(finished("own").folder)
    assert last_state(run.folder) == last_state(finished("own").folder)


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    first = flray.run(config(rounds=2), out=tmp_path / "run")
    before, tasks = model(first.folder), len(first.tasks)
    again = flray.resume(first.folder)
    assert model(again.folder) == before and again.status == "finished"
    assert again.rounds["round"].tolist() == [1, 2] and len(again.tasks) == tasks


def test_a_second_driver_of_a_run_is_told_who_has_it(tmp_path):
    rows = play(config(rounds=3), tmp_path / "run")
    next(rows)
    with pytest.raises(CheckpointError, match=rf"in use: process {os.getpid()} on"):
        flray.resume(tmp_path / "run")
    assert [row["round"] for row in rows] == [2, 3]


def test_a_run_that_cannot_start_leaves_the_folder_free(ray_cluster, tmp_path):
    """The mistake is in the algorithm's options, which only the server actor can see."""
    with pytest.raises(ConfigError, match=facts("labels", "proxy.labelled")):
        flray.run(on_actors({"name": "fedproj", "round0": "ce_labels"}), out=tmp_path / "run")
    assert flray.run(on_actors(rounds=1), out=tmp_path / "run").status == "finished"


def test_the_resolved_configuration_repeats_the_run(finished, tmp_path):
    run = finished("fedavg")
    again = flray.run(run.folder / "config.yaml", out=tmp_path / "again")
    assert model(again.folder) == model(run.folder)


def interrupted_run(folder, **sections):
    with interrupted("before", 3), pytest.raises(KeyboardInterrupt):
        flray.run(config(**sections), out=folder)
    return folder


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_driver_tells_of_a_damaged_last_checkpoint(tmp_path):
    folder = interrupted_run(tmp_path / "run", algorithm="own")
    flip(folder / "checkpoints" / "round-000003" / "server.safetensors")
    with pytest.warns(UserWarning, match="/checkpoints: round-000003 damaged; going on after round 2"):
        run = flray.resume(folder)
    assert run.status == "finished" and run.rounds["round"].tolist() == [1, 2, 3, 4]


def test_a_client_state_that_is_damaged_under_a_run_ends_it_and_resume_goes_back(tmp_path, finished, monkeypatch):
    """Between rounds 3 and 4 the states of round 3 rot; the checkpoint after round 2 does not count on them."""
    known = Simulation._round

    def rotting(self, run, clock, ahead):
        if clock.round == 3:
            for path in (tmp_path / "run" / "client_state").glob(f"*/*.r{AFTER_3:06d}.safetensors"):
                flip(path)
        return known(self, run, clock, ahead)

    monkeypatch.setattr(Simulation, "_round", rotting)
    with pytest.raises(
        CheckpointError,
        match=facts(
            re.compile(r"client \d+ in"), tmp_path / "run" / "client_state", f"flray resume {tmp_path / 'run'}"
        ),
    ) as error:
        flray.run(config("own", resources={"store": "files"}, cohort={"size": 5}), out=tmp_path / "run")
    assert "\n" not in str(error.value)
    monkeypatch.undo()
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "run")] == ["round-000002"], (
        "none with the damaged states"
    )
    run = flray.resume(tmp_path / "run")
    assert run.status == "finished" and last_state(run.folder) == last_state(finished("own", cohort={"size": 5}).folder)


def test_damaged_tables_do_not_hinder_a_resume_and_are_told_of_for_ever(tmp_path, finished):
    folder = interrupted_run(tmp_path / "run")
    (folder / "rounds" / "part-0000.parquet").write_bytes(b"garbage")
    (folder / "clients" / "part-0000.parquet").unlink()
    with pytest.warns(RowsMissingWarning) as told:
        run = flray.resume(folder)
        assert run.rounds["round"].tolist() == [4] and run.clients["round"].unique().tolist() == [4]
    text = [str(warning.message) for warning in told]
    assert any("rounds has lost the rows of 1-3" in line for line in text)
    assert any("clients has lost the rows of 1-3" in line for line in text)
    assert run.status == "finished" and model(run.folder) == model(finished("fedavg").folder)
    with pytest.warns(RowsMissingWarning):
        again = flray.resume(folder)  # nothing left to do
    assert again.environment["missing_rows"] == {"rounds": "1-3", "clients": "1-3"}
    assert (again.missing("rounds"), again.missing("clients"), again.missing("tasks")) == (
        "rounds 1-3",
        "rounds 1-3",
        "",
    )


def test_a_damaged_partition_is_made_again(tmp_path, finished):
    folder = interrupted_run(tmp_path / "run")
    flip(folder / "partition" / "partition_indices.npy")
    with pytest.warns(UserWarning, match=facts(folder / "partition", "configuration")):
        run = flray.resume(folder)
    assert model(run.folder) == model(finished("fedavg").folder)
    load_partition(folder / "partition")


def test_a_run_whose_checkpoints_are_gone_does_not_start_again(tmp_path):
    folder = interrupted_run(tmp_path / "run")
    rows = flray.load(folder).rounds
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(CheckpointError, match=facts(folder, "checkpoint", "--overwrite")):
        flray.resume(folder)
    assert flray.load(folder).rounds.equals(rows), "what is there stays"
    assert flray.load(folder).status.startswith("interrupted")
