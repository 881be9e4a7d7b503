"""What came out of the runs of a table's cells beside what the paper prints, and the verdict on every cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flray.reference.papers import Measure, Printed, Row, Setting
from flray.reference.plan import Plan, Planned, another, commands
from flray.reference.verdict import (
    GAP,
    LEVEL,
    NOT_COMPARABLE,
    Claim,
    claims,
    equivalence,
    rank_correlation,
    verdict,
)
from flray.results.intervals import smaller_is_better
from flray.results.tables import compare

if TYPE_CHECKING:
    import pandas


class Compared(NamedTuple):
    """A row of a cell: the paper's number and ours by seed, in per cent."""

    name: str
    printed: Printed
    ours: Mapping[int, float]
    diverged: int
    unfinished: int
    p: float  # of the equivalence; NaN where it is not tested

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.ours.values()))) if self.ours else math.nan

    @property
    def std(self) -> float:
        return float(np.std(list(self.ours.values()), ddof=1)) if len(self.ours) > 1 else math.nan


class Judged(NamedTuple):
    """One measure of a cell: its rows, what the paper claims of them, the verdict and the reason for it."""

    setting: Setting
    measure: str
    rows: list[Compared]
    claims: list[Claim]
    verdict: str
    why: str
    another: str  # why ours is not the paper's experiment; empty where it is
    left: list[tuple[str, str]]  # rows that could not run here, and why
    commands: list[str]  # of the others
    lower: bool  # a measure of which less is better


def judge(plan: Plan, scale: str, extra: Sequence[str], margin: float) -> list[Judged]:
    """The verdicts on the cells of a plan, in its order, from what is in the run folders by now.

    Where the scale, or the user's `extra` overrides, make another experiment of a cell than the paper's, its order is
    judged alone. `margin` in points.
    """
    frame = _measured(plan.runs)
    found = []
    cells = {(run.setting.key, run.setting.name): run.setting for run in plan.runs}
    cells |= {(setting.key, setting.name): setting for setting, *_ in plan.left}
    for place, setting in cells.items():
        other = another(setting, scale, extra)
        own = [run for run in plan.runs if (run.setting.key, run.setting.name) == place]
        left = [(part, why) for of, part, why in plan.left if (of.key, of.name) == place]
        lines = [run.part.line for run in own] + [part.line for part, _ in left]
        names = dict.fromkeys(measure.name for line in lines for measure in setting.measures(line))
        for name in names:
            rows, columns = _rows(setting, name, own, frame, margin, not other)
            told = [(row.shown, why) for part, why in left for row in part.rows]
            runs = [run for run in own if name in {measure.name for measure in setting.measures(run.part.line)}]
            judged = _judged(setting, name, rows, told, other, margin, columns)
            found.append(judged._replace(commands=commands(runs, scale, extra)))
    return found


def _measured(runs: Sequence[Planned]) -> pandas.DataFrame:
    """`compare`'s table of the runs that have begun, by folder."""
    begun = [run.folder for run in runs if (run.folder / "STATUS").exists()]
    return compare(begun).set_index("folder") if begun else compare([])


def _rows(
    setting: Setting, name: str, runs: Sequence[Planned], frame: pandas.DataFrame, margin: float, tested: bool
) -> tuple[list[Compared], set[str]]:
    """(the rows of one measure that the paper has a number for, the columns of ours that were read)."""
    rows: dict[str, list[tuple[Planned, Row, Measure]]] = {}
    for run in runs:
        for row in run.rows:
            for measure in setting.measures(run.part.line):
                if measure.name == name:
                    rows.setdefault(row.shown, []).append((run, row, measure))
    found, columns = [], set()
    for shown, entries in rows.items():
        run, row, measure = entries[0]
        printed = setting.printed(row, measure, run.part.line)
        if printed is None:
            continue
        column = measure.column + (f"@{row.mode}" if row.mode else "")
        columns.add(measure.column)
        states = [str(frame["status"].get(str(each.folder), "")) for each, *_ in entries]
        ours = {
            each.experiment.seed: 100 * float(frame[column][str(each.folder)])
            for (each, *_), state in zip(entries, states, strict=True)
            if state == "finished" and column in frame
        }
        ours = {seed: value for seed, value in ours.items() if math.isfinite(value)}
        diverged = sum(state.startswith("diverged") for state in states)
        p = equivalence([*ours.values()], printed.mean, printed.std, printed.n, margin) if tested else math.nan
        found.append(Compared(shown, printed, ours, diverged, len(entries) - len(ours) - diverged, p))
    return found, columns


