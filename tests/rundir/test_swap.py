"""A run that takes the place of another one, killed at every step: no run is lost, and what is left over goes."""

import json
import os
import signal
import warnings

import pytest

from flray.core.schema.errors import CheckpointError
from flray.files import PARTIAL
from flray.rundir import lock as locks, swap
from flray.rundir.folder import RunFolder, repair_swap
from flray.rundir.reader import load, runs_below
from tests.support.messages import facts
from tests.support.swapping import at_event, replacement, write_run


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (locks.NAME, swap.MARK) and not PARTIAL.fullmatch(path.name)
    }


def is_whole(folder):
    """Whether the folder holds one of the two runs, and all of it."""
    found = contents(folder)
    return set(found) == {"config.yaml", "STATUS", "rounds/part-0000.parquet"} and len(set(found.values())) == 1


def bury(home):
    """The locks are those of a process that is dead."""
    for lock in home._locks:
        lock._over.set()
    for path in home.target.parent.glob(f"*/{locks.NAME}"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 999999999}))


def judge(folder):
    """After a kill: readers find one run or are told where both are, and the next command has its way."""
    siblings = [path for path in folder.parent.iterdir() if path.is_dir()]
    assert any(is_whole(path) for path in siblings)
    if folder.exists():
        assert is_whole(folder) and load(folder).folder == folder
        assert all(is_whole(path) for path in runs_below(folder.parent))
    else:
        with pytest.raises(CheckpointError, match=facts(folder)):
            load(folder)
    with warnings.catch_warnings(action="ignore"):
        RunFolder.claim(folder, resume=True).release()
        assert is_whole(folder)
        home = replacement(folder)
        home.replace_previous_run()
        home.release()
    assert set(contents(folder).values()) == {"new"}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(locks, "TAKEOVER_WAIT_S", 0.0)


def killed_at(event, folder):
    """Whether a process that replaces the run was killed behind its `event`-th call; it ended before if not."""
    if not (child := os.fork()):
        try:
            home = replacement(folder)
            with at_event(event, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                home.replace_previous_run()
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("exchanges", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_kill_at_any_step_loses_no_run(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(swap, "exchange", lambda one, other: False)
    between, events = set(), 0
    while True:
        folder = tmp_path / str(events) / "run"
        write_run(folder, "old")
        if not killed_at(events, folder):
            break
        between.add(tuple(sorted(path.name.partition("-")[0] for path in folder.parent.iterdir())))
        judge(folder)
        events += 1
    assert events > 20
    # the states that a kill can leave were all seen
    assert {("run", "run.new"), (".run.old", "run"), ("run",)} <= between
    assert ((".run.old", "run.new") in between) == (not exchanges)


def test_names_are_exchanged_in_one_step_where_the_system_can(tmp_path):
    for name in ("one", "other"):
        write_run(tmp_path / name, name)
    inodes = {name: (tmp_path / name).stat().st_ino for name in ("one", "other")}
    if not swap.exchange(tmp_path / "one", tmp_path / "other"):
        pytest.skip("this file system cannot exchange two names")
    assert (tmp_path / "one").stat().st_ino == inodes["other"] and (tmp_path / "other").stat().st_ino == inodes["one"]
    with pytest.raises(OSError, match="No such file"):
        swap.exchange(tmp_path / "one", tmp_path / "absent")


def test_a_swap_that_goes_on_is_left_alone(tmp_path, monkeypatch):
    """Without an exchange the place is empty for a moment: who comes then is told who is at it."""
    monkeypatch.setattr(swap, "exchange", lambda one, other: False)
    write_run(tmp_path / "run", "old")
    home = replacement(tmp_path / "run")
    swap.mark(tmp_path / "run", "old", tmp_path / "run")
    hidden = tmp_path / ".run.old-flray-0123456789abcdef"
    (tmp_path / "run").rename(hidden)
    for options in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(CheckpointError, match=facts(f"process {os.getpid()} ")):
            RunFolder.claim(tmp_path / "run", **options)
    assert is_whole(hidden) and is_whole(home.path) and not (tmp_path / "run").exists()
    bury(home)
    with pytest.warns(UserWarning, match=facts(tmp_path / "run")):
        repair_swap(tmp_path / "run")
    assert set(contents(tmp_path / "run").values()) == {"old"} and is_whole(home.path)


@pytest.mark.parametrize("name", [".run.old-1a2b3c4d", ".run.old-mine", ".other.old-flray-0123456789abcdef"])
def test_what_only_looks_like_a_left_over_stays(tmp_path, name):
    write_run(tmp_path / "run", "old")
    write_run(tmp_path / name, "the user's own")
    home = replacement(tmp_path / "run")
    home.replace_previous_run()
    home.release()
    assert set(contents(tmp_path / name).values()) == {"the user's own"}
