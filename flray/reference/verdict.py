"""Whether our numbers say what a paper's say: equivalence within a margin, and the order of methods.

Everything here is a function of numbers. Accuracies are in per cent, as the papers print them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import kendalltau, ttest_1samp, ttest_ind_from_stats

from flray.results.paired import difference

LEVEL = 0.05  # of each one-sided test of equivalence, and of the two-sided test that calls a claim reversed
MARGIN = 2.0  # points within which two means are the same
GAP = 1.0  # points that two means of the paper must be apart for its table to claim an order

REPRODUCED, DIFFERS = "reproduced", "not reproduced"
HOLDS, UNDECIDED, FAILS = "order holds", "order undecided", "order does not hold"
NOT_COMPARABLE = "not comparable"


def equivalence(ours: Sequence[float], mean: float, std: float | None, n: int | None, margin: float = MARGIN) -> float:
    """p of two one-sided tests of "the means differ by `margin` or more" (Schuirmann 1987): the larger of the two.

    Below `LEVEL` our mean and the paper's are the same within the margin. With the paper's standard deviation over its
    `n` seeds they are Welch's tests; where it prints none its mean is taken as exact, and they are tests of one sample.
    NaN for fewer than two of our seeds.
    """
    sample = np.asarray(ours, dtype=np.float64)
    if len(sample) < 2 or not np.isfinite(sample).all():
        return math.nan
    off, spread = float(sample.mean()) - mean, float(sample.std(ddof=1))
    if spread == 0 and not std:  # no error estimate: as sure as the numbers are
        return 0.0 if abs(off) < margin else 1.0
    if std is None or n is None or n < 2:
        above = ttest_1samp(sample, mean - margin, alternative="greater").pvalue
        below = ttest_1samp(sample, mean + margin, alternative="less").pvalue
    else:
        own = (float(sample.mean()), spread, len(sample))
        above = ttest_ind_from_stats(*own, mean - margin, std, n, equal_var=False, alternative="greater").pvalue
        below = ttest_ind_from_stats(*own, mean + margin, std, n, equal_var=False, alternative="less").pvalue
    return float(max(above, below))


class Claim(NamedTuple):
    """`better` is ahead of `worse` in the paper by `printed` points; here by `ours` (mean over common seeds)."""

    better: str
    worse: str
    printed: float
    ours: float
    p: float  # of the paired t-test, two-sided; NaN where it cannot be made

    @property
    def holds(self) -> bool:
        return self.ours > 0

    @property
    def sure(self) -> bool:
        """The paper's order, and not by chance at `LEVEL`."""
        return self.holds and self.p < LEVEL

    @property
    def reversed(self) -> bool:
        """The other way round, and not by chance at `LEVEL`."""
        return self.ours < 0 and self.p < LEVEL


def claims(
    printed: Mapping[str, float],
    ours: Mapping[str, Mapping[int, float]],
    lower_is_better: bool = False,
) -> list[Claim]:
    """What the paper's table claims about two methods at a time, and what we find.

    `printed` are its means, `ours` our values by seed. It claims an order where its means are `GAP` or more apart.
    Pairs without a common seed are left out.
    """
    sign = -1.0 if lower_is_better else 1.0
    found = []
    for one, other in itertools.combinations([name for name in printed if name in ours], 2):
        gap = sign * (printed[one] - printed[other])
        better, worse = (one, other) if gap > 0 else (other, one)
        seeds = sorted(set(ours[better]) & set(ours[worse]))
        if abs(gap) < GAP or not seeds:
            continue
        pairs = sign * np.array([ours[better][seed] - ours[worse][seed] for seed in seeds])
        tested = difference(pairs)
        found.append(Claim(better, worse, abs(gap), float(tested["diff"]), float(tested["p_t"])))
    return found


def order(found: Sequence[Claim]) -> str:
    """The verdict on an order: it holds where all claims do, it does not where one is reversed and that not by chance;
    else more seeds have to decide."""
    if not found:
        return NOT_COMPARABLE
    if all(claim.holds for claim in found):
        return HOLDS
    return FAILS if any(claim.reversed for claim in found) else UNDECIDED


def rank_correlation(printed: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """(Kendall's tau-b of both orders, its one-sided p): NaN for fewer than three methods, or where all are level."""
    if len(printed) < 3:
        return math.nan, math.nan
    found = kendalltau(printed, ours, alternative="greater")
    return float(found.statistic), float(found.pvalue)


def verdict(same_scale: bool, p: Sequence[float], found: Sequence[Claim]) -> str:
    """The verdict on a cell: equivalence first, where the scale is the paper's and every row was tested (`p`: of
    :func:`equivalence`), then the order."""
    if same_scale and p and all(value < LEVEL for value in p):
        return REPRODUCED
    told = order(found)
    return DIFFERS if told == NOT_COMPARABLE and same_scale and p and not any(map(math.isnan, p)) else told
