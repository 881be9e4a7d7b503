"""Whether our numbers say what a paper's say: equivalence within a margin, difference, and the order of methods.

Everything here is a function of numbers. Accuracies are in per cent, as the papers print them. Each verdict has the
share of cells in which it would come by chance (:func:`chance_of_order`, :func:`chance_against_paper`), simulated with
the very tests that give it.
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
from scipy.stats import kendalltau, nct
from scipy.stats import t as student

from flray.results.paired import holm

LEVEL = 0.05  # of every test: after Holm's correction in a cell; of each one-sided test of equivalence
POWER = 0.8  # with which a smallest difference is seen
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

    p is NaN where nothing varies (no error estimate) or with fewer than two values.
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
    """Along the last axis; NaN for a single value, 0 where nothing varies."""
    if sample.shape[-1] < 2:
        return np.full(sample.shape[:-1], math.nan)
    spread = sample.std(axis=-1, ddof=1)
    return np.where(np.ptp(sample, axis=-1) > 10.0**-ROUNDED, spread, 0.0)


class Against(NamedTuple):
    """Our mean against the paper's: the difference, its standard error and degrees of freedom, and two tests."""

    off: Array
    error: Array
    df: Array
    same: Array  # p of "they differ by the margin or more": :func:`equivalence`
    other: Array  # p of "they differ by the margin at most"


def against(ours: Array, mean: Array, std: Array | None, n: int | None, margin: float) -> Against:
    """Ours `[..., n_ours]` against the paper's `mean [...]` and `std [...]` over `n` of its seeds.

    `same` is the larger p of two one-sided tests (Schuirmann 1987), `other` twice the smaller p of the two opposite
    ones, so that between both the answer is open. With the paper's standard deviation they are Welch's. Where it prints
    none its runs are taken to vary as ours: standard error `s sqrt(1 / n_ours + 1 / n)`. Where it does not say how many
    they are its mean is taken as exact.
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
    exact = error == 0  # no error estimate: as sure as the numbers are
    same = np.where(exact, np.where(np.abs(off) < margin, 0.0, 1.0), same)
    other = np.where(exact, np.where(np.abs(off) > margin, 0.0, 1.0), other)
    return Against(off, error, df, same, other)


def compared(
    ours: Sequence[float], mean: float, std: float | None, n: int | None, margin: float = MARGIN
) -> Against | None:
    """The same of one method; None for fewer than two of our seeds, or where one has no finite number."""
    sample = np.asarray(ours, dtype=np.float64)
    if len(sample) < 2 or not np.isfinite(sample).all():
        return None
    return against(sample, np.asarray(mean), None if std is None else np.asarray(std), n, margin)


def equivalence(ours: Sequence[float], mean: float, std: float | None, n: int | None, margin: float = MARGIN) -> float:
    """p of two one-sided tests of "the means differ by `margin` or more"; below `LEVEL` they are the same within it.

    NaN for fewer than two of our seeds.
    """
    numbers = compared(ours, mean, std, n, margin)
    return math.nan if numbers is None else float(numbers.same)


# claims ------------------------------------------------------------------------------------------
class Claim(NamedTuple):
    """`better` is ahead of `worse` in the paper by `printed` points; here by `ours` (mean over common seeds)."""

    better: str
    worse: str
    printed: float
    ours: float
    p: float  # two-sided, of one test; NaN where it cannot be made
    holm: float  # the same after Holm's correction over the claims of the cell
    error: float = math.nan  # standard error of `ours`
    df: float = math.nan
    paired: bool = True  # on seeds that share data and partition; else Welch's test

    @property
    def agrees(self) -> bool:
        """The sign is the paper's, by chance or not."""
        return self.ours > 0

    @property
    def significant(self) -> bool:
        """The paper's order, and not by chance at `LEVEL`."""
        return self.ours > 0 and self.holm < LEVEL

    @property
    def reversed(self) -> bool:
        """The other way round, and not by chance at `LEVEL`."""
        return self.ours < 0 and self.holm < LEVEL


class PrintedScore(NamedTuple):
    """What a paper prints of a method."""

    mean: float
    std: float | None = None


