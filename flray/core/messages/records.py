"""Messages between server, clients and store: frozen records of tensors, and functions to copy and compare them.

An algorithm that sends or stores more than the records below inherits from them:
`class ScaffoldState(ServerState): c: Tensor`. A field is a tensor (or a NumPy array), a number, a boolean, text, None,
a record, a tuple of these, or a dict of them by text, for example by layer. A shape may change from round to round, and
None may become a tensor.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Protocol, Self, dataclass_transform

import numpy as np
import torch
from torch import Tensor

from flray.core.messages import fields
from flray.core.messages.host import arrays
from flray.core.schema.errors import AlgorithmError, kind_of, named, shown

Metrics = Mapping[str, float | Tensor]
# a record of the algorithm's class, or a tuple or dict of them; no type, because the engine reads no field of it
Message = Any


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
@dataclass_transform(
    frozen_default=True,
    eq_default=False,
    field_specifiers=(fields.mean, fields.sum, fields.each, fields.shared, dataclasses.field),
)
class Record:
    """The base of all messages: a class that inherits from it becomes a frozen dataclass.

    Compare two records with :func:`equal`. Raises `AlgorithmError`, in one line with the place, for a missing or
    unknown field.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        type.__setattr__(cls, "__init__", _checked(cls.__init__))

    @classmethod
    def of(cls, base: Record, **more: Any) -> Self:
        """A record of this class from a record of one of its bases and the additional fields `more`."""
        return cls(**{**vars(base), **more})

    def replace(self, **changes: Any) -> Self:
        """The same record with other values of some fields. The other fields are shared, not copied."""
        kind, fields = type(self), self.__dict__
        if not changes.keys() <= fields.keys() or hasattr(kind, "__post_init__"):
            return kind(**{**fields, **changes})
        # every local step comes here, and the constructor takes twice as long
        other = object.__new__(kind)
        other.__dict__.update(fields)
        other.__dict__.update(changes)
        return other

    def __repr__(self) -> str:
        inside = (
            f"{field.name}={_brief(getattr(self, field.name))}" for field in dataclasses.fields(self) if field.repr
        )
        return f"{type(self).__qualname__}({', '.join(inside)})"


def _checked(make: Callable[..., None]) -> Callable[..., None]:
    """A dataclass's `__init__` whose error for wrong arguments is one line with the class, the place and the fields."""

    def __init__(self: Record, *values: Any, **named: Any) -> None:
        try:
            make(self, *values, **named)
        except TypeError:
            try:
                inspect.signature(make).bind(self, *values, **named)
            except TypeError as error:
                raise _misuse(type(self), error) from None
            raise

    return __init__


def _misuse(kind: type[Record], error: TypeError) -> AlgorithmError:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    place = f" ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})" if frame is not None else ""
    names = ", ".join(field.name for field in dataclasses.fields(kind) if field.repr)
    return AlgorithmError(f"{kind.__name__}{place}: {error}; its fields: {names or 'none'}")


def _brief(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)


class HasModel(Protocol):
    """Any record with parameters `w [P]` and batch-norm statistics `b [Q]`."""

    @property
    def w(self) -> Tensor: ...
    @property
    def b(self) -> Tensor: ...


class ServerState(Record):
    """Global parameters `w [P]` and batch-norm statistics `b [Q]`; `rule`: the state of the rule of aggregation, a
    record (None: it has none)."""

    w: Tensor
    b: Tensor
    rule: Any = dataclasses.field(default=None, kw_only=True, repr=False)

    def broadcast_fields(self) -> dict[str, Any]:
        """The fields by name, for a broadcast that has them all, without `rule`, which only the server reads."""
        return {name: value for name, value in vars(self).items() if name != "rule"}


class Broadcast(Record):
    """Server -> every client of the cohort: the global model."""

    w: Tensor
    b: Tensor


class Update(Record):
    """Client -> server: the local parameters and statistics after local training."""

    w: Tensor
    b: Tensor


class EachUpdate(Update):
    """An update of which the server half gets every client's model (`Models`)."""

    w: Tensor = fields.each()
    b: Tensor = fields.each()


class Models(Record):
    """The type of an `EachUpdate` at the server: `w` and `b` are tuples with a tensor a client, in cohort order."""

    w: tuple[Tensor, ...]
    b: tuple[Tensor, ...]


class StreamedUpdate(EachUpdate):
    """An `EachUpdate` whose models the server half gets one at a time (`StreamedModels`)."""

    w: Tensor = fields.each(streamed=True)
    b: Tensor = fields.each(streamed=True)


class StreamedModels(Record):
    """The type of a `StreamedUpdate` at the server: `w` and `b` are sequences, a tensor a client, in cohort order."""

    w: Sequence[Tensor]
    b: Sequence[Tensor]


class ClientState(Record):
    """A client's state between rounds. The state `()` of a stateless client is not stored."""


class LocalState(Record):
    """A client in training, between two local steps: its parameters `w [P]` and statistics `b [Q]`."""

    w: Tensor
    b: Tensor


class Published(Record):
    """The global model for a test: its parameters and statistics."""

    w: Tensor
    b: Tensor


