"""Whether our numbers agree with a paper's: equivalence within a margin, difference, and the order of methods.

All functions take numbers. Accuracies are in per cent, as in the papers. :func:`chance_of_order` and
:func:`chance_against_paper` simulate how often a verdict comes by chance, with the same tests.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import kendalltau, nct, t as student

from flray.reference.papers import Printed
from flray.results.paired import holm

LEVEL = 0.05  # of every test after Holm's correction in a cell, and of each one-sided test of equivalence
POWER = 0.8  # of the test, for a smallest difference that it detects
MARGIN = 2.0  # points within which two means are the same
GAP = 1.0  # points that two means of the paper must be apart for its table to claim an order
DRAWS = 10_000  # simulated cells behind a chance
ROUNDED = 9  # decimals of a point: differences that agree to so many are the same

REPRODUCED, DIFFERS = "reproduced", "not reproduced"
HOLDS, FAILS = "order holds", "order does not hold"
INCONCLUSIVE, INCOMPLETE = "inconclusive", "incomplete"
NOT_COMPARABLE = "not comparable"

Array = NDArray[np.float64]


# tests -------------------------------------------------------------------------------------------
class Tested(NamedTuple):
    """A difference of two means: its estimate, standard error, degrees of freedom, and two-sided p of "it is 0".

    p is NaN if nothing varies (no error estimate) or with fewer than two values.
    """

    mean: Array
    error: Array
    df: Array
    p: Array


def paired_test(one: Array, other: Array) -> Tested:
    """The paired t-test along the last axis of `[..., n]`."""
    difference = (one - other).round(ROUNDED)
    n = difference.shape[-1]
    error = _std(difference) / math.sqrt(n)
    return _tested(difference.mean(axis=-1), error, np.full(error.shape, n - 1.0))


def welch_test(one: Array, other: Array) -> Tested:
    """Welch's t-test along the last axes of `[..., n]` and `[..., m]`."""
    parts = (_std(one), one.shape[-1]), (_std(other), other.shape[-1])
    return _tested((one.mean(axis=-1) - other.mean(axis=-1)).round(ROUNDED), *_welch(*parts))