def claims(
    printed: Mapping[str, PrintedScore],
    ours: Mapping[str, Mapping[int, float]],
    lower_is_better: bool = False,
    shares: Mapping[str, Hashable] | None = None,
) -> list[Claim]:
    """What the paper's table claims about two methods at a time, and what our seeds say of it.

    It claims an order where its means are `GAP` or more apart and further than its own spread: the standard deviation
    of a difference of two of its runs, `sqrt(std_1^2 + std_2^2)` (0 where it prints none). `ours` are our values by
    seed. Two methods are tested in pairs of the same seed, or by Welch's test where `shares` (what the seeds of a
    method share: data, partition) is not the same. Pairs without a common seed are left out; Holm's correction is over
    those that are tested.
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


def claimed(one: PrintedScore, other: PrintedScore) -> bool:
    """Whether a paper sets two methods apart: by `GAP` or more, and by more than its own spread."""
    gap = abs(one.mean - other.mean)
    return gap >= GAP - 10.0**-ROUNDED and gap > math.hypot(one.std or 0.0, other.std or 0.0)


def order(judged_claims: Sequence[Claim]) -> str:
    """The verdict on an order: it does not hold where one claim is reversed, it holds where all are found, and neither
    by chance (Holm over the claims, 5 %, two-sided)."""
    if not judged_claims:
        return NOT_COMPARABLE
    if any(claim.reversed for claim in judged_claims):
        return FAILS
    return HOLDS if all(claim.significant for claim in judged_claims) else INCONCLUSIVE


def rank_correlation(printed: Sequence[float], ours: Sequence[float]) -> tuple[float, float]:
    """(Kendall's tau-b of both orders, its one-sided p): NaN for fewer than three methods, or where all are level."""
    if len(printed) < 3:
        return math.nan, math.nan
    tau = kendalltau(printed, ours, alternative="greater")
    return float(tau.statistic), float(tau.pvalue)


def verdict(complete: bool, judged_claims: Sequence[Claim], rows: Sequence[Against | None] = ()) -> str:
    """The verdict on a cell.

    `complete`: every method has finished on every seed. `rows`: each method against its printed number, where the
    experiment is the paper's; empty at another scale. First a claim that is reversed, then equivalence of all rows,
    then the order, then a row that differs by more than the margin (Holm over the rows).
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


# what it is worth --------------------------------------------------------------------------------
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
    """Of each claim the smallest difference that its seeds see with `POWER`, at the first step of Holm's correction."""
    return np.array([detectable(claim.error, claim.df, LEVEL / len(judged_claims)) for claim in judged_claims])


def seen_from_paper(rows: Sequence[Against | None], margin: float) -> Array:
    """Of each row the smallest difference from the printed mean that the test behind "not reproduced" sees."""
    level = LEVEL / max(len(rows), 1)
    errors = [(math.nan, math.nan) if row is None else (float(row.error), float(row.df)) for row in rows]
    return np.array([margin + detectable(*each, level) for each in errors])


class Chance(NamedTuple):
    """In which share of cells whose methods do not differ the order holds, and does not."""

    holds: float
    fails: float

    @property
    def inconclusive(self) -> float:
        return 1 - self.holds - self.fails


@functools.cache
def chance_of_order(pairs: tuple[tuple[int, int, bool], ...], n: int, draws: int = DRAWS) -> Chance:
    """The verdicts on an order of methods that do not differ: normal values with one mean and spread, `n` seeds each.

    `pairs` are the claims: the positions of better and worse, and whether they are paired. Simulated with a fixed seed,
    by the tests of :func:`claims`. What the seeds of methods share cancels in a paired difference.
    """
    if not pairs or n < 2:
        return Chance(0.0, 0.0)
    rng, count = np.random.default_rng(0), 1 + max(max(pair[:2]) for pair in pairs)
    holds = fails = done = 0
    while done < draws:
        size = min(1000, draws - done)
        values = rng.standard_normal((size, count, n))
        tested = [(paired_test if paired else welch_test)(values[:, one], values[:, two]) for one, two, paired in pairs]
        means, p = np.stack([each.mean for each in tested], -1), holm(np.stack([each.p for each in tested], -1))
        holds += int(((p < LEVEL) & (means > 0)).all(axis=-1).sum())
        fails += int(((p < LEVEL) & (means < 0)).any(axis=-1).sum())
        done += size
    return Chance(holds / draws, fails / draws)


class Spread(NamedTuple):
    """What the chance of a verdict against the paper depends on: both spreads and numbers of seeds."""

    spread: float
    seeds: int
    std: float | None
    n: int | None


@functools.cache
def chance_against_paper(rows: tuple[Spread, ...], margin: float, draws: int = DRAWS) -> tuple[float, float]:
    """(share of cells found "not reproduced" though every mean is the paper's; the largest share of cells found
    "reproduced" though one mean is `margin` off).

    Normal values with the spreads at hand, the paper's mean and standard deviation drawn as well. Simulated with a
    fixed seed, by the tests of :func:`verdict`.
    """
    rng, other, same = np.random.default_rng(0), [], 0.0
    for row in rows:
        values = row.spread * rng.standard_normal((draws, row.seeds))
        theirs = row.spread if row.std is None else row.std
        mean = theirs / math.sqrt(row.n) * rng.standard_normal(draws) if row.n else np.zeros(draws)
        std: Array | None = None
        if row.std is not None:
            freedom = (row.n or 1) - 1
            std = theirs * np.sqrt(rng.chisquare(freedom, draws) / freedom) if freedom else np.zeros(draws)
        other.append(against(values, mean, std, row.n, margin).other)
        same = max(same, float((against(values + margin, mean, std, row.n, margin).same < LEVEL).mean()))
    return float((holm(np.stack(other, -1)) < LEVEL).any(axis=-1).mean()), same
