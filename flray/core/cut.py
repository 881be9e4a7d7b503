"""How an epoch's samples are cut into batches: what the engine does, and what algorithms count steps by."""

from __future__ import annotations

from typing import Literal

import numpy as np

LastBatch = Literal["keep", "drop", "merge"]


def batches(num_examples: np.ndarray, size: int, last: LastBatch) -> np.ndarray:
    """Batches in an epoch of `num_examples [K]` samples, int64 `[K]`; where there are samples there is one, however
    short."""
    whole = num_examples // size
    if last == "keep":
        return np.asarray(-(-num_examples // size))
    return np.asarray(np.maximum(whole, np.minimum(num_examples, 1)))


def edges(num_examples: int, size: int, last: LastBatch) -> np.ndarray:
    """Where the batches of an epoch begin and end, int64 `[batches + 1]`: batch i has the samples `edges[i]` to
    `edges[i + 1] - 1`."""
    count = int(batches(np.array(num_examples), size, last))
    found = np.arange(count + 1, dtype=np.int64) * size
    if last != "drop" or count * size > num_examples:
        found[-1] = num_examples
    return found
