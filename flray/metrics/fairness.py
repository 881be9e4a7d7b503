"""Fairness: the spread of clients' accuracies, and the clients whose data are least typical."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flray.core.schema.shares import floor_share


class Spread(NamedTuple):
    """Statistics of accuracies over clients, each with the same weight; NaN without any."""

    mean: float
    std: float  # ddof 0: over all clients, not a sample
    p10: float  # 10th percentile, interpolated linearly
    worst: float
    gini: float
    clients: int  # that have an accuracy


def spread(accuracies: ArrayLike) -> Spread:
    """The spread of clients' accuracies `[K]`; NaN (a client without test samples) does not count."""
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
    """The Gini coefficient of values >= 0: 0 for equal values, (K - 1) / K if one of K has everything.

    Half the mean absolute difference of all K^2 pairs, over the mean: `sum_ij |x_i - x_j| / (2 K^2 mean x)`, computed
    from the order as `2 sum_i i x_(i) / (K sum x) - (K + 1) / K`. 0 if all values are 0, NaN without values and if one
    is NaN. Raises `ValueError` for a value below 0.
    """
    ordered = np.sort(np.asarray(values, np.float64).ravel())
    count, total = len(ordered), float(ordered.sum())
    if not count:
        return math.nan
    if ordered[0] < 0:
        raise ValueError(f"gini needs values of at least 0; the smallest here is {ordered[0]:g}")
    if total == 0:
        return 0.0
    ranks = np.arange(1, count + 1)
    return float(np.maximum(2 * (ranks * ordered).sum() / (count * total) - (count + 1) / count, 0.0))


def minority(counts: ArrayLike, share: float = 0.1) -> NDArray[np.int64]:
    """The clients whose classes differ most from those of all samples: their numbers, ascending.

    `counts [K, C]`: samples by client and class. A client's distance is the total variation between its distribution
    of classes and that of all samples, `1/2 sum_c |n_kc / n_k - n_c / n|`. The minority is the `share` of the clients
    with samples, at least one, with the largest distances; of equal ones those with the lowest numbers. Empty without
    samples, and if all clients have the same distribution.
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
