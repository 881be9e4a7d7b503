"""Updates as they travel: encoded by field at the client, decoded before they are pooled; the residuals between rounds.

Clients of one process add their updates up before anything leaves it, so the encoded message of one client crosses no
process. What enters the mean is `decode(encode(x))`, and the bytes that are counted are those of the encoded arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from flray.core.messages import ClientState, Message, Record, Update, is_none, nbytes, to_torch
from flray.core.messages.fields import Encoded, encoded_fields
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.context import ClientContext
from flray.core.schema.errors import AlgorithmError, ConfigError
from flray.ops.encode import Encoding, as_encoding


class EncodedState(ClientState):
    """The stored state of a client with error feedback: the algorithm's `own` (None: it has none), and by field the
    `residual`, the part of its last update that was not sent."""

    own: Any
    residual: dict[str, Tensor]


class Travelled(NamedTuple):
    """An update with decoded values in its encoded fields, the residuals and the bytes sent of these fields by name.

    A field without error feedback has no residual."""

    update: Message
    residual: dict[str, Tensor]
    nbytes: dict[str, int]


def own_state(stored: Message) -> Message:
    """The algorithm's own state in a stored one; None: there is none."""
    return stored.own if isinstance(stored, EncodedState) else stored


def stores_residuals(encoding: Encoding | None, algorithm: Algorithm) -> bool:
    """Whether clients have a residual, and so a state."""
    return algorithm.error_feedback or (encoding is not None and encoding.feedback)


def new_state(stored: Message, after: Message, residual: dict[str, Tensor]) -> Message:
    """The client's next stored state: its last one, the algorithm's own next one (`()` or None: unchanged), and the new
    residuals."""
    if isinstance(stored, EncodedState):
        residual = {**stored.residual, **residual}
    if residual and is_none(after):
        after = own_state(stored)
    return EncodedState(None if is_none(after) else after, residual) if residual else after


def travelled(
    ctx: ClientContext,
    algorithm: Algorithm,
    encoding: Encoding | None,
    broadcast: Message,
    update: Message,
    stored: Message,
) -> Travelled:
    """Encode and decode the fields of a client's update that are declared with an encoding, and the model `w` with
    `encoding`, the experiment's; None: it has none.

    `stored`: the client's stored state, of NumPy arrays. Raises `ConfigError` where the algorithm's update is no
    model, `AlgorithmError` for a field that cannot be encoded as declared.
    """
    declared = encoded_fields(type(update)) if isinstance(update, Record) else {}
    if encoding is not None:
        declared = {**declared, "w": Encoded(encoding, "w")}
        if not isinstance(update, Update) or not hasattr(broadcast, "w"):
            raise ConfigError(
                f"encoding: {type(algorithm).__name__} sends no model w that differs from the broadcast's; leave it "
                "out (encoding=none), or declare mean(encode=...) at a field of its update"
            )
    if declared and getattr(getattr(algorithm, "privacy", None), "clip", None) is not None:
        raise AlgorithmError(
            f"{type(update).__name__}.{next(iter(declared))} is declared with an encoding: with algorithm.privacy.clip "
            "the noise that the server counts on would not be the noise that is sent; leave one of the two out"
        )
    before = stored.residual if isinstance(stored, EncodedState) else {}
    values, residual, sizes = dict[str, Any](), dict[str, Tensor](), dict[str, int]()
    for name, (how, relative_to) in declared.items():
        value, code = getattr(update, name), as_encoding(how)
        if value is None:
            continue
        start = _start(update, name, broadcast, relative_to)
        x = (value if start is None else value - start).flatten()
        if code.feedback:
            if not stores_residuals(encoding, algorithm):
                raise AlgorithmError(
                    f"{type(update).__name__}.{name} is encoded with error feedback, which is client state; write "
                    f"error_feedback: ClassVar[bool] = True in {type(algorithm).__name__}, or feedback=False"
                )
            if name in before and before[name].shape == x.shape:  # else the network has grown
                x = x + to_torch(before[name], x.device)
        sent = code.encode(x, ctx.rng("encode", name))
        read = code.decode(sent, len(x))
        if code.feedback:
            residual[name] = x - read
        values[name] = read.view(value.shape) if start is None else start + read.view(value.shape)
        sizes[name] = nbytes(sent)
    return Travelled(update.replace(**values) if values else update, residual, sizes)


def _start(update: Record, name: str, broadcast: Message, relative_to: str | None) -> Tensor | None:
    """The tensor of the broadcast to which a field's difference is encoded; None: the field itself is."""
    value, where = getattr(update, name), f"{type(update).__name__}.{name}"
    if not isinstance(value, Tensor) or not value.is_floating_point():
        raise AlgorithmError(f"{where} is declared with an encoding, which takes one tensor of floats")
    if relative_to is None:
        return None
    start = getattr(broadcast, relative_to, None)
    if not isinstance(start, Tensor) or start.shape != value.shape:
        what = f"{type(broadcast).__name__}.{relative_to}"
        raise AlgorithmError(
            f"{where} is encoded relative to {what}, which is no tensor of the shape {list(value.shape)}"
        )
    return start
