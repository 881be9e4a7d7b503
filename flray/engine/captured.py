"""Local steps that a GPU repeats without Python: a step is recorded once as a CUDA graph and then replayed.

A step of a small network is some hundred kernels of a few microseconds each, and the host needs longer to start one
than the GPU to run it. A graph starts all of them at once. The kernels are the same ones, so the bits are too.

A step is recorded if its algorithm declares :attr:`Algorithm.capturable`. What the recorded step reads besides tensors
has to be what it was: the hyper-parameters, the shapes, the fields of the context (each one that the step read is
compared), and whether it is the first local step. A first step and a short last batch have graphs of their own. A step
stays as it is, without a graph, if it draws random numbers, waits for the GPU, keeps something on the host, or if its
graph gives other bits than the step itself, which is compared when it is recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from flray.core.messages import Batch, Message, Record
from flray.core.messages.records import children, leaves, rebuilt
from flray.core.network.frozen import Frozen
from flray.core.network.objective import Objective
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.context import ClientContext
from flray.core.schema.errors import named

GRAPHS = 32  # kept at once: some for each shape of batch, context and hyper-parameters
TRIALS = 8  # graphs of one kind of step after which each has to have been replayed `WORTH` times on average
WORTH = 8
KINDS = 64  # of messages, each with a place on the device; with more of them everything begins anew

Key = tuple[Any, ...]


class Graph(Protocol):
    """A recorded step."""

    def record(self, step: Callable[[], Message]) -> Message:
        """What `step` returns; nothing is computed."""

    def replay(self) -> None:
        """Compute what was recorded, on the tensors of then."""


class CudaGraphs:
    """Graphs of one process: they share the memory of what they compute on the way, because one runs at a time."""

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None
        self.pool: Any = None

    def __call__(self) -> Graph:
        self.stream = self.stream or torch.cuda.Stream()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        return _CudaGraph(self)


class _CudaGraph:
    def __init__(self, shared: CudaGraphs) -> None:
        self._shared, self._graph = shared, torch.cuda.CUDAGraph()

    def record(self, step: Callable[[], Message]) -> Message:
        torch.cuda.synchronize()
        # not `torch.cuda.graph`, which collects garbage and empties the allocator's cache each time
        with torch.cuda.stream(self._shared.stream):
            self._graph.capture_begin(pool=self._shared.pool, capture_error_mode="thread_local")
            try:
                after = step()
            except BaseException:
                self._shared.pool = None  # PyTorch refuses a pool in which no graph was completed
                with contextlib.suppress(RuntimeError):  # the same error once more
                    self._graph.capture_end()
                raise
            self._graph.capture_end()
        return after

    def replay(self) -> None:
        self._graph.replay()


class Unfit(Exception):
    """A step that cannot be recorded, and why."""


# contexts ---------------------------------------------------------------------------------------
# the same objects in every context of a task, or values that can be compared
COMPARED = frozenset(f.name for f in dataclasses.fields(ClientContext)) - {"proxy", "tests", "stage_progress"}
ALLOWED = frozenset({"device", "in_use", "mean_examples", "narrow", "seen", "local", "mask", "address"})


class _WatchedContext(ClientContext):
    """A context that notes the fields that are read, and refuses what no graph can follow: draws, and data on the
    host."""

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in COMPARED:
            if _reads:
                _reads[-1][name] = value
        elif name not in ALLOWED and not name.startswith("__"):
            raise Unfit(f"it reads ctx.{name}")
        return value


_reads: list[dict[str, Any]] = []


def _watched(ctx: ClientContext) -> ClientContext:
    copy = object.__new__(_WatchedContext)
    for field in dataclasses.fields(ClientContext):
        object.__setattr__(copy, field.name, getattr(ctx, field.name))
    return copy


def _same(one: Any, other: Any) -> bool:
    plain = (int, float, str, tuple, frozenset)
    return one is other or (type(one) is type(other) and isinstance(one, plain) and one == other)


# messages ---------------------------------------------------------------------------------------
def _kind(message: Message, counts: bool = False) -> Key:
    """What two messages have in common on which a graph works alike: names, shapes, strides, types, and the values that
    are no tensors. `counts`: of whole numbers only whether they are 0. Raises `Unfit`."""
    return tuple((name, _kind_of(leaf, counts)) for name, leaf in leaves(message))


def _kind_of(leaf: Any, counts: bool) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device
    if isinstance(leaf, np.ndarray):
        raise Unfit("a message of it has NumPy arrays")
    return min(leaf, 1) if counts and type(leaf) is int else (type(leaf), leaf)


def _tensors(message: Message) -> list[Tensor]:
    return [leaf for _, leaf in leaves(message) if isinstance(leaf, Tensor)]


def _numbers(message: Message, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], int]]:
    """(keys on the way, value) of the whole numbers in a message, in field order."""
    if type(message) is int:
        yield path, message
    for key, part in (children(message) or {}).items():
        yield from _numbers(part, (*path, key))


def _put(message: Message, path: tuple[Any, ...], value: int) -> Message:
    """The message with `value` at the end of the path."""
    if not path:
        return value
    parts = children(message)
    assert parts is not None
    part = _put(parts[path[0]], path[1:], value)
    return (
        message.replace(**{path[0]: part})
        if isinstance(message, Record)
        else rebuilt(message, {**parts, path[0]: part})
    )


def _with_leaves(message: Message, values: Iterator[Any]) -> Message:
    """The message with other leaves, in their order."""
    parts = children(message)
    if parts is None:
        return next(values)
    return rebuilt(message, {name: _with_leaves(part, values) for name, part in parts.items()})


def _mapped(apply: Callable[[Tensor], Tensor], message: Message) -> Message:
    values = [apply(leaf) if isinstance(leaf, Tensor) else leaf for _, leaf in leaves(message)]
    return _with_leaves(message, iter(values))


def _place_for(tensor: Tensor) -> Tensor:
    """A tensor of its own like `tensor`, with the same strides and values. Raises `Unfit`."""
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise Unfit("a message of it has expanded tensors")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _load(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy the values into the places where they are not there already."""
    for place, value in zip(places, values, strict=True):
        if place.data_ptr() != value.data_ptr():
            place.copy_(value)


