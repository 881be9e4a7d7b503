"""What the fields of a message declare about how they travel: `control: Tensor = each()`.

Pooling is of the fields of an update, and of all that lies in such a field: the server half gets

* `mean()`, the default: the mean over the clients, weighted by :meth:`Algorithm.weights`;
* `sum()`: the plain sum over the clients, of floats or of integers;
* `each()`: a tuple with one value a client, in cohort order; shapes may differ, and it may be None for some.

A client that was left out (`on_nonfinite: skip`) is in none of them: the weights of the others sum to 1, a sum has
fewer terms.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Pooling = Literal["mean", "sum", "each"]
MISSING = dataclasses.MISSING


def mean(*, default: Any = MISSING) -> Any:
    """A field of an update whose weighted mean the server half gets, as it does without any declaration."""
    return _field("mean", default)


def sum(*, default: Any = MISSING) -> Any:
    """A field of an update whose sum over the clients the server half gets."""
    return _field("sum", default)


def each(*, default: Any = MISSING) -> Any:
    """A field of an update of which the server half gets every client's own value, as a tuple in cohort order."""
    return _field("each", default)


def shared(*, default: Any = MISSING) -> Any:
    """A field of a broadcast, or of a record in it, whose arrays are sent by their contents' hash: once to each client
    (`core/messages/shared.py`), as fits a pool of synthetic images or a frozen basis that many rounds send again."""
    return dataclasses.field(default=default, metadata={"shared": True})


def _field(pool: Pooling, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"pool": pool})


def pools(kind: type) -> dict[str, Pooling]:
    """How each field of a record class is pooled, in field order."""
    return {field.name: field.metadata.get("pool", "mean") for field in dataclasses.fields(kind)}


def shared_fields(kind: type) -> frozenset[str]:
    """The fields of a record class that are declared `shared()`."""
    return frozenset(field.name for field in dataclasses.fields(kind) if field.metadata.get("shared", False))
