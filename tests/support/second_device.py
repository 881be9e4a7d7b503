"""A second device without hardware: PyTorch's back end in Python for `privateuse1`, under the name `strict`.

A tensor on it is a :class:`StrictTensor`, which holds a CPU tensor and computes on it. The rules are those of a GPU:

* an operation whose tensors lie on two devices is refused; a CPU tensor of no dimension and a CPU index are allowed;
* `.numpy()` is refused, and a generator of the CPU too;
* every value that reaches the host is counted: copies, and what a GPU has to be waited for;
* operations can be recorded and computed again in the same memory (:class:`Recording`), as a CUDA graph does.

Random numbers come from the CPU's default generator, so the numbers agree with those of the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from flray.core.messages import Message

NAME = "strict"
aten = torch.ops.aten

# by (the half that runs, what happened): "copy": a tensor to the host; "wait": the host reads a number, or
# a size that only the device knows; "upload": a tensor from the host
traffic: Counter[tuple[str, str]] = Counter()
half = "server"
# counts by (the half, what happened, where in flray), if a place is asked for: it takes a walk through the stack
places: Counter[tuple[str, str, str]] | None = None
recording: Recording | None = None
refused = False  # whether all that is counted is an error, as while a CUDA graph is recorded

INDEXED = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor, aten._unsafe_index_put.default,
}  # fmt: skip
# whose result has a size that only the device knows
SIZED = {
    aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.repeat_interleave.Tensor, aten.bincount.default,
}  # fmt: skip
READ = {aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default}
COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default, aten._copy_from_and_resize.default}


class StrictTensor(torch.Tensor):
    """A tensor on the strict device: sizes and strides of a CPU tensor, `inner`, which has the values."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> StrictTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first")

    __array__ = numpy

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if recording is not None:
            raise RuntimeError("a copy that is not recorded")
        copied = StrictTensor(self.inner.detach().clone()).requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied._is_param = True  # type: ignore[attr-defined]
        memo[id(self)] = copied
        return copied

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"{self.inner!r} on {NAME}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """The operation on the inner tensors, if a GPU allows it. Its results are on the device, except a copy to the
    host."""
    if func is aten._fused_sdp_choice.default:
        return 0  # attention by its plain formula: there are no fused kernels
    mine: list[StrictTensor] = []
    others: list[Tensor] = []
    plain_args = [_unwrapped(value, mine, others) for value in args]
    plain_kwargs = {name: _unwrapped(value, mine, others) for name, value in kwargs.items()}
    target = kwargs.get("device")
    to_host = target is not None and torch.device(target).type == "cpu"
    if func in COPIES:
        if any(not tensor.numel() for tensor in (*mine, *others)):
            pass  # nothing moves
        elif to_host or (mine and args[0] is not mine[0]):
            count("copy")
        elif others:
            count("upload")
    else:
        if others and mine:
            check(func, args, others)
        if func in READ or func in SIZED or _masked(func, args):
            count("wait")
    if target is not None:
        plain_kwargs["device"] = "cpu"
    given = {id(tensor.inner): tensor for tensor in mine}
    forms = [(tensor.inner, tensor.inner.shape) for tensor in mine] if func._schema.is_mutable else []
    if recording is not None:
        result = recording.first(func, plain_args, plain_kwargs)
    else:
        result = func(*plain_args, **plain_kwargs)
    if any(inner.shape != shape for inner, shape in forms):
        raise NotImplementedError(f"{func} changed the shape of a tensor in place: add it to DIRECT in {__file__}")
    given |= {id(tensor): tensor for tensor in others}  # type: ignore[misc]
    return _wrapped(result, given, to_host)


def _unwrapped(value: Any, mine: list[StrictTensor], others: list[Tensor]) -> Any:
    """The argument with inner tensors; `mine` and `others` get the tensors on the device and on the host."""
    if isinstance(value, StrictTensor):
        mine.append(value)
        return value.inner
    if isinstance(value, Tensor):
        others.append(value)
        return value if recording is None else value.clone()  # a graph keeps what it was
    elif isinstance(value, torch.Generator):
        raise RuntimeError(f"expected a generator on {NAME}, found one on the CPU")
    elif isinstance(value, list | tuple):
        return type(value)([_unwrapped(part, mine, others) for part in value])
    return value


def _wrapped(result: Any, given: dict[int, Tensor], to_host: bool) -> Any:
    if isinstance(result, Tensor):
        same = given.get(id(result))
        return same if same is not None else result if to_host else StrictTensor(result)
    if isinstance(result, list | tuple):
        return type(result)([_wrapped(part, given, to_host) for part in result])
    return result


def check(func: Any, args: Any, others: list[Tensor]) -> None:
    """Raises `RuntimeError` as CUDA does where tensors of both devices meet."""
    allowed: list[Tensor] = []
    if func in INDEXED and isinstance(args[0], StrictTensor):
        allowed = [index for index in args[1] if index is not None and not isinstance(index, StrictTensor)]
        if allowed:
            count("upload")
    if torch.Tag.pointwise in func.tags or func in INDEXED:
        allowed += [other for other in others if other.dim() == 0]
    wrong = [other for other in others if not any(other is one for one in allowed)]
    if wrong:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in wrong)
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, found {NAME}:0 and cpu ({shapes} on the CPU)"
        )


def _masked(func: Any, args: Any) -> bool:
    """Whether an index is a mask, whose number of places the host has to know."""
    masks = (torch.bool, torch.uint8)
    return func in INDEXED and any(index is not None and index.dtype in masks for index in args[1])


def count(what: str) -> None:
    """Add to the traffic of the half that runs now. Raises `RuntimeError` where it is refused."""
    if refused:
        raise RuntimeError(f"{what} while a step is recorded")
    traffic[half, what] += 1
    if places is not None:
        inside = [frame for frame in traceback.extract_stack() if "/flray/" in frame.filename][-2:]
        places[half, what, " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in inside)] += 1


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Operations without a tensor: new tensors."""
    return run(func, args, kwargs)


