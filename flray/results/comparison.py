"""A comparison of runs as one looks at it first: means, differences with their intervals, costs, one sentence."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError, unknown
from flray.results.answers import held_out, never, verdict, without_value
from flray.results.by_mode import NOTE, NUMBERS, by_mode, fairness
from flray.results.comparable import caveats
from flray.results.intervals import MIN_PAIRS, smaller_is_better
from flray.results.paired import TESTS, Reference, caption, find, paired, written
from flray.results.ranks import over_settings
from flray.results.readable import FLAWED
from flray.results.rendering import Table, caption_of, spelled, spelled_numbers, to_markdown
from flray.results.tables import about, compare, keys_of, over_seeds, settings_of, summary
from flray.results.targets import (
    COSTS,
    check_reference,
    compare_at,
    compare_to,
    parsed,
    reached,
    tested_later,
    where_all_reach,
)
from flray.rundir.reader import own_copy

if TYPE_CHECKING:
    import pandas

    from flray.rundir.reader import Run

ENDS = ("low", "high", "diff", "diff_low", "diff_high")  # of `overview`; left out where no setting has one
SPENT = ("comm/bytes", "time/s")  # columns of `compare`'s table
METRIC = "test/acc"  # of a comparison that names none


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several runs compared by `metric`: displayed as one table with a row a setting, and the sentence on them.

    `runs` are the runs, `frame` is a table with a row each (:func:`flray.results.compare`). `against` is the setting
    that the others are compared with, as :func:`flray.results.paired` reads it; None: the best one. `judged` are the
    rows of `frame` that are compared, `lead` are tables shown before, by title, `said` sentences on what was left out,
    and `whole` is False where the runs are not compared to their end. `title` is that of the table.
    """

    runs: Sequence[Run]
    frame: pandas.DataFrame
    judged: pandas.DataFrame
    metric: str = "test/acc"
    against: str | Mapping[str, Any] | None = None
    lead: Mapping[str, pandas.DataFrame] = field(default_factory=dict)
    said: Sequence[str] = ()
    whole: bool = True
    title: str = ""

    def __getattribute__(self, name: str) -> Any:
        """A copy for each reader: a table that one of them changes is not what the others and the sentences read."""
        value = super().__getattribute__(name)
        return value if name.startswith("_") else own_copy(value)

    @cached_property
    def table(self) -> pandas.DataFrame:
        """One row a setting, the best first: its keys, `n` finished runs, `mean`, `low`, `high` (95 % t-interval), the
        mean difference to the reference on shared seeds `diff`, `diff_low`, `diff_high`, and the mean of each cost.

        Of fewer than three seeds there is no interval. Accuracies are in [0, 1], bytes and seconds sums over a run.
        """
        return overview(self.judged, self.metric, self.against)

    @cached_property
    def differences(self) -> pandas.DataFrame | None:
        """Differences to `against` with every interval and test (:func:`flray.results.paired`); None without it."""
        return None if self.against is None else paired(self.judged, self.against, self.metric, MIN_PAIRS)

    @cached_property
    def sentences(self) -> list[str]:
        """The setting with the best mean, or that no difference was found; what is not comparable, not finished, or
        left out."""
        return [*self._verdict[:1], *self.said, *self._without(), *self.caveats(), *unfinished(self.frame)]

    @cached_property
    def tables(self) -> dict[str, pandas.DataFrame]:
        """The tables that are displayed, by title: `table`; of runs over tasks, through a drift or with alarms what was
        forgotten, by inference mode."""
        table = {self.title: self.table} if len(self.table) else {}
        return {**self.lead, **table, **spelled(by_mode(self.frame))}

    @cached_property
    def statistics(self) -> tuple[dict[str, pandas.DataFrame], list[str]]:
        """(tables by title, sentences), all of them: a row a run, each test, tasks, drift and alarms by inference mode,
        clients and classes, ranks of methods, unequal costs."""
        over, ranked = over_settings(self.judged, self.metric)
        tables = {self.title: self.frame, **self.lead}
        if self.differences is not None:
            tables[caption(self.differences)] = self.differences
        else:
            if self.judged["seed"].nunique() > 1:
                tables["Over seeds"] = summary(self.judged, self.metric)
            tables |= spelled(by_mode(self.frame))
        if self.whole and len(evenly := fairness(self.frame)):  # of the end alone
            tables["Over clients and classes"] = spelled_numbers(evenly, NUMBERS, NOTE)
        return tables | ranked, [*self._verdict, *self.said, *self._without(), *over, *self.caveats()]

    @cached_property
    def _verdict(self) -> list[str]:
        several = len(settings_of(self.judged)) > 1
        return (verdict if several else held_out)(self.judged, self.metric)

    def _without(self) -> list[str]:
        """Sentences on runs that have no number of the metric."""
        said = without_value(self.judged, self.metric)
        return [*([said] if said else []), *never(self.judged, self.metric)]

    def caveats(self) -> list[str]:
        """Sentences on what is not comparable (:func:`flray.results.comparable.caveats`)."""
        against = self.against if len(self.judged) == len(self.frame) else None
        return caveats(self.runs, self.frame, self.metric, against, cost=self.whole)

    def _repr_html_(self) -> str:
        parts = [part for title, table in self.tables.items() for part in (title, Table(table)) if part]
        parts += self.sentences
        return "".join(f"<p>{html.escape(part)}</p>" if isinstance(part, str) else part._repr_html_() for part in parts)

    def __repr__(self) -> str:
        tables = [
            f"{title}:\n\n{to_markdown(table)}" if title else to_markdown(table) for title, table in self.tables.items()
        ]
        return "\n".join([*tables, *self.sentences])


