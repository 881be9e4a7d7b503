"""Confidence intervals of a mean over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable


def is_share(metric: str) -> bool:
    """Whether a metric lies in [0, 1] and is shown in per cent: an accuracy, or a mean or percentile of some."""
    return "/acc" in metric


def interval(
    values: Iterable[float], level: float = 0.95, *, share: bool = False, lowest: float = 0.0
) -> tuple[float, float, float, float]:
    """The t-interval of the mean at `level`.

    Returns (mean, std with ddof=1, low, high); std and bounds are NaN for a single value.

    Of a `share` the bounds are cut off at `lowest` (-1 for a difference of shares) and 1: the mean lies there, so the
    interval still holds it as often as it says.
    """
    import numpy as np
    from scipy.stats import t

    sample = np.asarray(list(values), dtype=np.float64)
    if not len(sample):
        return (math.nan,) * 4
    mean = float(sample.mean())
    if len(sample) == 1:
        return mean, math.nan, math.nan, math.nan
    std = float(sample.std(ddof=1))
    half = float(t.ppf(0.5 + level / 2, len(sample) - 1)) * std / math.sqrt(len(sample))
    low, high = mean - half, mean + half
    return (mean, std, max(low, lowest), min(high, 1.0)) if share else (mean, std, low, high)


def interval_words(metric: str) -> str:
    """How the interval of a metric was made, for the caption of what shows it."""
    return "95 % t-interval of the mean" + (", cut off at 0 and 100 %" if is_share(metric) else "")
