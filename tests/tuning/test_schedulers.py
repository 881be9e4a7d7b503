"""What stops a trial: ASHA's rungs on disk, Optuna's pruners, the numbers of population-based training.

Ray Tune's own classes; no Ray.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import random
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import optuna
import pytest
from hypothesis import given, strategies as st
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, PopulationBasedTraining
from ray.tune.search import SearchGenerator

from flray.core.protocol import seeding
from flray.core.schema.errors import CheckpointError, ConfigError
from flray.tuning.config import SchedulerConfig
from flray.tuning.schedulers import RUNGS, Asha, TimedAsha, make_scheduler, rungs
from flray.tuning.studies import Studies
from flray.tuning.sweep import StudySearcher
from flray.tuning.trainable import Job
from tests.support.iris_sweep import EXPERIMENT, ended, iris_sweep
from tests.support.messages import facts

ROUNDS = 12
GRACE, REDUCTION = 2, 2.0  # rungs 2, 4, 8


@dataclasses.dataclass(eq=False)
class FakeTrial:
    """As much of Ray Tune's trial as its schedulers read."""

    trial_id: str
    config: dict[str, Any]
    experiment_tag: str = ""


def trial(key: str, ray_id: str = "") -> FakeTrial:
    return FakeTrial(ray_id or f"ray-{key}", {"key": key})


def asha(folder: Path, mode: str = "max") -> Asha:
    return Asha(folder / RUNGS, [2, 4, 8], "val/acc", mode, REDUCTION)


def ray_asha(mode: str = "max") -> ASHAScheduler:
    """Ray Tune's own with the same settings."""
    return ASHAScheduler("round", "val/acc", mode, max_t=ROUNDS, grace_period=GRACE, reduction_factor=REDUCTION)


class Report(NamedTuple):
    """A value of a trial after its next round."""

    trial: int
    value: float


def play(
    scheduler: Any, reports: Sequence[Report], cut: int | None = None, again: Any = None, back: int = 0
) -> list[tuple[int, int, str]]:
    """(trial, round, decision) of every report, as Ray Tune's controller asks for them.

    At report `cut` the driver is killed: `again()` is the new scheduler, the trials that go on get new ids, and each
    says its last round once more, and `back` rounds before it. These decisions are not in the list: they must be to go
    on.
    """
    found: list[tuple[int, int, str]] = []
    trials: dict[int, Any] = {}
    values: dict[int, list[float]] = {}
    over: set[int] = set()
    for place, report in enumerate(reports):
        if place == cut:
            scheduler = again()
            for name in set(trials) - over:
                trials[name] = trial(f"{name:04d}", f"second-{name}")
                scheduler.on_trial_add(None, trials[name])
                for round, value in list(enumerate(values[name], start=1))[-back - 1 :]:
                    assert (
                        scheduler.on_trial_result(None, trials[name], {"round": round, "val/acc": value}) == "CONTINUE"
                    )
        name = report.trial
        if name in over:
            continue
        if name not in trials:
            trials[name], values[name] = trial(f"{name:04d}"), []
            scheduler.on_trial_add(None, trials[name])
        values[name].append(report.value)
        round = len(values[name])
        result = {"round": round, "val/acc": report.value}
        decision = "CONTINUE" if round == ROUNDS else scheduler.on_trial_result(None, trials[name], result)
        found.append((name, round, decision))
        if round == ROUNDS or decision == "STOP":
            scheduler.on_trial_complete(None, trials[name], result)
            over.add(name)
    return found


REPORTS = st.lists(st.builds(Report, st.integers(0, 5), st.floats(0, 1, width=16)), min_size=10, max_size=70)


# ASHA --------------------------------------------------------------------------------------------
@pytest.mark.slow
@given(REPORTS, st.sampled_from(["max", "min"]), st.integers(0, 69), st.integers(0, 3))
def test_asha_decides_after_a_resume_as_without_one_and_as_ray_tune_does(
    reports: list[Report], mode: str, cut: int, back: int
) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        whole = play(asha(Path(one), mode), reports)
        assert whole == play(ray_asha(mode), reports)
        assert whole == play(asha(Path(other), mode), reports, cut, lambda: asha(Path(other), mode), back)
        assert json.loads((Path(one) / RUNGS).read_text()) == json.loads((Path(other) / RUNGS).read_text())


