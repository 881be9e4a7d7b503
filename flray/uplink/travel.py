"""Updates as they travel: transformed by `uplink` and encoded by field at the client, decoded before they are pooled;
the residuals between rounds.

Clients of one process add their updates up before anything leaves it, so one client's message crosses no process. What
enters the mean is what the server would read of it, and the bytes that are counted are those of the encoded arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from flray.core.messages import (
    ClientState,
    Message,
    Record,
    Update,
    is_none,
    nbytes,
    to_torch,
)
from flray.core.messages.fields import encoded_fields
from flray.core.protocol.algorithm import Algorithm
from flray.core.protocol.context import ClientContext
from flray.core.schema.errors import AlgorithmError, ConfigError
from flray.uplink.chain import Uplink
from flray.uplink.compressor import as_compressor, coded
from flray.uplink.fits import OTHERWISE
from flray.uplink.transform import Sent


class EncodedState(ClientState):
    """The stored state of a client with error feedback: the algorithm's `own` (None: it has none), and by field the
    `residual`, the part of its last update that was not sent."""

    own: Any
    residual: dict[str, Tensor]


class BufferedState(EncodedState):
    """The stored state of a client with `buffers` of its own (`model.buffers: {NAME: local}`), by name."""

    buffers: dict[str, Tensor]


class Travelled(NamedTuple):
    """An update as the server pools it, the residuals and the bytes of encoded fields by name, and the bits that
    transforms ask clients for, by their address.

    A field without error feedback has no residual."""

    update: Message
    residual: dict[str, Tensor]
    nbytes: dict[str, int]
    bits: Mapping[str, bool]


def own_state(stored: Message) -> Message:
    """The algorithm's own state in a stored one; None: there is none."""
    return stored.own if isinstance(stored, EncodedState) else stored


def stores_residuals(uplink: Uplink, algorithm: Algorithm) -> bool:
    """Whether clients have a residual, and so a state."""
    return algorithm.error_feedback or uplink.has_feedback


def new_state(
    stored: Message, after: Message, residual: dict[str, Tensor], buffers: dict[str, Tensor] | None = None
) -> Message:
    """The client's next stored state: its last one, the algorithm's own next one (`()` or None: unchanged), the new
    residuals, and the client's own `buffers`."""
    if isinstance(stored, EncodedState):
        residual = {**stored.residual, **residual}
    if (residual or buffers) and is_none(after):
        after = own_state(stored)
    own = None if is_none(after) else after
    if buffers:
        return BufferedState(own, residual, buffers)
    return EncodedState(own, residual) if residual else after


def travelled(
    ctx: ClientContext,
    algorithm: Algorithm,
    uplink: Uplink,
    broadcast: Message,
    update: Message,
    stored: Message,
    states: Mapping[str, Any],
    population: int,
) -> Travelled:
    """A client's update as the server pools it: `uplink` changes its model, of local training, and the fields that are
    declared with `encode=` are encoded and decoded.

    `stored`: the client's stored state, of NumPy arrays. `states`: of `uplink`'s transforms, as broadcast. Raises
    `ConfigError` where the algorithm's update is no model, `AlgorithmError` for a field that cannot be encoded as
    declared.
    """
    declared = encoded_fields(type(update)) if isinstance(update, Record) else {}
    before = stored.residual if isinstance(stored, EncodedState) else {}
    values, residual, sizes = dict[str, Any](), dict[str, Tensor](), dict[str, int]()
    bits: Mapping[str, bool] = {}
    if uplink:
        _check_model(algorithm, uplink, broadcast, update)
        last = to_torch(before["w"], update.w.device) if uplink.has_feedback and "w" in before else None
        given = _differences(broadcast, update)
        sent = uplink.of_client(ctx, given, states, population, last)
        if sent.w is not given.w:  # else it has its own bits
            values["w"] = broadcast.w + sent.w
        if uplink.gaussian is not None:
            values["b"] = broadcast.b  # statistics of the clients are not sent
        elif sent.b is not given.b:
            values["b"] = broadcast.b + sent.b
        bits = sent.bits
        if sent.residual is not None:
            residual["w"] = sent.residual
        if sent.nbytes is not None:
            sizes["w"] = sent.nbytes
            declared = {name: how for name, how in declared.items() if name != "w"}
        sizes |= {address: nbytes(bit) for address, bit in bits.items()}
        update, values = update.replace(**values), {}
    for name, (how, relative_to) in declared.items():
        value, code = getattr(update, name), as_compressor(how)
        if value is None:
            continue
        start = _start(update, name, broadcast, relative_to)
        x = (value if start is None else value - start).flatten()
        if code.feedback:
            if not stores_residuals(uplink, algorithm):
                raise AlgorithmError(
                    f"{type(update).__name__}.{name} is encoded with error feedback, which is client state; write "
                    f"error_feedback: ClassVar[bool] = True in {type(algorithm).__name__}, or feedback=False"
                )
            if name in before and before[name].shape == x.shape:  # else the network has grown
                x = x + to_torch(before[name], x.device)
        message, read = coded(code, x, ctx.rng("encode", name))
        if code.feedback:
            residual[name] = x - read
        values[name] = read.view(value.shape) if start is None else start + read.view(value.shape)
        sizes[name] = nbytes(message)
    return Travelled(update.replace(**values) if values else update, residual, sizes, bits)


def _check_model(algorithm: Algorithm, uplink: Uplink, broadcast: Message, update: Message) -> None:
    """Raises `ConfigError` for an update without a model that differs from the broadcast's, and in a private run for
    one that has more than that."""
    name, first = type(algorithm).__name__, uplink.steps[0].address
    if not isinstance(update, Update) or not isinstance(getattr(broadcast, "w", None), Tensor):
        raise ConfigError(
            f"uplink: {name} sends no model w that differs from the broadcast's, which {first} changes; leave it out "
            "(uplink=none), or declare mean(encode=...) at a field of its update"
        )
    if (
        uplink.gaussian is not None
        and type(update) is not Update
        and not (algorithm.adds_update_noise and not uplink.private)
    ):
        raise ConfigError(
            f"uplink.gaussian: {name} sends more than the mean of w ({type(update).__name__}), which is not made "
            f"private; {OTHERWISE}"
        )


def _differences(broadcast: Message, update: Update) -> Sent:
    start = getattr(broadcast, "b", None)
    b = update.b - start if isinstance(start, Tensor) and start.shape == update.b.shape else None
    return Sent((update.w - broadcast.w).flatten(), b)


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
