"""Optuna studies that are asked and told: addressed suggestions, interruptions at any moment, what a trial's end is in
the storage."""

import itertools
import logging
import sqlite3
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna.trial import TrialState
from ray.tune.search import Searcher

from flray.core.protocol.seeding import turn
from flray.core.schema.errors import CheckpointError, FlrayError
from flray.tuning.studies import JOURNAL, NEVER, Studies, open_storage
from flray.tuning.sweep import StudySearcher
from flray.tuning.trials import trials_table
from tests.support.iris_sweep import ended, iris_sweep, studies_of

# sampler -> trials that it draws at random before it learns from the others; None: it never learns
STARTUP = {"tpe": 10, "gp": 10, "nsga2": 50, "nsga3": 50, "random": None, "qmc": None}


def value(overrides: dict[str, Any]) -> float:
    """Stands for training."""
    return (
        1
        - abs(overrides["algorithm.rho"] - 1.2) / 5
        - abs(overrides["algorithm.lr"] - 0.1)
        - (overrides["algorithm.perturb"] == "all") / 3
    )


def work(studies: Studies, trials: int, sign: int = 1) -> list[dict[str, Any]]:
    """Run `trials` trials one after another; what was suggested."""
    found = []
    for _ in range(trials):
        key, overrides, _ = studies.next()
        studies.report(key, {"round": 2, "val/acc": sign * value(overrides) / 2})
        studies.tell(key, ended(sign * value(overrides)))
        found.append(overrides)
    return found


