"""A client's samples at one moment: the `core.protocol.samples.ClientData` that an algorithm gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flray.core.messages import Batch
from flray.core.protocol.batching import LastBatch
from flray.data.batching import Batches, Normalizer, Rng
from flray.data.cache import Array
from flray.data.data_config import Augment
from flray.data.splits import Split


@dataclass(frozen=True)
class ClientSamples:
    """The samples `numbers [n_k]` of a training split.

    `rng(purpose, epoch)` is the client's addressed generator; without one each epoch visits the samples in their order.
    `previous`: the client's samples of the stage before, if the algorithm may see them. `gathered`: see `Batches`.
    """

    split: Split
    numbers: Array
    rng: Rng | None
    normalizer: Normalizer
    augment: Augment | None
    last_batch: LastBatch
    plain_batch: int
    previous: ClientSamples | None = None
    gathered: Callable[[int, int], list[Batch]] | None = None

    @property
    def num_examples(self) -> int:
        """The number of the client's samples, n_k."""
        return len(self.numbers)

    def batches(self, batch_size: int, epochs: int | None = None, steps: int | None = None) -> Batches:
        """Shuffled and augmented batches; see `ClientData.batches`."""
        return Batches(
            self.split.x,
            self.split.y,
            self.numbers,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            last_batch=self.last_batch,
            rng=self.rng,
            normalizer=self.normalizer,
            augment=self.augment,
            gathered=self.gathered,
        )

    @property
    def plain(self) -> Batches:
        """The samples once, in their order, without augmentation, in batches of `plain_batch`."""
        return Batches(
            self.split.x,
            self.split.y,
            self.numbers,
            batch_size=self.plain_batch,
            epochs=1,
            rng=None,
            normalizer=self.normalizer,
        )

    def with_samples(self, numbers: Array) -> ClientSamples:
        """The client's samples, followed by those with these numbers (exemplars).

        Raises `IndexError` for a number that does not exist.
        """
        return replace(self, numbers=np.concatenate([self.numbers, self.only(numbers).numbers]), gathered=None)

    def only(self, numbers: Array) -> ClientSamples:
        """The samples with these numbers (exemplars) alone.

        Raises `IndexError` for a number that does not exist.
        """
        chosen = np.asarray(numbers, dtype=self.numbers.dtype)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(self.split.x)):
            raise IndexError(f"samples are numbered 0 to {len(self.split.x) - 1}; got {chosen.min()} to {chosen.max()}")
        return replace(self, numbers=chosen, gathered=None)
