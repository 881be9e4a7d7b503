"""Runs over several tasks, and with clients that hold no samples: the engine on its local executor."""

import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import flray
from flray.cli import app
from flray.contracts.played import Local, flatten
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError
from flray.data import load_dataset
from flray.engine import cohort as cohorts
from flray.engine.prepare import build_data, build_scenario
from flray.engine.replay import Replay
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.simulation import ExchangeWarning
from flray.running import play, simulate
from flray.scenario import PartitionWarning, Scenario, Stage, TestSet
from tests.support.messages import assert_says, facts
from tests.support.tasks import BASE, TASKS, contents, experiment


# several tasks ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "run"
    simulate(experiment(tasks=TASKS), folder)
    return folder


def test_tasks_follow_one_another(two_tasks):
    rounds = flray.load(two_tasks).rounds
    rounds = rounds[rounds["round"] > 0]
    assert rounds["done"].tolist() == [1, 2, 3, 4, 5, 6]
    assert rounds["task"].tolist() == [0, 0, 0, 1, 1, 1] and rounds["round"].tolist() == [1, 2, 3] * 2
    assert (two_tasks / "partition" / "task-0001" / "partition.json").exists()
    assert (two_tasks / "partition" / "task-0000" / "table.csv").exists()


def test_a_round_trains_on_the_samples_and_outputs_of_its_task(tmp_path):
    """In task 1 the only class is 1: a softmax over one output has no gradient, so task 0's model stays as it was."""
    local = Local(experiment(tasks=TASKS), tmp_path)
    labels, seen = load_dataset(local.experiment.data).train.y, []

    def watch(name, function, *arguments):
        if name == "client":
            ctx, numbers = arguments[0], arguments[4].numbers
            seen.append((ctx.clock.task, set(labels[numbers].tolist()), ctx.population, ctx.total_examples))
        return function(*arguments)

    local.watch = local.executor.watch = local.executor.client.watch = watch
    local.play(3)
    before = {name: array.copy() for name, array in flatten(local.state).items()}
    local.play(3)
    assert {task for task, *_ in seen} == {0, 1} and all(found <= ({0, 2}, {1})[task] for task, found, *_ in seen)
    assert {(population, total) for task, _, population, total in seen if task == 0} == {(4, 80)}
    after = flatten(local.state)
    assert all(np.allclose(after[name], before[name], atol=1e-7) for name in before)


def test_what_is_tested_are_the_tasks_seen_so_far_and_each_by_itself(two_tasks):
    """Ten samples of each class. The later task is tested before the first round and at the end of the first task."""
    tests = flray.load(two_tasks).tests
    found = tests[tests["mode"] == "global"].groupby(["done", "phase"])["set"].apply(list).to_dict()
    every, first = ["test", "task-0", "task-1"], ["test", "task-0"]
    rounds = {(done, "round"): first if 0 < done < 4 else every for done in range(7)}
    assert found == rounds | {(3, "task_end"): every, (6, "task_end"): every}
    of = {"task-0": [10, 0, 10], "task-1": [0, 10, 0]}
    for row in tests.itertuples():
        both = row.task == 1 and row.set == "test"
        assert row.class_total.tolist() == ([10] * 3 if both else of["task-0" if row.set == "test" else row.set])


def test_the_test_of_all_tasks_is_the_sum_of_its_parts(two_tasks):
    tests = flray.load(two_tasks).tests
    for (done, phase, mode), rows in tests.groupby(["done", "phase", "mode"]):
        whole, *parts = rows.to_dict("records")
        seen = [part for part in parts if int(part["set"][-1]) <= whole["task"]]
        assert (whole["set"], len(parts)) == ("test", 1 if 0 < done < 4 and phase == "round" else 2), mode
        for name in ("total", "right", "covered", "class_total", "class_right"):
            assert np.array_equal(whole[name], sum(part[name] for part in seen))
        assert whole["loss_sum"] == pytest.approx(sum(part["loss_sum"] for part in seen), rel=1e-12)


def test_over_tasks_every_algorithm_is_asked_among_the_classes_seen_and_among_the_tasks_own(two_tasks):
    """Logits of the saved model by hand, after all tasks and, for the task to come, after the first."""
    run = flray.load(two_tasks)
    data = load_dataset(run.experiment.data)
    for done, seen in ((3, [0, 2]), (6, [0, 1, 2])):
        local = Replay(two_tasks).goto(done)
        model = local.runtime.objective.at(local.state.w, local.state.b)
        tests = run.tests.query("done == @done and phase == 'task_end'").set_index(["set", "mode"])
        for task, own in enumerate(([0, 2], [1])):
            rows = np.isin(data.test.y, own)
            z, y = model(local.runtime.normalizer(np.array(data.test.x[rows]))).double().numpy(), data.test.y[rows]
            for mode, classes in (("global", seen), ("task_aware", own)):
                row = tests.loc[f"task-{task}", mode]
                right = y[np.array(classes)[z[:, classes].argmax(1)] == y]
                assert row["class_right"].tolist() == np.bincount(right, minlength=3).tolist(), (done, task, mode)
                inside = np.isin(y, classes)
                loss = np.log(np.exp(z[:, classes]).sum(1))[inside] - z[np.arange(len(y)), y][inside]
                assert row["covered"] == inside.sum() and row["loss_sum"] == pytest.approx(loss.sum(), rel=1e-5)
    simulate(experiment(), two_tasks.parent / "alone")
    alone = flray.load(two_tasks.parent / "alone").tests
    assert set(alone["mode"]) == {"global"} and set(alone["set"]) == {"test"} and set(alone["phase"]) == {"round"}


