"""Declarations of how a message's fields are pooled and sent: `control: Tensor = each()`.

The server half gets each field of an update, and everything inside it, pooled over the clients:

* `mean()`, the default: the mean, weighted by :meth:`Algorithm.weights`; float16 arrives as float32;
* `sum()`: the sum, of floats or of integers, which arrive as int64;
* `each()`: a tuple with one value a client, in cohort order; shapes may differ, and a value may be None;
  `each(streamed=True)`: a sequence of them, one in memory at a time.

A client that was left out (`on_nonfinite: skip`) is in none of them; the weights of the others sum to 1.

`encode=TopK(fraction=0.01)` declares how a field of one float tensor travels (`uplink/compressor.py`), or
`encode=(pack, unpack)`, two functions: `pack(x [n], draws)` returns the message that is sent, `unpack(message, n)` the
tensor `[n]` that is pooled. `relative_to="w"` encodes the difference to that field of the broadcast. Bytes are counted
of the encoded message. An encoding with error feedback stores a residual for each client: the algorithm's class
declares `error_feedback = True`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

Pooling = Literal["mean", "sum", "each"]
MISSING = dataclasses.MISSING


class Encoded(NamedTuple):
    """How a field travels: a `Compressor` or two functions, and the field of the broadcast that is subtracted first."""

    encode: Any
    relative_to: str | None = None


def mean(*, default: Any = MISSING, encode: Any = None, relative_to: str | None = None) -> Any:
    """A field of an update of which the server half gets the weighted mean. This is the default."""
    return _field("mean", default, encode, relative_to)


def sum(*, default: Any = MISSING, encode: Any = None, relative_to: str | None = None) -> Any:
    """A field of an update of which the server half gets the sum over the clients."""
    return _field("sum", default, encode, relative_to)


def each(*, default: Any = MISSING, streamed: bool = False, encode: Any = None, relative_to: str | None = None) -> Any:
    """A field of an update of which the server half gets every client's value, in cohort order."""
    return _field("each", default, encode, relative_to, streamed=streamed)


def shared(*, default: Any = MISSING) -> Any:
    """A field of a broadcast, or of a record in it, whose arrays are sent to each client once, by the hash of their
    contents (`core/messages/shared.py`); for a pool of synthetic images, or a basis that stays for many rounds."""
    return dataclasses.field(default=default, metadata={"shared": True})


def _field(pool: Pooling, default: Any, encode: Any, relative_to: str | None, **more: Any) -> Any:
    encoded = {} if encode is None else {"encode": Encoded(encode, relative_to)}
    return dataclasses.field(default=default, metadata={"pool": pool, **more, **encoded})


def pools(kind: type) -> dict[str, Pooling]:
    """How each field of a record class is pooled, in field order."""
    return {field.name: field.metadata.get("pool", "mean") for field in dataclasses.fields(kind)}


def streamed_fields(kind: type) -> frozenset[str]:
    """The fields of a record class that are declared `each(streamed=True)`."""
    return frozenset(field.name for field in dataclasses.fields(kind) if field.metadata.get("streamed", False))


def encoded_fields(kind: type) -> dict[str, Encoded]:
    """The fields of a record class that are declared with `encode`."""
    return {f.name: f.metadata["encode"] for f in dataclasses.fields(kind) if "encode" in f.metadata}


def shared_fields(kind: type) -> frozenset[str]:
    """The fields of a record class that are declared `shared()`."""
    return frozenset(field.name for field in dataclasses.fields(kind) if field.metadata.get("shared", False))
