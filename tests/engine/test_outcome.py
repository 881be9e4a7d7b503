"""How a run ends: diverged, collapsed; and the personalised test at its end."""

import functools
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file

import flray
from flray.core.messages import to_torch
from flray.core.schema.errors import DataError
from flray.data import load_dataset
from flray.doctor import examine
from flray.engine.replay import Replay
from flray.engine.summary import collapse_reason, final_tests, personal_columns, untrained_reason
from flray.models import build_model
from flray.rundir import checkpoint
from flray.scenario import load_partition
from flray.scenario.tasks import Stage, TestSet, local_test
from tests.support.runs import cohort, config, model


# divergence -----------------------------------------------------------------------------------
def test_divergence_of_a_client_is_a_result(tmp_path):
    bad = cohort(2)[1]
    run = flray.run(config({"name": "faulty", "kind": "nan loss", "at": f"2/0/{bad}"}), out=tmp_path / "run")
    assert run.status.startswith(f"diverged in round 3: client {bad}: ") and "lower algorithm.lr" in run.status
    assert run.rounds["round"].tolist() == [1, 2, 3]
    assert run.rounds["diverged"].tolist() == [False, False, True]
    assert math.isnan(run.rounds["test/acc"].iloc[2])
    # the model is that of the last finite round, and so is the checkpoint
    two = flray.run(config(rounds=2), out=tmp_path / "two")
    assert model(run.folder) == model(two.folder)
    assert checkpoint.latest(run.folder).position.done == 2
    # going on repeats the round, and ends the same way
    again = flray.resume(run.folder)
    assert again.status == run.status and again.rounds["round"].tolist() == [1, 2, 3]
    # and without it the run is one that had two rounds from the beginning
    ended = flray.resume(run.folder, rounds=2)
    assert ended.status == two.status == "finished" and ended.rounds["round"].tolist() == [1, 2]
    assert ended.rounds["test/acc"].tolist() == two.rounds["test/acc"].tolist()


def test_divergence_on_the_server_is_a_result(tmp_path):
    run = flray.run(config({"name": "overflowing", "round": 1}), out=tmp_path / "run")
    assert run.status.startswith("diverged in round 2: the server's state is not finite")
    assert run.rounds["diverged"].tolist() == [False, True]
    assert checkpoint.latest(run.folder).position.done == 1
    assert all(
        np.isfinite(np.frombuffer(a, np.float32)).all() for n, a in model(run.folder).items() if "tracked" not in n
    )


def test_divergence_at_the_end_of_a_task_is_a_result_as_well(tmp_path):
    """The exchange at the task's end has `round` 3 of 3; the model is that after the last round."""
    settings = config({"name": "overflowing_end", "round": 3}, rounds=3, resources={"executor": "local"})
    run = flray.run(settings, out=tmp_path / "run")
    assert run.status.startswith("diverged at the end of task 0: the server's state is not finite")
    assert run.tasks["diverged"].tolist() == [True] and not run.rounds["diverged"].any()
    never = config({"name": "overflowing", "round": 9}, rounds=3, resources={"executor": "local"})
    assert model(run.folder) == model(flray.run(never, out=tmp_path / "never").folder)


def test_collapse_to_chance_counts_as_divergence_and_slow_learning_does_not():
    labels = np.repeat(np.arange(4), 25)

    def outcome(*rounds):
        frame = pandas.DataFrame(
            {
                "round": range(1, len(rounds) + 1),
                "test/acc": [a for a, _ in rounds],
                "test/loss": [x for _, x in rounds],
            }
        )
        return collapse_reason(frame, labels, 4, "test")

    assert outcome((0.25, 1.5), (0.6, 0.9)) is None
    assert outcome((0.25, 1.39), (0.26, 1.38)) is None, "it has not learned yet: ln 4 = 1.386"
    assert outcome((0.3, 1.3), (0.6, 0.9), (0.25, 1.386)) is None, "one bad round is noise"
    text = outcome((0.3, 1.3), (0.6, 0.9), *[(0.25, 1.386)] * 10)
    assert "the last 10 tests have a mean accuracy of 25.00%" in text and "best accuracy 60.00% in round 2" in text
    assert outcome((0.25, 900.0)).startswith("diverged: ")
    assert outcome((0.25, 900.0), (math.nan, math.nan), (0.5, 1.0)) is None
    assert collapse_reason(pandas.DataFrame({"round": [1]}), labels, 4, "test") is None
    assert outcome((0.05, 9.0), (0.4, 300.0)) is None, "two tests of a rising curve, their mean below chance 0.25"
    assert outcome((0.25, 4.0), (0.25, 4.0)) is None, "a loss of 2.9 ln 4, tested twice"
    assert outcome(*[(0.25, 4.0)] * 5).startswith("diverged: ")
    assert outcome(*[(0.1, 9.0)] * 8, (0.3, 3.0)) is None, "it begins to learn late"