def test_a_sweep_reads_validation_splits_of_the_tasks_in_the_test_sets_place(tmp_path):
    simulate(experiment(tasks=TASKS, evaluate={"validation": 0.2}), tmp_path / "run")
    run = flray.load(tmp_path / "run")
    assert set(run.tests["set"]) == {"val", "val-0", "val-1"} and not [name for name in run.rounds if "test/" in name]
    total = run.tests.query("done == 6 and phase == 'task_end' and mode == 'global'").set_index("set")["total"]
    assert total["val"] == total["val-0"] + total["val-1"] > 0


def test_a_client_of_any_task_can_be_repeated_from_the_command_line(two_tasks):
    """Rounds are counted over all tasks."""
    command = ["replay", str(two_tasks), "--client", "0", "--round"]
    assert "client 0, round 5" in CliRunner().invoke(app, [*command, "5"]).stdout
    wrong = CliRunner().invoke(app, [*command, "7"])
    assert_says(wrong.exception, "--round 7", "1 to 6")


def test_more_rounds_would_move_the_boundary_of_tasks(two_tasks):
    with pytest.raises(ConfigError, match=facts("resume: rounds", "2 tasks")):
        flray.resume(two_tasks, "rounds=4", progress=False)


def test_each_task_draws_its_cohorts_from_its_own_clients(tmp_path):
    """Shared out once, two clients hold a class each: client 0 is in task 0 alone, client 1 in task 1 alone."""
    table = [[20, 0, 0], [0, 20, 0], [10, 10, 10], [0, 0, 0]]
    own = experiment(
        tasks={**TASKS, "partition": "once"}, partition={"name": "table", "table": table}, cohort={"size": 2}, rounds=8
    )
    with pytest.warns(PartitionWarning, match=facts("2 of 4 clients")):
        local = Local(own, tmp_path)
    members = [np.asarray(local.scenario.members(task)).tolist() for task in (0, 1)]
    assert members == [[0, 2], [1, 2]]
    for clock in (Clock(task, round, done=8 * task + round) for task in (0, 1) for round in range(8)):
        sampled, _ = cohorts.draw_cohort(own, local.scenario, clock)
        assert sorted(sampled.tolist()) == members[clock.task]
    assert TaskSummary.of(local.scenario).members == (2, 2) and TaskSummary.of(local.scenario).examples == (40, 30)


def test_a_head_of_another_size_than_the_data_sets_classes_trains_and_is_tested(tmp_path):
    """Two domains with labels of their own, (0, 1) and (2), on one head of two outputs: the model has no third."""
    own = experiment()
    data = build_data(own)
    dataset, plain = data.dataset, build_scenario(experiment(tasks=TASKS), data)
    parts = [part._replace(held_out=None) for part in plain.partitions]
    tests = [{"test": TestSet("test", np.flatnonzero(np.isin(dataset.test.y, classes)))} for classes in ([0, 2], [1])]
    stages = [
        Stage(0, "a", np.array([0, 2]), np.array([0, 1]), tests[0]),
        Stage(1, "b", np.array([1]), np.array([0]), tests[1]),
    ]
    scenario = Scenario(stages, parts)
    runtime = Runtime(own, TaskSummary.of(scenario))
    assert runtime.objective.initial()[0].numel() and runtime.objective.at(*runtime.objective.initial())(
        runtime.normalizer(np.array(dataset.test.x[:3]))
    ).shape == (3, 2)
    assert sorted(set(runtime.dataset.train.y.tolist())) == [0, 1]
    rows = list(play(own, tmp_path / "run", scenario=scenario))
    assert load_file(tmp_path / "run" / "model.safetensors")["head.weight"].shape[0] == 2
    assert all(0 <= row["test/acc"] <= 1 for row in rows if row["test/acc"] is not None)
    assert len([row for row in rows if row["done"]]) == 6


