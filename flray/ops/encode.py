"""How a client's update travels: the section `encoding` of a configuration, and `mean(encode=...)` of a field.

A client sends `encode(x)` of x = its difference to the broadcast + the residual e of its last update; the server reads
`decode(encode(x))`. With error feedback the client stores e' = x - decode(encode(x)), at first 0 (Seide et al.,
Interspeech 2014; Karimireddy et al., ICML 2019). The largest entries: Aji and Heafield, EMNLP 2017. Codes with a scale
a bucket: Alistarh et al., NeurIPS 2017 (QSGD), here with the largest magnitude as the scale.

Importing this file imports no torch: a configuration is checked without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from flray.core.schema.hp import hp
from flray.core.schema.registry import Registry
from flray.core.schema.section import Section
from flray.core.schema.shares import floor_share

if TYPE_CHECKING:
    from torch import Tensor

ENCODINGS = Registry("encoding", {"topk": "flray.ops.encode:TopK", "quantize": "flray.ops.encode:Quantize"})


class Encoding(Section, ABC, frozen=True):
    """An encoding of a float vector. One of your own is a subclass, under a name in `ENCODINGS` or in a field's
    `encode=`."""

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}

    feedback: bool = hp(True, doc="error feedback: what an update lost is added to the client's next one")

    @abstractmethod
    def encode(self, x: Tensor, draws: np.random.Generator) -> Any:
        """The message that is sent of `x [n]`, tensors in a dict by name; their bytes are counted.

        `draws`: the client's generator of this field and exchange.
        """

    @abstractmethod
    def decode(self, sent: Any, size: int) -> Tensor:
        """The tensor `[size]` that is read from a message."""


class TopK(Encoding, frozen=True):
    """The entries of largest magnitude, each as its index (int32) and its value (float32); the others are read as 0.

    A vector of n entries takes 8 k bytes, k = max(1, floor(fraction n)). Of equal magnitudes torch chooses.
    """

    fraction: float = hp(
        0.01, log=(0.001, 0.5), gt=0, le=0.5, doc="share of the entries that are sent; dense is smaller above 0.5"
    )

    def encode(self, x: Tensor, draws: np.random.Generator) -> dict[str, Tensor]:
        kept = max(1, floor_share(self.fraction, len(x)))
        indices = x.abs().topk(min(kept, len(x)), sorted=False).indices.sort().values
        return {"indices": indices.int() if len(x) < 2**31 else indices, "values": x[indices]}

    def decode(self, sent: Mapping[str, Tensor], size: int) -> Tensor:
        x = sent["values"].new_zeros(size)
        x[sent["indices"].long()] = sent["values"]
        return x


class Quantize(Encoding, frozen=True):
    """Whole numbers from -L to L, L = 2^(bits - 1) - 1, times a scale (float32) for each bucket of neighbours: the
    bucket's largest magnitude over L.

    A vector of n entries takes ceil(n bits / 8) + 4 ceil(n / bucket) bytes. 0 is read as 0.
    """

    bits: int = hp(8, choice=(2, 4, 8), ge=2, le=8, doc="bits of an entry")
    bucket: int = hp(1024, choice=(128, 1024, 8192), ge=1, doc="entries that share a scale")
    rounding: Literal["nearest", "stochastic"] = hp(
        "nearest", doc="to the nearest code, or up or down at random so that the mean is exact"
    )

    def encode(self, x: Tensor, draws: np.random.Generator) -> dict[str, Tensor]:
        levels, size = 2 ** (self.bits - 1) - 1, len(x)
        padded = x.new_zeros(-(-size // self.bucket) * self.bucket)
        padded[:size] = x
        buckets = padded.view(-1, self.bucket)
        scale = buckets.abs().amax(1) / levels
        codes = (buckets / scale.where(scale > 0, 1.0)[:, None]).flatten()[:size]
        if self.rounding == "nearest":
            codes = codes.round()
        else:
            uniform = draws.random(size, dtype=np.float32)
            codes = (codes + x.new_tensor(uniform)).floor()
        return {"codes": _packed(codes.clamp(-levels, levels) + levels, self.bits), "scales": scale}

    def decode(self, sent: Mapping[str, Tensor], size: int) -> Tensor:
        codes, scale = _unpacked(sent["codes"], self.bits, size), sent["scales"]
        signed = codes.to(scale.dtype) - (2 ** (self.bits - 1) - 1)
        read: Tensor = signed * scale.repeat_interleave(self.bucket)[:size]
        return read


class Pair(Encoding, frozen=True):
    """Two functions, `pack(x [n], draws)` and `unpack(message, n)`, as an encoding: `mean(encode=(pack, unpack))`."""

    pack: Callable[..., Any]
    unpack: Callable[..., Any]

    def encode(self, x: Tensor, draws: np.random.Generator) -> Any:
        return self.pack(x, draws)

    def decode(self, sent: Any, size: int) -> Tensor:
        return self.unpack(sent, size)  # type: ignore[no-any-return]


def as_encoding(declared: Any) -> Encoding:
    """The encoding that a field declares: an `Encoding`, or a pair of functions."""
    return declared if isinstance(declared, Encoding) else Pair(pack=declared[0], unpack=declared[1])


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Codes `[n]` from 0 to 2^bits - 1 as bytes, uint8 `[ceil(n bits / 8)]`, the lowest bit first."""
    if bits == 8:
        return codes.byte()
    size = len(codes) * bits
    flat = codes.new_zeros(-(-size // 8) * 8).int()
    flat[:size] = (codes.int()[:, None] >> _places(flat, bits) & 1).flatten()
    return (flat.view(-1, 8) << _places(flat, 8)).sum(1).byte()


def _unpacked(packed: Tensor, bits: int, size: int) -> Tensor:
    """The codes `[size]` of :func:`_packed`."""
    if bits == 8:
        return packed
    flat = packed.int()[:, None] >> _places(packed.int(), 8) & 1
    flat = flat.flatten()[: size * bits].view(size, bits)
    return (flat << _places(flat, bits)).sum(1)


def _places(like: Tensor, count: int) -> Tensor:
    return like.new_tensor(range(count))