def test_the_rungs_on_disk(tmp_path: Path) -> None:
    """By hand: at round 2 trial 1 is below the median of {0.9}, trial 2 is not; larger is better, whatever the mode."""
    play(asha(tmp_path), [Report(0, 0.9), Report(0, 0.9), Report(1, 0.1), Report(1, 0.1), *[Report(2, 0.95)] * 4])
    found = json.loads((tmp_path / RUNGS).read_text())
    assert found["rungs"] == [[2, {"0000": 0.9, "0001": 0.1, "0002": 0.95}], [4, {"0002": 0.95}], [8, {}]]
    assert found["stopped"] == {"0001": {"round": 2}}
    (tmp_path / "min").mkdir()
    play(asha(tmp_path / "min", "min"), [Report(0, 0.9), Report(0, 0.9)])
    assert json.loads((tmp_path / "min" / RUNGS).read_text())["rungs"][0] == [2, {"0000": -0.9}]


def told(scheduler: Asha, key: str, values: dict[int, float]) -> dict[int, str]:
    """The decision at each round of a trial that reports only these."""
    one, found = trial(key), {}
    scheduler.on_trial_add(None, one)
    for round, value in values.items():
        found[round] = scheduler.on_trial_result(None, one, {"round": round, "val/acc": value})
        if found[round] == "STOP":
            break
    return found


def test_a_rung_that_a_report_went_past_is_not_judged_later(tmp_path: Path) -> None:
    """Rungs at rounds 2, 4 and 8, reports every 5. By hand: round 5 counts at rung 4, round 10 at rung 8, round 15 at
    none: rung 2 was passed. Trial 1 is better than the median at 5 and 10, and worst at 15, where it is not judged. Ray
    Tune's own judges it there at rung 2, and stops it."""
    first, second = {5: 0.5, 10: 0.6, 15: 0.9}, {5: 0.6, 10: 0.7, 15: 0.1}
    scheduler = asha(tmp_path)
    assert set(told(scheduler, "0000", first).values()) == {"CONTINUE"}
    assert told(scheduler, "0001", second) == {5: "CONTINUE", 10: "CONTINUE", 15: "CONTINUE"}
    assert told(scheduler, "0002", {5: 0.1}) == {5: "STOP"}, "rung 4 judges: the median of 0.5 and 0.6 is 0.55"
    found = json.loads((tmp_path / RUNGS).read_text())
    assert found["rungs"] == [[2, {}], [4, {"0000": 0.5, "0001": 0.6, "0002": 0.1}], [8, {"0000": 0.6, "0001": 0.7}]]
    theirs = ray_asha()
    told(theirs, "0000", first)
    assert told(theirs, "0001", second) == {5: "CONTINUE", 10: "CONTINUE", 15: "STOP"}, "otherwise nothing is shown"


def test_a_value_is_compared_with_values_of_its_own_round(tmp_path: Path) -> None:
    """Rung 4: trial 0 has its value there of round 5, trial 1 of round 4, trial 2 of round 5 again. 0.3 after four
    rounds is not worse than 0.5 after five; 0.4 after five is."""
    scheduler = asha(tmp_path)
    assert told(scheduler, "0000", {5: 0.5}) == {5: "CONTINUE"}
    assert told(scheduler, "0001", {4: 0.3}) == {4: "CONTINUE"}
    scheduler = asha(tmp_path)  # resumed
    assert told(scheduler, "0002", {5: 0.4}) == {5: "STOP"}
    assert told(scheduler, "0003", {4: 0.2}) == {4: "STOP"}


