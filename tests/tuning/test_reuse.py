"""Trials with equal parameters: one is trained, the others have its value, and the table says so."""

from pathlib import Path
from typing import Any

import pandas
import pytest
from optuna.trial import TrialState
from ray.tune.search import Searcher

import flray
from flray.core.schema.errors import FlrayError
from flray.tuning.report import render_trials
from flray.tuning.studies import MOST_REPEATED, MOST_WAITING
from flray.tuning.sweep import Budget, StudySearcher, best, check_some_value, run_sweep
from flray.tuning.trials import trials_table
from tests.support.iris_sweep import EXPERIMENT, ended, iris_sweep, studies_of
from tests.support.truth import assert_true

TWO = {"algorithm.perturb": ["head", "all"]}


def searcher_of(folder: Path, **changes: Any) -> StudySearcher:
    return StudySearcher(studies_of(folder, **changes), lambda *suggested: {"suggested": suggested}, lambda: False)


def one(searcher: StudySearcher, name: str) -> tuple[str, dict[str, Any]] | None:
    """(key, overrides) of the next trial to train; None: none begins any more."""
    found = searcher.suggest(name)
    if found == Searcher.FINISHED:
        return None
    key, overrides, folder = found["suggested"]
    folder.mkdir(parents=True)  # its run
    return key, overrides


def all_of(searcher: StudySearcher, value: dict[str, float]) -> list[str]:
    """Runs the sweep, one trial at a time; the keys of the trials that were trained."""
    trained = []
    while (suggested := one(searcher, f"t{len(trained)}")) is not None:
        key, overrides = suggested
        searcher.on_trial_complete(f"t{len(trained)}", ended(value[overrides["algorithm.perturb"]]))
        trained.append(key)
    return trained


def test_seven_trials_of_two_configurations_train_two(tmp_path: Path) -> None:
    """Each row has the value, rounds, steps and folder of the trial that was trained with its parameters."""
    value = {"head": 0.25, "all": 0.75}
    searcher = searcher_of(tmp_path / "s", space=TWO, trials=7)
    sweep = searcher.studies.sweep
    trained = all_of(searcher, value)
    table = trials_table(tmp_path / "s")
    assert len(trained) == 2 and len(table) == 7 and searcher.studies.reused() == 5
    assert set(table["state"]) == {"finished"}
    source = {row["algorithm.perturb"]: row for row in table.to_dict("records") if pandas.isna(row["reused"])}
    assert sorted(f"{row['trial']:04d}" for row in source.values()) == sorted(trained)
    for row in table.to_dict("records"):
        one_row = source[row["algorithm.perturb"]]
        assert row["val/acc"] == value[row["algorithm.perturb"]]
        assert [row[name] for name in ("round", "seeds", "client_steps", "folder")] == [6, 1, 72, one_row["folder"]]
        assert pandas.isna(row["reused"]) or row["reused"] == one_row["trial"] < row["trial"]
    budget = Budget(sweep, searcher.studies)
    assert budget.steps(None) == 2 * 72, "what was not trained has cost nothing"
    assert "of 7 trials, 5 of them reused: 7 finished" in str(render_trials(table, {"val/acc": "max"}).title)
    every = sweep.model_copy(update={"final": sweep.final.model_copy(update={"top": 7})})
    assert [trial.params["algorithm.perturb"] for _, trial in best(every, searcher.studies)] == ["all", "head"]


def test_what_is_suggested_does_not_depend_on_reuse(tmp_path: Path) -> None:
    """The sampler learns from the same values, so the trials are those of a sweep that trains every one."""
    value = {"head": 0.25, "all": 0.75}
    searcher = searcher_of(tmp_path / "s", space=TWO, trials=9)
    all_of(searcher, value)
    every = studies_of(tmp_path / "every", space=TWO, trials=9)
    while (suggested := every.next()) is not None:
        every.tell(suggested[0], ended(value[suggested[1]["algorithm.perturb"]]))
    assert [t.params for t in searcher.studies.groups[None].trials] == [t.params for t in every.groups[None].trials]