def _welch(*parts: tuple[Array, int]) -> tuple[Array, Array]:
    """(standard error of the difference of two means, Welch-Satterthwaite's degrees of freedom), of (std, n) each."""
    shares = [std**2 / n for std, n in parts]
    total = shares[0] + shares[1]
    below = sum(share**2 / max(n - 1, 1) for share, (_, n) in zip(shares, parts, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(total), np.asarray(total**2 / below)


def _tested(mean: Array, error: Array, df: Array) -> Tested:
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * student.sf(np.abs(mean) / error, df)
    return Tested(mean, error, df, np.where(error > 0, p, math.nan))


def _std(sample: Array) -> Array:
    """The standard deviation along the last axis; NaN for a single value, 0 if nothing varies."""
    if sample.shape[-1] < 2:
        return np.full(sample.shape[:-1], math.nan)
    spread = sample.std(axis=-1, ddof=1)
    return np.where(np.ptp(sample, axis=-1) > 10.0**-ROUNDED, spread, 0.0)


class Against(NamedTuple):
    """Our mean against the paper's: the difference, its standard error and degrees of freedom, and two tests."""

    off: Array
    error: Array
    df: Array
    same: Array  # p of "they differ by the margin or more"; below `LEVEL`: equivalent
    other: Array  # p of "they differ by the margin at most"


def against(ours: Array, mean: Array, std: Array | None, n: int | None, margin: float) -> Against:
    """Compares ours `[..., n_ours]` with the paper's `mean [...]` and `std [...]` over `n` of its seeds.

    `same` is the larger p of two one-sided tests (Schuirmann 1987). `other` is twice the smaller p of the two opposite
    tests; if neither is small, the answer is open. With the paper's standard deviation the tests are Welch's. If the
    paper prints none, its runs are assumed to vary as ours: standard error `s sqrt(1 / n_ours + 1 / n)`. If it does not
    print the number of seeds, its mean is taken as exact.
    """
    off, spread, own = (ours.mean(axis=-1) - mean).round(ROUNDED), _std(ours), ours.shape[-1]
    if n is not None and n > 1 and std is not None:
        error, df = _welch((spread, own), (std, n))
    else:
        theirs = 0.0 if n is None or std is not None else 1 / n
        error, df = spread * math.sqrt(1 / own + theirs), np.full(spread.shape, own - 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        above, below = (off + margin) / error, (off - margin) / error
        same = np.maximum(student.sf(above, df), student.cdf(below, df))
        other = np.minimum(2 * np.minimum(student.cdf(above, df), student.sf(below, df)), 1.0)
    exact = error == 0  # no error estimate: compare the numbers themselves
    same = np.where(exact, np.where(np.abs(off) < margin, 0.0, 1.0), same)
    other = np.where(exact, np.where(np.abs(off) > margin, 0.0, 1.0), other)
    return Against(off, error, df, same, other)


def compared(
    ours: Sequence[float], mean: float, std: float | None, n: int | None, margin: float = MARGIN
) -> Against | None:
    """`against` for one method; None for fewer than two of our seeds, or if one is not finite."""
    sample = np.asarray(ours, dtype=np.float64)
    if len(sample) < 2 or not np.isfinite(sample).all():
        return None
    return against(sample, np.asarray(mean), None if std is None else np.asarray(std), n, margin)


# claims ------------------------------------------------------------------------------------------
class Claim(NamedTuple):
    """`better` is ahead of `worse` in the paper by `printed` points; here by `ours` (mean over common seeds)."""

    better: str
    worse: str
    printed: float
    ours: float
    p: float  # two-sided, of one test; NaN if it cannot be made
    holm: float  # the same after Holm's correction over the claims of the cell
    error: float = math.nan  # standard error of `ours`
    df: float = math.nan
    paired: bool = True  # on seeds that share data and partition; else Welch's test

    @property
    def agrees(self) -> bool:
        """Whether the sign is the paper's."""
        return self.ours > 0

    @property
    def significant(self) -> bool:
        """Whether the order is the paper's, at `LEVEL`."""
        return self.ours > 0 and self.holm < LEVEL

    @property
    def reversed(self) -> bool:
        """Whether the order is the opposite, at `LEVEL`."""
        return self.ours < 0 and self.holm < LEVEL


def claims(
    printed: Mapping[str, Printed],
    ours: Mapping[str, Mapping[int, float]],
    lower_is_better: bool = False,
    shares: Mapping[str, Hashable] | None = None,
) -> list[Claim]:
    """The orders of two methods that the paper's table claims, and the test of each on our seeds.

    The table claims an order if its means are `GAP` or more apart, and further than its own spread: the standard
    deviation of a difference of two of its runs, `sqrt(std_1^2 + std_2^2)` (0 if it prints none). `ours` are our values
    by seed. Two methods are tested in pairs of the same seed, or by Welch's test if their `shares` (data, partition)
    differ. Pairs without a common seed are left out. Holm's correction is over the tested pairs.
    """
    sign = -1.0 if lower_is_better else 1.0
    judged_claims: list[Claim] = []
    for one, other in itertools.combinations([name for name in printed if name in ours], 2):
        gap = sign * (printed[one].mean - printed[other].mean)
        better, worse = (one, other) if gap > 0 else (other, one)
        seeds = sorted(set(ours[better]) & set(ours[worse]))
        if not claimed(printed[one], printed[other]) or not seeds:
            continue
        paired = shares is None or shares.get(better) == shares.get(worse)
        samples = [sign * np.array([ours[name][seed] for seed in seeds], np.float64) for name in (better, worse)]
        tested = (paired_test if paired else welch_test)(*samples)
        mean, p, error, df = (float(value) for value in (tested.mean, tested.p, tested.error, tested.df))
        judged_claims.append(Claim(better, worse, abs(gap), mean, p, math.nan, error, df, paired))
    corrected = holm(np.array([claim.p for claim in judged_claims]))
    return [claim._replace(holm=float(p)) for claim, p in zip(judged_claims, corrected, strict=True)]


def claimed(one: Printed, other: Printed) -> bool:
    """Whether a paper claims an order of two methods: by `GAP` or more, and by more than its own spread."""
    gap = abs(one.mean - other.mean)
    return gap >= GAP - 10.0**-ROUNDED and gap > math.hypot(one.std or 0.0, other.std or 0.0)


def order(judged_claims: Sequence[Claim]) -> str:
    """The verdict on an order: it fails if one claim is reversed, and holds if all claims are significant (Holm over
    the claims, 5 %, two-sided)."""
    if not judged_claims:
        return NOT_COMPARABLE
    if any(claim.reversed for claim in judged_claims):
        return FAILS
    return HOLDS if all(claim.significant for claim in judged_claims) else INCONCLUSIVE


def rank_correlation(printed: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """(Kendall's tau-b of both orders, its one-sided p): NaN for fewer than three methods, or if all are equal."""
    if len(printed) < 3:
        return math.nan, math.nan
    tau = kendalltau(printed, ours, alternative="greater")
    return float(tau.statistic), float(tau.pvalue)


def verdict(complete: bool, judged_claims: Sequence[Claim], rows: Sequence[Against | None] = ()) -> str:
    """The verdict on a cell.

    `complete`: every method has finished on every seed. `rows`: each method against its printed number if the
    experiment is the paper's; empty at another scale. In this order: a reversed claim, equivalence of all rows, the
    order, a row that differs by more than the margin (Holm over the rows).
    """
    if not complete:
        return INCOMPLETE
    tested = order(judged_claims)
    if tested != FAILS and rows and all(row is not None and row.same < LEVEL for row in rows):
        return REPRODUCED
    if tested in (FAILS, HOLDS) or not rows:
        return tested
    p = holm(np.array([math.nan if row is None else float(row.other) for row in rows]))
    return DIFFERS if (p < LEVEL).any() else INCONCLUSIVE


# chance and power --------------------------------------------------------------------------------
def detectable(error: float, df: float, level: float = LEVEL, power: float = POWER) -> float:
    """The smallest true difference that a two-sided t-test at `level` finds with `power`; NaN without an error.

    Its statistic is noncentral t with noncentrality `difference / error`, where `error` stands for the true one.
    """
    if not (error > 0 and df >= 1):
        return math.nan
    critical = float(student.isf(level / 2, df))
    high = 2 * critical + 10
    return error * float(brentq(lambda nc: float(nct.sf(critical, df, nc)) - power, 0.0, high))


def seen_between(judged_claims: Sequence[Claim]) -> Array:
    """For each claim the smallest difference that its seeds detect with `POWER`, at the first step of Holm's
    correction."""
    return np.array([detectable(claim.error, claim.df, LEVEL / len(judged_claims)) for claim in judged_claims])


def seen_from_paper(rows: Sequence[Against | None], margin: float) -> Array:
    """For each row the smallest difference from the printed mean that "not reproduced" detects with `POWER`."""
    level = LEVEL / max(len(rows), 1)
    errors = [(math.nan, math.nan) if row is None else (float(row.error), float(row.df)) for row in rows]
    return np.array([margin + detectable(*each, level) for each in errors])


class Chance(NamedTuple):
    """The shares of cells in which the order holds, and fails, although the methods do not differ."""

    holds: float
    fails: float

    @property
    def inconclusive(self) -> float:
        return 1 - self.holds - self.fails


@functools.cache
def chance_of_order(pairs: tuple[tuple[int, int, bool], ...], n: int) -> Chance:
    """How often an order holds or fails if the methods do not differ: normal values with one mean and spread, `n` seeds
    each. `pairs` are the claims: the positions of better and worse, and whether they are paired. Simulated with a fixed
    seed, by the tests of :func:`claims`."""
    if not pairs or n < 2:
        return Chance(0.0, 0.0)
    rng, count = np.random.default_rng(0), 1 + max(max(pair[:2]) for pair in pairs)
    holds = fails = done = 0
    while done < DRAWS:
        size = min(1000, DRAWS - done)
        values = rng.standard_normal((size, count, n))
        tested = [(paired_test if paired else welch_test)(values[:, one], values[:, two]) for one, two, paired in pairs]
        means, p = np.stack([each.mean for each in tested], -1), holm(np.stack([each.p for each in tested], -1))
        holds += int(((p < LEVEL) & (means > 0)).all(axis=-1).sum())
        fails += int(((p < LEVEL) & (means < 0)).any(axis=-1).sum())
        done += size
    return Chance(holds / DRAWS, fails / DRAWS)


class Spread(NamedTuple):
    """The spreads and numbers of seeds of a row, ours and the paper's."""

    spread: float
    seeds: int
    std: float | None
    n: int | None


@functools.cache
def chance_against_paper(rows: tuple[Spread, ...], margin: float) -> tuple[float, float]:
    """(share of cells found "not reproduced" although every mean is the paper's; the largest share of cells found
    "reproduced" although one mean is `margin` off).

    Normal values with these spreads; the paper's mean and standard deviation are drawn as well. Simulated with a fixed
    seed, by the tests of :func:`verdict`.
    """
    rng, other, same = np.random.default_rng(0), [], 0.0
    for row in rows:
        values = row.spread * rng.standard_normal((DRAWS, row.seeds))
        theirs = row.spread if row.std is None else row.std
        mean = theirs / math.sqrt(row.n) * rng.standard_normal(DRAWS) if row.n else np.zeros(DRAWS)
        std: Array | None = None
        if row.std is not None:
            freedom = (row.n or 1) - 1
            std = theirs * np.sqrt(rng.chisquare(freedom, DRAWS) / freedom) if freedom else np.zeros(DRAWS)
        other.append(against(values, mean, std, row.n, margin).other)
        same = max(same, float((against(values + margin, mean, std, row.n, margin).same < LEVEL).mean()))
    return float((holm(np.stack(other, -1)) < LEVEL).any(axis=-1).mean()), same
