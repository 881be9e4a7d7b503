"""An end in virtual seconds: the rounds that a run of all rounds has done by then, with the same bits."""

import functools
from pathlib import Path

import pandas as pd
import pytest

import flray
from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError, FlrayError
from flray.engine.replay import Replay
from flray.tuning.ablate import run_grid
from flray.tuning.sweep_file import load_sweep
from tests.support.commands import invoke, succeeded
from tests.support.stopped import continued, model
from tests.support.timed import TIMED

SECTIONS = {**TIMED, "evaluate": {"clients": False, "every": 3}, "checkpoint": {"every": 2, "keep": 0}}
KINDS = {"waits": {}, "buffered": {"coordination": {"name": "buffered", "size": 2, "concurrency": 5}}}


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_is_that_of_the_rounds_in_time(tmp_path: Path, kind: str) -> None:
    run = functools.partial(flray.run, {**SECTIONS, **KINDS[kind]}, progress=False)
    whole = run(out=tmp_path / "whole").rounds["time/virtual_s"]
    for done, end in ((5, float(whole[4])), (4, (float(whole[3]) + float(whole[4])) / 2)):
        found = run(f"until.virtual_s={end!r}", out=tmp_path / f"until {done}")
        given = run(f"rounds={done}", out=tmp_path / f"rounds {done}")
        assert found.status == "finished" and model(found.folder) == model(given.folder)
        assert found.rounds["test/acc"].tolist()[-1] == given.rounds["test/acc"].tolist()[-1]
        pd.testing.assert_series_equal(found.rounds["time/virtual_s"], whole[:done])
        # a replay knows no round after it
        replay = Replay(found.folder).goto(done - 1)
        client = int(replay.cohort()[0])
        assert f"client {client}, round {done}\n" in succeeded("replay", found.folder, "--client", client).output
        beyond = invoke("replay", found.folder, "--client", client, "--round", done + 1)
        assert str(beyond.exception) == f"--round {done + 1}: the run has rounds 1 to {done}"
        with pytest.raises(ConfigError, match=f"round {done + 1}: the run has rounds 1 to {done}"):
            replay.goto(done).cohort()
        with pytest.raises(ConfigError, match=f"the state after {done + 1} rounds: the run has {done}"):
            replay.goto(done + 1)
    # a stopped run ends there too, and a later end continues it
    assert model(continued(found.experiment, tmp_path / "stopped", 1)) == model(found)
    # an end where a run stands
    here = continued(load_config({**SECTIONS, **KINDS[kind]})[0], tmp_path / "here", done, [f"until.virtual_s={end!r}"])
    assert here.rounds["test/acc"].tolist()[-1] == given.rounds["test/acc"].tolist()[-1]
    later = flray.resume(tmp_path / "stopped", f"until.virtual_s={float(whole[5])!r}", progress=False)
    with pytest.raises(ConfigError, match=r"resume: until ends the run after 1 rounds, and .* has 6; raise it"):
        flray.resume(tmp_path / "stopped", f"until.virtual_s={float(whole[0])!r}", progress=False)
    assert len(later.rounds) == 6 and model(later.folder) == model(run("rounds=6", out=tmp_path / "six").folder)


def test_what_the_end_does_not_go_with_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"until.virtual_s=1e-09: the first round ends at .*; raise it"):
        flray.run(SECTIONS, "until.virtual_s=1e-9", out=tmp_path / "early", progress=False)
    assert not (tmp_path / "early").exists()
    with pytest.warns(UserWarning, match=r"rounds=8 end after .* virtual seconds, before until.virtual_s=1000; raise"):
        assert len(flray.run(SECTIONS, "until.virtual_s=1000", out=tmp_path / "late", progress=False).rounds) == 8
    experiment = {**SECTIONS, "until": {"virtual_s": 1}}
    with pytest.raises(ConfigError, match=r"until: scheduler asha compares trials by rounds; leave until out"):
        load_sweep({"experiment": experiment, "space": {"algorithm.lr": {"log": [0.01, 0.1]}}, "scheduler": "asha"})


@pytest.mark.slow
def test_a_grid_ends_in_time_and_again_runs_nothing(tmp_path: Path) -> None:
    cells = load_config(SECTIONS, ["seed=0..1", "rounds=60", "until.virtual_s=1e-5"])
    first = run_grid(cells, tmp_path / "grid", progress=False)
    assert first["status"].eq("finished").all() and first["done"].between(1, 59).all()
    stamps = [(Path(folder) / "STATUS").stat().st_mtime_ns for folder in first["folder"]]
    again = run_grid(cells, tmp_path / "grid", progress=False)
    pd.testing.assert_frame_equal(again, first)
    with pytest.raises(FlrayError, match=r"until.virtual_s is 1e-05 there, 2e-05 here"):
        run_grid(
            load_config(SECTIONS, ["seed=0..1", "rounds=60", "until.virtual_s=2e-5"]), tmp_path / "grid", progress=False
        )
    assert stamps == [(Path(folder) / "STATUS").stat().st_mtime_ns for folder in again["folder"]]
