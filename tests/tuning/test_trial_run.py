"""A trial by itself: taken up by another process at any round, and made to go on from another trial's round."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from flray import Run
from flray.core.schema.errors import CheckpointError
from flray.metrics.classification import Counts
from flray.rundir import tested
from flray.rundir.lock import FolderLock
from flray.rundir.recorder import Recorder
from flray.tuning import trial_run
from flray.tuning.studies import Studies
from flray.tuning.trainable import Job, Trial
from flray.tuning.trial_run import TrialRun
from tests.support.iris_sweep import iris_sweep
from tests.support.sweep_folders import record
from tests.support.truth import read_rounds, value_at

STEPS = 4 * 3  # local steps of a round: 4 clients, 3 batches


def begin(job: Job) -> Trial:
    """A process of the trial, without Ray Tune."""
    trial: Trial = object.__new__(Trial)
    trial.setup(job.config())
    return trial


def played(job: Job, steps: int) -> list[dict[str, Any]]:
    """The reports of a process that takes the trial up, plays so many steps, and is gone; but for the seconds, and for
    what it repeats of an earlier process."""
    trial = begin(job)
    reports = [{**trial.step(), "seconds": 0, "before": []} for _ in range(steps)]
    trial.cleanup()
    return reports


def job(folder: Path, rungs: list[tuple[int, int]], objective: str = "val/acc", **overrides: Any) -> Job:
    own = {} if "algorithm" in overrides else {"algorithm.rho": 1.0}
    experiment = iris_sweep().experiment({**own, "checkpoint.every": 1, **overrides})
    return Job.of("0000", folder, experiment, (objective,), rungs)


@pytest.mark.slow
def test_taken_up_at_a_round_that_was_not_tested_it_goes_on_to_the_next_test(ray_cluster: Any, tmp_path: Path) -> None:
    """The process dies in round 3 of a trial that is tested every second round."""
    whole, cut = (job(tmp_path / name, [(6, 1)], **{"evaluate.every": 2}) for name in ("whole", "cut"))
    reports = played(whole, 3)
    assert [report["round"] for report in reports] == [2, 4, 6]
    dies = begin(cut)
    dies.step()
    dies._run(0).advance()
    dies.cleanup()
    assert played(cut, 2) == reports[1:]


def test_a_trials_time_goes_on_over_its_tasks(tmp_path: Path) -> None:
    """Two tasks of two rounds, on the local executor: four reports, the third and fourth by another process."""
    own = {"tasks": {"num_tasks": 2, "class_order": "natural"}, "rounds": 2, "resources.executor": "local"}
    whole, cut = (job(tmp_path / name, [(3, 1), (4, 1)], **own) for name in ("whole", "cut"))
    reports = played(whole, 4)
    assert [(report["round"], report["rounds"], report["done"]) for report in reports] == [
        (1, 4, False), (2, 4, False), (3, 4, False), (4, 4, True),
    ]  # fmt: skip
    played(cut, 3)
    assert played(cut, 2) == reports[2:]


def test_the_bytes_of_a_trial_are_those_of_its_tasks_too(tmp_path: Path) -> None:
    """FOT sends some at the end of a task; another process that finds the trial ended says the same."""
    own = {"tasks": {"num_tasks": 2, "class_order": "natural"}, "rounds": 2, "resources.executor": "local"}
    asked = job(tmp_path / "t", [(4, 1)], "comm/bytes", **own, algorithm="fot")
    reported, again = played(asked, 4)[-1], played(asked, 1)[-1]
    tables = [pandas.read_parquet(tmp_path / "t" / name) for name in ("rounds", "tasks")]
    of_rounds, of_tasks = (int(table[["comm/up_bytes", "comm/down_bytes"]].to_numpy().sum()) for table in tables)
    assert of_tasks > 0 and reported["comm/bytes"] == again["comm/bytes"] == of_rounds + of_tasks


def test_the_mean_of_the_last_ten_tests_is_that_of_the_rounds_whoever_plays_them(tmp_path: Path) -> None:
    """The process dies after round 11 of 13."""
    name, own = "val/acc_mean10", {"rounds": 13, "resources.executor": "local"}
    asked = job(tmp_path / "t", [(13, 1)], name, **own)
    # the eleventh once more
    reported, again = ([report[name] for report in played(asked, steps)] for steps in (11, 3))
    values = Run(tmp_path / "t").rounds["val/acc"].to_numpy()
    expected = [values[max(0, done - 10) : done].mean() for done in range(1, 14)]
    assert len(set(values)) > 1 and reported + again[1:] == pytest.approx(expected)
    assert again[0] == reported[-1]


def rows_of(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """What each row of the tables of a run is of."""
    columns = ["done", "phase", "client", "set", "mode", "epochs"]
    tables = {name: pandas.read_parquet(folder / name) for name in ("rounds", "clients", "tests", "tasks", "personal")}
    return {name: sorted(map(tuple, t.reindex(columns=columns).astype(str).values)) for name, t in tables.items()}


@pytest.mark.parametrize(("own", "ends"), [(3, False), (2, False), (2, True)])
def test_a_run_that_goes_on_from_another_has_the_rows_of_each_tasks_end_once(
    tmp_path: Path, own: int, ends: bool
) -> None:
    """A task has two rounds. The copy is of round 3, or of task 0's end by a process that was killed in round 3."""
    asked = {"tasks": {"num_tasks": 2, "class_order": "natural"}, "rounds": 2, "resources.executor": "local"}
    asked |= {"evaluate": {"finetune_epochs": [0, 1]}, "algorithm": "fot"}
    whole, other, run = (begin(job(tmp_path / name, [(4, 1)], **asked))._run(0) for name in ("whole", "other", "own"))
    whole.until(4)
    other.until(3)
    run.until(own)
    if ends:
        shutil.rmtree(tmp_path / "other" / "checkpoints" / "round-000003")
    other.copy_to(tmp_path / "copy")
    run.go_on_from(tmp_path / "copy")
    run.recall(run.saved)
    while not run.ended:
        run.advance()
    assert rows_of(tmp_path / "own") == rows_of(tmp_path / "whole")
    assert run.value("comm/bytes") == whole.value("comm/bytes")


