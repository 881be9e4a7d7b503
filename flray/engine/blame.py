"""Errors that name what of a user's algorithm raised, wrote into its input, or kept a state of its own."""

from __future__ import annotations

import contextlib
import operator
import signal
from collections import deque
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from flray.core.network.attributes import attributes_of, computed_once, digest, is_data, is_plain, sample
from flray.core.protocol.aggregation import Aggregation
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.probe import Probe
from flray.core.schema.errors import (
    AlgorithmError,
    FlrayError,
    ResourceError,
    ServerLostError,
    traced,
)
from flray.core.schema.section import Section
from flray.scenario.drift import Drift

LESS_MEMORY = "lower resources.client_actors or algorithm.batch_size"


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
        raise AlgorithmError(f"{type(algorithm).__name__}.{method} failed{when}: {traced(error)}") from None


ONE_SAMPLE = "batch norm cannot train on a batch of one sample"


def is_of_one_sample(error: BaseException) -> bool:
    """Whether batch norm refused a batch of one sample (PyTorch's error)."""
    return isinstance(error, ValueError) and "more than 1 value per channel" in str(error)


STORED = ("memory_size", "pool_size")  # options with a number of samples that batches are drawn from


def sizes_of_batches(key: str, part: Algorithm | Aggregation) -> str:
    """What to write where the last of the batches of public or stored samples has one; `part`: whose options, and those
    of the sections in it, have the numbers and sizes; `key`: its own in a configuration."""
    within = {f"{key}.{name}": own for name, own in part if isinstance(own, Section)}
    fields = [(where, name) for where, own in {key: part, **within}.items() for name in type(own).model_fields]
    of_clients = {(key, "batch_size"), (key, "last_batch")}
    sized = [each for each in fields if "batch" in each[1].split("_") or each[1].endswith("_bs")]
    # no batch is larger than what it is drawn from
    numbers = [f"{where}.{name}" for where, name in fields if name in STORED] + ["proxy.size"] * part.reads_proxy()
    sizes = [f"{where}.{name}" for where, name in sized if (where, name) not in of_clients]
    ways = [f"{what} ({', '.join(of)})" for what, of in (("their number", numbers), ("a batch's size", sizes)) if of]
    return f"the last one of public or stored samples; change {' or '.join(ways) or 'their number'}"


def from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised the error, as SIGTERM's does, and not a called method."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame in _frames(error.__traceback__))


def _frames(trace: TracebackType | None) -> Iterator[FrameType]:
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


# processes that end ------------------------------------------------------------------------------
def server_never_started(error: ServerLostError) -> ResourceError:
    """The error of a server that died before its first round, again and again."""
    return ResourceError(f"{error} as it started; if memory ran out, {LESS_MEMORY}, or use a larger machine")


# inputs that are written into -------------------------------------------------------------------
class Standing:
    """What classes of the user's own (an algorithm, a rule, transforms, probes) hold beside their states: fields,
    private attributes, data of the class, and these of the sections and objects in them.

    A method that changes one of them stores a state where no other process and no resume finds it.
    """

    def __init__(self, *parts: Section | None) -> None:
        own = {id(part): part for part in parts if part is not None and is_own(part)}  # a rule may be the algorithm
        self._parts = list(own.values())
        self._before = [_attributes(part) for part in self._parts]

    def check(self, when: str) -> None:
        """Raises `AlgorithmError` for what has changed since; `when` in words."""
        for part, before in zip(self._parts, self._before, strict=True):
            now = _attributes(part)
            for name, some in {**before, **now}.items():
                both = name in before and name in now
                if not both and some.computed:  # a value that is computed once may appear and go
                    continue
                if not both or not before[name].is_same(now[name]):
                    raise AlgorithmError(
                        f"{type(part).__name__}: self.{name} changed {when}; a process keeps nothing of it: return "
                        f"what changes in {_home(part)}; what no result depends on may stay in a "
                        "functools.cached_property or lru_cache (computed once), a global of the module (a count, a "
                        "time) or a logger of logging"
                    )


@contextlib.contextmanager
def unchanged(part: Section, when: str) -> Iterator[None]:
    """A block in which a class of the user's own changes nothing that it holds: see :class:`Standing`."""
    standing = Standing(part)
    yield
    standing.check(when)


def is_own(part: Section) -> bool:
    """Whether a section's class is not flray's."""
    return not type(part).__module__.startswith("flray.")


def _home(part: Section) -> str:
    """In words, where a state of this section belongs."""
    if isinstance(part, Algorithm):
        return "the client's state or the server's"
    if isinstance(part, Aggregation):
        return "its own state, as Aggregated(w, b, own)"
    if isinstance(part, Drift):
        return "the shares of gone, a function of now and client alone"
    return "its memory" if isinstance(part, Probe) else "the state that its methods are given"


ENTRIES = 20_000  # of a container that are compared by identity
NESTED = 4  # objects within objects that are looked at


class Attribute(NamedTuple):
    """An attribute: the objects that it is and that it contains, a mark of the data in it, and whether it is a cached
    property or in one."""

    objects: tuple[Any, ...]
    mark: str | None
    computed: bool = False

    @classmethod
    def of(cls, value: Any, computed: bool = False) -> Attribute:
        objects = [value]
        if isinstance(value, dict | list | set | deque):
            objects += sample(value, len(value), ENTRIES)
        if isinstance(value, dict):
            objects += sample(value.values(), len(value), ENTRIES)
        return cls(tuple(objects), digest(value, brief=True) if is_data(value) else None, computed)

    def is_same(self, other: Attribute) -> bool:
        alike = len(self.objects) == len(other.objects) and self.mark == other.mark
        return alike and all(map(operator.is_, self.objects, other.objects))


def _attributes(part: Any) -> dict[str, Attribute]:
    """By name the fields and private attributes of an object, the data in the user's own classes of it, and those of
    the objects in them: `detector._past`. Each object has the shortest of its names."""
    found, read, seen = dict[str, Attribute](), dict[tuple[int, bool], Attribute](), set[int]()
    # what is computed once comes last: it may appear, and then takes no name from what was there
    waiting, later = deque([("", part, 1)]), deque[tuple[str, Any, int]]()
    while waiting or later:
        computed = not waiting
        prefix, holder, depth = (waiting or later).popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        kind: Any = type(holder)
        once = computed_once(kind)
        for name, value in {**_of_class(kind), **attributes_of(holder)}.items():
            key = id(value), computed or name in once
            found[prefix + name] = read[key] = read.get(key) or Attribute.of(value, key[1])
            if is_plain(value) and depth < NESTED:
                (later if key[1] else waiting).append((f"{prefix}{name}.", value, depth + 1))
    return found


def _of_class(kind: type) -> dict[str, Any]:
    """The data in the user's own classes of a `kind`, by name."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith(("flray.", "pydantic", "abc", "builtins"))]
    values = {name: value for base in reversed(own) for name, value in vars(base).items()}
    return {n: v for n, v in values.items() if not n.startswith(("__", "model_")) and (is_data(v) or is_plain(v))}


def write_error(algorithm: Algorithm, exchange: Exchange) -> AlgorithmError:
    """The error of an algorithm whose client half wrote into the broadcast."""
    return AlgorithmError(
        f"{type(algorithm).__name__}: a client of exchange {exchange.name!r} wrote into `broadcast`, which the next "
        "client of this process reads as well; work on a copy: broadcast.w.clone()"
    )
