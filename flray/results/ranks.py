"""Methods over many settings: Friedman's test on their ranks, and groups of methods without a significant difference
(Demsar 2006)."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from flray.core.schema.errors import ConfigError
from flray.results.colours import colours_of
from flray.results.figures import in_words, one_axis
from flray.results.intervals import smaller_is_better, tie
from flray.results.paired import as_text, labels, missing
from flray.results.rendering import digits_lost
from flray.results.tables import keys_of, over_seeds

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVEL = 0.05
MOST = 300_000  # sums of ranks that the exact distribution may run through
SETTINGS, SEEDS = "settings", "seeds of one setting"  # kinds of blocks


@dataclass(frozen=True)
class Ranks:
    """Ranks of k methods over N blocks, 1 for the best of a block; ties share the mean of their places.

    `scores` is a DataFrame `[N, k]` of the metric, `ranks` the mean rank of each method `[k]`, the best first.
    `chi2`, `p`: Friedman's statistic, corrected for ties, and its p by the chi-squared distribution with k - 1 degrees
    of freedom; `f`, `p_f`: Iman and Davenport's, less conservative for few blocks; `exact`: the p of its permutation
    distribution (:func:`exact_p`), NaN for a table that is too large for it. `distance` is Nemenyi's critical
    difference of two mean ranks at the 5 % level. `groups` are the largest sets of methods, neighbours in `ranks`, no
    two of which are further apart than that; all methods where Friedman's test (`p_value`) finds no difference.
    `blocks` says what a block is, `left_out` which blocks have not every method.
    """

    metric: str
    scores: pandas.DataFrame
    ranks: pandas.Series
    chi2: float
    p: float
    f: float
    p_f: float
    exact: float
    distance: float
    groups: tuple[tuple[str, ...], ...]
    blocks: str
    left_out: tuple[str, ...]

    @property
    def differ(self) -> bool:
        """Whether Friedman's test finds a difference between the methods."""
        return self.p_value < LEVEL

    @property
    def p_value(self) -> float:
        """The exact p, or Iman and Davenport's for a large table."""
        return self.p_f if math.isnan(self.exact) else self.exact


def ranks(frame: pandas.DataFrame, metric: str = "test/acc") -> Ranks:
    """Friedman's test and Nemenyi's critical difference for the methods of `compare`'s table, over its settings.

    A method is an algorithm with its hyper-parameters. A block is a value of the other keys (data, partition, model),
    and of the experiment's name where a method comes twice otherwise; a method's score in it is the mean over the seeds
    that all methods finished there. If the runs differ only in the algorithm, the seeds are the blocks, and the test is
    about this one setting. Blocks that lack a method are left out. Raises `ConfigError` for fewer than three methods or
    two blocks.
    """
    import pandas

    values, several = _values(frame, metric)
    scores, left_out = {}, []
    methods = list(dict.fromkeys(method for of in values.values() for method in of))
    for block, results in values.items():
        lacking = [method for method in methods if method not in results]
        seeds = set.intersection(*(set(series.index) for series in results.values()))
        if lacking or not seeds:
            left_out.append(f"{block} ({'no run of ' + ', '.join(lacking) if lacking else 'no seed in common'})")
        elif several:
            scores[block] = [float(results[method].loc[sorted(seeds)].mean()) for method in methods]
        else:
            scores |= {f"seed {seed}": [float(results[m].loc[seed]) for m in methods] for seed in sorted(seeds)}
    table = pandas.DataFrame.from_dict(scores, orient="index", columns=methods)
    if len(methods) < 3 or len(table) < 2:
        why = f"; left out: {'; '.join(left_out)}" if left_out else ""
        raise ConfigError(
            f"ranks: Friedman's test takes at least 3 methods and 2 settings (or seeds) that all of them finished; "
            f"here are {len(methods)} and {len(table)}{why}; two methods: --against"
        )
    return of_scores(table, metric, SETTINGS if several else SEEDS, left_out)


