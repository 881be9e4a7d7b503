"""How evenly a model serves its clients: the spread of their accuracies, and which clients are a minority.

The worst class of a test is `classification.worst_class`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flray.core.schema.shares import floor_share


class Spread(NamedTuple):
    """Accuracies over clients, each client with the same weight; NaN where none has one."""

    mean: float
    std: float  # ddof 0: these are all clients, not a sample of them
    p10: float  # 10th percentile, interpolated linearly
    worst: float
    gini: float
    clients: int  # that have an accuracy


def spread(accuracies: ArrayLike) -> Spread:
    """The spread of clients' accuracies `[K]`; a NaN is a client without test samples, and does not count."""
    values = np.asarray(accuracies, np.float64).ravel()
    values = values[~np.isnan(values)]
    if not len(values):
        return Spread(*(math.nan,) * 5, 0)
    return Spread(
        float(values.mean()),
        float(values.std()),
        float(np.percentile(values, 10)),
        float(values.min()),
        gini(values),
        len(values),
    )


def gini(values: ArrayLike) -> float:
    """The Gini coefficient of values >= 0: 0 where all are the same, (K - 1) / K where one of K has everything.

    Half the mean absolute difference of all K^2 pairs, over the mean: `sum_ij |x_i - x_j| / (2 K^2 mean x)`, computed
    from the order as `2 sum_i i x_(i) / (K sum x) - (K + 1) / K`. 0 where all values are 0, NaN without any and where
    one is NaN. Raises `ValueError` for a value below 0.
    """
    ordered = np.sort(np.asarray(values, np.float64).ravel())
    count, total = len(ordered), float(ordered.sum())
    if not count:
        return math.nan
    if ordered[0] < 0:
        raise ValueError(f"the Gini coefficient is one of values from 0 on; the smallest here is {ordered[0]:g}")
    if total == 0:
        return 0.0
    ranks = np.arange(1, count + 1)
    return float(np.maximum(2 * (ranks * ordered).sum() / (count * total) - (count + 1) / count, 0.0))


def minority(counts: ArrayLike, share: float = 0.1) -> NDArray[np.int64]:
    """The clients whose classes are least like those of all clients together: their numbers, ascending.

    `counts [K, C]` are samples by client and class. A client's distance is the total variation between its distribution
    of classes and that of all samples, `1/2 sum_c |n_kc / n_k - n_c / n|`; the minority are the `share` of the clients
    with samples, at least one, that are furthest, of equals those of the lowest numbers. Empty without samples, and
    where all clients have the same distribution.
    """
    samples = np.asarray(counts, np.float64)
    sizes = samples.sum(axis=1)
    if not sizes.sum():
        return np.zeros(0, np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(samples / sizes[:, None] - samples.sum(axis=0) / sizes.sum()).sum(axis=1) / 2
    apart = np.where(sizes > 0, apart.round(12), -1.0)
    if apart.max() <= 0:
        return np.zeros(0, np.int64)
    count = max(1, floor_share(share, int((sizes > 0).sum())))
    return np.sort(np.argsort(-apart, kind="stable")[:count])