def test_over_tasks_the_last_one_is_judged_by_its_own_test(tmp_path):
    """Of four classes in two tasks plain averaging forgets the first two; without a step it stays where chance is, and
    a learning rate without measure is divergence in the second task as well."""
    data = {"source": "synthetic", "options": {"shape": 4, "num_classes": 4, "num_train": 80, "num_test": 40}}
    local, tasks = {"executor": "local"}, {"num_tasks": 2, "class_order": "natural"}
    steps = {"fine": (0.1, None), "empty": (0.1, 3), "wild": (1e5, None)}
    found = {}
    for name, (lr, gone) in steps.items():
        drift = gone and {"name": "remove_classes", "classes": [0, 1, 2, 3], "from_round": gone}
        own = config({"name": "fedavg", "lr": lr}, rounds=2, data=data, tasks=tasks, resources=local, drift=drift)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = flray.run(own, out=tmp_path / name, progress=False).status
    assert found["fine"] == found["empty"] == "finished" and found["wild"].startswith("diverged")


def test_a_uniform_prediction_is_over_the_classes_that_the_model_chooses_among_not_over_those_that_are_tested():
    """The loss 1.74 is below ln 6 = 1.79 and above 2 ln 2; the loss 6 is above 2 ln 10 = 4.61 and below 2 ln 100."""
    y = {"two of six": np.repeat([0, 1], 50), "first ten": np.repeat(np.arange(10), 5)}
    y["last ten"] = y["first ten"] + 90
    of_all = TestSet("test")
    tens = [np.arange(10 * task, 10 * task + 10) for task in range(10)]
    last = {"test": of_all, "task-9": TestSet("test", task=9)}
    stages = [Stage(task, str(task), of, of, last if task == 9 else {}) for task, of in enumerate(tens)]
    rounds = pandas.DataFrame({"round": range(1, 7), "task": 9, "client_steps": 3, "test/acc": 0.1, "test/loss": 6.0})

    def outcome(labels, stages, rounds, modes=()):
        dataset = SimpleNamespace(test=SimpleNamespace(y=y[labels]))
        of_round = {"set": "task-9", "phase": "round", "task": 9, "round": range(1, 7), "acc": 0.1, "loss": 6.0}
        tests = pandas.concat([pandas.DataFrame({**of_round, "mode": mode}) for mode in modes] or [pandas.DataFrame()])
        return collapse_reason(*final_tests(rounds, tests, stages, dataset, "test"), "test")

    six = [Stage(0, "all", np.arange(6), np.arange(6), {"test": of_all})]
    assert outcome("two of six", six, rounds.assign(**{"test/loss": 1.74})) is None
    assert "a loss of 3.6" in outcome("two of six", six, rounds.assign(**{"test/loss": 3.6}))
    for labels in ("first ten", "last ten"):
        assert outcome(labels, stages, rounds, ["global"]) is None
        assert "a loss of 6" in outcome(labels, stages, rounds, ["global", "task_aware"])


def test_a_test_of_one_class_tells_nothing_of_chance():
    rounds = pandas.DataFrame({"round": [1, 2], "test/acc": [1.0, 0.0], "test/loss": [0.1, 9.0]})
    assert collapse_reason(rounds, np.zeros(5, np.int64), 2, "test") is None


def test_a_run_whose_clients_were_all_left_out_says_so(tmp_path):
    """Its model is the initial one: that of a run without rounds."""
    run = flray.run(config({"name": "fedavg", "lr": 1e38}, rounds=2, on_nonfinite="skip"), out=tmp_path / "run")
    assert run.rounds["clients_skipped"].tolist() == [3, 3]
    assert (
        run.status.startswith("diverged: all clients were left out in all 2 rounds")
        and "lower algorithm.lr" in run.status
    )
    assert model(run.folder) == model(flray.run(config(rounds=0), out=tmp_path / "none").folder)


def test_who_was_left_out_of_some_rounds_is_no_such_run():
    frame = pandas.DataFrame({"cohort_size": [3, 3], "clients_skipped": [3.0, 2.0]})
    assert (
        untrained_reason(frame) is None
        and untrained_reason(frame[:0]) is None
        and untrained_reason(frame.assign(clients_skipped=0)) is None
    )
    assert untrained_reason(frame.drop(columns="clients_skipped")) is None
    assert untrained_reason(frame[:1]) is not None