@pytest.mark.parametrize(
    "end",
    [
        {"round": 4, "status": "running"},  # stopped early
        {"status": "failed: client 3: boom"},
        {"diverged": True, "status": "diverged in round 6: loss"},
    ],
)
def test_a_trial_without_a_final_value_is_trained_again(tmp_path: Path, end: dict[str, Any]) -> None:
    searcher = searcher_of(tmp_path / "s", space={"algorithm.perturb": ["head"]}, trials=4)
    for name in ("a", "b"):
        assert one(searcher, name) is not None
        searcher.on_trial_complete(name, {**ended(0.5), **end})
    assert one(searcher, "c")[0] == "0002"
    searcher.on_trial_complete("c", ended(0.5))
    assert one(searcher, "d") is None
    assert [trial.user_attrs.get("reused") for trial in searcher.studies.groups[None].trials] == [None, None, None, 2]


def test_an_equal_trial_waits_for_the_one_that_runs(tmp_path: Path) -> None:
    """Ray Tune asks again. When that one completes the others have its value; when it fails one is trained."""
    searcher = searcher_of(tmp_path / "s", space={"algorithm.perturb": ["head"]}, trials=4, concurrency=4)
    assert one(searcher, "a")[0] == "0000"
    assert searcher.suggest("b") is None and searcher.suggest("b") is None
    searcher.on_trial_complete("a", {**ended(0.5), "status": "failed: boom"})
    assert one(searcher, "b")[0] == "0001"
    assert searcher.suggest("c") is None
    searcher.on_trial_complete("b", ended(0.5))
    assert searcher.suggest("c") == Searcher.FINISHED
    states = [(t.state, t.user_attrs.get("reused")) for t in searcher.studies.groups[None].trials]
    assert states == [(TrialState.FAIL, None), (TrialState.COMPLETE, None), *[(TrialState.COMPLETE, 1)] * 2]


def test_no_more_than_some_wait(tmp_path: Path) -> None:
    searcher = searcher_of(tmp_path / "s", space={"algorithm.perturb": ["head"]}, trials=90, concurrency=4)
    one(searcher, "a")
    for _ in range(3):
        assert searcher.suggest("b") is None
    assert len(searcher.studies.groups[None].trials) == 1 + MOST_WAITING


def test_trials_that_waited_when_the_driver_was_killed_have_the_value_after_a_resume(tmp_path: Path) -> None:
    waiting = {"space": {"algorithm.perturb": ["head"]}, "trials": 4, "concurrency": 4}
    first = searcher_of(tmp_path / "s", **waiting)
    one(first, "a")
    assert first.suggest("b") is None
    again = searcher_of(tmp_path / "s", **waiting)
    key, *_ = again.suggest("a")["suggested"]
    assert key == "0000" and again.suggest("b") is None
    again.on_trial_complete("a", ended(0.5))
    assert again.suggest("b") == Searcher.FINISHED
    table = trials_table(tmp_path / "s")
    assert table["val/acc"].tolist() == [0.5] * 4 and table["reused"].dropna().tolist() == [0] * 3


def test_a_waiting_trial_whose_algorithms_budget_is_spent_does_not_keep_the_sweep_waiting(tmp_path: Path) -> None:
    searcher = searcher_of(tmp_path / "s", space={"algorithm.perturb": ["head"]}, trials=4, concurrency=4)
    spent = set()
    searcher._spent = lambda: spent
    one(searcher, "a")
    assert searcher.suggest("b") is None
    spent.add(None)
    searcher.on_trial_complete("a", {**ended(0.5), "status": "failed: boom"})
    assert searcher.suggest("b") == Searcher.FINISHED


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (TWO, 2),
        ({"algorithm.local_epochs": {"linear": [1, 3]}, "algorithm.perturb": ["head", "all"]}, 6),
        (
            {"algorithm": {"choice": ["fedavg", "fedsol"]}, "fedsol.rho": [0.5, 1.0, 2.0], "fedsol.perturb": ["all"]},
            None,
        ),
        ({"algorithm.lr": {"log": [0.01, 0.1]}}, None),
    ],
)
def test_the_number_of_configurations(space: dict[str, Any], size: int | None) -> None:
    """Of a choice of algorithms, FedSOL has its other declared ranges."""
    assert iris_sweep(space=space).search_space.size() == size


