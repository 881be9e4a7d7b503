"""One writer a folder: refused while the owner lives, taken over when it is dead, noticed by who lost it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from flray import living
from flray.core.schema.errors import CheckpointError
from flray.rundir import lock as locks
from flray.rundir.lock import NAME, FolderLock, FolderLostError, Owner, holder
from tests.support.messages import facts

HOLD = """
import sys
from pathlib import Path
from flray.rundir.lock import FolderLock
lock = FolderLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """A process that holds the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def pretend(folder, **fields):
    """Rewrite the lock as if another owner had left it."""
    record = json.loads((folder / NAME).read_text())
    (folder / NAME).write_text(json.dumps({**record, **fields}))


def test_a_living_owner_is_named(tmp_path, other):
    with pytest.raises(CheckpointError, match=facts(tmp_path, f"process {other.pid} ")):
        FolderLock.acquire(tmp_path)
    assert holder(tmp_path).pid == other.pid


def test_a_stopped_owner_still_holds_it(tmp_path, other):
    os.kill(other.pid, signal.SIGSTOP)
    while living.state(other.pid) != "T":  # the signal takes a moment
        time.sleep(0.01)
    with pytest.raises(CheckpointError, match=facts(f"process {other.pid} ", "stopped")):
        FolderLock.acquire(tmp_path)


def test_a_killed_owner_is_followed(tmp_path, other):
    other.kill()  # not waited for: a zombie is dead as well
    while living.state(other.pid) not in (None, "Z"):
        time.sleep(0.01)
    mine = FolderLock.acquire(tmp_path)
    assert holder(tmp_path) == mine.owner


def test_a_process_number_that_is_somebody_elses_now_is_no_owner(tmp_path):
    FolderLock.acquire(tmp_path)
    pretend(tmp_path, pid=1, id="old")  # the process number lives, and began at another time
    assert FolderLock.acquire(tmp_path).owner == holder(tmp_path)


def test_an_owner_on_another_machine_counts_by_its_last_sign_of_life(tmp_path):
    first = FolderLock.acquire(tmp_path)
    pretend(tmp_path, machine="another", host="node7")
    long_ago = time.time() - 2 * locks.STALE_S
    os.utime(tmp_path / NAME, (long_ago, long_ago))
    second = FolderLock.acquire(tmp_path)
    second.check()
    with pytest.raises(FolderLostError, match=facts(tmp_path, f"process {os.getpid()}")):
        first.check()
    first.release()  # what is another's stays
    second.check()


@pytest.mark.parametrize("lives", [True, False])
def test_an_owner_on_another_machine_that_was_heard_of_lately_is_waited_for(tmp_path, monkeypatch, lives):
    """A node that was lost has left a fresh lock; one that lives touches it again while the other waits."""
    FolderLock.acquire(tmp_path)
    pretend(tmp_path, machine="another", host="node7")
    then = time.time() - locks.STALE_S + 3
    os.utime(tmp_path / NAME, (then, then))

    def wait(seconds):
        """The wait is played: the other's clock goes on, and it gives a sign or none."""
        beat = time.time() if lives else then - locks.STALE_S
        os.utime(tmp_path / NAME, (beat, beat))

    monkeypatch.setattr(locks.time, "sleep", wait)
    with pytest.warns(UserWarning, match=facts(tmp_path, "node7", f"{locks.STALE_S:.0f} s")):
        if lives:
            with pytest.raises(CheckpointError, match=facts(tmp_path, "process ", "node7")):
                FolderLock.acquire(tmp_path)
        else:
            FolderLock.acquire(tmp_path).check()


@pytest.mark.parametrize("lives", [True, False])
def test_a_lock_that_is_dated_in_the_future_is_waited_for_once(tmp_path, monkeypatch, lives):
    """Another machine's, whose clock is a day ahead: 45 s without a sign of life, and the folder is free."""
    FolderLock.acquire(tmp_path)
    pretend(tmp_path, machine="another", host="node7")
    then, waited = time.time() + 86400, []
    os.utime(tmp_path / NAME, (then, then))
    begin = time.monotonic()

    def wait(seconds):
        waited.append(seconds)
        assert sum(waited) < 10 * locks.STALE_S, "it waits for ever"
        if lives and sum(waited) > 10:
            os.utime(tmp_path / NAME, (then + 10, then + 10))

    monkeypatch.setattr(locks.time, "sleep", wait)
    monkeypatch.setattr(locks.time, "monotonic", lambda: begin + sum(waited))
    with pytest.warns(UserWarning, match=facts("node7", re.compile(r"\b86[34]\d\d s"), "clock")):
        if lives:
            with pytest.raises(CheckpointError, match=facts(tmp_path, "process ", "node7")):
                FolderLock.acquire(tmp_path)
        else:
            FolderLock.acquire(tmp_path).check()
    assert sum(waited) <= locks.STALE_S + locks.WATCH_S + locks.TAKEOVER_WAIT_S


def test_a_date_in_the_future_says_nothing_of_a_process_of_this_machine(tmp_path, other):
    then = time.time() + 86400
    os.utime(tmp_path / NAME, (then, then))
    with pytest.raises(CheckpointError, match=facts(tmp_path, f"process {other.pid} ")):
        FolderLock.acquire(tmp_path)
    other.kill()
    other.wait()
    os.utime(tmp_path / NAME, (then, then))
    FolderLock.acquire(tmp_path).check()


def test_the_sign_of_life_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_S", 0.01)
    FolderLock.acquire(tmp_path)
    os.utime(tmp_path / NAME, (0, 0))
    deadline = time.monotonic() + 30
    while (tmp_path / NAME).stat().st_mtime == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_lost_the_folder_is_told(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    lock = FolderLock.acquire(folder)
    (folder / NAME).unlink()
    with pytest.raises(FolderLostError, match=facts(folder, ".lock")):
        lock.check()
    shutil.rmtree(folder)
    with pytest.raises(FolderLostError, match=facts(folder)):
        lock.check()


def test_a_released_folder_is_free_and_clean(tmp_path):
    FolderLock.acquire(tmp_path).release()
    assert list(tmp_path.iterdir()) == []
    FolderLock.acquire(tmp_path).release()


def test_of_two_that_find_a_dead_owner_one_gets_it(tmp_path, monkeypatch):
    """The other one writes its record between this one's and this one's second look."""
    FolderLock.acquire(tmp_path)
    pretend(tmp_path, started=-1)
    rival = Owner.this_process()
    monkeypatch.setattr(locks.time, "sleep", lambda _: (tmp_path / NAME).write_text(json.dumps(rival._asdict())))
    with pytest.raises(CheckpointError, match=facts(tmp_path, f"process {rival.pid} ")):
        FolderLock.acquire(tmp_path)


def test_a_record_that_cannot_be_read_is_nobodys(tmp_path):
    (tmp_path / NAME).write_text("{")
    mine = FolderLock.acquire(tmp_path)
    assert holder(tmp_path) == mine.owner


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match=facts(tmp_path / "absent", "--out")):
        FolderLock.acquire(tmp_path / "absent")