def of_scores(
    scores: pandas.DataFrame, metric: str = "test/acc", blocks: str = SETTINGS, left_out: Sequence[str] = ()
) -> Ranks:
    """The ranks of a table `[N, k]` of blocks and methods, k at least 3 and N at least 2.

    `chi2 = 12 N / (k (k + 1)) (sum R_j^2 - k (k + 1)^2 / 4)`, over `1 - sum (t^3 - t) / (N k (k^2 - 1))` for t methods
    that tie; `f = (N - 1) chi2 / (N (k - 1) - chi2)` with k - 1 and (k - 1)(N - 1) degrees of freedom; critical
    difference `q sqrt(k (k + 1) / (6 N))`, q the studentised range's 95 % quantile over sqrt 2. (Demsar, "Statistical
    comparisons of classifiers over multiple data sets", JMLR 7, 2006, section 3.2.2.)
    """
    from scipy.stats import chi2, f, friedmanchisquare, studentized_range

    count, k = scores.shape
    placed = places(scores, metric)
    mean = placed.mean().sort_values(kind="stable")
    if (placed.nunique(axis=1) == 1).all():  # everything ties everywhere
        statistic, p, statistic_f, p_f = 0.0, 1.0, 0.0, 1.0
    else:
        statistic = float(friedmanchisquare(*placed.to_numpy().T).statistic)
        p = float(chi2.sf(statistic, k - 1))
        rest = count * (k - 1) - statistic
        statistic_f = (count - 1) * statistic / rest if rest > 1e-9 * statistic else math.inf  # the same order always
        p_f = float(f.sf(statistic_f, k - 1, (k - 1) * (count - 1)))
    exact = exact_p(placed.to_numpy())
    distance = float(studentized_range.ppf(1 - LEVEL, k, math.inf)) / math.sqrt(2) * math.sqrt(k * (k + 1) / 6 / count)
    groups = (
        cliques(mean, distance) if (p_f if math.isnan(exact) else exact) < LEVEL else (tuple(map(str, mean.index)),)
    )
    return Ranks(metric, scores, mean, statistic, p, statistic_f, p_f, exact, distance, groups, blocks, tuple(left_out))


def places(scores: pandas.DataFrame, metric: str, ties: Literal["average", "min"] = "average") -> pandas.DataFrame:
    """The rank `[N, k]` of each score in its block, 1 for the best. Scores tie if they are equal but for rounding."""
    import pandas

    def level(row: NDArray[np.float64]) -> NDArray[np.float64]:
        row = row.copy()
        for lower, upper in itertools.pairwise(np.argsort(row)):
            if tie(row[lower], row[upper]):
                row[upper] = row[lower]
        return row

    rows = np.apply_along_axis(level, 1, scores.to_numpy(float))
    levelled = pandas.DataFrame(rows, index=scores.index, columns=scores.columns)
    return levelled.rank(axis=1, ascending=smaller_is_better(metric), method=ties)


def exact_p(placed: NDArray[np.float64]) -> float:
    """The share of all tables with these `placed [N, k]` ranks, permuted within each block (Friedman 1937), whose
    statistic is at least as large; NaN for more than about `MOST` steps.

    Ties stay, so the statistic grows with the sum of squares of the rank sums, which are counted block by block; their
    order does not matter, so they are sorted.
    """
    rows = np.rint(2 * placed).astype(np.int64)  # ranks that are shared are halves
    seen = int((rows.sum(axis=0) ** 2).sum())
    orders = [
        math.factorial(rows.shape[1]) // math.prod(map(math.factorial, Counter(row.tolist()).values())) for row in rows
    ]
    if (rows == rows[0]).all() and orders[0] == math.factorial(rows.shape[1]):  # one order in all blocks, no ties
        return math.exp(-sum(map(math.log, orders[1:])))
    sums, steps = {tuple(sorted(rows[0].tolist())): 1}, 0
    for row, count in zip(rows[1:], orders[1:], strict=True):
        steps += len(sums) * count
        if steps > MOST:
            return math.nan
        counts: dict[tuple[int, ...], int] = {}
        for order in set(itertools.permutations(row.tolist())):
            for total, ways in sums.items():
                key = tuple(sorted(map(operator.add, total, order)))
                counts[key] = counts.get(key, 0) + ways
        sums = counts
    at_least = sum(ways for total, ways in sums.items() if sum(value * value for value in total) >= seen)
    return at_least / math.prod(orders[1:])