def test_the_loggers_of_libraries_stay_the_users(tmp_path: Path) -> None:
    """Optuna says at its own level INFO that there is a new study. A process that imports flray changes no level."""
    said, logger = list[logging.LogRecord](), logging.getLogger("optuna")
    handler, before = logging.Handler(), logger.level
    handler.emit = said.append  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        logger.setLevel(logging.INFO)
        studies_of(tmp_path)
        assert said == [] and logger.level == logging.INFO
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    code = (
        "import logging, optuna, ray.tune; of = logging.root.manager.loggerDict; "
        "levels = lambda: {name: getattr(each, 'level', 0) for name, each in of.items() if 'flray' not in name}; "
        "before = levels(); import flray.tuning.sweep; after = levels(); "
        "print({name for name in before if after[name] != before[name]})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'ray.widgets.util'}\n"  # on the page of the environment


# suggestions -------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("block", [torch.no_grad, torch.inference_mode, lambda: np.errstate(all="raise")])
def test_the_block_around_a_sweep_changes_no_suggestion(tmp_path: Path, block: Any) -> None:
    """The sampler "gp" fits its model by gradients; underflow is no error there."""
    plain = work(studies_of(tmp_path / "plain", sampler="gp", trials=13), 13)
    with block():
        assert work(studies_of(tmp_path / "in", sampler="gp", trials=13), 13) == plain


@pytest.mark.parametrize("study", [None, "sqlite:///{}/study.db"], ids=["journal", "sqlite"])
def test_a_run_of_another_thread_does_not_wait_for_the_storage(tmp_path: Path, study: str | None) -> None:
    studies = studies_of(tmp_path, sampler="tpe", study=study and study.format(tmp_path))
    database = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
    held, lock = threading.Event(), tmp_path / f"{JOURNAL}.lock"
    if study:
        database.execute("BEGIN IMMEDIATE")
    else:
        lock.symlink_to(tmp_path / JOURNAL)
    asking = threading.Thread(target=studies.next)
    try:
        asking.start()
        asking.join(0.5)
        other = threading.Thread(target=with_own_turn, args=(held.set,), daemon=True)
        other.start()
        assert held.wait(5) and asking.is_alive()
    finally:
        database.close()
        lock.unlink(missing_ok=True)
        asking.join()


def with_own_turn(work: Any) -> None:
    """What a run of another thread does before it computes."""
    with turn():
        work()


def test_an_error_of_the_sampler_does_not_blame_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("no model fits")

    studies = studies_of(tmp_path, sampler="tpe")
    monkeypatch.setattr("optuna.samplers._random._SearchSpaceTransform", fail)
    with pytest.raises(FlrayError, match=r"^sampler: it failed \(ValueError: no model fits\)") as error:
        studies.next()
    assert not isinstance(error.value, CheckpointError)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", STARTUP)
def test_suggestions_are_those_of_an_uninterrupted_sweep(tmp_path: Path, sampler: str) -> None:
    """Killed while the third trial runs, and again among those from which the sampler learns: the same suggestions."""
    startup = STARTUP[sampler]
    count = (startup or 4) + 3
    whole = work(studies_of(tmp_path / "whole", sampler=sampler, trials=count), count)
    folder = tmp_path / "killed"
    first = studies_of(folder, sampler=sampler, trials=count)
    sweep = first.sweep
    found = work(first, 2)
    begun = first.next()
    again = Studies(sweep, folder)
    assert again.next() == begun and begun[0] == "0002" and begun[2] == folder / "trials/0002"
    again.report("0002", {"round": 2, "val/acc": value(begun[1]) / 2})
    again.tell("0002", ended(value(begun[1])))
    found += [begun[1], *work(again, count - 5)]
    found += work(Studies(sweep, folder), 2)
    assert found == whole
    assert Studies(sweep, folder).next() is None
    if startup is not None:  # the trials behind the random ones read the values: the other way round they differ
        other = work(studies_of(tmp_path / "other", sampler=sampler, trials=count), count, sign=-1)
        assert other[:startup] == whole[:startup] and other[startup:] != whole[startup:]


@pytest.mark.parametrize("sampler", STARTUP)
def test_another_seed_suggests_other_trials(tmp_path: Path, sampler: str) -> None:
    found = [work(studies_of(tmp_path / str(seed), sampler=sampler, trials=4, seed=seed), 4) for seed in (0, 1)]
    assert all(one["algorithm.rho"] != other["algorithm.rho"] for one, other in zip(*found, strict=True))


def test_quasi_random_numbers_fill_the_space(tmp_path: Path) -> None:
    """The first trial is random; of the next eight of a Sobol sequence, two lie in each quarter of the (log) range."""
    rates = [drawn["algorithm.lr"] for drawn in work(studies_of(tmp_path / "s", sampler="qmc", trials=9), 9)[1:]]
    edges = [0.001 * (0.5 / 0.001) ** (quarter / 4) for quarter in range(5)]
    assert [sum(low <= rate < high for rate in rates) for low, high in itertools.pairwise(edges)] == [2, 2, 2, 2]


@pytest.mark.parametrize("sampler", ["qmc", "gp"])
def test_what_only_some_algorithms_have_is_drawn_anew_in_each_trial(
    tmp_path: Path, sampler: str, caplog: pytest.LogCaptureFixture
) -> None:
    space = {"algorithm": {"choice": ["fedprox", "fedsol"]}}
    studies, rhos, mus = studies_of(tmp_path / "s", space=space, sampler=sampler, trials=13), [], []
    optuna.logging.enable_propagation()
    for _ in range(13):
        key, overrides, _ = studies.next()
        (rhos if overrides["algorithm"] == "fedsol" else mus).append(
            overrides.get("algorithm.rho", overrides.get("algorithm.mu"))
        )
        studies.tell(key, ended(0.5))
    assert len(rhos) > 2 and len(set(rhos)) == len(rhos) and len(mus) > 2 and len(set(mus)) > 1
    optuna.logging.disable_propagation()
    assert not caplog.records


def test_a_database_suggests_what_a_journal_does(tmp_path: Path) -> None:
    stored, folder = {"trials": 13, "study": f"sqlite:///{tmp_path}/studies.db"}, tmp_path / "b"
    whole = work(studies_of(tmp_path / "a", trials=13), 13)
    assert work(studies_of(folder, new=True, **stored), 11) + work(studies_of(folder, **stored), 2) == whole
    assert not (folder / JOURNAL).exists()
    assert trials_table(folder)["val/acc"].tolist() == trials_table(tmp_path / "a")["val/acc"].tolist()
    study = optuna.load_study(study_name="tiny", storage=stored["study"])  # as optuna-dashboard would
    assert study.best_value == max(map(value, whole))


def test_what_somebody_enqueues_in_optuna_is_trained_within_the_budget(tmp_path: Path) -> None:
    """It is the next trial; the others are those of the sweep without it, but for its own."""
    whole = work(studies_of(tmp_path / "whole", trials=4), 4)
    folder = tmp_path / "enqueued"
    found = work(studies_of(folder, trials=2), 2)
    (study,) = studies_of(folder, trials=2).groups.values()
    study.enqueue_trial({"algorithm.rho": 1.5})
    assert studies_of(folder, trials=2).next() is None
    found += work(studies_of(folder, trials=4), 2)
    assert found[2]["algorithm.rho"] == 1.5 and [*found[:2], found[3]] == [*whole[:2], whole[3]]


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"algorithm.lr": 5.0}, "it was enqueued with algorithm.lr=5.0; the space has log 0.001 to 0.5"),
        ({"algorithm.perturb": "tail"}, "it was enqueued with algorithm.perturb='tail'; the space has 'head', 'all'"),
        ({"lr": 0.1}, "unknown parameter 'lr' in a trial that was enqueued (valid: algorithm.lr, "),
        ({"algorithm": "fedprox"}, "it was enqueued with algorithm='fedprox'; the space has 'fedsol'"),
    ],
)
def test_what_is_enqueued_outside_of_the_space_fails_alone(
    tmp_path: Path, params: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    studies = studies_of(tmp_path / "s", trials=3)
    (study,) = studies.groups.values()
    study.enqueue_trial(params)
    study.enqueue_trial({"algorithm.lr": 0.25})
    key, overrides, _ = studies.next()
    assert (key, overrides["algorithm.lr"]) == ("0001", 0.25)
    studies.tell(key, ended(0.5))
    work(studies, 1)
    assert studies.next() is None, "all three count"
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]
    assert study.trials[0].user_attrs["status"].startswith(f"failed: {says}")
    assert f"tiny  trial 0000  failed: {says}" in caplog.text
    assert trials_table(tmp_path / "s")["state"].tolist() == ["failed", "finished", "finished"]


