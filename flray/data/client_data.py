"""A client's samples at one moment: the `core.protocol.samples.ClientData` that an algorithm gets.

Clients of a chunk train one after the other. For a client of 20 images, the calls that gather them take longer than the
copies, so the epochs of several clients are gathered and normalised in one call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flray.core.messages import Batch
from flray.core.protocol.batching import LastBatch, ListedBatches, edges
from flray.core.schema.errors import ConfigError
from flray.data.batching import CHUNK, Batches, Normalizer, Rng, aligned, gather, visits
from flray.data.cache import Array
from flray.data.data_config import Augment
from flray.data.splits import Split


@dataclass(frozen=True)
class ClientSamples:
    """The samples `numbers [n_k]` of a training split.

    `rng(purpose, epoch)` is the client's addressed generator; without one, and with `shuffle=False`, each epoch visits
    the samples in their order, and with `listed` as that says.
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
    shuffle: bool = True
    listed: ListedBatches | None = None
    chosen: bool = False  # `numbers` are not, or not only, the client's own

    @property
    def augmented(self) -> bool:
        """Whether its batches draw."""
        return self.augment is not None and self.augment.active

    @property
    def num_examples(self) -> int:
        """The number of the client's samples, n_k."""
        return len(self.numbers)

    def batches(self, batch_size: int, epochs: int | None = None, steps: int | None = None) -> Batches:
        """Shuffled and augmented batches; see `ClientData.batches`.

        Raises `ConfigError` for other samples than the client's own where a file lists its batches.
        """
        if self.chosen and self.listed is not None:
            raise ConfigError(
                "data.batch_order: it lists the client's own samples, and this algorithm also trains on others, or on "
                "a part of them; leave it out"
            )
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
            shuffle=self.shuffle,
            listed=self.listed,
        )

    @property
    def plain(self) -> Batches:
        """The samples once, in their order, without augmentation, in batches of `plain_batch`."""
        once = replace(self, rng=None, augment=None, gathered=None, listed=None, last_batch="keep")
        return once.batches(self.plain_batch, epochs=1)

    def with_samples(self, numbers: Array) -> ClientSamples:
        """The client's samples, followed by those with these numbers (exemplars).

        Raises `IndexError` for a number that does not exist.
        """
        numbers = np.concatenate([self.numbers, self.only(numbers).numbers])
        return replace(self, numbers=numbers, gathered=None, chosen=True)

    def only(self, numbers: Array) -> ClientSamples:
        """The samples with these numbers (exemplars) alone.

        Raises `IndexError` for a number that does not exist.
        """
        chosen = np.asarray(numbers, dtype=self.numbers.dtype)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(self.split.x)):
            raise IndexError(f"samples are numbered 0 to {len(self.split.x) - 1}; got {chosen.min()} to {chosen.max()}")
        return replace(self, numbers=chosen, gathered=None, chosen=True)


class Gathered:
    """The first `epochs` local epochs of several clients in batches, gathered when the first of them is asked for."""

    def __init__(self, clients: Sequence[ClientSamples], batch_size: int, epochs: int) -> None:
        """`clients`: samples of one split, without augmentation, each with its generator."""
        self._clients, self._batch_size, self._epochs = clients, batch_size, epochs
        self._batches: list[list[Batch]] | None = None

    def of(self, place: int, batch_size: int, epoch: int) -> list[Batch]:
        """The batches of an epoch of the client at this place.

        None are left the second time, because an algorithm may write to its batches, and there are none of another
        size or a later epoch.
        """
        if batch_size != self._batch_size or epoch >= self._epochs:
            return []
        every, at = self.gather(), place * self._epochs + epoch
        batches, every[at] = every[at], []
        return batches

    def gather(self) -> list[list[Batch]]:
        """The batches that are left of each client and epoch, in this order; gathered by the first call."""
        if self._batches is not None:
            return self._batches
        epochs = [(client, epoch) for client in self._clients for epoch in range(self._epochs)]
        cuts = [edges(client.num_examples, self._batch_size, client.last_batch) for client, _ in epochs]
        orders = [
            visits(c.numbers, c.rng if c.shuffle else None, epoch)[: cut[-1]]
            for (c, epoch), cut in zip(epochs, cuts, strict=True)
        ]
        rows, sizes = np.concatenate(orders), [b - a for cut in cuts for a, b in itertools.pairwise(cut)]
        split, normalizer = self._clients[0].split, self._clients[0].normalizer
        x, y = gather(rows, split.x, split.y)
        x, y = normalizer(x), y.to(normalizer.device)
        batches = map(Batch, map(aligned, x.split(sizes)), y.split(sizes))
        self._batches = [list(itertools.islice(batches, len(cut) - 1)) for cut in cuts]
        return self._batches


def neighbours(sizes: Sequence[int], epochs: int) -> Iterator[range]:
    """Places of neighbouring clients with `sizes` samples whose epochs have at most `CHUNK` samples in all.

    A client with more is alone.
    """
    first = total = 0
    for place, size in enumerate(sizes):
        if place > first and total + size * epochs > CHUNK:
            yield range(first, place)
            first, total = place, 0
        total += size * epochs
    if first < len(sizes):
        yield range(first, len(sizes))