@pytest.mark.parametrize("rounds", [6, 3])
def test_what_another_command_does_while_the_trial_waits_is_not_done_again(tmp_path: Path, rounds: int) -> None:
    """Two commands run one grid: the other one holds the folder, and finishes the run or pauses it after 3 rounds."""
    reports = played(job(tmp_path / "alone", [(6, 1)], **{"resources.executor": "local"}), 6)
    asked = job(tmp_path / "t", [(6, 1)], **{"resources.executor": "local"})
    other, real = begin(asked), trial_run.holder

    def held(folder: Path) -> Any:
        monkeypatch.undo()
        for _ in range(rounds):
            other.step()
        assert real(folder) is not None or rounds == 6
        other.cleanup()
        return "the other one"

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(trial_run, "holder", held)
        trial = begin(asked)
        found = [trial.step()]
    while not found[-1]["done"]:
        found.append(trial.step())
    trial.cleanup()
    assert [{**report, "seconds": 0, "before": []} for report in found] == reports[rounds - 1 :]


@pytest.mark.slow
def test_taken_up_behind_a_rung_of_two_seeds_it_is_not_judged_there_again(ray_cluster: Any, tmp_path: Path) -> None:
    """The rung at round 2 was over two seeds, the process dies in round 4: that round is one seed's, and its steps are
    those of both."""
    asked = job(tmp_path / "t", [(2, 2), (6, 2)])
    assert [report["seeds"] for report in played(asked, 4)] == [1, 2, 1, 1]
    report, *later = played(asked, 3)
    assert (report["round"], report["seeds"], report["spent"]) == (4, 1, (4 + 2) * STEPS)
    assert report["val/acc"] == Run(tmp_path / "t").rounds["val/acc"].iloc[3]
    assert [report["spent"] for report in later] == [(5 + 2) * STEPS, (6 + 6) * STEPS]


def test_the_study_has_the_values_of_the_rounds_that_a_trial_took_from_another(tmp_path: Path) -> None:
    """A trial is set back from round 5 to another's round 2, and from round 3 on to that one's round 5."""
    name, own = "val/acc_mean10", {"resources.executor": "local"}
    studies = Studies(iris_sweep(objective=name), tmp_path)
    key, *_ = studies.next()
    trial, other = (begin(job(tmp_path / n, [(6, 1)], name, **own, seed=seed)) for n, seed in (("t", 1), ("o", 9)))
    for steps, others in ((5, 2), (1, 3), (1, 0)):
        for _ in range(steps):
            studies.report(key, trial.step())
        if others:
            for _ in range(others):
                other.step()
            other.save_checkpoint(str(tmp_path / f"copy{others}"))
            trial.load_checkpoint(str(tmp_path / f"copy{others}"))
    trial.cleanup()
    other.cleanup()
    report = begin(job(tmp_path / "t", [(6, 1)], name, **own, seed=1)).step()
    assert report["before"] == [[round, value_at(read_rounds(tmp_path / "t"), name, round)] for round in range(1, 6)]
    said = studies.trial(key).storage.get_trial(0).intermediate_values
    rows = read_rounds(tmp_path / "t")
    assert rows.loc[5, "val/acc"] == read_rounds(tmp_path / "o").loc[5, "val/acc"]
    assert said == {round: value_at(rows, name, round) for round in range(1, 7)}