def comparison(
    runs: Sequence[Run],
    metric: str = METRIC,
    against: Reference | None = None,
    at: str | None = None,
    to: str | None = None,
) -> Comparison:
    """The comparison of runs by a column of :func:`flray.results.compare`.

    `at` is the same cost for all (`virtual=3600`: what was measured up to there), `to` a target (`test/acc=0.8`: what
    it takes to reach it). Raises `ConfigError` in one line.
    """
    against = None if against is None else written(against)
    compared = _comparison(runs, metric, against, at, to)
    _ = compared.table  # an unknown metric or setting is an error here, not where it is displayed
    return compared


def _comparison(
    runs: Sequence[Run], metric: str, against: str | Mapping[str, Any] | None, at: str | None, to: str | None
) -> Comparison:
    if at is not None and to is not None:
        raise ConfigError("at and to are two questions; give one of them")
    if to is None:
        frame = compare(runs) if at is None else compare_at(runs, *parsed("--at", at))
        title = "" if at is None else f"At {at}: the last round that ends there or before"
        said = [] if at is None else tested_later(runs, frame, at, metric)
        return Comparison(runs, frame, frame, metric, against, said=said, whole=at is None, title=title)
    frame = compare_to(runs, *parsed("--to", to))
    costs = [name for name in COSTS if name in frame]
    if metric not in costs:
        if metric != METRIC:
            raise unknown("metric", metric, costs, "a comparison by --to")
        metric = "to/virtual" if "to/virtual" in costs else "to/rounds"
    if against is not None:
        check_reference(frame, metric, against)
    lead = {f"To {to}": spelled_numbers(reached(frame, MIN_PAIRS), costs, "-: not every seed reaches it")}
    judged, said = where_all_reach(frame, metric)
    return Comparison(runs, frame, judged, metric, against, lead, said, whole=False)


def unfinished(frame: pandas.DataFrame) -> list[str]:
    """A sentence on the runs that are in no mean, because they have not finished; those with damaged tables have their
    own warning."""
    left = frame[(frame["status"] != "finished") & ~frame["status"].str.startswith(FLAWED)]
    if left.empty:
        return []
    named = [f"{row['folder']}: {row['status']}" for row in left.head(3).to_dict("records")]
    more = f" and {len(left) - 3} more" if len(left) > 3 else ""
    return [f"Not finished, and in no mean: {'; '.join(named)}{more}."]


def overview(
    frame: pandas.DataFrame, metric: str = "test/acc", against: str | Mapping[str, Any] | None = None
) -> pandas.DataFrame:
    """:attr:`Comparison.table` of `compare`'s table. Raises `ConfigError` as :func:`paired` does."""
    groups = list(over_seeds(frame, metric))
    if not groups:  # no setting reaches a target
        return about(frame[keys_of(frame)], metric)
    sign = 1 if smaller_is_better(metric) else -1
    ranked = [sign * float(values.mean()) if len(values) else np.inf for _, values, *_ in groups]
    best = groups[int(np.argmin(ranked))][0]
    table = paired(frame, against or best, metric, MIN_PAIRS)
    reference = table.attrs["reference"]
    table = table.drop(columns=["boot_low", "boot_high", "effect", *TESTS])
    table.loc[table["n"] < MIN_PAIRS, ["low", "high"]] = np.nan
    first = find([setting for setting, *_ in groups], frame, against or best)  # the order of `paired`
    order = [first, *(place for place in range(len(groups)) if place != first)]
    for name in () if metric.startswith("to/") else SPENT:
        means = [float(values.mean()) for _, values, *_ in over_seeds(frame, name)]
        table[name] = [means[place] for place in order]
    table = table.sort_values("mean", ascending=sign > 0, kind="stable", na_position="last").reset_index(drop=True)
    table = table.drop(columns=[name for name in ENDS if table[name].isna().all()])
    table = about(table, metric)
    table.attrs["reference"] = reference
    if len(table) > 2 and "diff_low" in table and (note := caption_of(table)):
        table.attrs["caption"] = (
            f"{note}; each interval is at 95 %; the sentence below uses tests corrected by Holm, so it may find no "
            "difference where one interval excludes 0"
        )
    return table
