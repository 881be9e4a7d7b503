"""Parts of a broadcast that travel by content: an array in a field declared `shared()` goes to a client once, then only
its hash.

    rest, parts = split(message)      # at the server: `rest` names the arrays that `parts` holds
    message = join(rest, parts)       # at a client, which keeps the parts that it has seen

What a client holds is counted (:func:`received`), not remembered by the worker that plays it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flray.core.messages import Record, children, rebuilt
from flray.core.messages.fields import shared_fields
from flray.core.schema.errors import AlgorithmError
from flray.files import array_checksum


class Reference(Record):
    """Stands in a message for the array with this content `hash` (of dtype, shape and bytes, 32 hex digits)."""

    hash: str


def content_hash(array: np.ndarray) -> str:
    """The same for equal dtype, shape and bytes, wherever they come from (XXH3, 128 bits)."""
    return array_checksum(array)


def split(message: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """(`message` of NumPy arrays with a :class:`Reference` for every shared array, those arrays by hash)."""
    parts: dict[str, np.ndarray] = {}
    return _split(message, False, parts), parts


def _split(message: Any, shared: bool, parts: dict[str, np.ndarray]) -> Any:
    if isinstance(message, np.ndarray):
        if not shared:
            return message
        digest = content_hash(message)
        parts[digest] = message
        return Reference(digest)
    inside = children(message)
    if inside is None:
        return message
    declared = shared_fields(type(message)) if isinstance(message, Record) else frozenset()
    return rebuilt(message, {key: _split(part, shared or key in declared, parts) for key, part in inside.items()})


def join(rest: Any, parts: Mapping[str, np.ndarray | None]) -> Any:
    """What :func:`split` took apart; the arrays are those of `parts`, not copies. Raises `AlgorithmError` for a missing
    one.
    """
    if isinstance(rest, Reference):
        if rest.hash not in parts:
            raise AlgorithmError(f"the shared part {rest.hash} of a broadcast has not arrived")
        return parts[rest.hash]
    inside = children(rest)
    return rest if inside is None else rebuilt(rest, {key: join(part, parts) for key, part in inside.items()})


def references(rest: Any) -> set[str]:
    """The hashes that `rest` names: what has to be there before :func:`join`."""
    if isinstance(rest, Reference):
        return {rest.hash}
    return set().union(*(references(part) for part in (children(rest) or {}).values()))


def received(
    parts: Mapping[str, np.ndarray], clients: np.ndarray, holders: Mapping[str, np.ndarray]
) -> tuple[int, dict[str, np.ndarray]]:
    """(bytes of the shared `parts` to `clients [K]` together, who holds which part after it).

    A part counts for each client that did not hold it.
    """
    total, after = 0, dict(holders)
    receivers = np.unique(np.asarray(clients, dtype=np.int64))
    for digest, array in sorted(parts.items()):
        holding = after.get(digest, receivers[:0])
        total += array.nbytes * len(np.setdiff1d(receivers, holding, assume_unique=True))
        after[digest] = np.union1d(holding, receivers)
    return total, after
