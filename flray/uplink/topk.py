"""The largest entries of an update (Aji and Heafield, EMNLP 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flray.core.schema.hp import hp
from flray.core.schema.shares import floor_share
from flray.uplink.compressor import Compressor

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class TopK(Compressor, frozen=True):
    """The entries of largest magnitude, each as its index (int32) and its value (float32); the others are read as 0.

    A vector of n entries takes 8 k bytes, k = max(1, floor(fraction n)). Of equal magnitudes torch chooses.
    In a model n counts the zeros that fill each tensor up to a multiple of 16 entries.
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
