"""Errors that name the method of a user's algorithm: it raised, ended its process, or wrote into its input."""

from __future__ import annotations

import contextlib
import signal
import traceback
from collections.abc import Callable, Iterator
from functools import cached_property
from types import FrameType, TracebackType
from typing import Any

import numpy as np
from torch import Tensor

from flray.core.messages import Message, tensors
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import ClientContext
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import (
    AlgorithmError,
    ClientError,
    FlrayError,
    LastCall,
    ResourceError,
    ServerLostError,
    TracedError,
    described,
    named,
)

LESS_MEMORY = "lower resources.client_actors or algorithm.batch_size"
Note = Callable[[Callable[..., Any]], None]  # is called with a method just before that method is


# errors of the server half ----------------------------------------------------------------------
@contextlib.contextmanager
def errors_of(algorithm: Algorithm, method: str, clock: Clock | None = None) -> Iterator[None]:
    """A context around the algorithm's `method` on the server.

    Raises `AlgorithmError` with the method, the moment and the traceback, also for `sys.exit`.
    """
    try:
        yield
    except FlrayError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and from_signal(error):
            raise
        when = "" if clock is None else f" in {clock}"
        text = f"{type(algorithm).__name__}.{method} failed{when}: {described(error)}\n{traceback.format_exc()}"
        raise AlgorithmError(text.rstrip()) from None


def from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised the error, as SIGTERM's does, and not a called method."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame in _frames(error.__traceback__))


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


# processes that end ------------------------------------------------------------------------------
class Deaths:
    """The calls in which processes of a run ended.

    Repeated work has the same bits. A method that ends its process does so again, for the same client at the same
    moment. A process that is killed from outside, or for lack of memory, rarely ends twice in the same call.
    """

    def __init__(self) -> None:
        self._pids: dict[tuple[str, str], set[int]] = {}  # of the processes that ended, by where and method
        self.last: LastCall | None = None  # the call recorded last

    def record(self, call: LastCall | None) -> TracedError | None:
        """The error if two processes have ended in this call, else None. One process may be recorded several times."""
        if call is None:
            return None
        self.last = call
        pids = self._pids.setdefault((call.where, call.method), set())
        pids.add(call.pid)
        return process_ended(call) if len(pids) > 1 else None


def process_ended(call: LastCall) -> TracedError:
    """The error of a method that ends its process."""
    how = call.signal or "without a signal that Python sees: os._exit, exit of native code, or SIGKILL"
    what = f"ended its process, twice ({how}); look for os._exit and for crashes of native code"
    if call.client is None:
        return AlgorithmError(f"{call.method} of the server half, in {call.where}, {what}")
    again = f"repeat just this client: flray replay RUN_FOLDER --client {call.client}"
    return ClientError(f"{call.where}: {call.method} {what}\n{again}")


def server_never_started(error: ServerLostError) -> ResourceError:
    """The error of a server that died before its first round, again and again."""
    return ResourceError(f"{error} as it started; if memory ran out, {LESS_MEMORY}, or use a larger machine")


# inputs that are written into -------------------------------------------------------------------
def write_counters(message: Message) -> Callable[[], list[int]]:
    """A function that reads torch's write counters of the message's tensors.

    They do not count writes through `.data` or NumPy.
    """
    watched = [t for t in tensors(message).values() if isinstance(t, Tensor) and not t.is_inference()]
    return lambda: [tensor._version for tensor in watched]


class Standing:
    """What a user's algorithm holds beside its states: fields, private attributes, containers of its classes.

    A method that changes one of them stores a state where no other process and no resume finds it.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm, self._before = algorithm, _attributes(algorithm)

    def check(self, when: str) -> None:
        """Raises `AlgorithmError` for what has changed since; `when` in words."""
        now = _attributes(self._algorithm)
        for name in now.keys() | self._before.keys():
            old, new = self._before.get(name, ()), now.get(name, ())
            if len(old) != len(new) or any(a is not b for a, b in zip(old, new, strict=True)):
                raise AlgorithmError(
                    f"{type(self._algorithm).__name__}: self.{name} changed {when}; a process keeps nothing of it: "
                    "return what changes in the client's state or the server's (a value that is computed once: "
                    "functools.cached_property)"
                )


def _attributes(algorithm: Algorithm) -> dict[str, tuple[Any, ...]]:
    """By attribute the object that it is, and those that it contains."""
    others = ("flray.", "pydantic", "abc", "builtins")
    own = [kind for kind in type(algorithm).__mro__ if not kind.__module__.startswith(others)]
    if not own:
        return {}
    containers = {name: value for kind in own for name, value in vars(kind).items() if _is_container(name, value)}
    plain = {name: value for kind in own for name, value in vars(kind).items() if _is_plain(name, value)}
    parents = type(algorithm).__mro__
    computed = {name for kind in parents for name, value in vars(kind).items() if isinstance(value, cached_property)}
    fields = {name: value for name, value in vars(algorithm).items() if name not in computed}
    held = {**containers, **plain, **fields, **(algorithm.__pydantic_private__ or {})}
    return {name: (value, *_inside(value)) for name, value in held.items()}


def _is_plain(name: str, value: Any) -> bool:
    return not name.startswith(("_", "model_")) and isinstance(value, int | float | str | Tensor | np.ndarray | None)


def _is_container(name: str, value: Any) -> bool:
    return not name.startswith(("_", "model_")) and isinstance(value, dict | list | set)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, list | set) else []


def rehearse(
    algorithm: Algorithm,
    exchange: Exchange,
    ctx: ClientContext,
    broadcast: Message,
    client: Message,
    data: ClientData,
    note: Note,
) -> None:
    """Run a client's work again and discard the results; `note` is called before every method."""
    if exchange.client is not None:
        note(exchange.client)
        exchange.client(ctx, broadcast, client, data)
        return
    note(algorithm.begin)
    local = algorithm.begin(ctx, broadcast, client, data)
    note(algorithm.batches)
    for batch in algorithm.batches(ctx, broadcast, client, local, data):
        note(algorithm.gradient)
        algorithm.gradient(ctx, broadcast, client, local, batch)
        note(algorithm.step)
        local = algorithm.step(ctx, broadcast, client, local, batch)
        note(algorithm.batches)
    note(algorithm.end)
    algorithm.end(ctx, broadcast, client, local, data)
    note(algorithm.report)
    algorithm.report(ctx, local)


def find_writer(run: Callable[[Note], None], unchanged: Callable[[], bool]) -> str:
    """The first method that `run` calls after which `unchanged()` is false; "": none."""
    last: Callable[..., Any] | None = None

    def look(method: Callable[..., Any] | None) -> None:
        nonlocal last
        if last is not None and not unchanged():
            raise _InputChangedError(named(last))
        last = method

    try:
        run(look)
        look(None)
    except _InputChangedError as found:
        return str(found)
    return ""


def write_error(who: str) -> str:
    """The error of a method that wrote into the broadcast."""
    return (
        f"{who} wrote into `broadcast`, which the next client of this process reads as well; work on a copy: "
        "broadcast.w.clone()"
    )


class _InputChangedError(Exception):
    pass
