"""A named moment of a driver: the n-th call of one of its functions, before or after it."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Moment(NamedTuple):
    """`function` is MODULE:NAME or MODULE:CLASS.NAME; `call` counts from 0."""

    where: str  # before | after
    function: str
    call: int = 0


def at(moment: Moment, act: Callable[[], Any], replace: Callable[[Any, str, Any], None] = setattr) -> None:
    """From now on this process calls `act` at the moment, once; `replace` puts the function in its place."""
    module, _, path = moment.function.partition(":")
    home: Any = importlib.import_module(module)
    *way, name = path.split(".")
    for part in way:
        home = getattr(home, part)
    original, calls, lock = getattr(home, name), [0], threading.Lock()  # of a class method: bound

    def patched(*arguments: Any, **options: Any) -> Any:
        with lock:
            due = calls[0] == moment.call
            calls[0] += 1
        if due and moment.where == "before":
            act()
        found = original(*arguments, **options)
        if due and moment.where == "after":
            act()
        return found

    replace(home, name, staticmethod(patched) if inspect.ismethod(original) else patched)


def die() -> None:
    """As by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


def run_until(moment: Moment, config: str, folder: str) -> None:
    """Begin the run, or go on with it, and die at the moment."""
    import flray

    at(moment, die)
    if os.path.exists(f"{folder}/config.yaml"):
        flray.resume(folder, progress=False)
    else:
        flray.run(config, out=folder, progress=False)


def command_until(moment: Moment, words: list[str]) -> None:
    """`flray WORDS` in this process, which dies at the moment."""
    from flray.cli import main

    at(moment, die)
    sys.argv = ["flray", *words]
    main()
