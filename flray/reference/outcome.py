"""Our results for the cells of a paper's table beside the printed numbers, and the verdict on every cell: as tables on
the terminal, reproduce.md, a CSV, a page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas

from flray.core.schema.errors import ConfigError
from flray.files import write_text, writing
from flray.reference.evidence import HERE, ROWS, read_table, write_table
from flray.reference.papers import COURSE, Line, Measure, PaperRow, Printed, Setting, tables
from flray.reference.plan import PlannedRun, RunPlan, another
from flray.reference.verdict import (
    DIFFERS,
    FAILS,
    GAP,
    HOLDS,
    INCOMPLETE,
    LEVEL,
    NOT_COMPARABLE,
    POWER,
    REPRODUCED,
    Against,
    Claim,
    Spread,
    chance_against_paper,
    chance_of_order,
    claims,
    compared,
    rank_correlation,
    seen_between,
    seen_from_paper,
    verdict,
)
from flray.results.intervals import smaller_is_better
from flray.results.rendering import csv, filled, rich_table
from flray.results.tables import compare
from flray.rundir.reader import Run

if TYPE_CHECKING:
    from rich.table import Table

STORED = HERE / "runs" / "reproduced.parquet"  # rows of the tables that were run here
HEADS = ("method", "paper", "ours", "seeds", "difference")


class Compared(NamedTuple):
    """A row of a cell: the paper's number and ours by seed, in per cent."""

    name: str
    printed: Printed
    ours: Mapping[int, float]
    diverged: int
    unfinished: int
    against: Against | None  # tests of ours against the printed number; None: not tested
    shares: str = ""  # `shared(run)`

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.ours.values()))) if self.ours else math.nan

    @property
    def std(self) -> float:
        return float(np.std(list(self.ours.values()), ddof=1)) if len(self.ours) > 1 else math.nan

    @property
    def p(self) -> float:
        """p of the equivalence test; NaN if it was not made."""
        return math.nan if self.against is None else float(self.against.same)

    @property
    def complete(self) -> bool:
        return not self.diverged and not self.unfinished

    @property
    def seeds(self) -> str:
        return seeds_of(len(self.ours), self.diverged, self.unfinished)


class Judged(NamedTuple):
    """One measure of a cell: its rows, the paper's claims about them, the verdict and its reason."""

    setting: Setting
    measure: str
    rows: list[Compared]
    claims: list[Claim]
    verdict: str
    why: str
    another: str  # how our experiment differs from the paper's; empty: not at all
    skipped: list[tuple[str, str]]  # rows that could not run here, and why
    chance: float = math.nan  # how often this verdict comes by chance under `chance_of`; NaN: no test behind it
    chance_of: str = ""
    seen: float = math.nan  # the smallest difference that the seeds detect: median over `seen_of`
    seen_of: str = ""
    common: str = ""  # `common(runs)`


def seeds_of(done: int, diverged: int, unfinished: int) -> str:
    """`3`, or `2 of 3; 1 diverged`: the seeds behind a mean."""
    lost = [f"{count} {what}" for count, what in ((diverged, "diverged"), (unfinished, "to do")) if count]
    return f"{done} of {done + diverged + unfinished}; {', '.join(lost)}" if lost else str(done)


def judge(plan: RunPlan, scale: str, extra: Sequence[str], margin: float) -> list[Judged]:
    """The verdicts on the cells of a plan, from the present contents of the run folders. If the scale or the user's
    `extra` overrides change a cell's experiment, only the order of methods is judged. `margin` in points."""
    frame = _measured(plan.runs)
    settings: list[Judged] = []
    cells = {(run.setting.key, run.setting.name): run.setting for run in plan.runs}
    cells |= {(setting.key, setting.name): setting for setting, *_ in plan.skipped}
    for place, setting in cells.items():
        other = another(setting, scale, extra)
        own = [run for run in plan.runs if (run.setting.key, run.setting.name) == place]
        skipped = [(cell_run, why) for of, cell_run, why in plan.skipped if (of.key, of.name) == place]
        lines = [run.cell_run.line for run in own] + [cell_run.line for cell_run, _ in skipped]
        names = dict.fromkeys(name for line in lines for name in _names(setting, line))
        for name in names:
            rows, columns = _rows(setting, name, own, frame, margin, not other)
            skipped_rows = [
                (row.shown, why)
                for cell_run, why in skipped
                for row in cell_run.rows
                if name in _names(setting, cell_run.line)
            ]
            runs = [run for run in own if name in _names(setting, run.cell_run.line)]
            judged = _judged(setting, name, rows, skipped_rows, other, margin, columns)
            judged_methods = len({row.shown for run in runs for row in run.rows} | {shown for shown, _ in skipped_rows})
            of_table = [rows for line in setting.lines if name in _names(setting, line) for rows in line.rows]
            table_methods = len({row.shown for rows in of_table for row in rows})
            if judged_methods < table_methods:
                judged = judged._replace(why=f"{judged_methods} of the table's {table_methods} methods; {judged.why}")
            settings.append(judged._replace(common=common(runs)))
    return settings