class Cohort(Record):
    """The clients that took part, in cohort order; all `[K]`, on the CPU. `num_steps`: the local steps that they take.
    Delivered updates have `weights` of sum 1."""

    client_ids: Tensor
    num_examples: Tensor
    num_steps: Tensor
    weights: Tensor


class Batch(Record):
    """Inputs `x [B, ...]` float32 (images `[B, C, H, W]` in channels-last memory) and labels `y [B]` (int64).

    Both are on the actor's device.
    """

    x: Tensor
    y: Tensor


ALLOWED = "a message holds tensors, numbers, text, None, records, tuples and dicts by name"


# walking through a message ----------------------------------------------------------------------
def children(message: Any) -> dict[Any, Any] | None:
    """The parts of a record, a dict or a tuple, by field, key or index; None for anything else, which is a leaf."""
    if isinstance(message, Record):
        return vars(message)
    if type(message) is dict and all(isinstance(key, str) for key in message):
        return message
    return dict(enumerate(message)) if type(message) is tuple or isinstance(message, Streamed) else None


def rebuilt(message: Any, parts: Mapping[Any, Any]) -> Any:
    """A record, dict or tuple like `message` with `parts` in place of its :func:`children`."""
    if isinstance(message, Record):
        return message.replace(**parts)
    return dict(parts) if type(message) is dict else tuple(parts.values())


