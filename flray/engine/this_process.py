"""Computing in a process that is somebody else's: the same bits as in a process of its own, and nothing of the process
is changed afterwards.

What PyTorch, NumPy and Python have once for a whole process (random generators, number of threads, default dtype, flags
of kernels) or for a thread (a default device and other function modes, hooks of saved tensors, flushed denormals) is
set for the work and put back. Two runs in two threads take turns: their draws from the one generator would mix.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch.backends import cuda, mha, opt_einsum
from torch.nn.modules import module as module_py
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _device

from flray.core.network.threads import threads
from flray.core.protocol.generators import preserve_globals

HOOKS = [name for name in vars(module_py) if name.startswith("_global_") and name.endswith("_hooks")]

# what decides the kernels of a CPU and is the process's: how it is read, how it is set, and PyTorch's default. A part's
# precision is "none" as that of the whole, which is therefore set before it and put back after it
FLAGS: list[tuple[Callable[[], Any], Callable[[Any], Any], Any]] = [
    (mha.get_fastpath_enabled, mha.set_fastpath_enabled, True),
    (cuda.flash_sdp_enabled, cuda.enable_flash_sdp, True),  # attention's on the CPU, too
    (cuda.math_sdp_enabled, cuda.enable_math_sdp, True),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled, True),
    (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal, False),
]
FLAGS += [
    (partial(torch._C._get_fp32_precision_getter, *of), partial(torch._C._set_fp32_precision_setter, *of), "none")
    for of in [("generic", "all"), *(("mkldnn", part) for part in ("all", "matmul", "conv", "rnn"))]
]

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


_kept = contextlib.ExitStack()  # of a process of flray's own


def own_process() -> None:
    """Make this process, an actor, compute as :func:`compute` does from now on, whatever the user's modules set when
    they were imported."""
    _kept.close()
    _kept.enter_context(alone(None))


@contextlib.contextmanager
def _plain_modes() -> Iterator[None]:
    """Gradients are taken, in the dtypes that are asked for, whatever block of PyTorch or NumPy the caller is in."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():  # leaving it also resets what else autograd has for this thread
            stack.enter_context(torch.inference_mode(False))
        for mode in (torch.enable_grad(), torch.autocast("cpu", enabled=False)):
            stack.enter_context(mode)
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        stack.enter_context(_no_function_modes())
        stack.enter_context(_no_hooks_of_saved_tensors())
        for read, put, default in FLAGS:
            stack.callback(put, read())
            put(default)
        if opt_einsum.is_available():
            stack.enter_context(_with_values(vars(opt_einsum), enabled=True, strategy="auto"))
        for hooks in (getattr(module_py, name) for name in HOOKS):  # a profiler's, which actors do not have
            there = dict(hooks)
            hooks.clear()
            stack.callback(hooks.update, there)
        yield


@contextlib.contextmanager
def _no_function_modes() -> Iterator[None]:
    """Without modes such as a default device, also "cpu": under any mode, attention in eval takes other kernels."""
    modes, device = _get_current_function_mode_stack(), vars(torch._GLOBAL_DEVICE_CONTEXT)
    _replace_function_modes([])
    try:
        with _with_values(device, device_context=None), _with_values(vars(_device), CURRENT_DEVICE=None):
            yield
    finally:
        _replace_function_modes(modes)


def _replace_function_modes(modes: list[Any]) -> None:
    """Leave all modes of this thread for `modes`, of which the last is the innermost."""
    for _ in _get_current_function_mode_stack():
        _pop_mode()
    for mode in modes:
        _push_mode(mode)


@contextlib.contextmanager
def _no_hooks_of_saved_tensors() -> Iterator[None]:
    """Without hooks such as those of `save_on_cpu`, which decide what a backward pass reads."""
    of_autograd, hooks = torch._C._autograd, []
    while (top := of_autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        of_autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            of_autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextlib.contextmanager
def _with_values(variables: dict[str, Any], **values: Any) -> Iterator[None]:
    """With these values of a module's or an object's variables."""
    before = {name: variables[name] for name in values if name in variables}
    variables.update(values)
    try:
        yield
    finally:
        for name in values:
            variables.pop(name, None)
        variables.update(before)


def _after_fork() -> None:
    """OpenMP's threads of the thread that forked are gone, and it would wait for them: a new thread has its own."""
    global _compute_thread
    _compute_thread = ThreadPoolExecutor(1, "flray-compute")


os.register_at_fork(after_in_child=_after_fork)