# personalised test ----------------------------------------------------------------------------
def test_personalised_test_by_hand_and_with_any_number_of_actors(ray_cluster, tmp_path):
    """E = 0 is the global model on each client's share; E = 1 is one epoch of SGD from it; both recomputed here without
    the engine."""
    sections = {"rounds": 2, "evaluate": {"finetune_epochs": [0, 1], "local_test_size": 60}}
    runs = [flray.run(config(resources={"client_actors": n}, **sections), out=tmp_path / str(n)) for n in (1, 3)]
    assert runs[0].personal.to_dict() == runs[1].personal.to_dict()
    run = runs[0]
    assert len(run.personal) == 5 * 2
    replay = Replay(run.folder).goto(2)
    runtime, state = replay.runtime, to_torch(replay.state)
    train, test = runtime.dataset.train, runtime.dataset.test
    from flray.core.protocol import seeding

    for client in range(5):
        index = replay.scenario.partitions[0].client(client)
        share = local_test(train.y[index], test.y, 3, "proportional", seeding.rng(3, "local test", client), 60)
        module = runtime.objective.module
        module.load_state_dict(runtime.objective.state_dict(state.w, state.b), strict=False)
        for epochs in (0, 1):
            if epochs:
                order = seeding.rng(3, 0, 2, "personal", 0, client, "batches", 0).permutation(len(index))
                optimizer = torch.optim.SGD(module.parameters(), 0.05, 0.9)
                module.train()
                for rows in np.array_split(index[order], range(4, len(index), 4)):
                    optimizer.zero_grad()
                    x = torch.tensor(np.array(train.x[rows]))
                    torch.nn.functional.cross_entropy(
                        module(runtime.normalizer(x)), torch.tensor(train.y[rows])
                    ).backward()
                    optimizer.step()
            module.eval()
            with torch.no_grad():
                right = (
                    module(runtime.normalizer(torch.tensor(np.array(test.x[share])))).argmax(1).numpy() == test.y[share]
                )
            (row,) = run.personal.query("client == @client and finetune_epochs == @epochs").to_dict("records")
            assert (row["num_test"], row["num_examples"]) == (len(share), len(index))
            assert row["test/acc"] == pytest.approx(right.mean())
    end = run.tasks.iloc[-1]
    values = run.personal.query("finetune_epochs == 1")["test/acc"]
    assert end["personal/ft1/acc_mean"] == pytest.approx(values.mean()) and end[
        "personal/ft1/acc_std"
    ] == pytest.approx(values.std(ddof=0))


def test_a_client_without_test_samples_does_not_count():
    rows = [
        {"finetune_epochs": 1, "num_test": 4, "test/acc": 0.5},
        {"finetune_epochs": 1, "num_test": 0, "test/acc": None},
        {"finetune_epochs": 1, "num_test": 2, "test/acc": 1.0},
    ]
    found = {name.rpartition("/")[2]: value for name, value in personal_columns(rows).items()}
    assert found == pytest.approx({"acc_mean": 0.75, "acc_std": 0.25, "acc_p10": 0.55, "acc_worst": 0.5, "gini": 1 / 6})
    assert all(name.startswith("personal/ft1/") for name in personal_columns(rows))


# the validation split --------------------------------------------------------------------------
@pytest.mark.parametrize("of", ["clients", "server"])
def test_a_validation_split_takes_the_place_of_the_test_set(tmp_path, of):
    """No column of the test set, no held sample in a client, and the number is the saved model's own on the held
    samples."""
    run = flray.run(config(evaluate={"validation": {"of": of, "fraction": 0.25}}), out=tmp_path / "v")
    experiment, rounds = run.experiment, run.rounds
    assert not [name for name in rounds if name.startswith("test/")]
    partition = load_partition(tmp_path / "v" / "partition")
    assert not set(partition.held_out) & set(partition.indices)
    dataset = load_dataset(experiment.data)
    network = build_model(experiment.model, dataset.input_shape, dataset.num_classes, 0)
    network.load_state_dict(load_file(tmp_path / "v" / "model.safetensors"))
    x = torch.from_numpy(np.array(dataset.train.x[partition.held_out]))
    with torch.no_grad():
        right = (network.eval()(x).argmax(dim=1).numpy() == dataset.train.y[partition.held_out]).mean()
    assert rounds["val/acc"].iloc[-1] == pytest.approx(right)


@pytest.mark.parametrize(("of", "samples"), [("clients", 28), ("server", 30)])
def test_validation_samples_that_the_algorithm_reads_as_public_data_are_refused(tmp_path, of, samples):
    """All 120 training samples of iris are public: so are all validation samples."""
    asked = {"data": {"source": "iris"}, "evaluate": {"validation": {"of": of, "fraction": 0.25}}}
    public = {"source": "iris", "labelled": True}
    leaking = config("fedproj", proxy=public, **asked)
    for begin in (examine, functools.partial(flray.run, out=tmp_path / "v")):
        with pytest.raises(
            DataError, match=f"'iris' has {samples} of {samples} validation samples of 'iris', above 1%"
        ):
            begin(leaking)
    examine(config("fedproj", proxy={**public, "leak_check": False}, **asked))
    examine(config("fedproj", proxy={"source": "holdout", "size": 24}, **asked))
    examine(config("fedavg", proxy=public, **asked))  # it reads none
