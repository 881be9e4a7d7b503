"""Forks of a process with its imports done: like processes that are started now, and none that stays."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flray.engine import forked
from tests.support.leftovers import ended
from tests.support.processes import python

HELPERS = """
import os, signal, sys

def tell():
    import numpy
    print(os.getcwd(), os.environ.get("MARK"), os.getppid(), os.getsid(0) == os.getpid(), "torch" in sys.modules)
    import torch
    print(numpy.random.random(), float(torch.rand(1)))
    print("to the error", file=sys.stderr)

def hold():
    import gc
    files = [open(os.devnull) for _ in range(20)]
    gc.collect()
    print(all(os.fstat(file.fileno()) for file in files))

def echo():
    for line in sys.stdin:
        print(line.strip(), flush=True)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def fail():
    raise ValueError("a mistake")
"""


@pytest.fixture(autouse=True, scope="module")
def _helpers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("helpers")
    (folder / "helpers.py").write_text(HELPERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        yield
    forked.close()


def said(function: str) -> tuple[list[str], int]:
    child = forked.fork(f"helpers:{function}")
    lines = child.stdout.read().splitlines()
    code = child.wait()
    child.close()
    return lines, code


def test_a_child_is_as_a_process_that_starts_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Environment, working directory and standard error of the moment, other draws of NumPy's global generator."""
    (first, one), code = said("tell")
    (again, two), _ = said("tell")
    assert code == 0 and first == again, "the same parent"
    assert all(a != b for a, b in zip(one.split(), two.split(), strict=True))
    assert first.split()[:2] == [os.getcwd(), "None"] and first.split()[3:] == ["True", "True"]
    assert capfd.readouterr().err.count("to the error") == 2
    monkeypatch.setenv("MARK", "here")
    (marked, _), _ = said("tell")
    assert marked.split()[:2] == [os.getcwd(), "here"] and marked.split()[2] != first.split()[2]
    monkeypatch.chdir(tmp_path)
    (changed, _), _ = said("tell")
    assert changed.split()[:2] == [str(tmp_path), "here"] and changed.split()[2] != marked.split()[2]
    assert ended(int(first.split()[2])), "the parent of before"


def test_a_child_has_no_descriptor_of_its_parents() -> None:
    """A collection of the parent's objects closes none of the child's files."""
    assert said("hold") == (["True"], 0)


def test_a_fork_that_fails_is_that_of_one_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on and say how they ended."""
    code = (
        "import os, socket, sys\nfrom flray.engine import forked\nfork, calls = os.fork, []\n"
        "def second_fails():\n    calls.append(1)\n    if len(calls) == 2:\n        raise BlockingIOError\n"
        "    return fork()\n"
        "os.fork = second_fails\nforked.serve(socket.socket(fileno=int(sys.argv[1])), None, [])()"
    )
    ours, theirs = socket.socketpair()
    with theirs:
        parent = subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    forked.close()
    monkeypatch.setattr(forked, "_start", lambda imports: (ours, parent))
    first = forked.fork("helpers:echo")
    assert forked.fork("helpers:echo").wait() == 1
    third = forked.fork("helpers:echo")
    for child in (first, third):
        child.stdin.write("still here\n")
        child.stdin.close()
        assert child.stdout.read() == "still here\n" and child.wait() == 0
    monkeypatch.undo()
    forked.close()
    parent.kill()
    parent.wait()


@pytest.mark.slow
def test_how_a_child_ended(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert said("die") == ([], -signal.SIGKILL)
    assert said("fail") == ([], 1) and "ValueError: a mistake" in capfd.readouterr().err
    reader = forked.fork("helpers:echo")
    other = forked.fork("helpers:echo")  # holds no end of the first one's pipes
    reader.stdin.write("one\n")
    reader.stdin.close()
    assert reader.stdout.read() == "one\n" and reader.wait() == reader.wait() == 0
    other.terminate()
    assert other.wait() == -signal.SIGTERM
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("the number may be another process's"))
    other.terminate()


@pytest.mark.slow
def test_a_lost_parent_is_replaced_and_its_child_goes_on() -> None:
    child = forked.fork("helpers:echo")
    parent = int(Path(f"/proc/{child.pid}/stat").read_text().split()[3])
    os.kill(parent, signal.SIGKILL)
    assert ended(parent) and said("die")[1] == -signal.SIGKILL
    child.stdin.write("still here\n")
    child.close()
    assert ended(child.pid) and child.wait() == 1


@pytest.mark.slow
def test_a_parent_that_is_closed_waits_for_its_children() -> None:
    """So their exit statuses are told, also after a change of the environment has made another parent."""
    child = forked.fork("helpers:echo")
    parent = forked._parent._process.pid if forked._parent else 0
    forked.close()
    child.stdin.write("still here\n")
    child.stdin.close()
    assert child.stdout.read() == "still here\n" and child.wait() == 0 and ended(parent)
    child.close()


@pytest.mark.slow
def test_a_fork_of_the_owner_has_a_parent_of_its_own() -> None:
    child = forked.fork("helpers:echo")
    if (pid := os.fork()) == 0:
        os._exit(0 if forked._parent is None and forked._lock.acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert said("die")[1] == -signal.SIGKILL, "the owner's parent goes on"
    child.close()


@pytest.mark.slow
def test_nothing_stays_behind_its_owner(tmp_path: Path) -> None:
    """Whose end is Ctrl-C in its whole process group, or a kill."""
    code = (
        "import signal, time\nfrom flray.engine import forked\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nchild = forked.fork('helpers:echo')\n"
        "print(child.pid, forked._parent._process.pid, flush=True)\ntime.sleep(100)"
    )
    for number in (signal.SIGINT, signal.SIGKILL):
        owner = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert owner.stdout is not None
        child, parent = map(int, owner.stdout.readline().split())
        os.killpg(owner.pid, number)
        owner.wait()
        assert ended(child) and ended(parent), number
        owner.stdout.close()


def test_ctrl_c_leaves_it_to_its_owner() -> None:
    """Whose runs pause before they end."""
    code = (
        "import os, signal, time\nfrom flray.engine import forked\nsignal.signal(signal.SIGINT, lambda *_: None)\n"
        "forked.fork('helpers:echo').close()\nos.killpg(os.getpgrp(), signal.SIGINT)\ntime.sleep(0.5)\n"
        "print(forked._parent._process.poll())"
    )
    assert python("-c", code, start_new_session=True).stdout == "None\n"


@pytest.mark.parametrize("programs", [False, True])
def test_it_ends_without_a_child_for_long(programs: bool) -> None:
    """A tenth of a second here; where others ask for programs, too: their Ray may have ended."""
    code = (
        "import socket, sys\nfrom flray.engine import forked\nforked.IDLE_S = 0.1\n"
        "given = [socket.socket(fileno=int(fd)) for fd in sys.argv[1:]]\n"
        "forked.serve(given[0], given[1] if given[1:] else None, [])"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listening:
        given = [theirs.fileno(), *([listening.fileno()] if programs else [])]
        python("-c", code, *given, pass_fds=given, timeout=60)


def test_without_a_parent_a_child_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was lost at once, and nothing is signalled."""
    monkeypatch.setattr(forked.sys, "executable", "/bin/false")
    child = forked.fork("helpers:echo")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("nobody to signal"))
    child.terminate()
    assert child.pid == 0 and child.stdout.read() == "" and child.wait() == 1
    child.close()