@pytest.mark.parametrize(("value", "decision"), [(0.2, "STOP"), (0.25, "CONTINUE")])
def test_the_best_share_of_a_rung_goes_on(tmp_path: Path, value: float, decision: str) -> None:
    """Of 0.1, 0.2 and 0.3 the best third is above NumPy's percentile of 2 / 3, which is 0.2 + 0.1 / 3."""
    scheduler = Asha(tmp_path / RUNGS, [2, 6], "val/acc", "max", 3.0)
    for number, known in enumerate((0.1, 0.2, 0.3)):
        told(scheduler, f"{number:04d}", {2: known})
    assert told(scheduler, "0003", {2: value}) == {2: decision}


def test_a_resumed_trial_passed_the_rungs_that_it_had_passed(tmp_path: Path) -> None:
    """It says its last rounds again, from the checkpoint before them."""
    assert told(asha(tmp_path), "0000", {5: 0.9, 10: 0.9}) == {5: "CONTINUE", 10: "CONTINUE"}
    assert told(asha(tmp_path), "0001", {5: 0.95, 10: 0.95}) == {5: "CONTINUE", 10: "CONTINUE"}
    before = (tmp_path / RUNGS).read_text()
    assert set(told(asha(tmp_path), "0001", {5: 0.95, 10: 0.95, 15: 0.0, 20: 0.0}).values()) == {"CONTINUE"}
    assert (tmp_path / RUNGS).read_text() == before


@pytest.mark.parametrize(("every", "grace", "fits"), [(5, 4, True), (20, 4, False), (5, 1, False), (16, 16, True)])
def test_successive_halving_needs_a_test_between_two_rungs(every: int, grace: int, fits: bool) -> None:
    """Optuna judges a trial at each rung that it went past by one value: grace 4, rungs at 4, 16, 64 and tests every
    20 rounds, or grace 1 with rungs at 1, 4, 16 and tests every 5."""
    experiment = {**EXPERIMENT, "rounds": 80, "evaluate": {"every": every, "validation": {"fraction": 0.25}}}
    rule = {"name": "successive_halving", "grace": grace, "reduction": 4}
    if fits:
        assert iris_sweep(experiment=experiment, scheduler=rule).scheduler.grace == grace
        return
    with pytest.raises(ConfigError, match=facts("evaluate.every", every, "successive_halving", "lower it")):
        iris_sweep(experiment=experiment, scheduler=rule)


def test_a_trial_without_a_value_is_not_judged(tmp_path: Path) -> None:
    """It failed, diverged, or was not tested in this round."""
    scheduler, one = asha(tmp_path), trial("0000")
    scheduler.on_trial_add(None, one)
    assert scheduler.on_trial_result(None, one, {"round": 2}) == "CONTINUE"
    scheduler.on_trial_complete(None, one, {"round": 3, "done": True, "status": "failed: boom"})
    scheduler.on_trial_remove(None, one)
    assert json.loads((tmp_path / RUNGS).read_text())["rungs"] == [[2, {}], [4, {}], [8, {}]]


def test_algorithms_with_a_budget_of_their_own_are_not_compared(tmp_path: Path) -> None:
    """And the rungs of one are kept while only trials of the other go on."""

    def decide(scheduler: Asha, key: str, value: float) -> str:
        return told(scheduler, key, {2: value})[2]

    first = asha(tmp_path)
    assert decide(first, "fedavg/0000", 0.9) == decide(first, "fedsol/0000", 0.3) == "CONTINUE"
    assert decide(first, "fedavg/0001", 0.5) == "STOP"
    assert decide(asha(tmp_path), "fedsol/0001", 0.4) == "CONTINUE"
    assert decide(asha(tmp_path), "fedavg/0002", 0.6) == "STOP"  # the median of 0.9 and 0.5 is 0.7
    found = json.loads((tmp_path / RUNGS).read_text())
    assert found["rungs"][0][1] == {
        "fedavg/0000": 0.9,
        "fedavg/0001": 0.5,
        "fedavg/0002": 0.6,
        "fedsol/0000": 0.3,
        "fedsol/0001": 0.4,
    }
    assert found["stopped"] == {"fedavg/0001": {"round": 2}, "fedavg/0002": {"round": 2}}