def _judged(
    setting: Setting,
    name: str,
    rows: list[Compared],
    left: list[tuple[str, str]],
    other: str,
    margin: float,
    columns: set[str],
) -> Judged:
    done = [row for row in rows if row.ours]
    lower = any(smaller_is_better(column) for column in columns)
    found = claims({row.name: row.printed.mean for row in done}, {row.name: row.ours for row in done}, lower)
    told = verdict(not other, [row.p for row in rows], found) if done else NOT_COMPARABLE
    return Judged(setting, name, rows, found, told, _why(rows, found, left, other, margin), other, left, [], lower)


def _why(
    rows: Sequence[Compared],
    found: Sequence[Claim],
    left: Sequence[tuple[str, str]],
    other: str,
    margin: float,
) -> str:
    """The reason for a verdict, in words."""
    done = [row for row in rows if row.ours]
    if not done:
        reasons = list(dict.fromkeys(why for _, why in left))
        return "; ".join(reasons) if reasons else "the paper has no number" if not rows else "no run has finished"
    parts = [other] if other else [f"{sum(row.p < LEVEL for row in rows)} of {len(rows)} within {margin:g} points"]
    if not found:
        alone = len(done) < 2
        parts.append("one method has no order" if alone else f"the paper has none {GAP:g} points above another")
        return "; ".join(parts)
    holding = sum(claim.holds for claim in found)
    told = f"{holding} of the {len(found)} pairs that the paper sets {GAP:g} or more points apart have its order"
    if holding and not all(math.isnan(claim.p) for claim in found):
        told += f", {sum(claim.sure for claim in found)} of them not by chance"
    parts.append(told)
    tau, p = rank_correlation([row.printed.mean for row in done], [row.mean for row in done])
    if not math.isnan(tau):
        parts.append(f"Kendall's tau {tau:.2f} (p {p:.2g})")
    wrong = [claim for claim in found if not claim.holds]
    for claim in sorted(wrong, key=lambda claim: claim.ours)[:3]:
        chance = f"p {claim.p:.2g}" if not math.isnan(claim.p) else "one seed"
        parts.append(f"{claim.worse} is ahead of {claim.better} by {-claim.ours:.1f} ({chance})")
    if len(wrong) > 3:
        parts.append(f"and {len(wrong) - 3} more")
    return "; ".join(parts)


def table_of(judged: Sequence[Judged]) -> pandas.DataFrame:
    """A row for each number: cell, measure, method, the paper's and ours, the difference, the cell's verdict."""
    import pandas

    rows = [
        {
            "table": each.setting.key,
            "cell": each.setting.name,
            "measure": each.measure,
            "method": row.name,
            "paper": row.printed.mean,
            "paper_std": math.nan if row.printed.std is None else row.printed.std,
            "ours": row.mean,
            "ours_std": row.std,
            "n": len(row.ours),
            "diverged": row.diverged,
            "unfinished": row.unfinished,
            "difference": row.mean - row.printed.mean,
            "p_equivalence": row.p,
            "verdict": each.verdict,
            "because": each.why,
            "note": row.printed.note,
        }
        for each in judged
        for row in each.rows
    ]
    return pandas.DataFrame(rows)
