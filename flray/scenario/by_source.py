"""The partition `by_source`: each client has samples of one source, such as a GLUE task or a domain."""

from __future__ import annotations

import numpy as np

from flray.core.schema.errors import ConfigError, DataError
from flray.data.cache import Array
from flray.scenario.partition import Draws, Partition
from flray.scenario.partition_config import PartitionConfig
from flray.scenario.partitioners import mixed


def by_source(labels: Array, num_classes: int, config: PartitionConfig, draws: Draws, group: Array | None) -> Partition:
    """Each client has samples of one source (a GLUE task, a domain): FedMemo's GLUE (appendix D; its card).

    The clients of a source have consecutive ids. Their number is proportional to the square root of the source's size
    (:func:`shared_out`). They get equally many samples (the first ones one more if there is a remainder). Each draws a
    class mix among the source's classes from Dirichlet(alpha) (Hsu et al. 2019).
    `group` [n] is the source of each sample. Raises `ConfigError` without it.
    """
    if group is None:
        raise ConfigError(
            "partition by_source: the data set has no sources; use data.source: union, or set data.domain"
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
    """The number of clients of each source, int64: proportional to the square root of its size (largest remainders), at
    least one.

    Raises `ConfigError` for fewer clients than sources, `DataError` for a source with fewer samples than clients.
    """
    if clients < len(sizes):
        raise ConfigError(f"partition.clients: {clients} for {len(sizes)} sources; set it to {len(sizes)} or more")
    exact = clients * np.sqrt(sizes) / np.sqrt(sizes).sum()
    counts: Array = np.maximum(np.floor(exact).astype(np.int64), 1)
    while counts.sum() != clients:
        if counts.sum() < clients:
            counts[(exact - counts).argmax()] += 1
        else:  # a source that was raised to one takes it from the source that is most above its share
            counts[np.where(counts > 1, counts - exact, -np.inf).argmax()] -= 1
    short = np.flatnonzero(counts > sizes)
    if len(short):
        raise DataError(
            f"partition.clients: {counts[short[0]]} of {clients} clients for the {sizes[short[0]]} samples of source "
            f"{short[0]}; set it lower"
        )
    return counts