DAMAGED = [
    "",
    "{",
    "[]",
    '{"rungs": []}',
    '{"rungs": [2], "stopped": {}}',
    '{"rungs": [[2, {"0000": "a"}]], "stopped": {}}',
    '{"rungs": [], "stopped": []}',
]


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_rungs_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / RUNGS).write_text(text)
    with pytest.raises(CheckpointError, match=r"rungs\.json is damaged \(.*\); delete it to go on with empty rungs$"):
        asha(tmp_path)


@pytest.mark.parametrize(
    ("rule", "rounds", "found"),
    [
        ({"name": "asha"}, 40, [(4, 1), (12, 1), (36, 1), (40, 1)]),
        ({"name": "asha", "seeds": [1, 1, 3]}, 40, [(4, 1), (12, 1), (36, 3), (40, 3)]),
        ({"name": "asha", "seeds": [2, 3]}, 10, [(4, 2), (10, 3)]),
        ({"name": "asha", "seeds": [1, 2, 3, 4, 5]}, 12, [(4, 1), (12, 2)]),  # no rung at the last round
        ({"name": "asha", "grace": 4, "reduction": 2.5}, 40, [(4, 1), (10, 1), (25, 1), (40, 1)]),
        # 1, 1.5, 2.25, 3.4, 5.1, 7.6: the first whole round that is not before; each rung once
        ({"name": "asha", "grace": 1, "reduction": 1.5}, 10, [(1, 1), (2, 1), (3, 1), (4, 1), (6, 1), (8, 1), (10, 1)]),
        ({"name": "asha", "grace": 1, "reduction": 1.2}, 4, [(1, 1), (2, 1), (3, 1), (4, 1)]),
        ({"name": "asha", "grace": 100, "reduction": 1.1}, 120, [(100, 1), (110, 1), (120, 1)]),
        ({"name": "none"}, 40, [(40, 1)]),
        ({"name": "median"}, 40, [(40, 1)]),
    ],
)
def test_rungs(rule: dict[str, Any], rounds: int, found: list[tuple[int, int]]) -> None:
    assert rungs(SchedulerConfig(**rule), rounds) == found


# ASHA on the virtual clock -----------------------------------------------------------------------
TIMED = st.lists(
    st.tuples(st.integers(0, 4), st.floats(0.25, 3, width=16), st.floats(0, 1, width=16)), min_size=5, max_size=50
)


@given(TIMED, st.sampled_from(["max", "min"]), st.integers(0, 49))
def test_asha_on_the_virtual_clock(tmp_path_factory: pytest.TempPathFactory, reports: Any, mode: str, cut: int) -> None:
    """After each report, of (trial, seconds since its last one, value): the rungs that the trial has come past since
    then have its last value by then (none, where its first test comes later), and it stops where one of them is below
    the median of the others there so far. A resume says the last report again, and changes nothing."""
    folder = tmp_path_factory.mktemp("timed")

    def begin() -> TimedAsha:
        return TimedAsha(folder / RUNGS, [1.5, 3.0, 6.0], "val/acc", mode, 2.0)

    def tell(name: int, at: float, value: float) -> str:
        result = {"round": 1, "time/virtual_s": at, "val/acc": value}
        return scheduler.on_trial_result(None, trial(f"{name:04d}"), result)

    scheduler, series, over = begin(), dict[int, list[tuple[float, float]]](), set[int]()
    rungs: dict[float, dict[int, float]] = {1.5: {}, 3.0: {}, 6.0: {}}
    for place, (name, seconds, value) in enumerate(reports):
        if place == cut:
            scheduler = begin()
            for known in set(series) - over:
                assert tell(known, *series[known][-1]) == "CONTINUE"
        if name in over:
            continue
        told = series.setdefault(name, [])
        at = (told[-1][0] if told else 0.0) + seconds
        told.append((at, value))
        stops = False
        for rung, values in rungs.items():
            if at >= rung >= told[0][0] and name not in values:
                others = np.array(list(values.values()))
                values[name] = next(value for moment, value in reversed(told) if moment <= rung)
                better = np.median(others) if len(others) else values[name]
                stops |= bool(values[name] < better if mode == "max" else values[name] > better)
        assert tell(name, at, value) == ("STOP" if stops else "CONTINUE")
        if stops:
            over.add(name)


