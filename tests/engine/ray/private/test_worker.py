"""Workers of a Ray that flray starts are forks of one process, and as Ray's own in all else."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import flray
from flray.engine import forked
from flray.engine.ray import leases
from flray.engine.ray.private import worker
from flray.running import play
from tests.support.leftovers import ended
from tests.support.runs import on_actors as config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are no forks")
SAYS = """
import gc, json, os, resource, signal, sys
files = [open(os.devnull) for _ in range(20)]
gc.collect()
said = {
    "files are open": all(os.fstat(file.fileno()) for file in files),
    "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "argv": sys.argv, "name": __name__, "cwd": os.readlink("/proc/self/cwd"),
    "environ": dict(os.environ), "path": sys.path[0],
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    "oom": open("/proc/self/oom_score_adj").read().strip(), "modules": [*sys.modules], "parent": os.getppid(),
}
print(json.dumps(said), flush=True)
if "wait" in sys.argv:
    signal.pause()
sys.exit(7)
"""
BEFORE = """
import os, resource, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
os.nice(3)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
open("/proc/self/oom_score_adj", "w").write("321")
os.execv(sys.argv[1], sys.argv[1:])
"""


# a command that has changed what Python has for a whole process, and is forked
COMMAND = """
import logging, signal, sys, warnings
from flray.engine.early_fork import Interpreter, may_fork
origin = Interpreter()
sys.path.insert(0, "/somewhere")
warnings.showwarning = print
warnings.simplefilter("error")
logging.getLogger("flray").setLevel(60)
logging.basicConfig(filename=sys.argv[0] + ".log")
sys.setprofile(lambda *_: None)
sys.settrace(lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
signal.signal(signal.SIGTERM, lambda *_: None)
file = open(sys.argv[0])
print("not written yet", end="")
assert may_fork()
from flray.engine import forked
programs = forked.Programs(["uuid"], origin)
print(f"\\n{programs.path} {programs.pid}", flush=True)
sys.stdin.read()
programs.close()
file.close()
"""


class Elsewhere(NamedTuple):
    """A parent of programs that another process has."""

    path: str
    pid: int


@contextlib.contextmanager
def early(folder: Path) -> Iterator[Elsewhere]:
    """Programs as forks of a command of flray's."""
    (folder / "flray").write_text(COMMAND)
    words = [sys.executable, str(folder / "flray")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdin is not None and command.stdout is not None
        assert command.stdout.readline() == "not written yet\n"
        path, pid = command.stdout.readline().split()
        yield Elsewhere(path, int(pid))
        command.stdin.close()
        assert command.stdout.read() == "", "said twice"


@pytest.fixture(scope="module", params=["new", "early"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        if request.param == "new":
            programs: Any = forked.Programs(["uuid"])  # whatever Python itself does not import
            stack.callback(programs.close)
        else:
            programs = stack.enter_context(early(tmp_path_factory.mktemp("command")))
        yield programs
        pid = programs.pid
    assert not Path(programs.path).parent.exists()
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    pytest.fail("it has not ended, or is a zombie")


def children(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def command(folder: Path, path: str, *arguments: str, module: str = "calendar") -> list[str]:
    """As a raylet writes it: Ray's shim, then the program; a fork has imported the module."""
    (folder / "setup_worker.py").write_text("import sys; print('the shim', *sys.argv[1:])")
    (folder / "default_worker.py").write_text(SAYS)
    shim, program = str(folder / "setup_worker.py"), str(folder / "default_worker.py")
    return [sys.executable, "-I", "-S", worker.__file__, path, module, sys.executable, shim, program, *arguments]


def test_a_fork_is_as_the_program_that_the_raylet_asked_for(programs: Any, tmp_path: Path) -> None:
    """Environment, working directory, priority, limits, score for the kernel's killer, arguments and exit status."""
    asked = command(tmp_path, programs.path, "--job=1", "--language=PYTHON")
    environ = {"MARK": "ü", "LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]}
    environ |= {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", BEFORE, *asked], env=environ, cwd=tmp_path, capture_output=True)
    said = json.loads(done.stdout)
    assert (
        done.returncode == 7 and said["parent"] in children(programs.pid) and {"uuid", "calendar"} <= {*said["modules"]}
    )
    assert said["argv"] == [str(tmp_path / "default_worker.py"), "--job=1"] and said["name"] == "__main__"
    assert said["cwd"] == said["path"] == str(tmp_path) and said["environ"] == environ
    assert said["nice"] == min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    assert said["files"] == 200 and said["oom"] == "321" and said["files are open"]
    assert said["blocked"] == [signal.SIGINT]


def test_a_fork_needs_no_working_directory(programs: Any, tmp_path: Path) -> None:
    """It may have been removed, and Ray's own worker starts there, too."""
    asked = command(tmp_path, programs.path)
    (tmp_path / "gone").mkdir()
    code = "import os; os.rmdir('../gone'); os.execv(os.sys.argv[1], os.sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *asked], cwd=tmp_path / "gone", capture_output=True)
    assert done.returncode == 7 and json.loads(done.stdout)["cwd"].endswith("(deleted)")


def test_who_connects_and_asks_for_nothing_stops_nobody(programs: Any, tmp_path: Path) -> None:
    """And nothing of it stays."""
    subprocess.run(command(tmp_path, programs.path), capture_output=True, timeout=60)  # the first leaves what all share
    open_before = len(os.listdir(f"/proc/{programs.pid}/fd"))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(programs.path)
        for _ in range(20):
            with socket.socket(socket.AF_UNIX) as gone:
                gone.connect(programs.path)
        done = subprocess.run(command(tmp_path, programs.path), capture_output=True, timeout=60)
    assert done.returncode == 7
    until = time.monotonic() + 20  # it may be about to close what the program had
    while len(os.listdir(f"/proc/{programs.pid}/fd")) > open_before + 1:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_module_of_the_working_directory_is_not_the_shared_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flray").mkdir()
    modules = [tmp_path / name for name in ("uuid.py", "random.py", "flray/__init__.py")]
    for module in modules:
        module.write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)
    others = forked.Programs(["uuid"])
    asked = command(tmp_path, others.path)
    for module in modules:
        module.unlink()
    done = subprocess.run(asked, capture_output=True)
    assert done.returncode == 7 and "uuid" in json.loads(done.stdout)["modules"]
    others.close()


PROCESS = """
import json, logging, os, random, signal, sys, threading, warnings
import numpy, torch
links = map("/proc/self/fd/{}".format, os.listdir("/proc/self/fd"))
files = [os.readlink(link) for link in links if os.path.exists(link)]
print(json.dumps({
    "path": sys.path, "files": sorted(file.partition("[")[0] for file in files if file[:6] not in ("/proc/", "/dev/n")),
    "signals": {int(each): repr(signal.getsignal(each)) for each in signal.valid_signals()},
    "ignored": [line for line in open("/proc/self/status") if line.startswith(("SigBlk", "SigIgn", "SigCgt"))],
    "warnings": [repr(warnings.showwarning).partition(" at ")[0], repr(warnings.filters)],
    "loggers": sorted(name for name in logging.root.manager.loggerDict if name.startswith("flray")),
    "flray": sorted(name for name in sys.modules if name.startswith("flray") and "forked" not in name),
    "session": os.getsid(0) == os.getpid(), "looked at": [repr(sys.getprofile()), repr(sys.gettrace())],
    "threads": [thread.name for thread in threading.enumerate()], "name": __name__,
    "torch": [torch.get_num_threads(), str(torch.get_default_dtype()), torch.is_grad_enabled()],
    "limits": os.getpriority(os.PRIO_PROCESS, 0), "group": os.getpgrp() == os.getpid(),
}))
"""


@pytest.mark.parametrize(
    "interrupt", [signal.default_int_handler, pytest.param(signal.SIG_IGN, marks=pytest.mark.slow)]
)
def test_a_fork_of_the_command_is_as_one_of_a_new_process(
    interrupt: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """But for the modules of others that the command has imported. A shell's job in the background ignores Ctrl-C."""
    request.addfinalizer(functools.partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, interrupt)))
    said = []
    others = forked.Programs(["uuid", "torch"])
    with early(tmp_path) as programs:
        for path in (others.path, programs.path):
            asked = command(tmp_path, path)
            (tmp_path / "default_worker.py").write_text(PROCESS)
            done = subprocess.run(asked, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, done.stderr
            said.append(json.loads(done.stdout))
    others.close()
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "code, status, wrote",
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('why')", 1, "why"),
        ("raise ValueError('why')", 1, "ValueError: why"),
        ("threading.Thread(target=lambda: (time.sleep(0.2), print('thread', end=' '))).start()", 0, ""),
        ("concurrent.futures.ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.2), print('thread', end=' ')))", 0, ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM, ""),
    ],
)
def test_a_program_ends_as_python_ends(code: str, status: int, wrote: str, programs: Any, tmp_path: Path) -> None:
    """Threads are waited for, what is registered is called, the streams are written."""
    asked = command(tmp_path, programs.path)
    before = "import atexit, concurrent.futures, os, signal, sys, threading, time\natexit.register(print, 'end')\n"
    (tmp_path / "default_worker.py").write_text(before + code)
    done = subprocess.run(asked, capture_output=True, text=True)
    ends = "" if status > 128 else "thread end\n" if "thread'" in code else "end\n"
    assert (done.returncode, done.stdout) == (status, ends) and wrote in done.stderr


def test_a_file_of_a_program_has_no_line_of_another(programs: Any, tmp_path: Path) -> None:
    """Whose number an open log of the command had."""
    asked = command(tmp_path, programs.path)
    code = (
        "import logging\nfiles = [open(f'{i}.own', 'w') for i in range(30)]\nlogging.getLogger('mine').error('a line')"
    )
    (tmp_path / "default_worker.py").write_text(code)
    assert subprocess.run(asked, cwd=tmp_path, capture_output=True).returncode == 0
    assert not any(file.read_text() for file in tmp_path.glob("*.own"))


ENVIRONMENTS = {  # no import of the parent was made with them
    "a prefix": {"command_prefix": ["nice"]},
    "another Python": {"py_executable": "/usr/bin/another"},
    "a variable that imports read": {"env_vars": {"OMP_NUM_THREADS": "3"}},
    "a variable of another one": {"env_vars": {"RAY_path": "${PATH}"}},
    "a name that begins like one": {"env_vars": {"PL_DISABLE_FORK_TOO": "1"}},
    "what nobody knows": {"resources_dir": "/tmp"},
    "of another form": {"env_vars": {"RAY_A": 1}},
    "nothing": None,
}


@pytest.mark.parametrize("case", [*ENVIRONMENTS, "options", "nobody", "lost"])
def test_what_is_no_plain_worker_starts_as_ray_starts_it(
    case: str, programs: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With a runtime environment by Ray's shim; and where nobody forks."""
    path = programs.path
    if case == "nobody":
        path = str(tmp_path / "none")
    if case == "lost":
        others = forked.Programs(["uuid"])
        os.kill(others.pid, signal.SIGKILL)
        others._wait()
        path = others.path
        request.addfinalizer(others.close)
    described = f"--serialized-runtime-env-context={json.dumps(ENVIRONMENTS.get(case))}"
    words = command(tmp_path, path, *([described] if case in ENVIRONMENTS else []))
    if case == "options":
        words.insert(8, "-s")
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout.startswith("the shim") and done.returncode == 0


def test_a_trial_of_ray_tune_is_a_fork_with_its_variables(programs: Any, tmp_path: Path) -> None:
    """Ray Tune gives a trial, and so its actors, a runtime environment of variables alone; as Ray 2.60 writes it."""
    variables = {"PL_DISABLE_FORK": "1", "RAY_CHDIR_TO_TRIAL_DIR": "0", "AWS_ACCESS_KEY_ID": "a key"}
    others: dict[str, Any] = {"command_prefix": [], "override_worker_entrypoint": None, "java_jars": []}
    context = {"env_vars": variables, "py_executable": sys.executable, **others}
    asked = command(tmp_path, programs.path, f"--serialized-runtime-env-context={json.dumps(context)}", "--job=1")
    done = subprocess.run(asked, env={**os.environ, "RAY_CHDIR_TO_TRIAL_DIR": "1"}, capture_output=True)
    said = json.loads(done.stdout)
    assert said["argv"][1:] == ["--job=1"] and "uuid" in said["modules"]
    assert variables.items() <= said["environ"].items()


def test_a_module_that_reads_the_environment_has_that_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ray, which reads its settings as it is imported."""
    (tmp_path / "reads_settings.py").write_text("import os\nread = {**os.environ}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("RAY_old", "1")
    others = forked.Programs(["uuid"])
    monkeypatch.delenv("RAY_old")
    asked = command(tmp_path, others.path, module="reads_settings")
    code = "from reads_settings import read; print(read.get('RAY_new'), 'RAY_old' in read)"
    (tmp_path / "default_worker.py").write_text(code)
    said = []
    for settings in ({"RAY_new": "1"}, {"RAY_new": "1"}, {"RAY_new": "2"}, {}):
        done = subprocess.run(asked, env={**os.environ, **settings}, capture_output=True, text=True)
        said.append(done.stdout.split())
    assert said == [["1", "False"], ["1", "False"], ["2", "False"], ["None", "False"]]
    others.close()


def test_without_its_module_a_program_starts_as_ray_starts_it(tmp_path: Path) -> None:
    others = forked.Programs(["uuid"])
    for _ in range(2):
        asked = command(tmp_path, others.path, module="there_is_no_such_module")
        assert subprocess.run(asked, capture_output=True, text=True).stdout.startswith("the shim")
    others.close()


def test_a_program_without_the_imports_of_its_kind_is_no_fork(tmp_path: Path) -> None:
    """The child that made them has just ended, and its parent has not looked yet."""
    others = forked.Programs(["uuid"])
    asked = command(tmp_path, others.path, module="colorsys")
    assert "colorsys" in json.loads(subprocess.run(asked, capture_output=True).stdout)["modules"]
    (child,) = children(others.pid)
    os.kill(others.pid, signal.SIGSTOP)
    os.kill(child, signal.SIGKILL)
    asking = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
    time.sleep(1.0)  # so that it asks before the parent goes on; if not, another child forks it
    os.kill(others.pid, signal.SIGCONT)
    said, _ = asking.communicate()
    assert said.startswith("the shim") or "colorsys" in json.loads(said)["modules"]
    others.close()


def test_a_killed_request_ends_the_program(programs: Any, tmp_path: Path) -> None:
    asking = subprocess.Popen(command(tmp_path, programs.path, "wait"), stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None and json.loads(asking.stdout.readline())["argv"][-1] == "wait"
    (child,) = itertools.chain(*map(children, children(programs.pid)))
    asking.kill()
    asking.wait()
    assert ended(child)
    asking.stdout.close()


@pytest.mark.slow
def test_actors_share_the_memory_of_one_process(ray_cluster, tmp_path):
    """It shares more than it has for itself, and one that takes a killed one's place gives the same bits."""
    whole = flray.run(config(rounds=3), out=tmp_path / "whole")
    for row in play(config(rounds=3), tmp_path / "run"):
        if row["round"] == 1:
            pool = leases.newest()
            pid = ray_cluster.get(pool.clients[0].setup.remote(*pool._setup))["pid"]
            memory = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
            shared, own = (int(memory[memory.index(key) + 1]) for key in ("Shared_Dirty:", "Private_Dirty:"))
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            assert "flray.engine.forked" in Path(f"/proc/{parent}/cmdline").read_text()
            assert shared > own
            os.kill(pid, signal.SIGKILL)
    assert flray.load(tmp_path / "run").rounds["test/loss"].tolist() == whole.rounds["test/loss"].tolist()
