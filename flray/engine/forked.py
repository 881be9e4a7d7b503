"""Processes that begin with the imports of a run done: forks of one process that has made them and computes nothing.

The imports take longer than many a small run; forks share their memory. The parent of the forks uses no thread of
PyTorch and no GPU. It ends with the process that started it, and after :data:`IDLE_S` without a child. Cells of a grid
are such forks, and so are the workers of a Ray that flray starts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from flray.engine import early_fork
from flray.engine.early_fork import Interpreter

IDLE_S = 300.0
PROGRAM = "program"  # what `engine/ray/private/worker.py` asks for
DESCRIPTORS = 5  # that it sends
# what a small run imports; on macOS nothing, whose frameworks do not stand a fork
IMPORTS = [
    "flray.engine.simulation",
    "flray.engine.local_executor",
    "pandas",
    "tensorboardX",
    "torch.utils.flop_counter",
]
if sys.platform == "darwin":
    IMPORTS.clear()
# what all workers of a Ray share; Ray itself reads the environment as it is imported, and a worker's is not known yet
SHARED = [
    *("flray.engine.client", "flray.engine.server", "flray.rundir.run_store"),
    *("torch.utils.flop_counter", "requests", "jsonschema", "google.protobuf.descriptor_pb2"),
]


class Child:
    """A fork that calls a function; in a session of its own, so that Ctrl-C does not reach it.

    `pid` is 0 where nobody could fork it: its output is empty and its exit status 1.
    """

    def __init__(self, pid: int, stdin: int, stdout: int, status: int) -> None:
        self.pid, self.stdin, self.stdout = pid, os.fdopen(stdin, "w"), os.fdopen(stdout)
        self._status = os.fdopen(status)
        self._code: int | None = None
        self._waiting = threading.Lock()

    def terminate(self) -> None:
        """Ask it to end, and close its input: a signal that comes just before it reads would wait for the next line."""
        if self.pid and self._code is None:  # of one that was waited for the number may be another process's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        with contextlib.suppress(BrokenPipeError):
            self.stdin.close()

    def wait(self) -> int:
        """The exit status, negative for a signal; 1 where it was not forked, or its parent was lost before it could
        tell."""
        with self._waiting:
            if self._code is None:
                self._code = int(self._status.read() or 1)
                self._status.close()
            return self._code

    def close(self) -> None:
        """Close the pipes. A child that reads its input to the end ends then."""
        with self.stdout, contextlib.suppress(BrokenPipeError):
            self.stdin.close()


def _start(
    imports: Sequence[str], listening: socket.socket | None = None
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """(the connection to a process that forks, the process); it ends after the connection has been closed."""
    ours, theirs = socket.socketpair()
    with theirs:
        given = [theirs.fileno(), *([] if listening is None else [listening.fileno()])]
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, ",".join(map(str, given)), *imports],
            pass_fds=given,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if listening is None else subprocess.DEVNULL,  # else who reads it waits for programs of others
            start_new_session=True,
            # not the working directory, whose modules `-m` would import; a program gets its own
            cwd=None if listening is None else Path(__file__).resolve().parents[2],
        )
    return ours, process


class _Parent:
    """The process that forks, seen from the one that started it."""

    def __init__(self) -> None:
        self._origin = self._now()
        self._socket, self._process = _start(IMPORTS)

    @staticmethod
    def _now() -> tuple[object, ...]:
        return os.getcwd(), dict(os.environ)

    @property
    def usable(self) -> bool:
        """It runs, and its forks have the environment and the working directory that this process has now."""
        return self._origin == self._now() and self._process.poll() is None

    def fork(self, function: str) -> tuple[Child, bool]:
        """(the child, whether somebody answered)."""
        inputs, outputs, status = os.pipe(), os.pipe(), os.pipe()
        errors = _standard_error()
        pid = b""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._socket, [function.encode()], [inputs[0], outputs[1], errors, status[1]])
            pid = self._socket.recv(64)
        for fd in (inputs[0], outputs[1], errors, status[1]):
            os.close(fd)
        return Child(int(pid or 0), inputs[1], outputs[0], status[0]), bool(pid)

    def close(self) -> None:
        """It ends when its children have ended."""
        self._socket.close()
        self._process.poll()


def _standard_error() -> int:
    """A descriptor of what standard error is now; of nothing where it is closed."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