def test_the_ends_of_asha_on_the_virtual_clock(tmp_path: Path) -> None:
    """A first test after a rung is not judged there. A sum of seconds reaches a rung that it misses by rounding.

    A trial that ends has its last value at the later rungs, unless it diverges, fails or is stopped.
    """

    def tell(key: str, at: float, value: float) -> str:
        return found.on_trial_result(None, trial(key), {"round": 1, "time/virtual_s": at, "val/acc": value})

    found = TimedAsha(tmp_path / RUNGS, [0.3, 30.0, 90.0], "val/acc", "max", 2.0)
    assert tell("slow", 95.0, 0.9) == tell("fast", 0.1, 0.2) == tell("fast", 0.1 + 0.1 + 0.1, 0.5) == "CONTINUE"
    assert tell("even", 0.3, 0.4) == "STOP"
    result = {"round": 1, "time/virtual_s": 85.0, "val/acc": 0.7}
    found.on_trial_complete(None, trial("fast"), result)
    tell("wrong", 20.0, 0.1)
    found.on_trial_complete(None, trial("wrong"), {"round": 2, "time/virtual_s": 40.0, "diverged": True})
    tell("dead", 20.0, 0.6)
    failed = {"round": 1, "time/virtual_s": 20.0, "status": "failed: out of memory"}
    found.on_trial_complete(None, trial("dead"), failed)
    found.on_trial_complete(None, trial("even"), {"round": 1, "time/virtual_s": 0.3, "val/acc": 0.4})
    rungs = dict(json.loads((tmp_path / RUNGS).read_text())["rungs"])
    assert rungs == {0.3: {"fast": 0.5, "even": 0.4}, 30.0: {"fast": 0.5}, 90.0: {"fast": 0.7}}


def test_rungs_of_the_virtual_clock(tmp_path: Path) -> None:
    timed = {"devices": {"speed": "equal"}, "until": {"virtual_s": 100.0}}
    rule = {"name": "asha", "time_attr": "time/virtual_s", "grace": 2.5, "reduction": 4}
    studies = studies_of(tmp_path, experiment={**EXPERIMENT, **timed}, scheduler=rule)
    found = make_scheduler(studies.sweep, studies, tmp_path, 27)
    assert isinstance(found, TimedAsha) and [at for at, _ in found.rungs_of("0000")] == [40.0, 10.0, 2.5]
    assert rungs(studies.sweep.scheduler, 27) == [(27, 1)], "no rung by rounds"