def cliques(mean: pandas.Series, distance: float) -> tuple[tuple[str, ...], ...]:
    """The largest sets of at least two neighbours in ascending mean ranks `[k]` whose ends are within `distance`."""
    values, names = mean.to_numpy(float), list(map(str, mean.index))
    groups: list[tuple[int, int]] = []
    for first in range(len(values)):
        last = max(place for place in range(first, len(values)) if values[place] - values[first] <= distance)
        if last > first and not (groups and last <= groups[-1][1]):
            groups.append((first, last))
    return tuple(tuple(names[first : last + 1]) for first, last in groups)


def words(ranked: Ranks) -> list[str]:
    """The test in sentences: whether the methods differ, which is best, and which do not differ from it."""
    count, k = ranked.scores.shape
    if math.isnan(ranked.exact):
        f = "infinite" if math.isinf(ranked.f) else f"{ranked.f:.3g}"
        how = f"Friedman with Iman and Davenport's F {f}; chi-squared {ranked.chi2:.3g}"
    else:
        how = f"Friedman, exact; chi-squared {ranked.chi2:.3g}"
    p = f"p {ranked.p_value:.2g} ({how})" if ranked.p_value > 0 else f"p below 1e-300 ({how})"
    sentences = []
    if not ranked.differ:
        sentences.append(f"Over {count} {ranked.blocks} the {k} methods do not differ significantly: {p}.")
    else:
        best = str(ranked.ranks.index[0])
        level = next((group for group in ranked.groups if best in group), (best,))
        behind = [str(name) for name in ranked.ranks.index if name not in level]
        conclusion = f"significantly better than {', '.join(behind)}" if behind else "not significantly better than any"
        sentences.append(
            f"Over {count} {ranked.blocks} the {k} methods differ: {p}; {best} has the best mean rank, "
            f"{ranked.ranks.iloc[0]:.2f}, {conclusion} (Nemenyi, critical difference {ranked.distance:.2f})."
        )
    if ranked.distance > k - 1:
        sentences.append(
            f"With {count} {ranked.blocks} no two of {k} methods can differ significantly: the critical difference "
            f"{ranked.distance:.2f} is beyond the largest possible one, {k - 1}."
        )
    if ranked.left_out:
        sentences.append(f"Left out of the ranks: {'; '.join(ranked.left_out)}.")
    return sentences


def over_settings(frame: pandas.DataFrame, metric: str) -> tuple[list[str], dict[str, pandas.DataFrame]]:
    """(the test in sentences, its table by title) for at least three methods and two settings; else nothing: seeds of
    one setting are compared in pairs (`paired`), a stronger test."""
    try:
        ranked = ranks(frame, metric)
    except ConfigError:
        return [], {}
    if ranked.blocks != SETTINGS:
        return [], {}
    return words(ranked), {f"Mean ranks by {metric} over {len(ranked.scores)} settings": table(ranked)}


def table(ranked: Ranks) -> pandas.DataFrame:
    """One row a method, the best first: `method`, mean `rank`, `first` (blocks in which it is the best or shares it),
    and the mean of the metric over blocks, which averages numbers that need not be on one scale."""
    import pandas

    first = (places(ranked.scores, ranked.metric, "min") == 1).sum()
    columns = {"rank": ranked.ranks, "first": first, ranked.metric: ranked.scores.mean()}
    return pandas.DataFrame(columns).loc[ranked.ranks.index].rename_axis("method").reset_index()


