"""Runs whose clients lose classes for some rounds: what is written down of it is what they train on."""

import functools
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pandas
import pytest
from pydantic import PrivateAttr

import flray
from flray.contracts.played import Local
from flray.core.protocol.clock import START, Clock, schedule
from flray.core.schema.errors import AlgorithmError, ConfigError, DataError
from flray.data import load_dataset
from flray.doctor import examine
from flray.engine.centralized import _drifted_samples
from flray.engine.prepare import build_data, build_scenario
from flray.running import play, simulate
from flray.scenario import DriftWarning
from flray.scenario.drift import Drift, Now
from tests.support.messages import facts
from tests.support.tasks import TASKS, experiment as of_tasks

SECTIONS = {
    "rounds": 6,
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5, "min_size": 4},
    "cohort": {"size": 4},
}
DRIFTS = {
    "full": {"name": "remove_classes", "classes": [0, 2], "from_round": 3, "to_round": 5},
    "gradual": {"name": "gradual", "classes": [1, 2], "from_round": 2, "rate": 0.3, "rate_step": 0.2, "of_cohort": 2},
    "table": {"name": "table", "rows": [[2, None, 0, 0.5], [4, 1, None, 0.0, 6]]},
}


def experiment(**sections):
    return of_tasks(**{**SECTIONS, **sections})


@pytest.mark.filterwarnings("ignore::flray.scenario.DriftWarning")  # of class 2 alone nothing is left
@pytest.mark.parametrize("tasks", [None, TASKS], ids=["one", "two"])
@pytest.mark.parametrize("name", DRIFTS)
def test_clients_train_on_what_the_folder_says(name, tasks, tmp_path):
    """The sample numbers that reach every client of every round, counted by class, against drift.parquet and, for what
    it does not list, the partition."""
    asked = experiment(drift=DRIFTS[name], tasks=tasks, rounds=3 if tasks else 6)
    labels = load_dataset(asked.data).train.y
    simulate(asked, tmp_path / "run")
    table = pandas.read_parquet(tmp_path / "run" / "partition" / "drift.parquet")
    local, seen = Local(asked, tmp_path / "again"), {}

    def watch(what, function, *arguments):
        if what == "client":
            ctx, numbers = arguments[0], arguments[4].numbers
            seen[ctx.clock.done + 1, ctx.client] = numbers
        return function(*arguments)

    local.watch = local.executor.watch = local.executor.client.watch = watch
    local.play(6)
    lost = 0
    rows = table.set_index(["round", "client", "class"])
    for clock in schedule(START, asked.rounds, 2 if tasks else 1):
        if clock.phase != "round":
            continue
        draw = local.scenario.drift.draw(clock, local.scenario.members(clock.task))
        for client in draw.tolist():
            whole = Counter(labels[local.scenario.partitions[clock.task].client(client)].tolist())
            trained = Counter(labels[seen.get((clock.done + 1, client), np.zeros(0, int))].tolist())
            for label, of in whole.items():
                key = (clock.done + 1, client, label)
                kept = int(rows.loc[key, "kept"]) if key in rows.index else of
                assert trained[label] == kept and (key not in rows.index or rows.loc[key, "of"] == of)
                lost += of - kept
    assert lost > 0
    held = flray.load(tmp_path / "run").clients.set_index(["done", "client"])["num_examples"].to_dict()
    assert held == {key: len(numbers) for key, numbers in seen.items()}


def test_a_table_in_a_file_that_changed_is_another_run(tmp_path):
    path = tmp_path / "drift.csv"
    path.write_text("round,client,class,kept\n2,,0,0.5\n")
    asked = experiment(drift={"name": "table", "file": str(path)})
    rows = play(asked, tmp_path / "run")
    next(rows), rows.close()
    path.write_text("round,client,class,kept\n2,,0,0.25\n")
    with pytest.raises(DataError, match=facts(f"or drift.file {path} changed", "--accept partition")):
        flray.resume(tmp_path / "run", progress=False)
    path.unlink()
    with pytest.raises(DataError, match=facts("drift.file:", path)):
        flray.resume(tmp_path / "run", progress=False)


def test_rounds_in_which_nobody_holds_anything_are_told_of_and_change_nothing(tmp_path):
    asked = experiment(drift={"name": "remove_classes", "classes": [0, 1, 2], "from_round": 3, "to_round": 5})
    with pytest.warns(DriftWarning, match=facts("2 of 6 rounds", 3)):
        rows = {row["done"]: row for row in play(asked, tmp_path / "run")}
    assert [rows[done].get("clients_empty", 0) for done in range(1, 7)] == [0, 0, 4, 4, 0, 0]
    losses = [rows[done]["test/loss"] for done in range(1, 7)]
    assert losses[1] == losses[2] == losses[3] and len(set(losses)) == 4
    assert rows[3]["client_steps"] == 0 and rows[3]["comm/up_bytes"] == 0 and not rows[3]["diverged"]


def test_a_drift_that_never_takes_anything_is_told_of(tmp_path):
    asked = experiment(drift={**DRIFTS["full"], "from_round": 7, "to_round": None})
    with pytest.warns(DriftWarning, match=facts("no client loses a sample", "rounds 1 to 6", "classes 0 2")):
        build_scenario(asked, build_data(asked))


