"""How an epoch's samples are cut into batches."""

from __future__ import annotations

from typing import Literal

import numpy as np

LastBatch = Literal["keep", "drop", "merge"]


def batches(num_examples: np.ndarray | int, size: int, last: LastBatch) -> np.ndarray:
    """Batches in an epoch of `num_examples [K]` samples, int64 `[K]`; at least one if there is a sample."""
    full = num_examples // size
    if last == "keep":
        return np.asarray(-(-num_examples // size))
    return np.asarray(np.maximum(full, np.minimum(num_examples, 1)))


def edges(num_examples: int, size: int, last: LastBatch) -> list[int]:
    """Where the batches of an epoch begin and end, `batches + 1` numbers: batch i has the samples `edges[i]` to
    `edges[i + 1] - 1`."""
    count = int(batches(num_examples, size, last))
    starts = [i * size for i in range(count + 1)]
    if last != "drop" or count * size > num_examples:
        starts[-1] = num_examples
    return starts