def test_the_clients_own_models_are_tested_at_the_end_of_every_task(tmp_path):
    """And the next task begins behind that test."""
    simulate(experiment(tasks=TASKS, rounds=1, evaluate={"finetune_epochs": [1]}), tmp_path / "run")
    run = flray.load(tmp_path / "run")
    assert len(run.rounds[run.rounds["round"] > 0]) == 2
    assert run.personal.groupby(["task", "phase"]).size().to_dict() == {(0, "task_end"): 4, (1, "task_end"): 4}
    assert run.last_personal["task"].tolist() == [1] * 4


def test_a_clients_own_answers_are_among_the_classes_of_the_tasks_so_far(tmp_path):
    """Where the first task has one class alone, every answer is right: before training, after it, and when it is
    personalised. In the second task all classes are there and the answers are not."""
    tasks = {"num_tasks": 2, "class_order": [2, 0, 1], "first_task": 1}
    simulate(experiment(tasks=tasks, rounds=1, evaluate={"finetune_epochs": [0, 1]}), tmp_path / "run")
    run = flray.load(tmp_path / "run")
    for table, columns in ((run.clients, ("client/acc_before", "client/acc_after")), (run.personal, ("test/acc",))):
        for column in columns:
            assert set(table[table["task"] == 0][column]) == {1.0}, column
    assert run.clients[run.clients["task"] == 1]["client/acc_before"].max() < 1


# clients without samples -----------------------------------------------------------------------------
HELD = [[10, 8, 0], [0, 9, 12], [10, 10, 10]]


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_clients_without_samples_change_nothing(weighting, tmp_path):
    """Empty clients behind the others: the cohorts and the bits are those of a run without them."""
    algorithm, found = {**BASE["algorithm"], "weighting": weighting}, []
    for name, table in (("without", HELD), ("with", [*HELD, [0, 0, 0], [0, 0, 0]])):
        own = experiment(partition={"name": "table", "table": table}, cohort={"size": 2}, algorithm=algorithm)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PartitionWarning)
            simulate(own, tmp_path / name)
        found.append(contents(tmp_path / name))
    assert found[0] == found[1]


def test_a_cohort_is_no_larger_than_those_who_hold_samples():
    own = experiment(partition={"name": "table", "table": [*HELD, [0, 0, 0]]}, cohort={"size": 4})
    data = build_data(own)
    with (
        pytest.warns(PartitionWarning),
        pytest.raises(ConfigError, match=facts("cohort.size", 4, 3)),
    ):
        build_scenario(own, data)


class Drought(Scenario):
    """Clients lose their samples for a round: the first of the cohort in round 2, everybody in round 3."""

    def shares(self, clock, clients, *, everyone=False):
        full = super().shares(clock, clients, everyone=everyone)
        lost = {1: 1, 2: len(full.clients)}.get(clock.done, 0)
        first = full.offsets[lost]
        return full._replace(
            clients=full.clients[lost:], indices=full.indices[first:], offsets=full.offsets[lost:] - first, empty=lost
        )


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_who_turns_out_empty_after_the_draw_is_left_out_and_counted(weighting, tmp_path, monkeypatch):
    """The weights are those of the others, and a round in which nobody holds anything leaves the model as it is."""
    monkeypatch.setattr("flray.engine.prepare.Scenario", Drought)
    algorithm = {**BASE["algorithm"], "weighting": weighting}
    own = experiment(partition={"name": "table", "table": HELD}, algorithm=algorithm, rounds=4)
    rows = {row["done"]: row for row in play(own, tmp_path / "run")}
    assert [rows[done].get("clients_empty", 0) for done in (1, 2, 3, 4)] == [0, 1, 3, 0]
    assert [rows[done]["cohort_size"] for done in (1, 2, 3, 4)] == [3] * 4 and not any(
        rows[d]["diverged"] for d in (1, 2, 3, 4)
    )
    assert rows[3]["client_steps"] == 0 and rows[3]["comm/up_bytes"] == 0
    assert rows[3]["test/loss"] == rows[2]["test/loss"] != rows[4]["test/loss"]
    assert len(flray.load(tmp_path / "run").clients.query("done == 2")) == 2


def test_an_exchange_that_no_client_can_take_part_in_says_so(tmp_path):
    """Nobody holds a sample from round 2 on: what FOT gathers at a task's end is not there."""
    drift = {"name": "remove_classes", "classes": [0, 1, 2], "from_round": 2}
    algorithm = {"name": "fot", "local_epochs": 1, "batch_size": 8}
    with pytest.warns(ExchangeWarning, match=facts("task 0, task end", "'sketch'", "none of 4 clients")):
        run = flray.run(
            experiment(tasks=TASKS, drift=drift, algorithm=algorithm, rounds=2), out=tmp_path / "run", progress=False
        )
    ends = run.tasks[run.tasks["phase"] == "task_end"]
    assert ends["exchanges_skipped"].tolist() == ["sketch", "sketch"]
    skipped = run.rounds.loc[run.rounds["round"] > 0, "exchanges_skipped"].tolist()
    assert skipped[1:] == ["train"] * 3 and skipped[0] != "train"