BOTH = {"algorithm": ["fedsol", "fedprox"], "fedsol.rho": {"log": [0.5, 2.0]}, "algorithm.momentum": 0.5}


@pytest.mark.parametrize(
    ("changes", "params"),
    [
        ({"space": {"algorithm.rho": [0.5, 1.0], "algorithm.momentum": 0.5}}, {"algorithm.momentum": 0.5}),
        ({"space": {"algorithm.rho": [0.5, 1.0]}}, {"algorithm": "fedsol"}),
        ({"space": {"algorithm.rho": [0.5, 1.0], "algorithm": "fedsol"}}, {"algorithm": "fedsol"}),
        ({"space": BOTH, "budget_per": "algorithm"}, {"algorithm": "fedsol", "fedsol.momentum": 0.5}),
        ({"space": BOTH}, {"algorithm": "fedsol", "fedprox.momentum": 0.5}),
    ],
)
def test_what_is_enqueued_may_name_what_every_trial_has(
    tmp_path: Path, changes: dict[str, Any], params: dict[str, Any]
) -> None:
    studies = studies_of(tmp_path / "s", trials=1, **changes)
    rho = "fedsol.rho" if changes["space"] is BOTH else "algorithm.rho"
    studies.groups["fedsol" if "budget_per" in changes else None].enqueue_trial({**params, rho: 1.0})
    assert studies.next()[1]["algorithm.rho"] == 1.0


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"algorithm": "fedprox"}, "it was enqueued with algorithm='fedprox'; the space has 'fedsol'"),
        ({"fedprox.mu": 0.1}, "unknown parameter 'fedprox.mu' in a trial that was enqueued (did you mean 'fedsol"),
        ({"fedsol.momentum": 0.9}, "it was enqueued with fedsol.momentum=0.9; the space has 0.5"),
    ],
)
def test_what_is_enqueued_in_the_study_of_another_algorithm_fails(
    tmp_path: Path, params: dict[str, Any], says: str
) -> None:
    studies = studies_of(tmp_path / "s", trials=1, space=BOTH, budget_per="algorithm")
    studies.groups["fedsol"].enqueue_trial(params)
    assert studies.next()[0] == "fedprox/0000"
    assert studies.next() is None
    assert studies.groups["fedsol"].trials[0].user_attrs["status"].startswith(f"failed: {says}")


