"""A CUDA graph without a GPU: it calls the recorded step again, on the recorded tensors, with the recorded context.

What a graph cannot follow, a value of a tensor that the host reads, refuses the step as a wait for the GPU does there:
where other code than flray's reads it, some of which reads on a CPU alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from flray.core.messages import Message
from flray.core.messages.records import tensors

# a shape or a branch that depends on values
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "unique_consecutive"}


class Reruns:
    """In place of `CudaGraphs`."""

    renewed = 0  # how often all graphs were dropped

    def __call__(self) -> Rerun:
        return Rerun()

    def renew(self) -> None:
        self.renewed += 1

    def without_waits(self) -> AbstractContextManager[Any]:
        """A block in which a value that the host reads raises `RuntimeError`."""
        return _NothingRead()  # type: ignore[no-untyped-call]


class Rerun:
    """What reaches the step by another way than its tensors is what it was when it was recorded, as in a CUDA graph."""

    def record(self, step: Callable[[], Message]) -> Message:
        self._step = step
        self._after = step()
        return self._after

    def replay(self) -> None:
        for place, value in zip(tensors(self._after).values(), tensors(self._step()).values(), strict=True):
            if place.data_ptr() != value.data_ptr():
                place.copy_(value)


class _NothingRead(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS and not _by_flray():
            raise RuntimeError(f"it reads values of a tensor ({name}), and a GPU waits for that")
        return func(*args, **(kwargs or {}))


def _by_flray() -> bool:
    """Whether the innermost frame outside of PyTorch and of this module is one of flray's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "torch":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith("flray.")