_parent: _Parent | None = None
_lock = threading.Lock()


def fork(function: str) -> Child:
    """A child that calls `module:name`, with its standard input and output on the pipes of the result.

    It has this process's environment, working directory and standard error.
    """
    global _parent
    with _lock:
        if _parent is not None and not _parent.usable:
            _end()
        began = _parent is None
        _parent = _parent or _Parent()
        child, answered = _parent.fork(function)
        if not answered:
            _end()
        if not answered and not began:  # it was killed, and is not gone yet
            child.close()
            child.wait()
            _parent = _Parent()
            child, _ = _parent.fork(function)
        return child


def close() -> None:
    """End the parent of the forks. A child goes on."""
    with _lock:
        _end()


def _end() -> None:
    global _parent
    if _parent is not None:
        _parent.close()
    _parent = None


def _forget() -> None:
    """In a fork of this process: the parent of the forks and the lock are the other one's."""
    global _parent, _lock
    _lock = threading.Lock()
    if _parent is not None:
        _parent.close()
    _parent = None
    while _held:
        _held.pop().leave()


os.register_at_fork(after_in_child=_forget)


class Programs:
    """A parent of Python programs, which other processes ask for at `path`, and this process's hold on it.

    With `origin` it is a fork of this process (`early_fork`), else a new one. Only this user can reach it. It ends with
    its programs after `close`, or after this process. Raises `OSError` where no socket can be made.
    """

    def __init__(self, imports: Sequence[str], origin: Interpreter | None = None) -> None:
        self._wait: Callable[[], object]
        if origin is not None:
            origin.import_torch()
        folder = tempfile.mkdtemp(prefix="flray-")  # nobody else's, by its permissions
        self.path = os.path.join(folder, "socket")
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(self.path)
                listening.listen(4096)
                if origin is None:
                    self._socket, process = _start(imports, listening)
                    self.pid, self._wait = process.pid, process.wait
                else:
                    self._socket, self.pid = early_fork.start(origin, imports, listening)
                    self._wait = functools.partial(os.waitpid, self.pid, 0)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _held.append(self)

    def leave(self) -> None:
        """This process holds it no more; another one, which this one was forked from, may."""
        self._socket.close()

    def close(self) -> None:
        if self in _held:
            _held.remove(self)
            self.leave()
            shutil.rmtree(os.path.dirname(self.path), ignore_errors=True)
            with contextlib.suppress(RuntimeError):  # no thread begins as the interpreter ends
                threading.Thread(target=self._wait, daemon=True, name="flray-forks").start()


_held: list[Programs] = []
prepared: list[Programs] = []  # one at most, for the Ray that starts next


# the parent of the forks -----------------------------------------------------------------------
class _Zygote(NamedTuple):
    """A child that has made the imports of programs with the same settings, and forks in its turn; `pid` is 0 in it."""

    pid: int
    requests: socket.socket

    def fork(self, given: list[int], awaited: int) -> None:
        """Have it fork a program. Where it has ended, or could not be forked, nobody answers who has asked."""
        with contextlib.suppress(OSError):
            socket.send_fds(self.requests, [PROGRAM.encode()], [*given, awaited])
        for fd in (*given, awaited):
            os.close(fd)