def test_any_number_may_be_refused(tmp_path: Path) -> None:
    """More than Python has calls inside each other (1,000)."""
    studies = studies_of(tmp_path / "s", trials=2000)
    refused = iter([None] * 1500)
    studies._ask = lambda group: next(refused, "a trial")  # type: ignore[method-assign]
    studies._give = lambda group, trial: trial  # type: ignore[method-assign]
    assert studies.next() == "a trial"


# interruptions -----------------------------------------------------------------------------------
@pytest.mark.parametrize("killed", ["asked", "half suggested", "told half"])
def test_a_trial_that_was_never_given_out_does_not_count(tmp_path: Path, killed: str) -> None:
    """The driver was killed between asking for the third trial and writing down where it runs."""
    whole = work(studies_of(tmp_path / "whole", trials=4), 4)
    folder = tmp_path / "torn"
    studies = studies_of(folder, trials=4)
    found = work(studies, 2)
    torn = studies.groups[None].ask()
    if killed != "asked":
        torn.suggest_float("algorithm.lr", 0.001, 0.5, log=True)
    if killed == "told half":
        torn.set_user_attr("status", NEVER)
    studies = studies_of(folder, trials=4)
    found += work(studies, 2)
    assert found == whole
    assert studies.next() is None and len(studies.ended()) == 4
    frozen = studies.groups[None].get_trials()[2]
    assert frozen.state == TrialState.FAIL and frozen.user_attrs == {"status": NEVER}
    assert trials_table(folder)["trial"].tolist() == [0, 1, 3, 4]


def test_a_resumed_trial_keeps_what_it_reported(tmp_path: Path) -> None:
    first = studies_of(tmp_path / "s", trials=1)
    key, *_ = first.next()
    for round in (1, 2):
        first.report(key, {"round": round, "val/acc": round / 10})
    again = studies_of(tmp_path / "s", trials=1)
    again.next()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Optuna's, of a value that comes again
        for round in (2, 3):  # the last round before the kill does
            again.report(key, {"round": round, "val/acc": round / 10})
    again.report(key, {"round": 4})  # not tested in this round
    assert again.groups[None].trials[0].intermediate_values == {1: 0.1, 2: 0.2, 3: 0.3}