def leaves(message: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(name, leaf) in field order. Names: `inner.c`, `fisher[layer.weight]`, `blocks[0]`; `value` for a single leaf."""
    parts = children(message)
    if parts is None:
        yield prefix or "value", message
        return
    for key, part in parts.items():
        name = _named(prefix, message, key)
        if type(part) is Tensor:  # most are, and a generator within a generator takes as long as the rest
            yield name, part
        else:
            yield from leaves(part, name)


def _named(prefix: str, message: Any, key: Any) -> str:
    return (f"{prefix}.{key}" if prefix else key) if isinstance(message, Record) else f"{prefix}[{key}]"


def map_tensors(apply: Callable[[Any], Any], message: Any, where: str = "") -> Any:
    """The same message with `apply` called on every tensor (or array).

    Raises `AlgorithmError` for a value that no message may contain; `where` is the name of its field.
    """
    if isinstance(message, Tensor | np.ndarray):
        return apply(message)
    if message is None or isinstance(message, int | float | str):
        return message
    parts = children(message)
    if parts is None:
        described = f"{type(message).__name__}: {shown(message)}"
        raise AlgorithmError(f"{f'{where}: ' if where else ''}{ALLOWED}, not {described}")
    where = where or type(message).__name__
    return rebuilt(message, {key: map_tensors(apply, part, _named(where, message, key)) for key, part in parts.items()})


def tensors(message: Any) -> dict[str, Any]:
    """Name -> tensor, in field order; names as of :func:`leaves`."""
    return {name: leaf for name, leaf in leaves(message) if isinstance(leaf, Tensor | np.ndarray)}


def write_counters(message: Message) -> Callable[[], list[int]]:
    """A function that reads torch's write counters of the message's tensors.

    They do not count writes through `.data` or NumPy.
    """
    watched = [t for t in tensors(message).values() if isinstance(t, Tensor) and not t.is_inference()]
    return lambda: [tensor._version for tensor in watched]


def sendable(message: Any, method: Callable[..., Any], what: str, stored: bool = False) -> Any:
    """The message with its tensors detached from the autograd graph, and those that are conjugated or negated when they
    are read as numbers of their own.

    Raises `AlgorithmError`, which names the `method` that returned it and `what` it is, for a tensor that NumPy does
    not have: a sparse one, one in bfloat16; and for an array that torch does not have: of texts, of objects. In a
    message that is `stored` also for a number or text of another class, such as an enum's, which no checkpoint keeps.
    """
    detach = False
    for name, leaf in leaves(message):
        if isinstance(leaf, Tensor):
            detach |= leaf.requires_grad or leaf.is_conj() or leaf.is_neg()
            if leaf.layout is not torch.strided or leaf.dtype not in _NUMPY or leaf.is_meta:
                sparse = leaf.layout is not torch.strided
                kind = "sparse" if sparse else "meta" if leaf.is_meta else str(leaf.dtype).removeprefix("torch.")
                raise AlgorithmError(
                    f"{named(method)}: its {what}'s {name} is a {kind} tensor, which no message holds; return "
                    f"{name}.{'to_dense()' if sparse else 'float()'}"
                )
        elif isinstance(leaf, np.ndarray):
            if not leaf.dtype.isnative or getattr(torch, leaf.dtype.name, None) not in _NUMPY:
                raise AlgorithmError(
                    f"{named(method)}: its {what}'s {name} is an array of {leaf.dtype}, which torch does not have; "
                    "return numbers, or a tuple of texts"
                )
        elif not isinstance(leaf, int | float | str | None):
            raise AlgorithmError(f"{named(method)}: its {what}'s {name} is {kind_of(leaf)}; {ALLOWED}")
        elif stored and type(leaf) not in _PLAIN:
            write = f"{name}.value" if isinstance(leaf, enum.Enum) else f"{_base(leaf).__name__}({name})"
            raise AlgorithmError(
                f"{named(method)}: its {what}'s {name} is {kind_of(leaf)}, which a resume would give back as a plain "
                f"{_base(leaf).__name__}; return {write}"
            )
    return map_tensors(_plain, message) if detach else message


_PLAIN = (bool, int, float, str, NoneType)


def _base(leaf: Any) -> type:
    return next(kind for kind in _PLAIN if isinstance(leaf, kind))


def _plain(tensor: Any) -> Any:
    return tensor.detach().resolve_conj().resolve_neg() if isinstance(tensor, Tensor) else tensor


_NUMPY = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
}  # fmt: skip


def is_none(state: Any) -> bool:
    """Whether a state is None or `()`, which is not stored."""
    return state is None or (type(state) is tuple and not state)


class Streamed(Sequence[Any]):
    """Every client's value of a field that is declared `each(streamed=True)`, in cohort order, on a device.

    A value is a copy that is made when it is read: whoever reads one after the other has one in memory, and in a loop
    the one before until the next is there. Copied as a message it is a tuple.
    """

    def __init__(self, values: Sequence[Any], device: torch.device | str = "cpu") -> None:
        """`values` contain NumPy arrays, for example in Ray's object store."""
        self._values, self._device = values, device

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Streamed(self._values[place], self._device)
        # a clone: torch aligns its memory, whatever the array's alignment, and the algorithm may store it
        return map_tensors(torch.clone, as_tensors(self._values[place], self._device))


# copies and measures ----------------------------------------------------------------------------
def as_tensors(message: Any, device: torch.device | str = "cpu") -> Any:
    """NumPy arrays -> tensors to **read only**. On the CPU they share the arrays' memory, which may be Ray's."""
    return map_tensors(lambda part: _on_its_memory(part).to(device), message)


def _on_its_memory(array: Tensor | np.ndarray[Any, Any]) -> Tensor:
    """A tensor that shares the array's memory; a copy of an array that runs backwards, as in `x[::-1]`: a tensor does
    not."""
    if isinstance(array, Tensor):
        return array
    array = np.asarray(array)
    return torch.from_numpy(array.copy() if any(stride < 0 for stride in array.strides) else array)


def _warn_of_read_only_arrays_now() -> None:
    """Torch warns once in a process that an array is not writable. Here nobody sees it: a filter of warnings that is
    set for each array is not thread-safe."""
    array = np.zeros(1)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.from_numpy(array)


_warn_of_read_only_arrays_now()


def nbytes(message: Any) -> int:
    """Bytes to send: those of the tensors and texts, 8 for a number, 1 for a boolean."""
    parts = children(message)
    return _nbytes(message) if parts is None else sum(map(nbytes, parts.values()))


def nbytes_by_field(message: Any) -> dict[str, int]:
    """:func:`nbytes` of every field of a record; of another message under the name `value`."""
    if not isinstance(message, Record):
        return {"value": nbytes(message)} if children(message) != {} else {}
    return {name: nbytes(part) for name, part in vars(message).items()}


def _nbytes(leaf: Any) -> int:
    if isinstance(leaf, Tensor | np.ndarray):
        return int(leaf.nbytes)
    if isinstance(leaf, str):
        return len(leaf.encode())
    return 0 if leaf is None else 1 if isinstance(leaf, bool) else 8


def to_numpy(message: Any) -> Any:
    """Tensors -> NumPy arrays on the CPU. Ray sends an array without a copy; a torch tensor costs 20 times as much.

    Tensors of a device come in one copy, except large ones (`host.arrays`).
    """
    found = [leaf for _, leaf in leaves(message) if isinstance(leaf, Tensor)]
    copied = iter(arrays(found))  # in the order of the walk: a `Streamed` has other tensors at each
    return map_tensors(lambda t: next(copied) if isinstance(t, Tensor) else t, message)


def to_torch(message: Any, device: torch.device | str = "cpu") -> Any:
    """NumPy arrays -> **copies** as tensors on `device`. An array in Ray's object store is shared and read-only."""
    # in PyTorch's memory, which is aligned
    return map_tensors(lambda part: _on_its_memory(part).to(device, copy=True), message)


def of_tensors(message: Any, device: torch.device | str = "cpu") -> Any:
    """The message as a resume gives it back: NumPy arrays are tensors of their own on `device`, since who made an array
    may write into it again."""
    return map_tensors(lambda part: to_torch(part, device) if isinstance(part, np.ndarray) else part, message)


def equal(left: Any, right: Any) -> bool:
    """Whether two messages have the same structure, dtypes and values (NaN equals NaN)."""
    if isinstance(left, Tensor | np.ndarray) and isinstance(right, Tensor | np.ndarray):
        a, b = (np.asarray(to_numpy(side)) for side in (left, right))
        return a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    if type(left) is not type(right):
        return False
    mine, others = children(left), children(right)
    if mine is None or others is None:
        return bool(left == right)
    return mine.keys() == others.keys() and all(equal(part, others[key]) for key, part in mine.items())