# without Ray -------------------------------------------------------------------------------------
def saved(folder: Path, values: list[float], done: int) -> TrialRun:
    """A run with these values in its rounds, and something that is named like its checkpoint."""
    record(folder, {"val/acc": values})
    recorder = Recorder(folder)
    for done, value in enumerate([0.0, *values]):  # the initial model's first
        counts = Counts(np.array([round(10 * value)]), np.array([10]), np.zeros(0), 0)
        recorder.tested(
            tested.rows_of_test({("val", "global"): counts}, {"done": done, "task": 0, "round": done, "phase": "round"})
        )
    for done, value in enumerate(values, 1):
        recorder.diagnosed([("divergence", {"done": done, "distance": value})])
    recorder.close()
    (folder / "checkpoints" / f"round-{done:06d}").mkdir(parents=True)
    return TrialRun(iris_sweep().experiment({"algorithm.rho": 1.0}), folder, ["val/acc"])


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([0.1, 0.2], [0.1, 0.2, 0.7, 0.8]),  # it had fallen behind: the rounds between come with the other's state
        ([0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.3, 0.4]),  # it was ahead: its last round is done again
    ],
)
def test_a_run_that_goes_on_from_another_has_every_round_once(
    tmp_path: Path, own: list[float], expected: list[float]
) -> None:
    other = saved(tmp_path / "other", [0.5, 0.6, 0.7, 0.8], 4)
    run = saved(tmp_path / "own", own, len(own))
    other.copy_to(tmp_path / "copy")
    run.go_on_from(tmp_path / "copy")
    rounds, tests = Run(run.folder).rounds, Run(run.folder).tests
    assert (rounds["round"].tolist(), rounds["val/acc"].tolist(), run.saved) == ([1, 2, 3, 4], expected, 4)
    assert tests["done"].tolist() == [0, 1, 2, 3, 4] and tests["acc"].tolist() == [0.0, *expected]
    assert Run(run.folder).diagnostics["divergence"]["distance"].tolist() == expected


def test_a_run_goes_on_from_another_when_its_earlier_process_has_released_it(tmp_path: Path) -> None:
    """That process writes round 3 as it ends; the copy has another value there."""
    run = saved(tmp_path / "own", [0.1, 0.2], 2)
    saved(tmp_path / "other", [0.5, 0.6, 0.7, 0.8], 4).copy_to(tmp_path / "copy")

    def held(folder: Path) -> Any:
        monkeypatch.undo()
        shutil.rmtree(folder)
        saved(folder, [0.1, 0.2, 0.3], 3)
        return "the earlier one"

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(trial_run, "holder", held)
        run.go_on_from(tmp_path / "copy")
    assert Run(run.folder).rounds["val/acc"].tolist() == [0.1, 0.2, 0.3, 0.8]


def test_a_run_that_an_earlier_process_does_not_release_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That process may still write rows that it has reported."""
    run = saved(tmp_path / "own", [0.1, 0.2], 2)
    saved(tmp_path / "other", [0.5, 0.6, 0.7, 0.8], 4).copy_to(tmp_path / "copy")
    monkeypatch.setattr(trial_run, "ORPHAN_S", 0.0)
    earlier = FolderLock.acquire(run.folder)
    with pytest.raises(CheckpointError, match="is in use"):
        run.go_on_from(tmp_path / "copy")
    earlier.release()
    assert (Run(run.folder).rounds["val/acc"].tolist(), run.saved) == ([0.1, 0.2], 2)


def test_rounds_that_are_missing_are_told_of(tmp_path: Path) -> None:
    run = saved(tmp_path / "t", [0.1, 0.2], 3)
    with pytest.raises(CheckpointError, match=r"t/rounds has 2 of 3 rounds; remove .* to train it again"):
        run.recall(3)
