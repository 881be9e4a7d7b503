"""Computing in a process that is somebody else's: the same bits as in a process of its own, and nothing of the process
is changed afterwards.

What PyTorch, NumPy and Python have once for a whole process (random generators, number of threads, default dtype) is
set for the work and put back. Two runs in two threads take turns: their draws from the one generator would mix.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch.nn.modules import module as module_py

from flray.core.network.threads import threads
from flray.core.protocol.generators import preserve_globals

HOOKS = [name for name in vars(module_py) if name.startswith("_global_") and name.endswith("_hooks")]

P = ParamSpec("P")
T = TypeVar("T")

_compute_thread: ThreadPoolExecutor | None = None  # of a forked process


def compute(count: int | None, work: Callable[[], T]) -> T:
    """The result of `work()` with so many torch threads; None: as many as there are.

    Raises `ResourceError` if another run of this process computes for `TURN_S` without a pause.
    """
    if elsewhere():
        return in_compute_thread(lambda: compute(count, work))
    with alone(count):
        return work()


def as_in_a_run(work: Callable[P, T]) -> Callable[P, T]:
    """The function, which computes as :func:`compute` says, whatever its caller has set in this process."""

    @functools.wraps(work)
    def call(*args: P.args, **options: P.kwargs) -> T:
        return compute(None, lambda: work(*args, **options))

    return call


def elsewhere() -> bool:
    """Whether work has to go to :func:`in_compute_thread`: in the other threads of a process that was forked."""
    return _compute_thread is not None and not threading.current_thread().name.startswith("flray-compute")


def in_compute_thread(work: Callable[[], T]) -> T:
    """The result of `work()` in the one thread that computes in a forked process."""
    assert _compute_thread is not None
    return _compute_thread.submit(contextvars.copy_context().run, work).result()


@contextlib.contextmanager
def alone(count: int | None) -> Iterator[None]:
    """A block that computes as :func:`compute` says, in this thread."""
    with preserve_globals():
        dtype = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float32)
            with threads(count), _plain_modes():
                yield
        finally:
            torch.set_default_dtype(dtype)


@contextlib.contextmanager
def _plain_modes() -> Iterator[None]:
    """Gradients are taken, in the dtypes that are asked for, whatever block of PyTorch or NumPy the caller is in."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():  # leaving it also resets what else autograd has for this thread
            stack.enter_context(torch.inference_mode(False))
        for mode in (torch.enable_grad(), torch.autocast("cpu", enabled=False)):
            stack.enter_context(mode)
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for hooks in (getattr(module_py, name) for name in HOOKS):  # a profiler's, which actors do not have
            there = dict(hooks)
            hooks.clear()
            stack.callback(hooks.update, there)
        yield


def _after_fork() -> None:
    """OpenMP's threads of the thread that forked are gone, and it would wait for them: a new thread has its own."""
    global _compute_thread
    _compute_thread = ThreadPoolExecutor(1, "flray-compute")


os.register_at_fork(after_in_child=_after_fork)
