"""Local steps that a GPU repeats without Python: a step is recorded once as a CUDA graph and then replayed.

A step of a small network is 30 to 260 kernels, and the host needs longer to start one than the GPU to run it. A graph
starts all of them at once. The kernels are the same ones, so the bits are too.

A step is recorded if its algorithm declares :attr:`Algorithm.capturable`. What the recorded step reads besides tensors
has to be what it was: the hyper-parameters, the classes and shapes of the messages, the fields of the context (each one
that the step read is compared), and whether it is the first local step. A first step and a short last batch have graphs
of their own. A step stays as it is, without a graph, if it draws random numbers, waits for the GPU, keeps something on
the host, or if its graph gives other bits than the step itself, which is compared when it is recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from flray.core.messages import Batch, Message, Record, map_tensors
from flray.core.messages.records import children, rebuilt, tensors
from flray.core.network.frozen import Frozen
from flray.core.network.objective import Objective
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.context import ClientContext
from flray.core.schema.errors import ResourceError, first_line, named, warn

GRAPHS = 128  # kept at once: some for each shape of batch, context and hyper-parameters
TRIALS = 32  # graphs after which each has to have been replayed `WORTH` times on average, or none is made
WORTH = 8
SEEN = 4096  # kinds of steps that are remembered
KEPT = 2**30  # bytes that graphs may keep besides 8 times a broadcast and a client state; then everything begins anew


# messages: what two of them have in common on which a recorded step works alike, and places for their tensors --------
Key = tuple[Any, ...]
Path = tuple[Any, ...]  # the keys on the way to a part of a message
PLAIN = (type(None), bool, int, float, str)


class Unfit(Exception):
    """A step that cannot be recorded, and why."""


class Kind(NamedTuple):
    """`key`: classes, names, shapes, strides and types of a message, and its values that are no tensors; `tensors`: in
    field order."""

    key: Key
    tensors: list[Tensor]


def kind_of(message: Message, device: torch.device, counts: bool = False) -> Kind:
    """The kind of a message whose tensors lie on `device`. `counts`: of whole numbers only whether they are 0.

    Raises `Unfit` for a value that the host keeps: it would be recorded as it was.
    """
    key: list[Any] = []
    found: list[Tensor] = []

    def walk(part: Any) -> None:
        if isinstance(part, Tensor):
            if part.device != device or part.layout != torch.strided:
                raise Unfit(f"a message of it has a tensor on {part.device}, or a sparse one")
            key.append((part.shape, part.stride(), part.dtype))
            found.append(part)
            return
        below = children(part)
        if below is not None:
            key.append((type(part), tuple(below)))
            for value in below.values():
                walk(value)
        elif type(part) not in PLAIN:
            raise Unfit(f"a message of it has a {type(part).__name__}")
        else:
            key.append(min(abs(part), 1) if counts and type(part) is int else (type(part), part))

    walk(message)
    return Kind(tuple(key), found)


def tensors_of(message: Message) -> list[Tensor]:
    return list(tensors(message).values())


def numbers_of(message: Message, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """(path, value) of the whole numbers in a message, in field order."""
    if type(message) is int:
        yield path, message
    for key, part in (children(message) or {}).items():
        yield from numbers_of(part, (*path, key))


def put(message: Message, path: Path, value: int) -> Message:
    """The message with `value` at the end of the path."""
    if not path:
        return value
    parts = children(message)
    assert parts is not None
    part = put(parts[path[0]], path[1:], value)
    if isinstance(message, Record):
        return message.replace(**{path[0]: part})
    return rebuilt(message, {**parts, path[0]: part})


def place_for(tensor: Tensor) -> Tensor:
    """A tensor of its own like `tensor`, with the same strides and values. Raises `Unfit` for an expanded one."""
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise Unfit("a message of it has expanded tensors")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


Copies = list[tuple[Tensor, Tensor]]  # (to, from)


def copies_between(places: Sequence[Tensor], values: Sequence[Tensor]) -> tuple[Copies, bool]:
    """(the copies that bring `values` into `places`, whether a place is also a value of another one, so that all values
    have to be read before the first is written)."""
    copies = [(to, value) for to, value in zip(places, values, strict=True) if to.data_ptr() != value.data_ptr()]
    written = {_storage(to) for to, _ in copies}
    return copies, any(_storage(value) in written for _, value in copies)


def copy(copies: Copies, crossed: bool) -> None:
    """Do the copies of :func:`copies_between`."""
    for to, value in [(to, value.clone()) for to, value in copies] if crossed else copies:
        to.copy_(value)


def load(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy the values into the places where they are not there already."""
    copy(*copies_between(places, values))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def within(tensor: Tensor, others: Sequence[Tensor]) -> bool:
    return _storage(tensor) in {_storage(other) for other in others}


