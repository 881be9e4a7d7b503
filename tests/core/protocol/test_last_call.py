"""What is read of a process that ended, from real processes: the method, where, and the signal if Python saw it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flray.core.protocol.last_call import SIZE, last_call
from flray.core.schema.errors import AlgorithmError, ClientError, LastCall
from flray.engine.blame import Deaths

OUTER, INNER = "Mine.step (mine.py, line 8)", "Mine.gradient (mine.py, line 3)"
PROGRAM = """
import ctypes, os, signal, sys
from pathlib import Path
from flray.core.protocol.last_call import at, enter, label, record, within
record(Path(sys.argv[1]))
with at("client 5 failed in task 0, round 1", 5), within(label({outer!r})):
    with within(label({inner!r})):
        {inside}
    {after}
print(os.getpid(), flush=True)
{at_last}
"""
LEAVE, CRASH, KILL = "os._exit(3)", "ctypes.string_at(0)", "os.kill(os.getpid(), signal.SIGKILL)"


def process(path, inside="pass", after="pass", at_last="pass"):
    """The pid of a process that runs this and is gone."""
    program = PROGRAM.format(inside=inside, after=after, at_last=at_last, outer=OUTER, inner=INNER)
    running = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.DEVNULL)
    running.wait()
    return running.pid


@pytest.mark.parametrize(
    ("inside", "after", "method", "signal"),
    [
        (LEAVE, "pass", INNER, ""),
        (CRASH, "pass", INNER, "SIGSEGV"),
        ("pass", LEAVE, OUTER, ""),
        ("pass", "os.abort()", OUTER, "SIGABRT"),
        ("pass", KILL, OUTER, ""),
    ],
)
def test_the_method_in_which_a_process_ended_is_read(tmp_path, inside, after, method, signal):
    path = tmp_path / "notes" / "actor"
    pid = process(path, inside, after)
    assert last_call(path) == LastCall(pid, 5, "client 5 failed in task 0, round 1", method, signal)


def test_a_process_that_ended_in_no_method_is_in_none(tmp_path):
    process(tmp_path / "actor", at_last=KILL)
    assert last_call(tmp_path / "actor") is None
    assert last_call(tmp_path / "never written") is None


def test_the_next_process_of_an_actor_leaves_the_file_until_its_own_first_call(tmp_path):
    """An actor that Ray starts again must not wipe out what the driver has not read; nor is the signal of the one
    before its own."""
    path = tmp_path / "actor"
    first = process(path, CRASH)
    program = f"from pathlib import Path; from flray.core.protocol.last_call import record; record(Path({str(path)!r}))"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert last_call(path).pid == first and last_call(path).signal == "SIGSEGV"
    second = process(path, LEAVE)
    assert last_call(path).pid == second and last_call(path).signal == ""
    assert path.stat().st_size > SIZE


def test_a_process_that_lives_has_not_ended(tmp_path, monkeypatch):
    path = tmp_path / "actor"
    process(path, LEAVE)
    held = path.read_bytes()
    path.write_bytes(str(os.getpid()).encode() + held[held.index(b"\n") :])
    monkeypatch.setattr("flray.core.protocol.last_call.PATIENCE_S", 0.0)
    assert last_call(path) is None


CALL = LastCall(11, 5, "client 5 failed in task 0, round 1, exchange 0, seed 0", OUTER)


def test_only_two_processes_that_end_in_the_same_call_are_an_error():
    """One death is repeated; so are those of another client, moment or method, and what is heard twice of one."""
    deaths = Deaths()
    elsewhere = [{"where": "client 6 failed in task 0, round 1"}, {"method": INNER}, {"where": "client 5, round 2"}]
    others = [CALL._replace(pid=12 + i, **other) for i, other in enumerate(elsewhere)]
    assert [deaths.record(call) for call in (None, CALL, CALL, *others, None)] == [None] * 7
    error = deaths.record(CALL._replace(pid=99, signal="SIGSEGV"))
    assert isinstance(error, ClientError)
    assert str(error).splitlines() == [
        f"{CALL.where}: {OUTER} ended its process, twice (SIGSEGV); look for os._exit and for crashes of native code",
        "repeat just this client: flray replay RUN_FOLDER --client 5",
    ]


def test_the_server_half_is_named_as_such():
    call = LastCall(1, None, "task 0, round 1", "Mine.aggregate (mine.py, line 3)")
    deaths = Deaths()
    assert deaths.record(call) is None
    error = deaths.record(call._replace(pid=2))
    assert isinstance(error, AlgorithmError)
    assert str(error) == (
        "Mine.aggregate (mine.py, line 3) of the server half, in task 0, round 1, ended its process, twice (without a "
        "signal that Python sees: os._exit, exit of native code, or SIGKILL); look for os._exit and for crashes of "
        "native code"
    )
