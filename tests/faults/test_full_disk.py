"""A disk that is full before the first round, in the middle of a run, or while one of its parts is written: one line, a
STATUS, and the same bits once there is room."""

from collections.abc import Callable
from pathlib import Path

import pytest

import flray
from flray.core.schema.errors import FlrayError
from flray.running import play
from tests.faults.moments import Moment, at
from tests.support.digits import own_on_digits
from tests.support.outcome import contents
from tests.support.runs import model, on_actors as config


def test_full_before_the_first_round_leaves_nothing_of_a_run(disk):
    home, fill, make_room = disk
    fill()
    with pytest.raises(FlrayError, match=r"No space left|disk is full") as error:
        flray.run(stateful("local", 1), out=home / "run", progress=False)
    assert "\n" not in str(error.value)
    make_room()
    assert flray.run(stateful("local", 1), out=home / "run", progress=False).status == "finished"


def test_full_after_some_rounds_says_so_in_status_and_resumes_to_the_same_bits(ray_cluster, disk, tmp_path):
    home, fill, make_room = disk
    settings = config(rounds=6)
    rows = play(settings, home / "run")
    for _ in range(3):
        next(rows)
    fill()
    with pytest.raises(FlrayError, match=r"No space left|disk is full") as error:
        list(rows)
    assert "\n" not in str(error.value) and f"flray resume {home / 'run'}" in str(error.value)
    status = flray.load(home / "run").status
    assert status.startswith("failed: ") and ("No space left" in status or "disk is full" in status)
    assert not [path for path in (home / "run").iterdir() if path.name.startswith(".")], "nothing half-written stays"
    make_room()
    run = flray.resume(home / "run", progress=False)
    assert run.status == "finished" and run.rounds["round"].tolist() == [1, 2, 3, 4, 5, 6]
    assert model(run.folder) == model(flray.run(settings, out=tmp_path / "whole", progress=False).folder)


# client states in files ------------------------------------------------------------------------
def stateful(executor: str, rounds: int = 5):
    """Every client of `own` keeps a control variate, here of 2.6 kB; a checkpoint after rounds 2 and 4."""
    resources = {"executor": executor, "store": "files"}
    return own_on_digits(rounds, resources, partition={"name": "iid", "clients": 5}, evaluate={})


def assert_told_and_resumed(folder: Path, error: FlrayError, make_room: Callable[[], None], whole: flray.Run) -> None:
    said = str(error)
    assert "\n" not in said and ("No space left" in said or "disk is full" in said) and "free some space" in said
    broken = flray.load(folder)
    assert broken.status.startswith("failed: "), broken.status
    done = broken.rounds["done"].tolist() if len(broken.rounds) else []
    assert done == list(range(1, len(done) + 1)), "rows that were written stay"
    if done:
        assert broken.rounds["test/acc"].tolist() == whole.rounds["test/acc"].tolist()[: len(done)]
    make_room()
    run = flray.resume(folder, progress=False)
    assert run.status == "finished" and contents(run) == contents(whole)
    left = [path for path in folder.rglob(".*") if not path.name.startswith(".lock")]
    assert not left, "nothing half-written stays"


WRITTEN = {
    "a client's state": Moment("before", "flray.rundir.client_store:FileStore.scatter", 4),
    "a client's state of the first round": Moment("before", "flray.rundir.client_store:FileStore.scatter"),
    "rows": Moment("before", "flray.rundir.recorder:Recorder.flush"),
    "a checkpoint": Moment("before", "flray.rundir.checkpoint:write"),
    "the second checkpoint": Moment("before", "flray.rundir.checkpoint:write", 1),
    "the end of a checkpoint": Moment("before", "flray.rundir.checkpoint:with_checksum"),
    "the model": Moment("before", "flray.rundir.run_store:RunStore.save_model"),
    "environment.json at the end": Moment("before", "flray.engine.simulation:Simulation._write_environment", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_full_while_a_part_is_written_loses_nothing(disk, tmp_path, monkeypatch, name):
    home, fill, make_room = disk
    whole = flray.run(stateful("local"), out=tmp_path / "whole", progress=False)
    with monkeypatch.context() as patch:
        at(WRITTEN[name], fill, patch.setattr)
        with pytest.raises(FlrayError) as error:
            flray.run(stateful("local"), out=home / "run", progress=False)
    assert_told_and_resumed(home / "run", error.value, make_room, whole)