def test_the_bound_trains_on_what_all_clients_still_hold():
    """Centralized training: the union of the clients' samples in a round, one array for rounds alike."""
    asked = experiment(drift=DRIFTS["full"])
    data = build_data(asked)
    labels, scenario = data.dataset.train.y, build_scenario(asked, data)
    samples = [np.unique(scenario.partitions[0].indices)]
    found = _drifted_samples(scenario, samples, schedule(START, 6, 1))
    assert sorted(found) == [2, 3] and found[2] is found[3]
    assert found[2].tolist() == [i for i in samples[0] if labels[i] == 1]
    assert not _drifted_samples(scenario.drifting(None), samples, schedule(START, 6, 1))


def test_the_doctor_says_what_drifts(tmp_path):
    rows = examine(experiment(drift=DRIFTS["full"]), tmp_path / "p.png").checks
    text = next(row["result"] for row in rows if row["check"] == "drift")
    assert text.startswith("every client loses classes 0 2 in rounds 3 to 4. Of 6 rounds 2 (3 to 4) train on ")
    assert (tmp_path / "p_drift.png").exists()
    rows = examine(experiment(), tmp_path / "q.png").checks
    assert next(row["result"] for row in rows if row["check"] == "drift") == "none"
    assert not (tmp_path / "q_drift.png").exists()


def test_what_a_client_held_in_the_stage_before_is_what_the_drift_had_left_of_it():
    """Exemplars are chosen from it: task 0 ends in round 3 of the drift, task 1 begins with round 4."""
    asked = experiment(drift={**DRIFTS["full"], "classes": [0]}, tasks=TASKS, rounds=3)
    data = build_data(asked)
    labels, scenario = data.dataset.train.y, build_scenario(asked, data)
    before = Clock(1, 0, done=3).stage_before
    everyone = np.arange(6)
    left = scenario.shares(before, everyone, everyone=True).indices
    assert set(labels[left].tolist()) == {2} and set(labels[scenario.partitions[0].indices]) == {0, 2}


class Walk(Drift, frozen=True):
    """Half of a class is gone; it may count how often it was asked."""

    way: str = "none"
    _level: float = PrivateAttr(0.0)
    memo: ClassVar[dict] = {}

    @functools.cached_property
    def share(self):
        return 0.5

    def gone(self, now, client):
        if self.way == "_level":
            self._level += 0.1
        if self.way == "memo":
            self.memo[client] = self.memo.get(client, 0) + 1
        return {0: self.share}


def test_a_drift_keeps_nothing_of_how_often_it_was_asked(tmp_path):
    """It would depend on a resume, which asks again."""
    assert Local(experiment(drift=Walk()), tmp_path).play(1).w.isfinite().all()
    for way in ("_level", "memo"):
        with pytest.raises(
            AlgorithmError, match=rf"Walk: self\.{way} changed in gone of round 1; .* the shares of gone, a function"
        ):
            Local(experiment(drift=Walk(way=way)), tmp_path / way)


class Selected(Drift, frozen=True):
    """A drift of a user's own that reads who was drawn."""

    def gone(self, now: Now, client: int) -> Mapping[int, float]:
        return {0: 1.0} if client == now.selected[-1] else {}


CLOCKS = {
    "availability": {"devices": {"availability": {"name": "windows", "period": 10.0, "share": 0.5}}},
    "buffered": {"devices": {"speed": "equal"}, "coordination": {"name": "buffered", "size": 2, "concurrency": 4}},
}


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_drift_of_the_cohort_needs_a_cohort_that_is_known(clock):
    """There the clock chooses the clients, and the cohort of the section `cohort` is nobody's: the first of it lost
    samples in rounds in which others trained. Clients that are named lose theirs, and nothing is said of the cohort."""
    by_cohort = {**DRIFTS["gradual"], "classes": [0, 1, 2]}
    named = {key: value for key, value in by_cohort.items() if key != "of_cohort"} | {"clients": [0, 1]}
    own = experiment(**CLOCKS[clock]).model_copy(update={"drift": Selected()})
    for asked in (experiment(drift=by_cohort, **CLOCKS[clock]), own):
        with pytest.raises(ConfigError, match=f"drift: .*{clock} chooses the clients .*; write drift.clients or "):
            build_scenario(asked, build_data(asked))
    asked = experiment(drift=named, **CLOCKS[clock])
    built = build_scenario(asked, build_data(asked))
    moment = Clock(round=3, done=3)
    left = [len(built.shares(moment, np.array([k]), everyone=True).indices) for k in range(6)]
    before = built.partitions[0].sizes
    assert [k for k in range(6) if left[k] < before[k]] == [0, 1]
    deadline = experiment(drift=by_cohort, devices={"speed": "equal"}, coordination={"name": "deadline", "seconds": 1})
    assert build_scenario(deadline, build_data(deadline)).drift.chosen_by == ""


def test_an_example_of_a_cohort_is_no_reason_to_warn(recwarn):
    """Of clients that the clock chooses nobody knows before the run that none of them holds a sample."""
    all_gone = {"name": "table", "rows": [[1, None, None, 0.0]]}
    asked = experiment(drift=all_gone, **CLOCKS["availability"])
    build_scenario(asked, build_data(asked))
    assert not [w for w in recwarn if w.category is DriftWarning]
