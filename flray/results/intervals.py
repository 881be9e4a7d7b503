"""Confidence intervals of a mean over seeds, and the size of an effect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from flray.metrics.names import OF_TASKS

_UNWANTED = (
    "FT", "FT_std", "drift/worst_drop", "drift/recovered_after", "detect/delay", "detect/missed",
    "detect/on_before", "detect/false_alarms", "exemplars/kept", "exemplars/bytes", "comm/bytes", "time/s",
)  # fmt: skip
# columns of a metric: its mean over seeds, the ends of its interval, half of it, on how many seeds it is infinite, and
# how many seeds have it where these are fewer than `n`
ENDS = ("", "_low", "_high", "_half", "_never", "_seeds")
MIN_PAIRS = 3  # where a table or a sentence is shown: two seeds cannot tell, so they get no statistics
_DIFFERENCES = ("FT", "FT_std", "BWT", "FWT", "drift/worst_drop")  # of shares: in [-1, 1]


def is_share(metric: str) -> bool:
    """Whether a metric is shown in per cent: an accuracy, a mean or percentile of accuracies, or a difference of
    two."""
    name = metric.partition("@")[0]
    return "/acc" in name or name in OF_TASKS or name in _DIFFERENCES


def smaller_is_better(metric: str) -> bool:
    """Whether smaller values of a metric are better: loss, forgetting, cost, a delay, false alarms."""
    name = metric.partition("@")[0]
    return name.endswith("/loss") or name.startswith("to/") or name in _UNWANTED


def is_never(column: str, value: Any) -> bool:
    """Whether the value says that something never happens; an infinite loss does not."""
    return column.startswith(("to/", "drift/recovered_after", "detect/delay")) and value == math.inf


def lowest(metric: str) -> float:
    """The lowest value of a share: 0, or -1 for a difference of accuracies such as forgetting."""
    return -1.0 if metric.partition("@")[0] in _DIFFERENCES else 0.0


def tie(mean: float, other: float) -> bool:
    """Whether two means differ by no more than the rounding of equal ones: those of 85, 85, 94 and 85, 86, 93 per
    cent."""
    return math.isclose(mean, other, rel_tol=1e-9, abs_tol=1e-12)


def interval(values: Iterable[float], *, share: bool = False, lowest: float = 0.0) -> tuple[float, float, float, float]:
    """The 95 % t-interval of the mean.

    Returns (mean, std with ddof=1, low, high); std and bounds are NaN for a single value. Bounds of a `share` are cut
    off at `lowest` (-1 for a difference of shares) and 1; the mean lies inside, so the coverage stays the same. If a
    value is infinite there is no interval.
    """
    sample = np.asarray(list(values), dtype=np.float64)
    if not len(sample):
        return (math.nan,) * 4
    mean = float(sample.mean())
    if len(sample) == 1 or not math.isfinite(mean):
        return mean, math.nan, math.nan, math.nan
    std = float(sample.std(ddof=1))
    half = half_width(std, len(sample))
    low, high = mean - half, mean + half
    return (mean, std, max(low, lowest), min(high, 1.0)) if share else (mean, std, low, high)


def half_width(std: float, n: int) -> float:
    """Half the 95 % t-interval of the mean of `n` values with this `std` (ddof=1), not cut off; NaN for n < 2."""
    from scipy.stats import t

    return float(t.ppf(0.975, n - 1)) * std / math.sqrt(n) if n > 1 else math.nan


def widest(samples: Iterable[Iterable[float]], least: int) -> float:
    """The width of the widest 95 % t-interval of these samples' means, not cut off; 0 if none has `least` values."""
    known = [(interval(values)[1], len(values)) for values in map(list, samples) if len(values) >= least]
    return max((2 * half_width(std, n) for std, n in known if math.isfinite(std)), default=0.0)


def bootstrap(values: Iterable[float]) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval (low, high) of the mean; it assumes no normal distribution.

    It is too narrow for few seeds: with five it covers the mean in about 85 % of cases. 9,999 resamples with a fixed
    seed, so the same numbers give the same interval. NaN for fewer than two values, or if one is infinite. (Efron and
    Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3.)
    """
    from scipy import stats

    sample = np.asarray(list(values), dtype=np.float64)
    if len(sample) < 2 or not np.isfinite(sample).all():
        return math.nan, math.nan
    resampled = stats.bootstrap(
        (sample,), np.mean, confidence_level=0.95, method="percentile", vectorized=True, rng=np.random.default_rng(0)
    )
    return float(resampled.confidence_interval.low), float(resampled.confidence_interval.high)


def effect(differences: Iterable[float]) -> float:
    """g_z, the standardised size of paired differences `[n]`: their mean over their standard deviation (Cohen's d_z),
    times J. It is not Hedges' g, which divides by the standard deviation of the groups.

    `J = gamma(m / 2) / (sqrt(m / 2) gamma((m - 1) / 2))` with `m = n - 1` removes the bias for few pairs (Hedges,
    "Distribution theory for Glass's estimator of effect size", 1981, Eq. 6e). NaN for fewer than three pairs (J is 0
    for two), for equal differences, and if one is infinite.
    """
    from scipy.special import gammaln

    sample = np.asarray(list(differences), dtype=np.float64)
    if len(sample) < 3 or not np.isfinite(sample).all() or not np.ptp(sample):
        return math.nan
    m = len(sample) - 1
    correction = math.exp(gammaln(m / 2) - gammaln((m - 1) / 2)) / math.sqrt(m / 2)
    return float(sample.mean() / sample.std(ddof=1)) * correction


def seeds_of(name: str, row: Mapping[Any, Any]) -> int:
    """How many seeds have the metric `name` in a row with `n` and the columns `ENDS`; without `n`: enough."""
    own = row.get(f"{name}_seeds", math.nan)
    return int(row.get("n", MIN_PAIRS) if math.isnan(own) else own)


def interval_words(metric: str) -> str:
    """How the interval of a metric was computed, for captions."""
    ends = f", cut off at {100 * lowest(metric):.0f} and 100 %" if is_share(metric) else ""
    return f"95 % t-interval of the mean{ends}"