@pytest.mark.parametrize(
    ("rule", "experiment", "message"),
    [
        ({}, {"until": {"virtual_s": 9.0}}, "scheduler.grace: time/virtual_s has none of its own; write the virtual"),
        ({"grace": 9}, {"until": {"virtual_s": 9.0}}, "the first decision is after 9 virtual seconds, a trial has 9;"),
        ({"grace": 9}, {}, "scheduler.time_attr: rungs of time/virtual_s need an end; write until:"),
        ({"grace": 1, "seeds": [1, 2]}, {"until": {"virtual_s": 9.0}}, "scheduler.seeds: seeds are in step by rounds"),
        ({"grace": 1.5, "time_attr": "round"}, {}, "scheduler.grace: 1.5 rounds; write a whole number"),
        ({"grace": 0}, {}, "greater than 0"),
        ({"name": "hyperband"}, {}, "scheduler.time_attr: hyperband does not read it"),
        ({"time_attr": "round"}, {"until": {"virtual_s": 9.0}}, "or asha with time_attr: time/virtual_s"),
    ],
)
def test_what_cannot_be_judged_by_virtual_time(rule: dict[str, Any], experiment: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        iris_sweep(
            experiment={**EXPERIMENT, "devices": {"speed": "equal"}, **experiment},
            scheduler={"name": "asha", "time_attr": "time/virtual_s", **rule},
        )


# the others by name ------------------------------------------------------------------------------
def studies_of(tmp_path: Path, **changes: Any) -> Studies:
    return Studies(iris_sweep(trials=50, **changes), tmp_path)


def test_schedulers_by_name(tmp_path: Path) -> None:
    studies = studies_of(tmp_path, objective={"val/loss": "min"})

    def of(**rule: Any) -> Any:
        sweep = studies.sweep.model_copy(update={"scheduler": SchedulerConfig(**rule)})
        return make_scheduler(sweep, studies, tmp_path, 27)

    assert type(of(name="none")) is FIFOScheduler
    found = of(name="asha", grace=3)
    assert isinstance(found, Asha) and found.objective == "val/loss"
    assert [at for at, _ in found.rungs_of("0000")] == [9, 3]
    band = of(name="hyperband")
    assert isinstance(band, HyperBandScheduler) and (band.metric, band._mode, band._time_attr) == (
        "val/loss",
        "min",
        "round",
    )
    assert not band._stop_last_trials, "of 10 rounds the last milestone is round 9: its survivors train on"
    assert [band._get_r0(s) for s in range(4)] == [27, 9, 3, 1]  # Li et al. 2018: brackets of R / eta**s rounds
    change = of(name="pbt", grace=3)
    assert isinstance(change, PopulationBasedTraining) and (change._metric_op, change._perturbation_interval) == (
        -1.0,
        3,
    )


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (
            {"name": "median", "grace": 2, "startup": 3},
            optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=2),
        ),
        (
            {"name": "median", "grace": 1, "startup": 0},
            optuna.pruners.MedianPruner(n_startup_trials=0, n_warmup_steps=1),
        ),
        (
            {"name": "percentile", "grace": 2, "startup": 2, "percentile": 60},
            optuna.pruners.PercentilePruner(60.0, n_startup_trials=2, n_warmup_steps=2),
        ),
        (
            {"name": "successive_halving", "grace": 2, "reduction": 2},
            optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=2),
        ),
    ],
)
@pytest.mark.parametrize("mode", ["max", "min"])
def test_pruners_decide_as_optuna_itself(
    tmp_path: Path, rule: dict[str, Any], theirs: optuna.pruners.BasePruner, mode: str
) -> None:
    """Twelve trials of six rounds, resumed in the middle, beside Optuna's own loop over the same values; never before
    round `grace`."""
    direction = {"max": "maximize", "min": "minimize"}[mode]
    own = optuna.create_study(direction=direction, pruner=theirs, storage=optuna.storages.InMemoryStorage())
    draw = random.Random(3)
    studies, stopped = studies_of(tmp_path, objective={"val/acc": mode}, scheduler=rule), []
    for number in range(12):
        if number == 6:
            studies = studies_of(tmp_path, objective={"val/acc": mode}, scheduler=rule)
        scheduler = make_scheduler(studies.sweep, studies, tmp_path, 6)
        key, *_ = studies.next()
        expected = own.ask()
        for round in range(1, 7):
            value = draw.random()
            expected.report(value, round)
            result = {**ended(value), "round": round, "status": "running"}
            prune = expected.should_prune()
            assert scheduler.on_trial_result(None, trial(key), result) == ("STOP" if prune else "CONTINUE")
            if prune:
                stopped.append(round)
                break
        studies.tell(key, {**result, "status": "running" if prune else "finished"})
        own.tell(
            expected,
            None if prune else value,
            state=optuna.trial.TrialState.PRUNED if prune else optuna.trial.TrialState.COMPLETE,
        )
    assert 2 <= len(stopped) < 12 and min(stopped) >= rule["grace"]
    assert [t.state for t in studies.groups[None].trials] == [t.state for t in own.trials]