class Recording:
    """Operations with the memory that they read and write. What reaches them by another way than tensors on the device
    stays what it was."""

    def __init__(self) -> None:
        self._operations: list[tuple[Any, list[Any], dict[str, Any], list[Tensor]]] = []

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """A block whose operations are recorded, and computed."""
        global recording
        assert recording is None
        recording = self
        try:
            with nothing_read():
                yield
        finally:
            recording = None

    def first(self, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operation, which is added."""
        result = func(*args, **kwargs)
        self._operations.append((func, args, kwargs, _tensors(result)))
        return result

    def replay(self) -> None:
        """Compute all of them in order; a result that was new memory is put there again."""
        for func, args, kwargs, results in self._operations:
            for place, value in zip(results, _tensors(func(*args, **kwargs)), strict=True):
                if place.data_ptr() != value.data_ptr():
                    place.copy_(value)


def _tensors(result: Any) -> list[Tensor]:
    parts = result if isinstance(result, list | tuple) else [result]
    return [part for part in parts if isinstance(part, Tensor)]


@contextlib.contextmanager
def nothing_read() -> Iterator[None]:
    """A block in which it is a `RuntimeError` if the host reads from the device, waits for it or uploads to it."""
    global refused
    before, refused = refused, True
    try:
        yield
    finally:
        refused = before


class Graphs:
    """In place of `CudaGraphs`."""

    def __call__(self) -> Graph:
        return Graph()

    def renew(self) -> None:
        pass

    without_waits = staticmethod(nothing_read)


class Graph:
    """In place of a CUDA graph."""

    def record(self, step: Callable[[], Message]) -> Message:
        self._recording = Recording()
        with self._recording.block():
            return step()

    def replay(self) -> None:
        self._recording.replay()


class _Module(_DummyBackendModule):
    """The functions of `torch.strict`."""

    @staticmethod
    def get_rng_state(device: Any = None) -> Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]


# new tensors that PyTorch makes empty and then resizes, which changes the form of a wrapper; and the copy that
# `torch.tensor(numbers, device=...)` makes past `__torch_dispatch__`
DIRECT = ("arange", "arange.start", "arange.start_step", "linspace", "logspace", "eye", "eye.m", "randperm", "copy_")

_library, _aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")


def device() -> torch.device:
    """The device, which the first call registers in this process."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
        _library.fallback(_fallback, "PrivateUse1")
        for name in DIRECT:
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(aten, packet), overload or "default")
            _aten.impl(name, functools.partial(_fallback, operation), "PrivateUse1")
    return torch.device(NAME, 0)