def test_trials_that_a_scheduler_had_stopped_end_as_pruned(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    first = studies_of(folder, trials=3)
    for _ in range(2):
        key, *_ = first.next()
        first.report(key, {"round": 4, "val/acc": 0.25})
    again = studies_of(folder, trials=3)
    again.prune({"0001": {"round": 4, "seeds": 2, "spent": 96, "seconds": 1.5}})
    assert [t.state for t in again.groups[None].trials] == [TrialState.RUNNING, TrialState.PRUNED]
    assert again.groups[None].trials[1].value == 0.25
    row = trials_table(folder).iloc[1]
    assert (row["state"], row["round"], row["seeds"], row["client_steps"], row["seconds"]) == ("pruned", 4, 2, 96, 1.5)
    assert again.next()[0] == "0000"


def test_numbers_that_changed_on_the_way_are_those_of_a_resume(tmp_path: Path) -> None:
    """Population-based training changes them; a trial goes on with the last ones."""
    studies = studies_of(tmp_path / "s", trials=1)
    key, overrides, _ = studies.next()
    studies.trial(key).set_user_attr("values", {"algorithm.rho": 0.75})
    assert studies_of(tmp_path / "s", trials=1).next()[1] == {**overrides, "algorithm.rho": 0.75}


def test_a_line_that_a_lost_machine_left_half_written_is_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    work(studies_of(folder, trials=4), 2)
    whole = (folder / JOURNAL).read_bytes()
    with (folder / JOURNAL).open("ab") as file:
        file.write(b'{"op_code":4,"worker')
    assert len(work(studies_of(folder, trials=4), 2)) == 2
    assert (folder / JOURNAL).read_bytes().startswith(whole + b'{"op_code"')
    assert trials_table(folder)["state"].tolist() == ["finished"] * 4


def test_the_lock_of_a_killed_process_leads_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optuna breaks a stale lock by the age of what it links to; a link that leads nowhere it would wait for, for
    ever."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    open_storage(None, Path("runs"))._backend._lock.acquire()
    assert (tmp_path / "runs" / f"{JOURNAL}.lock").exists()  # follows the link
    storage = open_storage(None, Path("runs"))
    storage._backend._lock.grace_period = 1
    optuna.create_study(storage=storage, study_name="after")


# the end of a trial ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "state", "why", "row"),
    [
        (
            {},
            TrialState.COMPLETE,
            "finished",
            {"state": "finished", "val/acc": 0.5, "round": 6, "seeds": 1, "client_steps": 72, "seconds": 1.5},
        ),
        (
            {"round": 4, "status": "running"},
            TrialState.PRUNED,
            "pruned",
            {"state": "pruned", "val/acc": 0.25, "round": 4, "client_steps": 72},
        ),
        (
            {"status": "diverged in round 6: loss", "diverged": True},
            TrialState.PRUNED,
            "diverged in round 6: loss",
            {"state": "diverged", "round": 6, "val/acc": 0.25},
        ),
        (
            {"status": "failed: client 3: boom", "round": 3, "val/acc": None},
            TrialState.FAIL,
            "failed: client 3: boom",
            {"state": "failed", "round": 3},
        ),
        (
            {"val/acc": None},
            TrialState.FAIL,
            "failed: its last round has no finite val/acc",
            {"state": "failed", "round": 6},
        ),
    ],
)
def test_the_end_of_a_trial(
    tmp_path: Path, change: dict[str, Any], state: TrialState, why: str, row: dict[str, Any]
) -> None:
    """It had 0.25 in round 2, and 0.5 at its end unless `change` says otherwise. optuna-dashboard shows `why`."""
    folder = tmp_path / "s"
    studies = studies_of(folder, trials=1)
    key, *_ = studies.next()
    studies.report(key, {"round": 2, "val/acc": 0.25})
    result = {**ended(0.5), **change}
    studies.tell(key, {name: told for name, told in result.items() if told is not None})
    (trial,) = studies.groups[None].trials
    assert (trial.state, trial.user_attrs["status"]) == (state, why)
    assert {name: trials_table(folder).iloc[0][name] for name in row} == row
    assert studies.next() is None


def test_several_objectives(tmp_path: Path) -> None:
    """Their directions, both values, and what has no place in a study of several: values on the way, and pruning."""
    studies = studies_of(tmp_path / "s", trials=3, objective={"val/acc": "max", "comm/bytes": "min"})
    for change in (
        {"comm/bytes": 10.0},
        {"comm/bytes": 20.0, "diverged": True, "status": "diverged in round 6: loss"},
        {},
    ):
        key, *_ = studies.next()
        studies.report(key, {"round": 2, "val/acc": 0.25, "comm/bytes": 5.0})
        studies.tell(key, {**ended(0.5), **change})
    study = studies.groups[None]
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert [(trial.state, trial.values) for trial in study.trials] == [
        (TrialState.COMPLETE, [0.5, 10.0]),
        (TrialState.FAIL, None),
        (TrialState.FAIL, None),
    ]
    assert trials_table(tmp_path / "s")["state"].tolist() == ["finished", "diverged", "failed"]


# a budget for each algorithm ---------------------------------------------------------------------
def test_algorithms_take_turns_in_studies_of_their_own(tmp_path: Path) -> None:
    space = {"algorithm": {"choice": ["fedprox", "fedsol"]}}
    folder, options = tmp_path / "s", {"space": space, "budget_per": "algorithm", "trials": 2}
    studies, keys = studies_of(folder, **options), []
    for _ in range(3):
        key, overrides, run = studies.next()
        assert overrides["algorithm"] == key.partition("/")[0]
        assert run == folder / "trials" / key.replace("/", "-")
        studies.tell(key, ended(0.5))
        keys.append(key)
    studies = studies_of(folder, **options)
    keys.append(studies.next()[0])
    assert keys == ["fedprox/0000", "fedsol/0000", "fedprox/0001", "fedsol/0001"]
    assert studies.next() is None
    assert [(group, trial.number) for group, trial in studies.ended()] == [
        ("fedprox", 0),
        ("fedprox", 1),
        ("fedsol", 0),
    ]
    names = optuna.get_all_study_names(open_storage(None, folder))
    assert sorted(names) == ["tiny/fedprox", "tiny/fedsol"]
    assert all("algorithm" not in trial.params for study in studies.groups.values() for trial in study.trials)


