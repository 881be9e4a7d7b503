"""The parent of a Ray's workers as a fork of flray's own command, made while the command has run nothing of the user's.

The command and the workers share the memory of torch so: of its CUDA build 280 MiB, which each process that imports it
has for itself.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import site
import socket
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NoReturn

HOME = str(Path(__file__).resolve().parents[1])


class Interpreter:
    """What Python has as flray's command begins, and the command changes before it can be forked."""

    def __init__(self) -> None:
        self._path = sys.path[0 if sys.flags.safe_path else 1 :]  # without the folder of the command
        self._showwarning, self._filters = warnings.showwarning, warnings.filters[:]
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def import_torch(self) -> None:
        """Which adds filters of warnings of its own."""
        before = warnings.filters[:]
        import_module("torch")
        self._filters = [*(each for each in warnings.filters if each not in before), *self._filters]

    def restore(self) -> None:
        """In a fork: no module of flray, no handler and no stream of the command."""
        sys.path[:] = self._path
        warnings.showwarning, warnings.filters[:] = self._showwarning, self._filters  # type: ignore[index]
        for names in (sys.modules, logging.root.manager.loggerDict):
            for name in [name for name in names if name.partition(".")[0] == "flray"]:
                del names[name]
        signal.set_wakeup_fd(-1)
        sys.setprofile(None)
        sys.settrace(None)
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) != handler:  # None: not one of Python's
                signal.signal(number, handler)


def may_fork() -> bool:
    """Whether a fork of this process is as a new one: no other thread, no module of the user's, no Ray, no GPU.

    A module is the user's where it lies outside of Python and its installed packages, or has something of flray's: a
    fork that has it would register nothing of it. `warnings` has something of the command's, which a fork takes back.
    A script that calls the command is the user's, too; what `python -c` has run is not looked at.
    """
    if sys.platform != "linux" or threading.active_count() > 1 or "ray" in sys.modules or "torch" in sys.modules:
        return False
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = {*map(sysconfig.get_path, names), site.getusersitepackages()}
    folders = tuple(f"{os.path.realpath(folder)}{os.sep}" for folder in roots)
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is not None and os.path.basename(script) != "flray" and os.path.realpath(os.path.dirname(script)) != HOME:
        return False
    known = ("__main__", "__mp_main__", "flray", "warnings")
    others = [module for name, module in sys.modules.items() if name.partition(".")[0] not in known]
    places = {os.path.dirname(file) for module in others if (file := getattr(module, "__file__", None))}
    installed = all(f"{os.path.realpath(place)}{os.sep}".startswith(folders) for place in places)
    return installed and not any(map(_uses, others))


def _uses(module: ModuleType) -> bool:
    values = [*vars(module).values()]
    origins = [value.__name__ if isinstance(value, ModuleType) else type(value).__module__ for value in values]
    origins += [value.__module__ for value in values if isinstance(value, (type, FunctionType))]
    return any(isinstance(name, str) and name.partition(".")[0] == "flray" for name in origins)


def start(origin: Interpreter, imports: Iterable[str], listening: socket.socket) -> tuple[socket.socket, int]:
    """(the connection to a fork of this process, its number).

    `origin` has imported torch. The fork calls :func:`flray.engine.forked.serve`, and what that returns in a child.
    """
    ours, theirs = socket.socketpair()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    gc.collect()
    gc.freeze()  # a collection, here or there, writes to no page that both share
    with theirs, warnings.catch_warnings():  # of OpenBLAS's thread, which takes up after a fork
        warnings.simplefilter("ignore", DeprecationWarning)
        if pid := os.fork():
            return ours, pid
        _fork(origin, imports, theirs, listening)


def _fork(origin: Interpreter, imports: Iterable[str], requests: socket.socket, listening: socket.socket) -> NoReturn:
    """A fork's life: it returns to nothing that the command has begun."""
    status = 1
    try:
        os.setsid()
        _empty_all_but({requests.fileno(), listening.fileno()})
        origin.restore()
        task = import_module("flray.engine.forked").serve(requests, listening, imports)
        if task is None:
            os._exit(0)
        task()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and status is not end.code:
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:  # as the interpreter ends
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _empty_all_but(used: set[int]) -> None:
    """Every other open file, and the standard streams, are an empty one: what holds its number writes to no other."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in {0, 1, 2, *map(int, os.listdir("/proc/self/fd"))} - used - {nothing}:
        os.dup2(nothing, number, inheritable=number < 3)
    os.close(nothing)