def _names(setting: Setting, line: Line) -> list[str]:
    return [measure.name for measure in setting.measures(line)]


def _measured(runs: Sequence[PlannedRun]) -> pandas.DataFrame:
    """`compare`'s table of the runs that have begun, by folder, with columns `COLUMN@MOMENT` (`course`)."""
    begun = [run for run in runs if (run.folder / "STATUS").exists()]
    if not begun:
        return compare([])
    frame = compare([run.folder for run in begun]).set_index("folder")
    for run in begun:
        if {row.mode for row in run.rows} & {*COURSE}:
            for column in {measure.column for measure in run.setting.measures(run.cell_run.line)}:
                for moment, value in course(Run(run.folder).rounds, column).items():
                    frame.loc[str(run.folder), f"{column}@{moment}"] = value
    return frame


def course(rounds: pandas.DataFrame, column: str) -> dict[str, float]:
    """The values of `COURSE`: first, last and largest value of a column of rounds/, and its Pearson correlation with
    test/acc over the tested rounds (FedProj C.4). {} without values; r is NaN below three rounds or if one of the two
    never varies."""
    values = rounds[column].dropna() if column in rounds else rounds.iloc[:0, 0]
    if not len(values):
        return {}
    pairs = rounds.reindex(columns=[column, "test/acc"]).dropna()
    r = math.nan if len(pairs) < 3 or pairs.nunique().min() < 2 else float(pairs.corr().to_numpy()[0, 1])
    ends = {"first": values.iloc[0], "last": values.iloc[-1], "best": values.max()}
    return {moment: float(value) for moment, value in ends.items()} | {"r": r}


def _rows(
    setting: Setting, name: str, runs: Sequence[PlannedRun], frame: pandas.DataFrame, margin: float, tested: bool
) -> tuple[list[Compared], set[str]]:
    """(the rows of one measure with a printed number, the columns of ours that were read)."""
    rows: dict[str, list[tuple[PlannedRun, PaperRow, Measure]]] = {}
    for run in runs:
        for row in run.rows:
            for measure in setting.measures(run.cell_run.line):
                if measure.name == name:
                    rows.setdefault(row.shown, []).append((run, row, measure))
    compared_rows, columns = [], set()
    for shown, entries in rows.items():
        run, row, measure = entries[0]
        printed = setting.printed(row, measure, run.cell_run.line)
        if printed is None:
            continue
        columns.add(measure.column)
        states = [str(frame["status"].get(str(each.folder), "")) for each, *_ in entries]
        ours = {
            each.experiment.seed: (measure.times or 100) * _number(each, row, measure, frame)
            for (each, *_), state in zip(entries, states, strict=True)
            if state == "finished"
        }
        ours = {seed: value for seed, value in ours.items() if math.isfinite(value)}
        diverged = sum(state.startswith("diverged") for state in states)
        against = compared([*ours.values()], printed.mean, printed.std, printed.n, margin) if tested else None
        unfinished = len(entries) - len(ours) - diverged
        compared_rows.append(Compared(shown, printed, ours, diverged, unfinished, against, shared(run)))
    return compared_rows, columns


def shared(run: PlannedRun) -> str:
    """The settings that divide the samples among clients at a seed, as text. Methods with the same text are tested
    in pairs."""
    experiment = run.experiment
    tasks = None if experiment.tasks is None else experiment.tasks.model_dump(exclude={"freeze"})
    return repr((experiment.data, experiment.partition, tasks))