class _Forking:
    """Forks for each request, and tells the exit status of each child that has ended."""

    def __init__(self, requests: socket.socket, listening: socket.socket | None) -> None:
        self._requests, self._listening = requests, listening
        self._children: dict[int, int] = {}  # process -> where its exit status is awaited
        self._zygotes: dict[str, _Zygote] = {}  # by settings
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent to all processes of a job: it ends after its children
        signal.set_wakeup_fd(self._wake)
        self._ready = selectors.DefaultSelector()
        for source in (requests.fileno(), self._woken, *([] if listening is None else [listening.fileno()])):
            self._ready.register(source, selectors.EVENT_READ)

    def serve(self) -> Callable[[], None] | None:
        """What a child has to do, in that child; None when nobody can ask any more, and all children have ended."""
        owned = True
        while owned or self._children or self._zygotes:
            events = self._ready.select(None if self._children or self._zygotes else IDLE_S)
            if not events:
                break
            for key, _ in events:
                function, given, awaited = b"", list[int](), -1
                if key.fd == self._requests.fileno():
                    function, given, awaited = self._request()
                    owned = bool(function)
                elif self._listening is not None and key.fd == self._listening.fileno():
                    function, given, awaited = _asked(self._listening)
                    if function and owned:
                        program = _described(given[3])
                        zygote = self._zygote(program, [*given, awaited])
                        if zygote.pid == 0:
                            return functools.partial(_be_zygote, zygote.requests, program["module"])
                        zygote.fork(given, awaited)
                        continue
                elif key.fd == self._woken:
                    os.read(self._woken, 4096)
                else:  # who awaited the child was killed, and the child with it
                    self._ready.unregister(key.fd)
                    os.kill(key.data, signal.SIGKILL)
                if function and self._start(function.decode(), given, awaited) == 0:
                    return _task(function.decode(), given)
            self._reap()
        return None

    def _request(self) -> tuple[bytes, list[int], int]:
        """(what the owner asks for, its descriptors, where the exit status is awaited); nothing where it has ended, or
        has closed its end."""
        function, given, _, _ = socket.recv_fds(self._requests, 1024, DESCRIPTORS + 1)
        if function:
            return function, given[:-1], given[-1]
        self._ready.unregister(self._requests)
        for zygote in self._zygotes.values():
            zygote.requests.close()
        return b"", [], -1

    def _zygote(self, program: dict[str, Any], unused: list[int]) -> _Zygote:
        """The child that forks such programs, or this process as a new one, with the program's environment.

        Ray reads its settings, of which some are of each job, as it is imported. `unused`: descriptors of the program.
        """
        settings = json.dumps([program["module"], program["settings"]])
        if settings not in self._zygotes:
            ours, theirs = socket.socketpair()
            if (pid := self._fork([ours.fileno(), *unused])) == 0:
                os.environ.clear()
                os.environ.update(program["environ"])
                return _Zygote(0, theirs)
            theirs.close()
            self._zygotes[settings] = _Zygote(pid, ours)
        return self._zygotes[settings]

    def _fork(self, unused: list[int]) -> int:
        """The number of a child, 0 in the child, which has nothing of its parent's open; -1 where none can be had."""
        try:
            with warnings.catch_warnings():  # of OpenBLAS's thread, which takes up after a fork
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError:  # no process left
            return -1
        if pid == 0:
            self._ready.close()
            for each in (self._requests, self._listening, *(zygote.requests for zygote in self._zygotes.values())):
                if each is not None:
                    each.close()
            for fd in (self._woken, self._wake, *unused, *self._children.values()):
                os.close(fd)
        return pid

    def _start(self, function: str, given: list[int], awaited: int) -> int:
        """The number of a child for a request, which is told to who has asked; 0 in the child."""
        if (pid := self._fork([awaited])) == 0:
            return 0
        for fd in given:
            os.close(fd)
        with contextlib.suppress(BrokenPipeError):  # without a child 0, or the end of the connection
            if function != PROGRAM or pid > 0:
                os.write(awaited if function == PROGRAM else self._requests.fileno(), f"{max(pid, 0)}\n".encode())
        if pid < 0:
            os.close(awaited)
            return pid
        self._children[pid] = awaited
        if function == PROGRAM:
            self._ready.register(awaited, selectors.EVENT_READ, pid)
        return pid

    def _reap(self) -> None:
        for pid, fd in list(self._children.items()):
            if (ended := os.waitpid(pid, os.WNOHANG))[0]:
                if fd in self._ready.get_map():
                    self._ready.unregister(fd)
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                    os.write(fd, str(os.waitstatus_to_exitcode(ended[1])).encode())
                os.close(self._children.pop(pid))
        for settings, zygote in list(self._zygotes.items()):
            if zygote.pid < 0 or os.waitpid(zygote.pid, os.WNOHANG)[0]:
                self._zygotes.pop(settings).requests.close()


