"""Shared parts of a broadcast: an array in a field declared `shared()` is sent to a client once, later only its hash.

    rest, parts = split(message)      # at the server: `rest` has the hashes of the arrays in `parts`
    message = join(rest, parts)       # at a client

The server counts which client has which part (:func:`received`); a worker stores nothing about a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flray.core.messages import Record, children, map_tensors, rebuilt, tensors
from flray.core.messages.fields import shared_fields
from flray.core.schema.errors import AlgorithmError
from flray.files import array_checksum


class Reference(Record):
    """In place of the array with this `hash` of dtype, shape and bytes (XXH3, 32 hex digits), or of this name."""

    hash: str


def split(message: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """(`message` of NumPy arrays with a :class:`Reference` for every shared array, those arrays by hash)."""
    parts: dict[str, np.ndarray] = {}
    return _split(message, False, parts), parts


def _split(message: Any, shared: bool, parts: dict[str, np.ndarray]) -> Any:
    if isinstance(message, np.ndarray):
        if not shared:
            return message
        digest = array_checksum(message)
        parts[digest] = message
        return Reference(digest)
    inside = children(message)
    if inside is None:
        return message
    declared = shared_fields(type(message)) if isinstance(message, Record) else frozenset()
    return rebuilt(message, {key: _split(part, shared or key in declared, parts) for key, part in inside.items()})


def join(rest: Any, parts: Mapping[str, np.ndarray | None]) -> Any:
    """The inverse of :func:`split`; the arrays of `parts` are not copied. Raises `AlgorithmError` for a missing one."""
    if isinstance(rest, Reference):
        if rest.hash not in parts:
            raise AlgorithmError(f"the shared part {rest.hash} of a broadcast has not arrived")
        return parts[rest.hash]
    inside = children(rest)
    return rest if inside is None else rebuilt(rest, {key: join(part, parts) for key, part in inside.items()})


def referring(message: Any, other: Any) -> Any:
    """`message` with a :class:`Reference` for every array that is one of `other`'s, by name: the same memory.

    The inverse is `join(rest, tensors(other))`.
    """
    known = {_memory(array): name for name, array in tensors(other).items()}

    def refer(array: np.ndarray) -> Any:
        name = known.get(_memory(array))
        return array if name is None else Reference(name)

    return map_tensors(refer, message)


def _memory(array: np.ndarray) -> tuple[Any, ...]:
    return array.ctypes.data, array.dtype, array.shape, array.strides


def received(
    parts: Mapping[str, np.ndarray], clients: np.ndarray, holders: Mapping[str, np.ndarray]
) -> tuple[int, dict[str, np.ndarray]]:
    """(bytes of the shared `parts` sent to all `clients [K]`, the clients that have each part afterwards).

    A part counts for each client that did not have it.
    """
    total, after = 0, dict(holders)
    receivers = np.unique(np.asarray(clients, dtype=np.int64))
    for digest, array in sorted(parts.items()):
        holding = after.get(digest, receivers[:0])
        total += array.nbytes * len(np.setdiff1d(receivers, holding, assume_unique=True))
        after[digest] = np.union1d(holding, receivers)
    return total, after