def _number(run: PlannedRun, row: PaperRow, measure: Measure, frame: pandas.DataFrame) -> float:
    """The value of a measure of a finished run, a share; NaN if it has none."""
    column = measure.column + (f"@{row.mode}" if row.mode else "")
    if measure.moment == "last" and not measure.of and column in frame:
        return float(frame[column][str(run.folder)])
    if row.mode and not measure.of:  # `rounds/` has the first mode alone
        return math.nan
    return at_moment(run.folder, measure, row.mode, run.window)


# the number of a run at the moment that a paper reports -------------------------------------------
def at_moment(folder: str | Path, measure: Measure, mode: str | None, window: range | None) -> float:
    """The value of a measure as a share; NaN if nothing was tested at that moment.

    Reads the column of `rounds/`, or with `measure.of` (a task of a union of text, named as in `tests/`) the accuracy
    on that test set in `mode`, by default the run's first mode. `window` are the rounds of the drift. `window_end` is
    the last test inside it, `window_mean` the mean of the tests inside it, `last` the last test.
    """
    run = Run(folder)
    if measure.of:
        tests = run.tests
        if not len(tests):
            return math.nan
        own = tests[(tests["set"] == measure.of) & (tests["mode"] == (mode or tests["mode"].iloc[0]))]
        values = (own["right"] / own["total"]).set_axis(own["done"])
    else:
        values = of_rounds(run.rounds, measure.column)
    if measure.moment != "last":
        if window is None:
            return math.nan
        values = values[(values.index >= window.start) & (values.index < window.stop)]
    if not len(values):
        return math.nan
    return float(values.mean() if measure.moment == "window_mean" else values.iloc[-1])


def of_rounds(rounds: pandas.DataFrame, column: str) -> pandas.Series:
    """The tested values of a column, by round over all tasks; empty if there is no such column."""
    if column not in rounds:
        return rounds.iloc[:0, 0]
    return rounds.set_index("done")[column].dropna()


# verdicts -----------------------------------------------------------------------------------------
def _judged(
    setting: Setting,
    name: str,
    rows: list[Compared],
    skipped: list[tuple[str, str]],
    other: str,
    margin: float,
    columns: set[str],
) -> Judged:
    done = [row for row in rows if row.ours]
    lower = any(smaller_is_better(column) for column in columns)
    judged_claims = claims(
        {row.name: row.printed for row in done},
        {row.name: row.ours for row in done},
        lower,
        {row.name: row.shares for row in done},
    )
    complete = not skipped and all(row.complete for row in rows)
    against = [] if other else [row.against for row in rows]
    text = verdict(complete, judged_claims, against) if rows or skipped else NOT_COMPARABLE
    why = _why(rows, judged_claims, skipped, other, margin)
    return _with_worth(Judged(setting, name, rows, judged_claims, text, why, other, skipped), against, margin)


def _with_worth(judged: Judged, against: Sequence[Against | None], margin: float) -> Judged:
    """Adds to a verdict how often it comes by chance, and the smallest difference that the seeds detect."""
    if judged.verdict in (INCOMPLETE, NOT_COMPARABLE) or not judged.rows:
        return judged
    if judged.verdict in (HOLDS, FAILS) or (judged.claims and judged.verdict not in (REPRODUCED, DIFFERS)):
        names = [row.name for row in judged.rows]
        pairs = tuple((names.index(each.better), names.index(each.worse), each.paired) for each in judged.claims)
        chance = chance_of_order(pairs, min(len(row.ours) for row in judged.rows))
        share = {HOLDS: chance.holds, FAILS: chance.fails}.get(judged.verdict, chance.inconclusive)
        judged = judged._replace(chance=share, chance_of="where no two methods differ")
        seen, of = seen_between(judged.claims), "between two methods"
    else:
        if judged.verdict in (REPRODUCED, DIFFERS) and all(row.std > 0 for row in judged.rows):
            spreads = tuple(Spread(row.std, len(row.ours), row.printed.std, row.printed.n) for row in judged.rows)
            differs, same = chance_against_paper(spreads, margin)
            if judged.verdict == REPRODUCED:
                judged = judged._replace(chance=same, chance_of=f"where one mean is {margin:g} points off")
            else:
                judged = judged._replace(chance=differs, chance_of="where every mean is the paper's")
        seen, of = seen_from_paper(against, margin), "from the paper's"
    seen = seen[np.isfinite(seen)]
    return judged._replace(seen=float(np.median(seen)), seen_of=of) if len(seen) else judged