def diagram(ranked: Ranks, axis: Axes | None = None) -> Figure:
    """The critical-difference diagram: methods on an axis of mean ranks, the best at the left; a bar joins methods
    without a significant difference (Demsar 2006, Figure 1). Draws into `axis` if given."""
    names, values = list(map(str, ranked.ranks.index)), ranked.ranks.to_numpy(float)
    k = len(names)
    half = (k + 1) // 2  # the better half is written at the left
    colours = dict(zip(sorted(names), colours_of(sorted(names)), strict=True))
    top, step = 0.55 + 0.22 * len(ranked.groups), 0.42
    figure, axis = one_axis(axis, 7.2, 1.1 + 0.3 * top + 0.34 * half)
    axis.set_axis_off()
    low, high, margin = 1.0, float(k), 0.42 * (k - 1)
    axis.set_xlim(low - margin, high + margin)
    axis.set_ylim(-top - step * half, 1.35)
    axis.plot([low, high], [0, 0], color="#000000", linewidth=1)
    for place in range(1, k + 1):
        axis.plot([place, place], [0, 0.12], color="#000000", linewidth=1)
        axis.text(place, 0.2, str(place), ha="center", va="bottom", fontsize=9)
    axis.text(low - 0.05 * (k - 1), 0, "better", ha="right", va="center", fontsize=8, style="italic")
    axis.text(high + 0.05 * (k - 1), 0, "worse", ha="left", va="center", fontsize=8, style="italic")
    for number, group in enumerate(ranked.groups):
        ends = [values[names.index(group[0])], values[names.index(group[-1])]]
        axis.plot(
            [ends[0] - 0.02 * (k - 1), ends[1] + 0.02 * (k - 1)], [-0.2 - 0.22 * number] * 2,
            color="#5b6570", linewidth=4, solid_capstyle="butt",
        )  # fmt: skip
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        left = place < half
        down = -top - step * (place if left else k - 1 - place)
        end = low - 0.04 * (k - 1) if left else high + 0.04 * (k - 1)
        axis.plot([value, value, end], [0, down, down], color=colours[name], linewidth=1.4)
        axis.plot([value], [0], "o", color=colours[name], markersize=5)
        axis.text(
            end + (-0.01 if left else 0.01) * (k - 1), down, f"{name}  {value:.2f}" if left else f"{value:.2f}  {name}",
            ha="right" if left else "left", va="center", fontsize=9,
        )  # fmt: skip
    reach = min(ranked.distance, k - 1)
    axis.plot([low, low + reach], [0.95, 0.95], color="#000000", linewidth=1.5, marker="|", markersize=7)
    sentences = f"critical difference {ranked.distance:.2f}" + (
        "" if reach == ranked.distance else " (beyond the axis)"
    )
    axis.text(low + reach / 2, 1.05, sentences, ha="center", va="bottom", fontsize=8)
    bars = "joined: no significant difference (Nemenyi, 5 %)" if ranked.differ else "no difference found (Friedman)"
    axis.set_title(
        f"mean rank by {in_words(ranked.metric)} over {len(ranked.scores)} {ranked.blocks}; {bars}",
        fontsize=9,
        loc="left",
    )
    return figure


def _values(frame: pandas.DataFrame, metric: str) -> tuple[dict[str, dict[str, pandas.Series]], bool]:
    """(the metric by seed, by block and method, in the table's order; whether there are several blocks)."""
    keys = [key for key in keys_of(frame) if key not in ("name", "algorithm")]
    outer = [key for key in keys if not key.startswith("algorithm.") and frame[key].map(str).nunique() > 1]
    method, exact = labels(frame, "algorithm."), digits_lost(frame, keys)
    finished = [(setting, values) for setting, values, *_ in over_seeds(frame, metric) if len(values)]
    for more in ([], ["name"]):  # experiments with a name each are blocks only where they repeat a method
        values_of: dict[str, dict[str, Any]] = {}
        for setting, values in finished:
            inside = [key for key in [*outer, *more] if not missing(setting.get(key))]
            block = ", ".join(as_text(key, setting[key], exact) for key in inside)
            values_of.setdefault(block or "one setting", {})[method(setting)] = values
        if sum(map(len, values_of.values())) == len(finished):
            return values_of, len(values_of) > 1
    raise ConfigError("ranks: two settings differ only beyond the digits that their names have; leave one of them out")