# storage -----------------------------------------------------------------------------------------


def unusable(kind: str, folder: Path) -> str | None:
    """The URL of a storage that cannot be used."""
    if kind == "no folder":
        folder.rmdir()
    elif kind == "a folder":
        (folder / JOURNAL).mkdir()
    elif kind == "not a journal":
        (folder / JOURNAL).write_text("epoch,loss\n1,0.5\n")
    elif kind == "not a database":
        (folder / "x.db").write_text("epoch,loss\n" * 1000)
        return f"sqlite:///{folder}/x.db"
    elif kind == "read only":
        open_storage(f"sqlite:///{folder}/x.db", folder)
        return f"sqlite:///file:{folder}/x.db?mode=ro&uri=true"
    elif kind == "tables of something else":
        with sqlite3.connect(folder / "x.db") as connection:
            connection.execute("CREATE TABLE studies (name TEXT)")
        return f"sqlite:///{folder}/x.db"
    return {"no driver": "nosuch://host/db", "no database": f"sqlite:///{folder}/missing/x.db"}.get(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "no folder",
        "a folder",
        "not a journal",
        "not a database",
        "read only",
        "tables of something else",
        "no driver",
        "no database",
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    url = unusable(kind, folder)
    with pytest.raises(CheckpointError) as error:
        Studies(iris_sweep(study=url), folder)
    assert str(error.value).startswith(f"study: {url or folder / JOURNAL} cannot be used: ")


# as Ray Tune sees them ---------------------------------------------------------------------------
def searcher_of(studies: Studies, stop: list[bool]) -> StudySearcher:
    return StudySearcher(studies, lambda key, overrides, folder: {"key": key, "folder": str(folder)}, lambda: stop[0])


def test_ray_tune_is_given_the_trials_and_then_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    studies = studies_of(folder, trials=2)
    searcher = searcher_of(studies, [False])
    assert searcher.suggest("a1") == {"key": "0000", "folder": str(folder / "trials/0000")}
    assert searcher.suggest("b2")["key"] == "0001"
    assert searcher.suggest("c3") == Searcher.FINISHED
    searcher.on_trial_result("b2", {**ended(0.1), "round": 2, "done": False, "status": "running"})
    searcher.on_trial_complete("b2", ended(0.9))
    searcher.on_trial_complete("a1", error=True)  # not told of twice
    assert [trial.state for trial in studies.groups[None].trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert studies.groups[None].trials[1].intermediate_values == {2: 0.1, 6: 0.9}
    assert trials_table(folder)["state"].tolist() == ["failed", "finished"]


def test_a_paused_trial_that_hyperband_stops_ends_with_its_last_result(tmp_path: Path) -> None:
    """Ray Tune stops it without a result; left running, each resume would go on with it."""
    studies = studies_of(tmp_path / "s", trials=1)
    searcher = searcher_of(studies, [False])
    searcher.suggest("a1")
    searcher.on_trial_result("a1", {**ended(0.1), "round": 3, "done": False, "status": "running"})
    searcher.on_trial_complete("a1", None)
    (trial,) = studies.groups[None].trials
    assert (trial.state, trial.value, trial.user_attrs["round"]) == (TrialState.PRUNED, 0.1, 3)


def test_when_a_budget_is_spent_no_trial_begins_and_those_that_run_are_left(tmp_path: Path) -> None:
    studies, stop = studies_of(tmp_path / "s", trials=3), [False]
    searcher = searcher_of(studies, stop)
    searcher.suggest("a1")
    searcher.on_trial_result("a1", {**ended(0.1), "round": 3, "done": False, "status": "running"})
    stop[0] = True
    assert searcher.suggest("b2") == Searcher.FINISHED
    assert [trial.state for trial in studies.groups[None].trials] == [TrialState.RUNNING]
    assert studies_of(tmp_path / "s", trials=3).next()[0] == "0000"
