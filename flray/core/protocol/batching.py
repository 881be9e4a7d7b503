"""How an epoch's samples are cut into batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

LastBatch = Literal["keep", "drop", "merge"]
FULL = 2**31 - 1  # the batch size `full`: more samples than any client holds, so that its batch has all of them


if TYPE_CHECKING:
    BatchSize = int
else:
    BatchSize = Annotated[int, Field(ge=1)] | Literal["full"]  # read as `FULL`, written as the word


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


class ListedBatches(NamedTuple):
    """The `samples` of a client's local training that a file lists, in the order of their visit.

    Part i is `samples[edges[i] : edges[i + 1]]`: an epoch, which the batch size cuts; or with `by_step` a batch.
    """

    samples: np.ndarray
    edges: tuple[int, ...]
    by_step: bool

    def epoch(self, epoch: int) -> np.ndarray:
        """The samples of an epoch; with `by_step` all are in epoch 0."""
        if self.by_step:
            return self.samples
        return self.samples[self.edges[epoch] : self.edges[epoch + 1]]