def _why(
    rows: Sequence[Compared],
    judged_claims: Sequence[Claim],
    skipped: Sequence[tuple[str, str]],
    other: str,
    margin: float,
) -> str:
    """The reason for a verdict, as a sentence."""
    done = [row for row in rows if row.ours]
    if not done:
        reasons = list(dict.fromkeys(why for _, why in skipped))
        return "; ".join(reasons) if reasons else "the paper has no number" if not rows else "no run has finished"
    lacking = [f"{row.name} (seeds: {row.seeds})" for row in rows if not row.complete]
    lacking += [f"{name} (not run: {why})" for name, why in skipped]
    more = f" and {len(lacking) - 3} more methods" if len(lacking) > 3 else ""
    parts = [f"without {', '.join(lacking[:3])}{more}"] if lacking else []
    if other:
        parts.append(other)
    else:
        parts.append(f"{sum(row.p < LEVEL for row in rows)} of {len(rows)} shown to be within {margin:g} points")
    if not judged_claims:
        alone = len(rows) + len(skipped) < 2
        none = f"no two methods of the paper are {GAP:g} point and more than its own spread apart"
        parts.append("one method has no order" if alone else none)
        return "; ".join(parts)
    agree, significant = sum(claim.agrees for claim in judged_claims), sum(claim.significant for claim in judged_claims)
    wrong = [claim for claim in judged_claims if claim.reversed]
    pairs = "the one pair" if len(judged_claims) == 1 else f"{len(judged_claims)} pairs"
    parts.append(
        f"of {pairs} that the paper orders {agree} {'has' if agree == 1 else 'have'} its order, "
        f"{significant} significantly (Holm); {len(wrong)} {'is' if len(wrong) == 1 else 'are'} significantly reversed"
    )
    tau, p = rank_correlation([row.printed.mean for row in done], [row.mean for row in done])
    if not lacking and not math.isnan(tau):
        parts.append(f"Kendall's tau {tau:.2f} (p {p:.2g})")
    against = sorted((claim for claim in judged_claims if not claim.agrees), key=lambda claim: claim.ours)
    for claim in against[:3]:
        chance = f"Holm p {claim.holm:.2g}" if not math.isnan(claim.holm) else "not tested"
        parts.append(f"{claim.worse} is ahead of {claim.better} by {-claim.ours:.1f} ({chance})")
    if len(against) > 3:
        parts.append(f"and {len(against) - 3} more")
    return "; ".join(parts)


def common(runs: Sequence[PlannedRun]) -> str:
    """A sentence on what the seeds of these runs share although it should vary (`partition.seed`, `cohort.sampling:
    numpy_round_seed`); empty if nothing."""
    experiments = [run.experiment for run in runs]
    fixed = []
    if any(getattr(each.partition, "seed", None) is not None for each in experiments):
        fixed.append("the partition")
    if any(each.cohort.sampling == "numpy_round_seed" for each in experiments):
        fixed.append("the cohorts")
    if not fixed:
        return ""
    return (
        f"Our seeds share {' and '.join(fixed)}: their spread is that of first weights, batches and augmentation, and "
        f"the tests say nothing of {'other partitions' if 'the partition' in fixed else 'other cohorts'}."
    )


def table_of(judged: Sequence[Judged], scale: str, command: str) -> pandas.DataFrame:
    """A row for each number: cell, measure, method, the paper's and ours, the difference, the cell's verdict; and for
    each method without a number, with the reason as its `note`. `command` gives the same rows again at this `scale`."""
    rows: list[dict[str, Any]] = []
    nothing = ("paper", "paper_std", "ours", "ours_std", "diverged", "unfinished", "difference")
    for each in judged:
        cell = {
            "table": each.setting.key, "scale": scale, "command": command, "cell": each.setting.name,
            "measure": each.measure, "verdict": each.verdict, "chance": each.chance, "chance_of": each.chance_of,
            "seen": each.seen, "seen_of": each.seen_of, "because": each.why, "another": each.another,
            "common": each.common,
        }  # fmt: skip
        rows += [
            cell
            | {
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
                "p_difference": math.nan if row.against is None else float(row.against.other),
                "note": row.printed.note,
            }
            for row in each.rows
        ]
        without = [(name, f"not run: {why}") for name, why in each.skipped]
        without += [] if each.rows or without else [("-", "")]
        rows += [cell | dict.fromkeys(nothing, math.nan) | {"method": m, "n": 0, "note": note} for m, note in without]
    return pandas.DataFrame(rows)