def _asked(listening: socket.socket) -> tuple[bytes, list[int], int]:
    """(what a process that has connected asks for, its descriptors, the connection); nothing where it is gone, or does
    not say it at once."""
    try:
        connection, _ = listening.accept()
    except OSError:  # no descriptor left
        return b"", [], -1
    connection.settimeout(1.0)
    given: list[int] = []
    try:
        function, given, _, _ = socket.recv_fds(connection, 1024, DESCRIPTORS)
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            if not connection.recv(1, socket.MSG_PEEK):  # it did not wait for the answer
                raise ConnectionResetError
        if len(given) != DESCRIPTORS:
            raise ConnectionResetError
    except OSError:
        for fd in given:
            os.close(fd)
        connection.close()
        return b"", [], -1
    connection.setblocking(True)
    return function, given, connection.detach()


def _described(described: int) -> dict[str, Any]:
    with os.fdopen(os.dup(described), "rb") as file:
        file.seek(0)
        asked: dict[str, Any] = json.load(file)
    return asked


def serve(
    requests: socket.socket, listening: socket.socket | None, imports: Sequence[str]
) -> Callable[[], None] | None:
    """Make the imports, then as `_Forking.serve`."""
    task = None
    try:
        for name in imports:
            import_module(name)
        gc.collect()
        gc.freeze()  # a collection in a child writes to no page that all share
        task = _Forking(requests, listening).serve()
    finally:
        if task is None and listening is not None and listening.family == socket.AF_UNIX:
            shutil.rmtree(os.path.dirname(listening.getsockname()), ignore_errors=True)
    return task


def _task(function: str, given: list[int]) -> Callable[[], None]:
    """What a child does, whose standard streams these are."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number, fd in enumerate(given[:3]):
        os.dup2(fd, number)
    for fd in given[:3]:
        os.close(fd)
    # what draws from them is not the same in all forks
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if function == PROGRAM:
        return functools.partial(_program, *given[3:])
    return functools.partial(_call, function)


def _be_zygote(requests: socket.socket, module: str) -> None:
    """The life of a child that makes an import, and forks in its turn."""
    if (task := serve(requests, None, [module])) is None:
        os._exit(0)
    task()


def _call(function: str) -> None:
    """The function, then the end of the process."""
    status = 1
    try:
        module, _, name = function.partition(":")
        getattr(import_module(module), name)()
        sys.stdout.flush()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _program(described: int, folder: int) -> None:
    """A program as Python itself runs it, with the environment, working directory, priority, blocked signals and
    limit of files of who asked for it; in a session of its own."""
    asked = _described(described)
    os.close(described)
    os.environ.clear()
    os.environ.update(asked["environ"])
    with contextlib.suppress(OSError):
        os.fchdir(folder)
    os.close(folder)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, asked["nofile"])
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, asked["nice"])
        with open("/proc/self/oom_score_adj", "r+") as file:
            file.write(asked["oom_score_adj"])
    signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
    sys.argv = asked["argv"]
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    task = None
    try:
        _requests, *_listening = (socket.socket(fileno=int(fd)) for fd in sys.argv[1].split(","))
        if _listening and not sys.flags.safe_path:
            del sys.path[0]  # flray's home, which a program does not have there
        task = serve(_requests, _listening[0] if _listening else None, sys.argv[2:])
    except (BrokenPipeError, ConnectionResetError):  # its owner has ended
        pass
    except BaseException:
        traceback.print_exc()
    if task is None:
        os._exit(0)  # what imports left open has nothing to say
    task()
