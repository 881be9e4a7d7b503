"""Transforms that make the message of an update smaller, and `mean(encode=...)` of a field.

A client sends `encode(x)` of x = its difference to the broadcast + the residual e of its last update; the server reads
`decode(encode(x))`. With error feedback the client stores e' = x - decode(encode(x)), at first 0 (Seide et al.,
Interspeech 2014; Karimireddy et al., ICML 2019).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from flray.core.schema.errors import AlgorithmError, kind_of, named
from flray.core.schema.hp import hp
from flray.core.schema.own import errors_of_own
from flray.uplink.transform import Sender, Sent, Transform

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Compressor(Transform, frozen=True):
    """An encoding of a float vector. One of your own is a subclass, under a name in `UPLINKS` or in a field's
    `encode=`."""

    float32_only: ClassVar[bool] = True

    feedback: bool = hp(True, doc="error feedback: what an update lost is added to the client's next one")

    @abstractmethod
    def encode(self, x: Tensor, draws: np.random.Generator) -> Any:
        """The message that is sent of `x [n]`, tensors in a dict by name; their bytes are counted.

        `draws`: the client's generator of this field and exchange.
        """

    @abstractmethod
    def decode(self, sent: Any, size: int) -> Tensor:
        """The tensor `[size]` that is read from a message."""

    def client(self, sender: Sender, sent: Sent) -> Sent:
        """Clients of one process add their updates up before anything leaves it, so the encoded message of one client
        crosses no process: what goes on is `decode(encode(x))`, with the bytes of the encoded arrays."""
        from flray.core.messages import nbytes

        x = sent.w
        if self.feedback and sender.residual is not None and sender.residual.shape == x.shape:  # else the net has grown
            x = x + sender.residual
        message, read = coded(self, x, sender.ctx.rng("encode", "w"))
        residual = x - read if self.feedback else None
        return sent._replace(w=read, bounded=False, residual=residual, nbytes=nbytes(message))


class Pair(Compressor, frozen=True):
    """Two functions, `pack(x [n], draws)` and `unpack(message, n)`, as a compressor: `mean(encode=(pack, unpack))`."""

    pack: Callable[..., Any]
    unpack: Callable[..., Any]

    def encode(self, x: Tensor, draws: np.random.Generator) -> Any:
        return self.pack(x, draws)

    def decode(self, sent: Any, size: int) -> Tensor:
        return self.unpack(sent, size)  # type: ignore[no-any-return]


def as_compressor(declared: Any) -> Compressor:
    """The compressor that a field declares: a `Compressor`, or a pair of functions."""
    return declared if isinstance(declared, Compressor) else Pair(pack=declared[0], unpack=declared[1])


def coded(code: Compressor, x: Tensor, draws: np.random.Generator) -> tuple[Any, Tensor]:
    """(the encoded message of `x [n]`, what is read from it).

    Raises `AlgorithmError`, which names the method, for a message without tensors, a changed `x` and another tensor
    than one like `x`.
    """
    from torch import Tensor

    from flray.core.messages import map_tensors, tensors

    encode, decode = (code.pack, code.unpack) if isinstance(code, Pair) else (code.encode, code.decode)
    before = x._version
    with errors_of_own(named(encode)):
        sent = encode(x, draws)
    if x._version != before:
        raise AlgorithmError(f"{named(encode)} wrote into x, of which the residual is computed; work on x.clone()")
    map_tensors(lambda part: part, sent, f"{named(encode)}: its message")
    parts = tensors(sent).values()
    if not parts or any(isinstance(part, Tensor) and part.is_sparse for part in parts):
        raise AlgorithmError(
            f"{named(encode)} returned {kind_of(sent)}; return dense tensors by name, such as {{'values': x.half()}}"
        )
    with errors_of_own(named(decode)):
        read = decode(sent, len(x))
    if not isinstance(read, Tensor) or read.shape != x.shape or not read.is_floating_point():
        raise AlgorithmError(f"{named(decode)} returned {kind_of(read)}; return a tensor {list(x.shape)} of floats")
    return sent, read.to(x.dtype)
