"""A partition of your own, `partition: my_partition`: which client holds which training samples."""

import numpy as np

from flray.scenario import PARTITIONS


def my_partition(labels, num_classes, config, draws, group):
    """Sample numbers of every client: even classes for the first half of them, odd classes for the others.

    `labels [n]` are those of the training split, `config` is the section `partition` (its table `options` is yours),
    `draws` the generator of the seed, `group [n]` natural client ids or None.
    """
    half = config.clients // 2
    even, odd = (draws.permutation(np.flatnonzero(labels % 2 == parity)) for parity in (0, 1))
    return [*np.array_split(even, half), *np.array_split(odd, config.clients - half)]


PARTITIONS.add("my_partition", my_partition)
