"""What a user sees of a sweep without a terminal: a line for each trial that ends, and one every few seconds with the
best."""

import io
import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flray.tuning import drive as progress
from flray.tuning.drive import Show
from tests.support.iris_sweep import ended

STATUSES = ("TERMINATED", "PENDING")


class FakeTrial:
    """As much of Ray Tune's trial as the lines need."""

    def __init__(self, key: str, result: dict[str, Any] | None = None, error: str = "") -> None:
        self.config, self.last_result, self._error = {"key": key}, result, error

    def get_error(self) -> str:
        return self._error


def complete(show: Show, key: str, value: float | None, **change: Any) -> None:
    result = {**ended(0.0), "val/acc": value, **change}
    show.on_trial_complete(1, [], FakeTrial(key, {name: told for name, told in result.items() if told is not None}))


def report(show: Show, key: str, round: int) -> None:
    show.on_trial_result(1, [], FakeTrial(key), {"key": key, "round": round, "rounds": 6})


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    return clock


def test_a_line_for_each_trial_that_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with Show("rho", 5, 0, {"val/acc": "max"}) as show:
        complete(show, "0000", 0.51234)
        complete(show, "0001", 0.4, round=2, status="running")
        complete(show, "0002", 0.3, round=3, diverged=True, status="diverged in round 3: client 2: loss is not finite")
        complete(show, "0003", None, round=1, status="failed: client 3: boom")
        show.on_trial_error(
            1,
            [],
            FakeTrial("0004", error="Traceback\n  line\nflray.core.schema.errors.ResourceError: memory ran out\n\n"),
        )
    out, error = capsys.readouterr()
    assert out == ""
    assert error.splitlines() == [
        "rho  trial 0000  finished  val/acc 0.5123",
        "rho  trial 0001  stopped in round 2 of 6  val/acc 0.4",
        "rho  trial 0002  diverged in round 3  val/acc 0.3",
        "rho  trial 0003  failed: client 3: boom",
        "rho  trial 0004  failed: its processes were lost too often, the last time with ResourceError: memory ran out",
    ]
    assert show.done == 5
    assert [status.partition(":")[0] for status in show.ended] == [
        "finished",
        "running",
        "diverged in round 3",
        "failed",
        "failed",
    ]
    assert sum(status.startswith("failed: ") for status in show.ended) == 2  # what a sweep counts, with the reason


def test_a_line_now_and_then_with_what_runs(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with Show("rho", 12, 3, {"val/acc": "max"}) as show:
        report(show, "0003", 1)
        now[0] += 11
        report(show, "0004", 2)
        now[0] += 5
        report(show, "0003", 2)
        complete(show, "0004", 0.5)
        now[0] += 9
        report(show, "0003", 3)
        now[0] += 2
        report(show, "0003", 4)
    assert capsys.readouterr().err.splitlines() == [
        "rho  3/12  rounds: 0003 1/6, 0004 2/6",
        "rho  trial 0004  finished  val/acc 0.5",
        "rho  4/12  best val/acc 0.5 (trial 0004)  rounds: 0003 4/6",
    ]


@pytest.mark.parametrize(
    ("mode", "best"), [("max", "best val/acc 0.7 (trial 0001)"), ("min", "best val/acc 0.2 (trial 0002)")]
)
def test_the_best_is_that_of_trials_that_ended_well(
    capsys: pytest.CaptureFixture[str], now: list[float], mode: str, best: str
) -> None:
    """Not of one that was stopped early, that diverged, or whose value is equal to an earlier one's."""
    with Show("rho", 9, 0, {"val/acc": mode}) as show:
        complete(show, "0000", 0.5)
        complete(show, "0001", 0.7)
        complete(show, "0002", 0.2)
        complete(show, "0003", 0.7)
        complete(show, "0004", 0.2)
        for value in (0.1, 0.9):
            complete(show, "0005", value, round=4, status="running")
            complete(show, "0006", value, diverged=True, status="diverged in round 6: loss")
        capsys.readouterr()
        now[0] += 60
        report(show, "0007", 1)
    assert capsys.readouterr().err == f"rho  9/9  {best}  rounds: 0007 1/6\n"


def test_several_objectives_and_none(capsys: pytest.CaptureFixture[str]) -> None:
    complete(Show("front", 1, 0, {"val/acc": "max", "comm/bytes": "min"}), "0000", 0.5, **{"comm/bytes": 123456.0})
    complete(Show("grid", 1, 0, {}), "fedavg-seed0", 0.5)
    assert capsys.readouterr().err.splitlines() == [
        "front  trial 0000  finished  val/acc 0.5  comm/bytes 1.235e+05",
        "grid  trial fedavg-seed0  finished",
    ]


def test_nothing_is_printed_where_no_one_looks(capsys: pytest.CaptureFixture[str], now: list[float]) -> None:
    with Show("rho", 2, 0, {"val/acc": "max"}, enabled=False) as show:
        now[0] += 60
        report(show, "0000", 1)
        complete(show, "0000", 0.5)
        show.on_trial_error(1, [], FakeTrial("0001", error="boom"))
    assert capsys.readouterr() == ("", "") and show.done == 2


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """And Ray Tune can pickle it while it is drawn."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with Show("rho", 12, 3, {"val/acc": "max"}) as show:
        report(show, "0003", 2)
        complete(show, "0003", 0.5)
        copy = pickle.loads(pickle.dumps(show))
        show._bar.refresh()
    text = terminal.getvalue()
    assert "trial 0003" in text and "4/12" in text and "best val/acc 0.5 (trial 0003)" in text
    assert (copy.done, copy._bar, copy.objectives) == (4, None, {"val/acc": "max"})


def test_trials_that_wait_for_a_cluster_that_others_hold_say_so_once(
    now: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And once more after a trial has run. A trial that ended is no sign of a free cluster."""
    monkeypatch.setattr(progress.ray, "available_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(progress.ray, "cluster_resources", lambda: {"CPU": 4.0, "memory": 1e9})
    trials = [SimpleNamespace(status=status, is_finished=lambda s=status: s == "TERMINATED") for status in STATUSES]
    with Show("rho", 3, 0, {}) as show:
        for seconds, status in (
            (0, "PENDING"),
            (31, "PENDING"),
            (62, "PENDING"),
            (0, "RUNNING"),
            (29, "PENDING"),
            (2, "PENDING"),
        ):
            now[0] += seconds
            trials[1].status = status
            show.on_step_begin(1, trials)
    line = "rho  no trial has started for 30 s: others hold the cluster (1 of 4 CPUs are free)"
    assert capsys.readouterr().err.splitlines() == [line, line]