@pytest.mark.parametrize("budget", [{"hours": 5}, {"client_steps": 10**9}, {}])
def test_a_space_that_is_exhausted_ends_the_sweep(tmp_path: Path, budget: dict[str, Any]) -> None:
    """A hundred million trials of two configurations. With a budget of time or steps the sweep ends when both are
    tried, with trials alone when a hundred were repeated."""
    searcher = searcher_of(tmp_path / "s", space=TWO, trials=10**8, sampler="random", **budget)
    assert len(all_of(searcher, {"head": 0.25, "all": 0.75})) == 2
    assert searcher.studies.exhausted() == "space: all 2 configurations have been tried"
    repeated = searcher.studies.reused()
    assert repeated == MOST_REPEATED if not budget else repeated < 20  # those before the second was drawn


def test_a_refused_trial_is_no_configuration_of_the_space(tmp_path: Path) -> None:
    """Somebody has enqueued it in Optuna."""
    searcher = searcher_of(tmp_path / "s", space=TWO, trials=50, sampler="random", hours=5)
    searcher.studies.groups[None].enqueue_trial({"algorithm.perturb": "tail"})
    assert len(all_of(searcher, {"head": 0.25, "all": 0.75})) == 2


def test_values_of_another_type_are_other_parameters(tmp_path: Path) -> None:
    searcher = searcher_of(tmp_path / "s", space={"algorithm.rho": [1, 2.0]}, trials=6, sampler="random")
    for number in range(2):
        assert one(searcher, str(number)) is not None
        searcher.on_trial_complete(str(number), ended(0.5))
    assert one(searcher, "c") is None and len(set(trials_table(tmp_path / "s")["algorithm.rho"])) == 2


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ([{"val/acc": None}] * 2, "all 2 trials failed, the last with: its last round has no finite val/acc"),
        (
            [{"val/acc": None}, {"diverged": True, "status": "diverged in round 6: loss"}],
            "all 2 trials failed or diverged, the last with: diverged in round 6: loss",
        ),
    ],
)
def test_a_sweep_without_any_value_is_one_line(tmp_path: Path, ends: list[dict[str, Any]], words: str) -> None:
    """An objective that is NaN in every trial, whose runs finished."""
    searcher = searcher_of(tmp_path / "s", trials=2)
    for number, end in enumerate(ends):
        one(searcher, str(number))
        result = {**ended(0.5), **end}
        searcher.on_trial_complete(str(number), {name: told for name, told in result.items() if told is not None})
    with pytest.raises(FlrayError, match=f"^{words}$"):
        check_some_value(searcher.studies)


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, "auto"])
def test_a_sweep_says_how_many_trials_it_reused(
    ray_cluster: Any, tmp_path: Path, concurrency: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every value is what the rounds of the row's run say, and the final runs have different configurations."""
    local = {**EXPERIMENT, "resources": {"executor": "local", "server": {"threads": 1}}}
    sweep = iris_sweep(space=TWO, trials=7, experiment=local, concurrency=concurrency, final={"top": 2, "seeds": 1})
    run_sweep(sweep, tmp_path / "s")
    assert "tiny: 7 trials, 5 of them reused" in capfd.readouterr().err
    assert (tmp_path / "s" / "STATUS").read_text() == "finished\n"
    assert len(list((tmp_path / "s" / "trials").iterdir())) == 2
    table = trials_table(tmp_path / "s")
    assert table["reused"].notna().sum() == 5
    for row in table.to_dict("records"):
        run = flray.load(tmp_path / "s" / row["folder"])
        assert run.rounds["val/acc"].iloc[-1] == row["val/acc"]
        assert run.experiment.algorithm.perturb == row["algorithm.perturb"]
    assert assert_true(tmp_path / "s") > 0
    finals = [flray.load(path) for path in (tmp_path / "s" / "final").glob("[!.]*")]
    assert {run.experiment.algorithm.perturb for run in finals} == {"head", "all"}
