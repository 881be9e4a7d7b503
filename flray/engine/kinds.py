"""What two messages have in common on which a recorded step works alike, and places of their own for their tensors."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flray.core.messages import Message, Record
from flray.core.messages.records import children, rebuilt, tensors

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
    """The tensors of a message of a kind, in field order."""
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
    """Whether a tensor lies in the memory of one of the others."""
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
