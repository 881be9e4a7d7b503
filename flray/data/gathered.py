"""The epochs of several clients, gathered and normalised in one call.

Clients of a chunk train one after the other. For a client of 20 images, the calls that gather them take longer than
the copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from flray.core.messages import Batch
from flray.core.protocol.batching import edges
from flray.data.batching import CHUNK, gather, visits
from flray.data.client_data import ClientSamples


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
        if self._batches is None:
            self._batches = self._gather()
        at = place * self._epochs + epoch
        batches, self._batches[at] = self._batches[at], []
        return batches

    def _gather(self) -> list[list[Batch]]:
        epochs = [(client, epoch) for client in self._clients for epoch in range(self._epochs)]
        cuts = [edges(client.num_examples, self._batch_size, client.last_batch) for client, _ in epochs]
        orders = [visits(c.numbers, c.rng, epoch)[: cut[-1]] for (c, epoch), cut in zip(epochs, cuts, strict=True)]
        rows, sizes = np.concatenate(orders), [b - a for cut in cuts for a, b in itertools.pairwise(cut)]
        split, normalizer = self._clients[0].split, self._clients[0].normalizer
        x, y = normalizer(gather(split.x, rows)), gather(split.y, rows).to(normalizer.device)
        batches = map(Batch, x.split(sizes), y.split(sizes))
        return [list(itertools.islice(batches, len(cut) - 1)) for cut in cuts]


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