def _equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """The same bits, NaN included."""
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and np.array_equal(_bits(a), _bits(b))
        for a, b in zip(one, other, strict=True)
    )


def _bits(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy()


def _draws() -> tuple[Any, ...]:
    """The states of the generators that a step could draw from."""
    cuda = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else b""
    return torch.get_rng_state().numpy().tobytes(), cuda, random.getstate(), str(np.random.get_state())


# steps ------------------------------------------------------------------------------------------
class _State(NamedTuple):
    """A local state that a graph left: its message and kind, whose graph it was, and its whole numbers in order."""

    after: Message
    kind: Key
    recorded: _Recorded
    numbers: list[int]


class _Recorded:
    """A step's graph, the tensors that it reads and writes, and what it read besides."""

    def __init__(
        self, algorithm: Algorithm, reads: dict[str, Any], scratch: list[tuple[Objective, dict[str, Tensor]]]
    ) -> None:
        self.algorithm, self.reads, self.scratch = algorithm, reads, scratch
        self.replays = 0
        # by the graph of the step before: (to, from)
        self._copies: WeakKeyDictionary[_Recorded, list[tuple[Tensor, Tensor]]] = WeakKeyDictionary()

    def keep(self, graph: Graph, before: Message, after: Message) -> None:
        """`before`: the local state that the graph reads; `after`: the one that it leaves, in the graph's tensors."""
        self.graph, self.local, self.after, self.kind = graph, _tensors(before), after, _kind(after, counts=True)
        self.tensors = _tensors(after)
        first = dict(_numbers(before))
        places = list(first)
        # of each whole number of `after`: path, place among those of `before` (None: it is new), and by how much
        # a step raises it
        self.counts = [
            (path, places.index(path) if path in first else None, number - first.get(path, 0))
            for path, number in _numbers(after)
        ]

    def fits(self, ctx: ClientContext) -> bool:
        """Whether all that the step read is what it was, and its scratch tensors are where they were."""
        return all(_same(getattr(ctx, name), value) for name, value in self.reads.items()) and all(
            objective.scratch_tensors.get(name) is tensor
            for objective, tensors in self.scratch
            for name, tensor in tensors.items()
        )

    def run(self, local: Message, last: _State | None) -> _State:
        """The step from `local`, which `last` describes if a graph left it; its other arguments are in their places."""
        self.replays += 1
        if last is None:
            _load(self.local, _tensors(local))
            before = [number for _, number in _numbers(local)]
        else:
            copies = self._copies.get(last.recorded)
            if copies is None:
                pairs = zip(self.local, last.recorded.tensors, strict=True)
                copies = [(to, there) for to, there in pairs if to.data_ptr() != there.data_ptr()]
                self._copies[last.recorded] = copies
            for to, there in copies:
                to.copy_(there)
            before = last.numbers
        self.graph.replay()
        after, numbers = self.after, []
        for path, place, more in self.counts:
            numbers.append(more if place is None else before[place] + more)
            after = _put(after, path, numbers[-1])
        return _State(after, self.kind, self, numbers)


class CapturedSteps:
    """The local steps of a process's clients."""

    def __init__(self, graph: Callable[[], Graph]) -> None:
        """`graph` makes an empty graph."""
        self.graph = graph
        self.recorded: OrderedDict[tuple[Key, int], _Recorded] = OrderedDict()  # (kind of step, number)
        self.refused: dict[Key, str] = {}  # kind of step -> why
        self.seen: set[Key] = set()
        self._trials = Counter[Key]()
        self._replays = Counter[Key]()
        self._places: dict[Key, tuple[Message, list[Tensor]]] = {}
        self._algorithms: dict[int, Algorithm] = {}  # keeps them alive, because a key holds their numbers
        self.begun = 0  # how often everything began anew

    def of(
        self, algorithm: Algorithm, ctx: ClientContext, broadcast: Message, client: Message
    ) -> Callable[[Message, Batch], Message]:
        """`algorithm.step` of one client, from its local state and a batch."""

        def plain(local: Message, batch: Batch) -> Message:
            return algorithm.step(ctx, broadcast, client, local, batch)

        if not algorithm.capturable or algorithm.reads_step_number:
            return plain
        objectives = (ctx.objective, *ctx.net.values())
        if any(type(objective) not in (Objective, Frozen) or objective.state.own_names for objective in objectives):
            return plain  # Python keeps a network's own buffers
        try:
            return _ClientSteps(self, algorithm, ctx, broadcast, client, plain)
        except Unfit:
            return plain

    def find(self, key: Key, ctx: ClientContext) -> _Recorded | None:
        """The graph of this kind of step that fits the context."""
        for (kind, number), found in reversed(self.recorded.items()):
            if kind == key and found.fits(ctx):
                self.recorded.move_to_end((kind, number))
                return found
        return None

    def places(self, role: str, kind: Key, message: Message, tensors: Sequence[Tensor]) -> Message:
        """The message in the tensors that graphs read for messages of this kind. Raises `Unfit`."""
        found = self._places.get((role, kind))
        if found is None:
            if len(self._places) >= KINDS:  # such as a broadcast with the number of the round
                self.forget()
            places = _mapped(_place_for, message)
            found = self._places[role, kind] = places, _tensors(places)
        else:
            _load(found[1], tensors)
        return found[0]

    def forget(self) -> None:
        """Drop all graphs and places."""
        self.recorded.clear()
        self._places.clear()
        self.seen.clear()
        self.refused.clear()
        self._trials.clear()
        self._replays.clear()
        self.begun += 1

    def number(self, algorithm: Algorithm) -> int:
        """A number for this algorithm with these hyper-parameters."""
        self._algorithms.setdefault(id(algorithm), algorithm)
        return id(algorithm)

    def worth(self, key: Key) -> bool:
        """Whether graphs of this kind were replayed often enough to make another one."""
        replays = self._replays[key] + sum(found.replays for (kind, _), found in self.recorded.items() if kind == key)
        return self._trials[key] < TRIALS or replays >= WORTH * self._trials[key]

    def add(self, key: Key, recorded: _Recorded) -> None:
        self._trials[key] += 1
        self.recorded[key, self._trials[key]] = recorded
        if len(self.recorded) > GRAPHS:
            (kind, _), oldest = self.recorded.popitem(last=False)
            self._replays[kind] += oldest.replays


class _ClientSteps:
    """The steps of one client."""

    def __init__(
        self,
        steps: CapturedSteps,
        algorithm: Algorithm,
        ctx: ClientContext,
        broadcast: Message,
        client: Message,
        plain: Callable[[Message, Batch], Message],
    ) -> None:
        self.steps, self.algorithm, self.ctx, self.plain = steps, algorithm, ctx, plain
        self.given = [("broadcast", _kind(broadcast), broadcast), ("client", _kind(client), client)]
        self.fixed = (steps.number(algorithm), *(kind for _, kind, _ in self.given))
        self.found: dict[Key, _Recorded] = {}
        self.loaded: list[Message] = []
        self.begun = steps.begun
        self.last: _State | None = None

    def __call__(self, local: Message, batch: Batch) -> Message:
        last = self.last if self.last is not None and local is self.last.after else None
        self.renew()
        try:
            kind, tensors = _kind(batch), _tensors(batch)
            key = (self.fixed, _kind(local, counts=True) if last is None else last.kind, kind)
        except Unfit:
            return self.plain(local, batch)
        found = self.found.get(key)
        if found is None:
            if key in self.steps.refused:
                return self.plain(local, batch)
            found = self.steps.find(key, self.ctx)
            if found is None:
                if key not in self.steps.seen or not self.steps.worth(key):
                    self.steps.seen.add(key)
                    return self.plain(local, batch)
                return self.record(key, local, batch, kind)
            self.found[key] = found
        self.arguments(batch, kind, tensors)
        self.last = found.run(local, last)
        return self.last.after

    def renew(self) -> bool:
        """Forget what was dropped since the last call; whether something was."""
        if self.begun == self.steps.begun:
            return False
        self.found.clear()
        self.loaded.clear()
        self.begun = self.steps.begun
        return True

    def arguments(self, batch: Batch, kind: Key, tensors: Sequence[Tensor]) -> tuple[Message, Message, Message]:
        """Broadcast, client state and batch in the places where graphs read them."""
        if not self.loaded:
            self.loaded = [self.steps.places(*given, _tensors(given[-1])) for given in self.given]
        broadcast, client = self.loaded
        return broadcast, client, self.steps.places("batch", kind, batch, tensors)

    def record(self, key: Key, local: Message, batch: Batch, kind: Key) -> Message:
        """The step, which is recorded if it can be."""
        try:
            broadcast, client, batch_there = self.arguments(batch, kind, _tensors(batch))
            if self.renew():  # a new place, for which the others were dropped
                return self.plain(local, batch)
            scratch = self.scratch()
            before = _mapped(lambda tensor: tensor if _within(tensor, scratch) else _place_for(tensor), local)
            _check_apart([tensor for tensor in _tensors(before) if not _within(tensor, scratch)])
        except Unfit as why:
            return self.refuse(key, str(why), local, batch)
        watched, kept = _watched(self.ctx), [tensor.clone() for tensor in _tensors(before)]
        reads: dict[str, Any] = {}
        _reads.append(reads)
        step = lambda: self.algorithm.step(watched, broadcast, client, before, batch_there)  # noqa: E731
        try:
            drawn = _draws()
            expected = step()  # a step as any other; it also makes the scratch tensors that it needs
            if drawn != _draws():
                self.steps.refused[key] = "it draws random numbers"
                return expected
            result = [tensor.clone() for tensor in _tensors(expected)]
            recorded = _Recorded(self.algorithm, reads, self.scratch())
            _restore(before, kept)
            graph = self.steps.graph()
            recorded.keep(graph, before, graph.record(step))
            _check_no_batch(recorded.after, batch_there)
            _restore(before, kept)
            self.last = recorded.run(before, None)
            if not _equal(_tensors(self.last.after), result):
                _restore(before, kept)
                warnings.warn(
                    f"{named(self.algorithm.step)}: its CUDA graph gives other bits, so it is not used", stacklevel=2
                )
                return self.refuse(key, "its graph gives other bits", before, batch)
        except Unfit as why:
            _restore(before, kept)
            return self.refuse(key, str(why), before, batch)
        except RuntimeError as error:  # while it is recorded, a GPU refuses what the host would have to wait for
            _restore(before, kept)
            return self.refuse(key, str(error).splitlines()[0], before, batch)
        finally:
            _reads.pop()
        self.steps.add(key, recorded)
        self.found[key] = recorded
        return self.last.after

    def refuse(self, key: Key, why: str, local: Message, batch: Batch) -> Message:
        self.steps.refused[key] = why
        return self.plain(local, batch)

    def scratch(self) -> list[tuple[Objective, dict[str, Tensor]]]:
        """The scratch tensors of all networks, by name."""
        return [(one, dict(one.scratch_tensors)) for one in (self.ctx.objective, *self.ctx.net.values())]


def _within(tensor: Tensor, scratch: list[tuple[Objective, dict[str, Tensor]]]) -> bool:
    storage = tensor.untyped_storage().data_ptr()
    return any(storage == one.untyped_storage().data_ptr() for _, named in scratch for one in named.values())


def _check_apart(places: Sequence[Tensor]) -> None:
    """Raises `Unfit` for two tensors at one address, of which one could be written and the other read."""
    addresses = [tensor.data_ptr() for tensor in places if tensor.numel()]
    if len(set(addresses)) < len(addresses):
        raise Unfit("two tensors of its local state share their memory")


def _check_no_batch(after: Message, batch: Message) -> None:
    """Raises `Unfit` for a local state that keeps the batch, whose place the next one takes."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in _tensors(batch)}
    if any(tensor.untyped_storage().data_ptr() in storages for tensor in _tensors(after)):
        raise Unfit("its local state keeps the batch")


def _restore(local: Message, values: Sequence[Tensor]) -> None:
    _load(_tensors(local), values)
