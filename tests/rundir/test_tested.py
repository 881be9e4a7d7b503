"""The table `tests/`: what is written, what a resume keeps, what is missed, and what follows from the counts."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest

from flray.core.protocol.clock import Position
from flray.core.schema.errors import ConfigError
from flray.metrics.classification import Counts
from flray.results.learning import learning_curves
from flray.rundir import recorder, tested
from flray.rundir.parts import RowsMissingWarning
from flray.rundir.reader import Run
from flray.rundir.recorder import Recorder
from tests.support.messages import facts


def counts(right, total, losses=(), covered=0, tasks=None):
    return Counts(
        np.array(right), np.array(total), np.array(losses, float), covered, None if tasks is None else np.array(tasks)
    )


def when(done, phase="round"):
    return {"done": done, "task": 0, "round": done, "phase": phase}


def after(done):
    return Position(0, done, done, "round")


def write(folder, rounds, every=1):
    """A run of so many rounds, tested before the first one and after every `every`-th: done + 1 of 10 right."""
    record = Recorder(folder)
    for done in range(rounds + 1):
        due = done % every == 0
        if due:
            record.tested(
                tested.rows_of_test({("test", "global"): counts([done + 1, 0], [9, 1], [2.5], 10)}, when(done))
            )
        if done:
            record.round(
                {**when(done), "test/acc": (done + 1) / 10 if due else None, "client_steps": 1}, [{"client": 0}]
            )
    record.close()
    return record


def test_a_row_has_the_counts_and_the_numbers_that_follow_from_them(tmp_path):
    """Classes 3/4, 0/0, 1/4: accuracy 4/8, the mean over two classes (0.75 + 0.25) / 2, the worst 0.25; loss 3 / 6."""
    record = Recorder(tmp_path)
    tally = {
        ("test", "aware"): counts([3, 0, 1], [4, 0, 4], [1.0, 2.0], 6),
        ("test", "routed"): counts([0, 0, 4], [4, 0, 4], tasks=[6, 2]),
    }
    record.tested(tested.rows_of_test(tally, when(0)))
    record.close()
    table = Run(tmp_path).tests
    assert table["mode"].tolist() == ["aware", "routed"] and table["set"].tolist() == ["test"] * 2
    assert (table["done"].tolist(), table["round"].tolist(), table["phase"].tolist()) == ([0, 0], [0, 0], ["round"] * 2)
    assert [list(row) for row in table["class_right"]] == [[3, 0, 1], [0, 0, 4]]
    assert [list(row) for row in table["class_total"]] == [[4, 0, 4]] * 2
    assert table["predicted_tasks"][0] is None and table["predicted_tasks"][1].tolist() == [6, 2]
    assert table[["total", "right", "covered", "loss_sum"]].to_numpy().tolist() == [[8, 4, 6, 3.0], [8, 4, 0, 0.0]]
    assert table["acc"].tolist() == [0.5, 0.5] and table["acc_macro"].tolist() == [0.5, 0.5]
    assert table["acc_worst"].tolist() == [0.25, 0.0]
    assert table["loss"][0] == 0.5 and math.isnan(table["loss"][1])
    stored = pd.read_parquet(tmp_path / "tests")
    assert not {"acc", "loss"} & set(stored.columns), "what follows from the counts is not stored beside them"


@pytest.mark.parametrize("until", [0, 2, 3, 5])
def test_a_resume_keeps_what_came_before_and_writes_the_rest_again(tmp_path, monkeypatch, until):
    monkeypatch.setattr(recorder, "PART", 2)
    write(tmp_path, 5)
    again = Recorder(tmp_path)
    again.truncate(after(until))
    assert again.tests.stored_rounds == set(range(until + 1)), "the initial model's test is never done again"
    for done in range(until + 1, 6):
        again.tested(tested.rows_of_test({("test", "global"): counts([0], [10])}, when(done)))
    again.close()
    table = Run(tmp_path).tests
    assert table["done"].tolist() == [0, 1, 2, 3, 4, 5]
    assert table["right"].tolist() == [done + 1 if done <= until else 0 for done in range(6)]


def test_the_end_of_a_task_is_tested_after_its_last_round_and_told_apart_by_its_phase(tmp_path):
    """A resume from before the task's end, after as many rounds, does it again."""
    write(tmp_path, 3)
    for right in (5, 7):
        again = Recorder(tmp_path)
        again.truncate(after(3))
        again.tested(tested.rows_of_test({("test", "global"): counts([right], [10])}, when(3, "task_end")))
        again.close()
    table = Run(tmp_path).tests
    assert table[["done", "phase", "right"]].to_numpy().tolist()[-2:] == [[3, "round", 4], [3, "task_end", 7]]
    assert len(table) == 5


def test_rows_that_are_gone_are_told_of_by_recorder_and_reader(tmp_path, monkeypatch):
    """Two rounds a file, a test after every second round: the file of rounds 3 and 4 held that of round 4."""
    monkeypatch.setattr(recorder, "PART", 2)
    write(tmp_path, 8, every=2)
    assert Recorder(tmp_path).missing(after(8), ["tests"]) == {} and Run(tmp_path).missing("tests") == ""
    (tmp_path / "tests" / "part-0001.parquet").unlink()
    assert Recorder(tmp_path).missing(after(8), ["tests"]) == {"tests": "4"}
    with pytest.warns(RowsMissingWarning, match=facts("tests", "rounds 4")):
        assert Run(tmp_path).tests["done"].tolist() == [0, 2, 6, 8]


def test_a_folder_without_tests_has_an_empty_table(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not len(Run(tmp_path).tests) and Run(tmp_path).initial("test/acc") is None


def test_learning_curves_begin_at_the_initial_model(tmp_path):
    (tmp_path / "config.yaml").write_text("name: x\nseed: 1\nalgorithm: {name: fedavg}\n")
    write(tmp_path, 4, every=2)
    (curve,) = learning_curves([Run(tmp_path)], "test/acc").values()
    assert curve.rounds.tolist() == [0, 2, 4] and curve.mean.tolist() == [0.1, 0.3, 0.5]
    (steps,) = learning_curves([Run(tmp_path)], "test/acc", "steps").values()
    assert steps.x.tolist() == [0, 2, 4]
    (other,) = learning_curves([Run(tmp_path)], "client_steps").values()
    assert other.rounds.tolist() == [1, 2, 3, 4]
    with pytest.raises(ConfigError):
        learning_curves([Run(tmp_path)], "val/acc")
