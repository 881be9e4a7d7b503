"""CUDA graphs that share their memory."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from flray.core.messages import Message
from flray.core.schema.errors import ResourceError


class Graph(Protocol):
    """A recorded step."""

    def record(self, step: Callable[[], Message]) -> Message:
        """What `step` returns; nothing is computed. Raises what the step raises."""

    def replay(self) -> None:
        """Compute what was recorded, on the tensors of then."""


class Graphs(Protocol):
    """Makes graphs; `CudaGraphs`, or one without a GPU."""

    def __call__(self) -> Graph: ...

    def renew(self) -> None:
        """Drop what all graphs share."""

    def without_waits(self) -> contextlib.AbstractContextManager[Any]:
        """A block in which a wait for the GPU raises `RuntimeError`."""


class CudaGraphs:
    """Graphs of one process: they share the memory of what they compute on the way, because one runs at a time."""

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said once: the mode does not see all waits; a graph refuses the others
            with self.without_waits():
                pass

    def __call__(self) -> Graph:
        """An empty graph."""
        self.stream = self.stream or torch.cuda.Stream()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        return _CudaGraph(self)

    def renew(self) -> None:
        """Take other memory for the next graphs: PyTorch refuses a pool whose graphs are all gone, and keeps its memory
        until the cache is emptied."""
        self.pool = None
        with contextlib.suppress(RuntimeError):  # PyTorch 2.11 asserts here after a graph that failed
            torch.cuda.empty_cache()

    @contextlib.contextmanager
    def without_waits(self) -> Iterator[None]:
        """A block in which it is a `RuntimeError` if the host waits for the GPU."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


class _CudaGraph:
    def __init__(self, shared: CudaGraphs) -> None:
        self._shared, self._graph = shared, torch.cuda.CUDAGraph()

    def record(self, step: Callable[[], Message]) -> Message:
        torch.cuda.synchronize()
        try:
            with _uncollected(), torch.cuda.stream(self._shared.stream):
                # not `torch.cuda.graph`, which collects garbage and empties the allocator's cache each time
                self._graph.capture_begin(pool=self._shared.pool, capture_error_mode="thread_local")
                try:
                    after = step()
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # the same error once more
                        self._graph.capture_end()
                    raise
                self._graph.capture_end()
        except BaseException:
            self._leave()
            raise
        return after

    def replay(self) -> None:
        self._graph.replay()

    def _leave(self) -> None:
        """Leave a graph that failed: the allocator of PyTorch 2.10 and 2.11 takes it for one that is recorded."""
        with contextlib.suppress(RuntimeError, AttributeError):  # a later PyTorch has done it, and refuses
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._shared.pool)
        self._shared.pool = None
        _record_nothing(self._shared.stream)
        self._shared.renew()


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """A block in which no garbage is collected: the end of an old graph is refused while another is recorded, and
    spoils that one."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _record_nothing(stream: torch.cuda.Stream | None) -> None:
    """A graph that succeeds, after one that failed: then PyTorch draws on the GPU outside of graphs again.

    Raises `ResourceError` if the GPU does not leave the failed one.
    """
    with _uncollected(), torch.cuda.stream(stream), contextlib.suppress(RuntimeError):
        graph, zero = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            zero.add_(1)
        finally:
            graph.capture_end()
    with torch.cuda.stream(stream):
        if torch.cuda.is_current_stream_capturing():
            raise ResourceError("a local step could not be recorded as a CUDA graph; set resources.client.graphs=false")