def test_a_storage_that_fails_a_pruner_ends_the_sweep_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would be a traceback of Ray Tune."""
    studies = studies_of(tmp_path, scheduler={"name": "median"})
    scheduler = make_scheduler(studies.sweep, studies, tmp_path, 6)
    key, *_ = studies.next()

    def gone(*_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(studies.groups[None]._storage, "get_trial", gone)
    for _ in range(2):
        assert scheduler.on_trial_result(None, trial(key), ended(0.5)) == "CONTINUE"
    assert isinstance(studies.error, CheckpointError)


# population-based training -----------------------------------------------------------------------
@pytest.fixture
def population(tmp_path: Path) -> tuple[Any, Studies, list[Any]]:
    """(scheduler, studies, two trials that were added to it)."""
    space = {
        "algorithm.rho": {"log": [0.5, 2.0]},
        "algorithm.local_epochs": {"linear": [1, 4]},
        "algorithm.batch_size": [10, 32, 50],
        "algorithm.perturb": ["head", "all"],
    }
    studies = studies_of(tmp_path, space=space, scheduler={"name": "pbt", "grace": 2}, concurrency="auto")
    scheduler = make_scheduler(studies.sweep, studies, tmp_path, 6)
    trials = []
    for _ in range(2):
        key, overrides, folder = studies.next()
        job = Job.of(key, folder, studies.sweep.experiment(overrides), ("val/acc",), ((6, 1),))
        numbers = {name: value for name, value in overrides.items() if name != "algorithm.perturb"}
        one = trial(key)
        one.config = job.config(numbers)
        trials.append(one)
    return scheduler, studies, trials


def test_changed_numbers_stay_in_the_space(population: tuple[Any, Studies, list[Any]]) -> None:
    """300 changes, each of the last one's numbers: within their ranges and lists, integers stay integers, and all of
    them move."""
    scheduler, _, (one, other) = population
    seen: dict[str, set[Any]] = {}
    for _ in range(300):
        one.config = scheduler._get_new_config(one, other)[0]
        one, other = other, one
        values = other.config["values"]
        assert 0.5 <= values["algorithm.rho"] <= 2.0
        assert values["algorithm.local_epochs"] in (1, 2, 3, 4) and type(values["algorithm.local_epochs"]) is int
        assert values["algorithm.batch_size"] in (10, 32, 50)
        for name, value in values.items():
            seen.setdefault(name, set()).add(value)
    assert seen["algorithm.local_epochs"] == {1, 2, 3, 4} and seen["algorithm.batch_size"] == {10, 32, 50}
    assert {0.5, 2.0} < seen["algorithm.rho"]  # the ends are in it


def test_a_trial_that_copies_another_keeps_its_own_key_and_folder(
    population: tuple[Any, Studies, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Tune's own would hand over the whole configuration: two trials would then write into one run folder. The
    study is told after the draws: while it waits for its storage, the process's generators are free."""
    scheduler, studies, (one, other) = population
    before, changed = dict(one.config), dict[str, Any]()

    def exploit(self: Any, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        assert seeding._turn.locked()
        changed.update(self._get_new_config(trial, other)[0])
        return "PAUSE"

    def note(*what: Any) -> None:
        assert not seeding._turn.locked()
        Studies.note(studies, *what)

    monkeypatch.setattr(PopulationBasedTraining, "on_trial_result", exploit)
    monkeypatch.setattr(studies, "note", note)
    assert scheduler.on_trial_result(None, one, {"round": 2, "val/acc": 0.5}) == "PAUSE"
    assert (changed["key"], changed["job"]) == (before["key"], before["job"]) == ("0000", one.config["job"])
    assert one.config == before and studies.groups[None].trials[0].user_attrs["values"] == changed["values"]
    assert "values" not in studies.groups[None].trials[1].user_attrs


def test_population_based_training_takes_trials_of_a_searcher(population: tuple[Any, Studies, list[Any]]) -> None:
    scheduler, studies, (one, _) = population
    searcher = StudySearcher(studies, lambda *_: {}, lambda: False)
    controller = SimpleNamespace(search_alg=SearchGenerator(searcher), get_trials=lambda: [one])
    with pytest.raises(ValueError, match="Search algorithms cannot be used"):
        PopulationBasedTraining("round", "val/acc", "max", hyperparam_mutations={"values": {}}).on_trial_add(
            controller, one
        )
    scheduler.on_trial_add(controller, one)
    assert scheduler.on_trial_result(controller, one, {"round": 1, "val/acc": 0.5}) == "CONTINUE"
    assert scheduler.on_trial_result(controller, one, {"round": 2}) == "CONTINUE"  # not tested in this round
