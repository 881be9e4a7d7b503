"""How evenly a model serves its clients: the spread of their accuracies.

The worst class of a test is `classification.worst_class`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


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
    from the order as `2 sum_i i x_(i) / (K sum x) - (K + 1) / K`. 0 where all values are 0, NaN without any. Raises
    `ValueError` for a value below 0.
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
    return max(0.0, float(2 * (ranks * ordered).sum() / (count * total) - (count + 1) / count))
