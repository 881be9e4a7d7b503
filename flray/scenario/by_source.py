"""A partition in which every client has samples of one source: a GLUE task, a domain."""

from __future__ import annotations

import numpy as np

from flray.core.schema.errors import ConfigError, DataError
from flray.data.cache import Array
from flray.scenario.partition import Draws, Partition
from flray.scenario.partition_config import PartitionConfig
from flray.scenario.partitioners import mixed


def by_source(labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None) -> Partition:
    """Every client has samples of one source (a GLUE task, a domain): FedMemo's GLUE (appendix D; its card).

    The clients of a source are next to each other, their number is proportional to the square root of its size
    (:func:`shared_out`). Inside it they have equally many samples each (the first ones one more where that does not go
    out), client by client with a class mix of its own among the source's classes, Dirichlet(alpha) (Hsu et al. 2019).
    `group` [n] is the source of each sample.
    """
    if group is None:
        raise ConfigError(
            "partition by_source: the data set does not say what a sample is from; take data.source: union, or set "
            "data.domain"
        )
    sources, sizes = np.unique(group, return_counts=True)
    parts = []
    for name, clients in zip(sources, shared_out(sizes, config.clients or 1), strict=True):
        mine = np.flatnonzero(group == name)
        equal = np.array([len(part) for part in np.array_split(mine, clients)])
        classes, local = np.unique(labels[mine], return_inverse=True)
        part = mixed(local, len(classes), equal, config.alpha, draws)
        parts += [mine[part.client(k)] for k in range(part.num_clients)]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return Partition(np.concatenate(parts), offsets)


def shared_out(sizes: Array, clients: int) -> Array:
    """How many of the clients each source of these sizes gets, int64: in proportion to the square root of its size, by
    largest remainders, at least one.

    Raises `ConfigError` for fewer clients than sources, `DataError` for a source with fewer samples than clients.
    """
    if clients < len(sizes):
        raise ConfigError(f"partition.clients: {clients} for {len(sizes)} sources; set it to {len(sizes)} or more")
    exact = clients * np.sqrt(sizes) / np.sqrt(sizes).sum()
    counts: Array = np.maximum(np.floor(exact).astype(np.int64), 1)
    while counts.sum() != clients:
        if counts.sum() < clients:
            counts[(exact - counts).argmax()] += 1
        else:  # those that were raised to one have it from who has most above its share
            counts[np.where(counts > 1, counts - exact, -np.inf).argmax()] -= 1
    short = np.flatnonzero(counts > sizes)
    if len(short):
        raise DataError(
            f"partition.clients: {counts[short[0]]} of {clients} clients for the {sizes[short[0]]} samples of source "
            f"{short[0]}; set it lower"
        )
    return counts
