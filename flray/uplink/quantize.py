"""Codes of few bits with a scale a bucket (QSGD, Alistarh et al., NeurIPS 2017), here with the largest magnitude as
the scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np

from flray.core.schema.hp import hp
from flray.uplink.compressor import Compressor

if TYPE_CHECKING:
    from torch import Tensor


class Quantize(Compressor, frozen=True):
    """Whole numbers from -L to L, L = 2^(bits - 1) - 1, times a scale (float32) for each bucket of neighbours: the
    bucket's largest magnitude over L.

    A vector of n entries takes ceil(n bits / 8) + 4 ceil(n / bucket) bytes. 0 is read as 0. In a model n counts the
    zeros that fill each tensor up to a multiple of 16 entries.
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