# output --------------------------------------------------------------------------------------------
def render(rows: pandas.DataFrame) -> Table:
    """A cell for the terminal: the rows of `table_of` of one measure."""
    judged = rows.iloc[0]
    measure = "" if judged["measure"] == "accuracy" else f": {judged['measure']}"
    title = f"{judged['table']}, {judged['cell']}{measure}: {judged['verdict']}"
    right = [head != "method" for head in HEADS]
    caption = "\n".join([judged["because"], *worth(judged)])
    return rich_table(HEADS, map(_cells, rows.to_dict("records")), right, title, caption, title_justify="left")


def worth(row: Any) -> list[str]:
    """Of a row of `table_of`: how often the verdict comes by chance, and the smallest difference that the seeds detect,
    as sentences."""
    said = []
    if not math.isnan(row["chance"]):
        share = "below 0.1 %" if row["chance"] < 0.001 else f"{100 * row['chance']:.1f} %"
        said.append(f"comes by chance: {share} {row['chance_of']}")
    if not math.isnan(row["seen"]):
        power = f"with {100 * POWER:.0f} % power these seeds see"
        said.append(f"{power} {row['seen']:.1f} points {row['seen_of']}")
    return said


def in_common(judged: Sequence[Judged]) -> list[str]:
    """What the seeds share although it should vary; a sentence for each kind of cell."""
    return list(dict.fromkeys(each.common for each in judged if each.common))


def markdown(frame: pandas.DataFrame) -> str:
    """The page of the rows of `table_of`, of one table or several: verdicts, then each cell's numbers."""
    filters: dict[str, Callable[..., Any]] = {
        "some": lambda texts: [text for text in texts.fillna("").unique() if text],
        "table_name": table_name, "cells": _cells,
    }  # fmt: skip
    return filled(
        "flray.reference", "reproduce.md.j2", filters,
        sections=frame.groupby(["table", "scale"], sort=False), tables=tables(), heads=HEADS, worth=worth,
    )  # fmt: skip


def _cells(row: Mapping[Any, Any]) -> tuple[str, ...]:
    """A row of `table_of` as text, by `HEADS`: per cent, mean ± standard deviation over seeds."""
    theirs, ours = (_with_std(row[name], row[f"{name}_std"]) for name in ("paper", "ours"))
    lost = (0 if math.isnan(row[name]) else int(row[name]) for name in ("diverged", "unfinished"))
    difference = "-" if math.isnan(row["difference"]) else f"{row['difference']:+.2f}"
    return row["method"], theirs, ours, seeds_of(int(row["n"]), *lost), difference


def _with_std(mean: float, std: float | None) -> str:
    if math.isnan(mean):
        return "-"
    return f"{mean:.2f}" if std is None or math.isnan(std) else f"{mean:.2f} ± {std:.2f}"


def table_name(key: str) -> str:
    """`Table 2` of `fedsol/table2`."""
    return re.sub(r"^(table|figure)(\d+)", r"\1 \2", key.partition("/")[2]).capitalize()


def write(folder: Path, frame: pandas.DataFrame) -> list[Path]:
    """Writes the rows of `table_of` into `folder` as `reproduce.md` and `.csv`; returns their paths."""
    paths = [folder / f"reproduce.{kind}" for kind in ("md", "csv")]
    with writing(folder, kind=ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(paths[0], markdown(frame), kind=ConfigError)
    write_text(paths[1], csv(frame), kind=ConfigError)
    return paths


def put_on_page(page: Path, frame: pandas.DataFrame) -> Path:
    """Puts the rows of a table into the Parquet table beside a page of several tables, in place of its earlier ones,
    and writes the page anew.

    Returns the table's path. Raises `ConfigError` if they cannot be written.
    """
    beside = page.with_suffix(".parquet")
    old, key = read_table(beside, ROWS), ["table", "scale"]
    places = pandas.MultiIndex.from_frame(old[key])
    kept = old[~places.isin(pandas.MultiIndex.from_frame(frame[key]))]
    frame = pandas.concat([kept, frame], ignore_index=True) if len(kept) else frame
    write_table(frame, beside)
    write_text(page, markdown(frame), kind=ConfigError)
    return beside


def counts(judged: Sequence[Judged]) -> str:
    """`2 order holds, 1 not comparable`."""
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(each.verdict for each in judged).items())
