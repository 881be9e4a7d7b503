"""`flray show --follow` of several runs: found as they begin, over when all have ended; a line a class; a page."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from flray.core.schema.errors import CheckpointError, ConfigError
from flray.results.watching import SETTLE_S, classes_over_rounds, overviews, row_of
from flray.rundir.reader import Run
from tests.support.commands import invoke
from tests.support.continual_runs import counted
from tests.support.tables import config, folder, put


class Clock:
    """Seconds that pass only while something waits; `then` happens after a wait."""

    def __init__(self, *then: object) -> None:
        self.now, self.then = 0.0, list(then)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.then:
            self.then.pop(0)()  # type: ignore[operator]

    def __call__(self) -> float:
        return self.now


def test_runs_that_begin_later_are_found_and_the_end_is_that_of_all(tmp_path: Path) -> None:
    """One goes on at the first look; then it ends, another one begins and ends, and nothing comes in `SETTLE_S`."""
    first = folder(tmp_path / "a", config(), [0.5], "running")

    def ends() -> None:
        (first / "STATUS").write_text("finished\n")

    def another() -> None:
        folder(tmp_path / "b", config(seed=1), [0.6, 0.7], "finished")

    clock = Clock(ends, another)
    views = list(overviews([str(tmp_path)], 20.0, clock.wait, clock))
    assert [len(view.glances) for view in views] == [1, 1, *[2] * (len(views) - 2)]
    assert views[-1].over and views[-1].good and not any(view.over for view in views[:-1])
    assert clock.now == 20.0 + SETTLE_S  # it ended at 20 s
    row = row_of(str(tmp_path / "b"), views[-1].glances[str(tmp_path / "b")])
    assert (row["rounds"], row["accuracy"], row["status"]) == ("2/3", "70.00%", "finished")


def test_runs_that_had_ended_are_shown_once(tmp_path: Path) -> None:
    folder(tmp_path / "a", config(), [0.5], "finished")
    folder(tmp_path / "b", config(seed=1), [0.5], "failed: RuntimeError")
    clock = Clock()
    (view,) = overviews([str(tmp_path)], 2.0, clock.wait, clock)
    assert view.over and not view.good and len(view.glances) == 2


def test_of_a_sweep_that_ended_the_view_says_which_runs_it_shows(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text("name: s\n")
    (tmp_path / "STATUS").write_text("finished\n")
    folder(tmp_path / "trials" / "0000", config(), [0.5], "finished")
    folder(tmp_path / "final" / "best-seed1", config(seed=1), [0.6], "finished")
    clock = Clock()
    (view,) = overviews([str(tmp_path)], 2.0, clock.wait, clock)
    assert [Path(place).name for place in view.glances] == ["best-seed1"]
    assert len(view.notes) == 1 and "final/" in view.notes[0]
    watched = invoke("show", "--follow", tmp_path)
    assert watched.exit_code == 0 and view.notes[0] in watched.output


def test_a_place_without_a_run_is_named(tmp_path: Path) -> None:
    folder(tmp_path / "a", config(), [0.5], "finished")
    clock = Clock()
    (view,) = overviews([str(tmp_path / "a"), str(tmp_path / "typo")], 2.0, clock.wait, clock)
    assert view.over and not view.good and len(view.missing) == 1 and "typo" in view.missing[0]


def test_a_run_that_is_renamed_or_removed_is_left_out(tmp_path: Path) -> None:
    """`flray run --overwrite` of a grid: `a.new` takes the place of `a`."""
    folder(tmp_path / "a", config(), [0.5], "finished")
    new = folder(tmp_path / "a.new", config(), [0.6], "running")

    def swaps() -> None:
        shutil.rmtree(tmp_path / "a")
        new.rename(tmp_path / "a")
        (tmp_path / "a" / "STATUS").write_text("finished\n")

    clock = Clock(swaps)
    views = list(overviews([str(tmp_path)], 20.0, clock.wait, clock))
    assert [len(view.glances) for view in views[:2]] == [2, 1] and views[1].news
    assert views[-1].over and views[-1].good and clock.now < 200


def test_a_grid_that_begins_where_one_run_is_awaited_is_shown(tmp_path: Path) -> None:
    """`flray run GRID &` and `flray watch runs/grid`, before the grid has written anything."""
    grid = tmp_path / "grid"
    folder(tmp_path / "made" / "s0", config(), [0.5], "finished")
    thread = threading.Timer(0.5, lambda: (tmp_path / "made").rename(grid))
    thread.start()
    done = invoke("show", "--follow", grid, "--every", "0.1")
    assert done.exit_code == 0 and "s0: finished" in done.output, (done.output, done.exception)


def test_where_no_run_can_begin_it_ends_at_once(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(CheckpointError, match="typo"):
        list(overviews([str(tmp_path / "no" / "typo"), str(tmp_path / "no" / "b")], 2.0, clock.wait, clock))
    assert clock.now == 0


def test_a_page_that_cannot_be_written_ends_the_command(tmp_path: Path) -> None:
    folder(tmp_path / "a", config(), [0.5, 0.6], "finished")
    folder(tmp_path / "b", config(seed=1), [0.5, 0.6], "finished")
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "page.html")
    done = invoke("show", "--follow", tmp_path / "a", tmp_path / "b", "--page", place)
    assert done.exit_code and isinstance(done.exception, ConfigError)


def test_where_nothing_begins_it_ends(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(CheckpointError, match="no run began"):
        list(overviews([str(tmp_path)], 2.0, clock.wait, clock, patience=10.0))
    assert clock.now == 12.0


def test_a_class_that_is_forgotten_is_a_line_that_sinks(tmp_path: Path) -> None:
    """Ten samples a class: class 0 falls from 100 to 0 %, class 1 rises; bars go from 0 to 100 % for every class."""
    path = folder(tmp_path / "a", config(), [0.5, 0.5, 0.5])
    right = [(10, 0), (5, 5), (0, 10)]
    rows = [
        counted("test", "global", np.array(counts), np.array([10, 10]), done=done, phase="round", task=0, round=done)
        for done, counts in enumerate(right, 1)
    ]
    put(path, "tests", rows)
    assert [line.split() for line in classes_over_rounds(Run(path))] == [
        ["class", "0", "█▅▁", "0%"],
        ["class", "1", "▁▅█", "100%"],
    ]


def test_the_command_writes_a_page_and_a_table(tmp_path: Path) -> None:
    for seed in (0, 1):
        folder(tmp_path / "runs" / f"s{seed}", config(seed=seed), [0.5, 0.6])
    page = tmp_path / "page.html"
    done = invoke("show", "--follow", tmp_path / "runs", "--page", page)
    assert done.exit_code == 0, done.output
    assert "s1: finished 2/3 60.00%" in done.output and "2 runs" in done.output
    assert "Learning curves" in (text := page.read_text()) and "http-equiv" not in text  # it is over
