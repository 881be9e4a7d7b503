"""Declarations of how a message's fields are pooled and sent: `control: Tensor = each()`.

The server half gets each field of an update, and everything inside it, pooled over the clients:

* `mean()`, the default: the mean, weighted by :meth:`Algorithm.weights`;
* `sum()`: the sum, of floats or of integers;
* `each()`: a tuple with one value a client, in cohort order; shapes may differ, and a value may be None.

A client that was left out (`on_nonfinite: skip`) is in none of them; the weights of the others sum to 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Pooling = Literal["mean", "sum", "each"]
MISSING = dataclasses.MISSING


def mean(*, default: Any = MISSING) -> Any:
    """A field of an update of which the server half gets the weighted mean. This is the default."""
    return _field("mean", default)


def sum(*, default: Any = MISSING) -> Any:
    """A field of an update of which the server half gets the sum over the clients."""
    return _field("sum", default)


def each(*, default: Any = MISSING) -> Any:
    """A field of an update of which the server half gets every client's value, as a tuple in cohort order."""
    return _field("each", default)


def shared(*, default: Any = MISSING) -> Any:
    """A field of a broadcast, or of a record in it, whose arrays are sent to each client once, by the hash of their
    contents (`core/messages/shared.py`); for a pool of synthetic images, or a basis that stays for many rounds."""
    return dataclasses.field(default=default, metadata={"shared": True})


def _field(pool: Pooling, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"pool": pool})


def pools(kind: type) -> dict[str, Pooling]:
    """How each field of a record class is pooled, in field order."""
    return {field.name: field.metadata.get("pool", "mean") for field in dataclasses.fields(kind)}


def shared_fields(kind: type) -> frozenset[str]:
    """The fields of a record class that are declared `shared()`."""
    return frozenset(field.name for field in dataclasses.fields(kind) if field.metadata.get("shared", False))