def check_apart(places: Sequence[Tensor]) -> None:
    """Raises `Unfit` for two tensors that overlap, of which one could be written and the other read."""
    spans = sorted(_span(tensor) for tensor in places if tensor.numel())
    if any(start < end for (_, end), (start, _) in itertools.pairwise(spans)):
        raise Unfit("two tensors of its local state share their memory")


def _span(tensor: Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def same_bits(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether the tensors have the same shapes, types and bits, NaN included."""
    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(_bytes(a), _bytes(b)))
        for a, b in zip(one, other, strict=True)
    )


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


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
            object.__getattribute__(self, "reads")[name] = value
        elif name not in ALLOWED and not name.startswith("__"):
            raise Unfit(f"it reads ctx.{name}")
        return value


def _watched(ctx: ClientContext) -> tuple[ClientContext, dict[str, Any]]:
    """(a context with the same fields, those that were read of it)."""
    watched, reads = object.__new__(_WatchedContext), dict[str, Any]()
    for field in dataclasses.fields(ClientContext):
        object.__setattr__(watched, field.name, getattr(ctx, field.name))
    object.__setattr__(watched, "reads", reads)
    return watched, reads


def _same(one: Any, other: Any) -> bool:
    plain = (int, float, str, tuple, frozenset)
    return one is other or (type(one) is type(other) and isinstance(one, plain) and one == other)


# draws ------------------------------------------------------------------------------------------
class _Generators:
    """The generators of the process that a step could draw from, as they are now."""

    def __init__(self) -> None:
        self._torch, self._numpy, self._python = torch.get_rng_state(), np.random.get_state(), random.getstate()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else torch.empty(0)

    def unchanged(self) -> bool:
        now = _Generators()
        pairs = ((self._torch, now._torch), (self._cuda, now._cuda))
        same = all(torch.equal(one, other) for one, other in pairs) and self._python == now._python
        return same and str(self._numpy) == str(now._numpy)

    def restore(self) -> None:
        torch.set_rng_state(self._torch)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        if len(self._cuda):
            torch.cuda.set_rng_state(self._cuda)


# graphs -----------------------------------------------------------------------------------------
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


# steps ------------------------------------------------------------------------------------------
class _State(NamedTuple):
    """A local state that a graph left: its message, its kind, whose graph it was, and its whole numbers in order."""

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
        # by the graph of the step before
        self._copies: WeakKeyDictionary[_Recorded, tuple[Copies, bool]] = WeakKeyDictionary()

    def keep(self, graph: Graph, before: Message, after: Message, device: torch.device) -> None:
        """`before`: the local state that the graph reads; `after`: the one that it leaves, in the graph's tensors."""
        self.graph, self.local, self.after = graph, tensors_of(before), after
        self.kind, self.tensors = kind_of(after, device, counts=True)
        first = dict(numbers_of(before))
        places = list(first)
        # of each whole number of `after`: path, place among those of `before` (None: it is new), and by how much
        # a step raises it
        self.counts = [
            (path, places.index(path) if path in first else None, number - first.get(path, 0))
            for path, number in numbers_of(after)
        ]
        # of those that a step leaves as they are: they are no counts, and a graph holds for their values alone
        numbers = list(first.values())
        self._constants = [(i, numbers[i]) for _, i, more in self.counts if i is not None and not more]
        self._zeros = [number == 0 for _, number in numbers_of(after)]

    @property
    def nbytes(self) -> int:
        """Bytes of the local state that it keeps, without the networks' scratch tensors."""
        return sum(tensor.nbytes for tensor in self.local if not within(tensor, _all(self.scratch)))

    def holds(self, numbers: Sequence[int]) -> bool:
        """Whether the whole numbers of a local state that are no counts are those of this graph."""
        return all(numbers[place] == value for place, value in self._constants)

    def fits(self, ctx: ClientContext) -> bool:
        """Whether all that the step read is what it was, and its scratch tensors are where they were."""
        return all(_same(getattr(ctx, name), value) for name, value in self.reads.items()) and all(
            objective.scratch_tensors.get(name) is tensor
            for objective, tensors in self.scratch
            for name, tensor in tensors.items()
        )

    def run(self, local: Message, last: _State | None) -> tuple[Message, _State | None]:
        """The step from `local`, which `last` describes if a graph left it; its other arguments are in their places."""
        if last is None:
            load(self.local, tensors_of(local))
            before = [number for _, number in numbers_of(local)]
        else:
            copies = self._copies.get(last.recorded)
            if copies is None:
                copies = self._copies[last.recorded] = copies_between(self.local, last.recorded.tensors)
            copy(*copies)
            before = last.numbers
        self.graph.replay()
        after, numbers = self.after, []
        for path, place, more in self.counts:
            numbers.append(more if place is None else before[place] + more)
            after = put(after, path, numbers[-1])
        known = [number == 0 for number in numbers] == self._zeros
        return after, _State(after, self.kind, self, numbers) if known else None


class CapturedSteps:
    """The local steps of a process's clients."""

    def __init__(self, graphs: Graphs) -> None:
        self.graphs = graphs
        self.recorded: OrderedDict[tuple[Key, int], _Recorded] = OrderedDict()  # (kind of step, number of its graph)
        self.refused: dict[Key, str] = {}  # kind of step -> why
        self.seen: set[Key] = set()
        self.bytes = 0  # of places and local states
        self.trials = self.replays = 0
        self._places: dict[Key, tuple[Message, list[Tensor]]] = {}
        self._algorithms: dict[int, Algorithm] = {}  # keeps them alive, because a key holds their numbers

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

    def find(self, key: Key, ctx: ClientContext, numbers: Sequence[int]) -> _Recorded | None:
        """The graph of this kind of step that fits the context and the whole numbers of the local state."""
        for (kind, number), found in reversed(self.recorded.items()):
            if kind == key and found.holds(numbers) and found.fits(ctx):
                self.recorded.move_to_end((kind, number))
                return found
        return None

    def places(self, role: str, message: Message, kind: Kind) -> Message:
        """The message in the tensors that graphs read for messages of this kind. Raises `Unfit`."""
        found = self._places.get((role, kind.key))
        if found is None:
            places = map_tensors(place_for, message)
            found = self._places[role, kind.key] = places, tensors_of(places)
            self.bytes += sum(tensor.nbytes for tensor in found[1])
        else:
            load(found[1], kind.tensors)
        return found[0]

    def number(self, algorithm: Algorithm) -> int:
        """A number for this algorithm with these hyper-parameters."""
        self._algorithms.setdefault(id(algorithm), algorithm)
        return id(algorithm)

    def worth(self) -> bool:
        """Whether the graphs so far were replayed often enough to make another one."""
        return self.trials < TRIALS or self.replays >= WORTH * self.trials

    def add(self, key: Key, recorded: _Recorded) -> None:
        self.recorded[key, self.trials] = recorded
        self.bytes += recorded.nbytes
        if len(self.recorded) > GRAPHS:
            _, oldest = self.recorded.popitem(last=False)
            self.bytes -= oldest.nbytes

    def forget_above(self, limit: int) -> None:
        """Drop all graphs and places if they keep more than so many bytes, as under a broadcast with the number of the
        round, which is another kind every time."""
        if self.bytes <= limit and len(self.seen) <= SEEN:
            return
        for table in (self.recorded, self._places, self.seen, self.refused):
            table.clear()
        self.graphs.renew()
        self.bytes = 0


class _ClientSteps:
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
        self.device = ctx.objective.device
        self.broadcast, self.client = broadcast, client
        self.kinds = kind_of(broadcast, self.device), kind_of(client, self.device)
        self.fixed = (steps.number(algorithm), *(kind.key for kind in self.kinds))
        self.found: dict[Key, _Recorded] = {}
        self.loaded: tuple[Message, Message] | None = None
        self.last: _State | None = None
        # here alone, so that no graph that this client uses loses its places
        steps.forget_above(KEPT + 8 * sum(tensor.nbytes for kind in self.kinds for tensor in kind.tensors))

    def __call__(self, local: Message, batch: Batch) -> Message:
        last = self.last if self.last is not None and local is self.last.after else None
        try:
            kind = kind_of(batch, self.device)
            key = (self.fixed, kind_of(local, self.device, counts=True).key if last is None else last.kind, kind.key)
        except Unfit:
            return self.plain(local, batch)
        numbers = [number for _, number in numbers_of(local)] if last is None else last.numbers
        found = self.found.get(key)
        if found is None or not found.holds(numbers):
            if key in self.steps.refused:
                return self.plain(local, batch)
            found = self.steps.find(key, self.ctx, numbers)
            if found is None:
                if key not in self.steps.seen or not self.steps.worth():
                    self.steps.seen.add(key)
                    return self.plain(local, batch)
                return self.record(key, local, batch, kind)
            self.found[key] = found
        self.arguments(batch, kind)
        self.steps.replays += 1
        after, self.last = found.run(local, last)
        return after

    def arguments(self, batch: Batch, kind: Kind) -> tuple[Message, Message, Message]:
        """Broadcast, client state and batch in the places where graphs read them. Raises `Unfit`."""
        if self.loaded is None:
            broadcast = self.steps.places("broadcast", self.broadcast, self.kinds[0])
            self.loaded = broadcast, self.steps.places("client", self.client, self.kinds[1])
        return *self.loaded, self.steps.places("batch", batch, kind)

    def record(self, key: Key, local: Message, batch: Batch, kind: Kind) -> Message:
        """The step, which is recorded if it can be."""
        self.steps.trials += 1
        scratch, generators = self.scratch(), _Generators()
        received = self.kinds[0].tensors  # the broadcast, to which no step writes
        saved = _saved([tensor for tensor in tensors_of(local) if not within(tensor, received)] + _all(scratch))
        try:
            watched, reads = _watched(self.ctx)
            with self.steps.graphs.without_waits():
                expected = self.algorithm.step(watched, self.broadcast, self.client, local, batch)
            if not generators.unchanged():
                self.steps.refused[key] = "it draws random numbers"
                return expected
            result = [tensor.clone() for tensor in tensors_of(expected)]
            copy(saved, False)
            return self.graph_of(key, (local, batch, kind), reads, result)
        except (Unfit, RuntimeError) as why:  # a wait for the GPU is a RuntimeError
            self.steps.refused[key] = first_line(why)
        copy(saved, False)
        generators.restore()
        return self.plain(local, batch)

    def graph_of(
        self, key: Key, given: tuple[Message, Batch, Kind], reads: dict[str, Any], result: Sequence[Tensor]
    ) -> Message:
        """The step by a new graph. `given`: its local state, its batch and that one's kind; `result`: what the step
        gives. Raises `Unfit`, or what CUDA raises, and the local state is undefined then."""
        local, batch, kind = given
        broadcast, client, batch_there = self.arguments(batch, kind)
        scratch = self.scratch()
        before = map_tensors(lambda tensor: tensor if within(tensor, _all(scratch)) else place_for(tensor), local)
        check_apart([tensor for tensor in tensors_of(before) if not within(tensor, _all(scratch))])
        check_apart([tensor for tensor in tensors_of(local) if not within(tensor, _all(scratch))])
        saved = _saved(tensors_of(before) + _all(scratch))
        recorded, graph = _Recorded(self.algorithm, reads, scratch), self.steps.graphs()
        watched, _ = _watched(self.ctx)
        after = graph.record(lambda: self.algorithm.step(watched, broadcast, client, before, batch_there))
        try:
            recorded.keep(graph, before, after, self.device)
            if any(within(tensor, tensors_of(batch_there)) for tensor in recorded.tensors):
                raise Unfit("its local state keeps the batch")  # whose place the next one takes
            copy(saved, False)
            after, self.last = recorded.run(before, None)
            if not same_bits(tensors_of(after), result):
                asked = named(self.algorithm.step)
                warn(f"{asked}: its CUDA graph gives other bits, so it is not used")
                raise Unfit("its graph gives other bits")
        except Unfit:
            self.last = None
            if not self.steps.recorded:
                self.steps.graphs.renew()
            raise
        self.steps.add(key, recorded)
        self.found[key] = recorded
        return after

    def scratch(self) -> list[tuple[Objective, dict[str, Tensor]]]:
        return [(one, dict(one.scratch_tensors)) for one in (self.ctx.objective, *self.ctx.net.values())]


def _all(scratch: list[tuple[Objective, dict[str, Tensor]]]) -> list[Tensor]:
    return [tensor for _, named_tensors in scratch for tensor in named_tensors.values()]


def _saved(tensors: Sequence[Tensor]) -> Copies:
    return [(tensor, tensor.clone()) for tensor in tensors]
