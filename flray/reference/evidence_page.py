"""The page of `flray papers evidence`: each claim in a sentence, its test and its figure; grouped by paper."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas

from flray.core.schema.errors import ConfigError
from flray.files import write_text, writing
from flray.metrics.names import LAST, METRICS, mode_meaning
from flray.reference.evidence import (
    Evidence,
    Tried,
    climbed,
    evidence,
    judge,
    mean_of,
    read_table,
)
from flray.reference.papers import papers
from flray.reference.verdict import FAILS, HOLDS, POWER
from flray.results.figures import one_axis, save
from flray.results.intervals import interval, is_share
from flray.results.rendering import filled, to_markdown

OURS, THEIRS = "#0072B2", "#E69F00"  # of Okabe and Ito, as in every figure
# colour, marker and its face, by verdict
MARKS = {HOLDS: (OURS, "o", OURS), FAILS: ("#D55E00", "s", "#D55E00")}
UNDECIDED = ("#777777", "o", "white")
SHOWN = (  # columns of a setting's table
    "ACC", "FT", "AIA", "task_prediction", "drift/acc_before", "drift/acc_missing", "test/acc_mean10", "test/acc",
)  # fmt: skip
ROWS = 12  # claims in a figure, at most
QUIET = ["begun", "begun_low", "begun_high", "quiet_rounds"]  # columns of detectors, without a drift and with one
DRIFT = ["f1", "f1_adjusted", "delay", "missed", "on_before", "named"]


def write_page(page: Path, table: pandas.DataFrame, content: Evidence) -> list[Path]:
    """Write the page, and beside it the figures of each setting with a tried claim. Returns the paths. Raises
    `ConfigError` if they cannot be written."""
    pictures: dict[str, list[Path]] = {}
    numbers = dict(enumerate(_in_order(table, content), 1))
    for name in dict.fromkeys(each.claim.setting for each in numbers.values() if each.seeds):
        own = [number for number, each in numbers.items() if each.claim.setting == name]
        parts = math.ceil(len(own) / ROWS)
        for part, rows in enumerate(np.array_split(own, parts), 1):
            path = page.with_name(f"{page.stem}_{name}{f'_{part}' if parts > 1 else ''}.png")
            drawn = {number: numbers[number] for number in rows.tolist()}
            save(trend(drawn) if content.settings[name].trend else forest(drawn), path)
            pictures.setdefault(name, []).append(path)
    with writing(page, kind=ConfigError):
        page.parent.mkdir(parents=True, exist_ok=True)
    names = {name: [path.name for path in paths] for name, paths in pictures.items()}
    write_text(page, markdown(table, content, names), kind=ConfigError)
    return [page, *itertools.chain(*pictures.values())]


def _in_order(table: pandas.DataFrame, content: Evidence) -> list[Tried]:
    """The claims by setting."""
    by_setting: dict[str, list[Tried]] = {}
    for each in judge(table, content):
        by_setting.setdefault(each.claim.setting, []).append(each)
    return [each for own in by_setting.values() for each in own]


# text -------------------------------------------------------------------------------------------------
def markdown(
    table: pandas.DataFrame, content: Evidence, pictures: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str:
    """The page; `pictures`: files of the figures by setting."""
    if content.detectors:
        return filled("flray.reference", "detectors.md.j2", {"scores": _scores}, content=content, table=table)
    tried, climbs = _in_order(table, content), climbed(table, content)
    by_setting = {name: [*own] for name, own in itertools.groupby(tried, key=lambda each: each.claim.setting)}
    by_paper: dict[str, list[str]] = {}  # settings by the paper of their first claim
    for name, own in by_setting.items():
        by_paper.setdefault(own[0].claim.paper, []).append(name)
    scales = dict.fromkeys(name for ladder in content.ladder for name in ladder.scales.values())
    meanings = {**METRICS, "test/acc_mean10": f"mean of `test/acc` over the last {LAST} tested rounds"}
    heads = {str(key).partition("@")[0] for key in table}
    words = {name: meanings[name].partition(";")[0] for name in SHOWN if name in heads}
    modes = dict.fromkeys(str(key).partition("@")[2] for key in table)
    filters: dict[str, Callable[..., Any]] = {
        "points": _points, "difference": difference, "columns": _columns, "verdicts": _verdicts,
        "rung": lambda tried: f"**{difference(tried)}**" if _significant(tried) else difference(tried),
        "hours": lambda rows: float(rows["time/s"].sum()) / 3600 if "time/s" in rows else 0.0,
        "short": lambda texts: ", ".join(sorted({str(each)[:8] for each in texts if each})),
    }  # fmt: skip
    return filled(
        "flray.reference", "evidence.md.j2", filters,
        content=content, introduction=content.introduction.format(power=round(100 * POWER)), table=table, tried=tried,
        by_setting=by_setting, pictures=pictures, kinds=_kinds(tried, content), papers=papers(), mean_of=mean_of,
        by_paper=by_paper, summary=summary(tried, content),
        numbers=_numbers, trend_sentence=trend_sentence, assumptions=assumptions, climbs=climbs, predicts=_predicts,
        scales=list(dict.fromkeys(scale for climb in climbs for scale in climb)),
        below={name: content.settings[name] for name in scales if name not in by_setting},
        words={name: text.partition("/: ")[2] or text for name, text in words.items()},
        modes={mode: text for mode in modes if (text := mode_meaning(mode))},
    )  # fmt: skip


def _kinds(tried: Sequence[Tried], content: Evidence) -> dict[str, list[Tried]]:
    """The claims of the papers in a setting like theirs, elsewhere, and those of ours."""
    kinds: dict[str, list[Tried]] = {
        "Claims with a printed number of a setting like this": [],
        "Claims whose printed number is of another data set or scale, or of another variant": [],
        "Claims without a printed number": [],
    }
    own, other, ours = kinds.values()
    for each in tried:
        elsewhere = each.claim.ours or content.settings[each.claim.setting].other
        (ours if each.printed is None else other if elsewhere else own).append(each)
    return kinds


def summary(tried: Sequence[Tried], content: Evidence) -> list[str]:
    """The sentences of the first screen, with the numbers of the table; one that the verdicts contradict says so."""
    by_sentence = {each.claim.claim: each for each in tried}
    said = []
    for sentence in content.summary:
        own = [by_sentence[name] for name in sentence.claims]
        text = sentence.text.format(*(difference(each).replace("(", "[").replace(")", "]") for each in own))
        so = all(each.verdict == verdict for each, verdict in zip(own, sentence.claims.values(), strict=True))
        said.append(text if so else f"Not so in these runs: {text}")
    return said


def _verdicts(group: Sequence[Tried]) -> str:
    counts = Counter(each.verdict for each in group)
    return ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())


def _columns(each: Tried) -> str:
    """The columns that a claim compares."""
    columns = dict.fromkeys(each.claim.column(side) for side in (each.claim.better, each.claim.worse))
    return " against ".join(f"`{column}`" for column in columns)


def assumptions(rows: pandas.DataFrame) -> list[dict[str, Any]]:
    """FedProj's Assumption 5.5 in the runs that observed it, in per cent of the observed steps."""
    seen = rows[rows["kappa/looks"].notna()] if "kappa/looks" in rows else rows.iloc[:0]
    found = []
    for run, own in seen.groupby("run"):
        looks, share = own["kappa/looks"], 100 * own["kappa/fails"]
        there, elsewhere = own["kappa/rises_there"].fillna(0), own["kappa/rises_elsewhere"].fillna(0)
        failed = looks * own["kappa/fails"]
        found.append({
            "run": run, "looks": looks.sum(), "fails": np.average(share, weights=looks), "least": share.min(),
            "most": share.max(), "there": 100 * (failed * there).sum() / max(failed.sum(), 1),
            "elsewhere": 100 * ((looks - failed) * elsewhere).sum() / max((looks - failed).sum(), 1),
        })  # fmt: skip
    return found


def ladder_sentence() -> str:
    """Whether orders at a small scale were those at the next larger one in the stored runs."""
    said = _predicts(climbed(read_table(), evidence()))
    return f"does a small scale predict a larger one? The ladder of flray papers evidence: {said}"


def _significant(tried: Tried) -> bool:
    return tried.low > 0 or tried.high < 0


def _predicts(climbs: Sequence[Mapping[str, Tried]]) -> str:
    """Whether the sign of a difference at one scale is that at the next larger one, in words."""
    run = [[tried for tried in climb.values() if tried.seeds] for climb in climbs]
    steps = [(small, large) for tried in run for small, large in itertools.pairwise(tried)]
    if not steps:
        return "Not known yet: no claim was run at two scales."
    same = [(small.mean > 0) == (large.mean > 0) for small, large in steps]
    sure = [kept for kept, step in zip(same, steps, strict=True) if all(map(_significant, step))]
    both = f"; where both are significant, in {sum(sure)} of {len(sure)}" if sure else ""
    return (
        f"In {sum(same)} of {len(steps)} steps from one scale to the next the difference keeps its sign (a coin would "
        f"give {len(steps) / 2:g}){both}. The steps are not independent: claims share runs."
    )


def _numbers(rows: pandas.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(metrics, the runs of a setting over the seeds that finished: run, mode, seeds, and of each metric in per cent
    the mean ± half the 95 % t-interval)."""
    done = rows[rows["status"] == "finished"]
    names = [
        name for name in SHOWN if any(str(key).partition("@")[0] == name and rows[key].notna().any() for key in rows)
    ]
    if "ACC" in names:  # over tasks: `test/acc` is of the last test of all of them, for the joint bound alone
        names = [name for name in names if not name.startswith("test/")]
        joint = done["ACC"].isna()
        done = done.assign(ACC=done["ACC"].where(~joint, done.get("test/acc")))
    modes = dict.fromkeys(name.partition("@")[2] for name in map(str, rows) if name.partition("@")[0] in SHOWN)
    table = []
    for run, tried in rows.groupby("run", sort=True):
        own, diverged = done[done["run"] == run], (tried["status"] == "diverged").sum()
        seeds = f"{own['seed'].nunique()}" + (f", {diverged} diverged" if diverged else "")
        for mode in ["", *(mode for mode in modes if mode)]:
            columns = [f"{name}@{mode}" if mode else name for name in names]
            cells = [_mean(own[column].dropna().tolist(), column) if column in own else "" for column in columns]
            if any(cells):
                table.append([str(run), mode or "first", seeds, *cells])
        if diverged and not len(own):
            table.append([str(run), "-", seeds, *[""] * len(names)])
    return names, table


def _mean(values: Sequence[float], column: str) -> str:
    if not values:
        return ""
    times = 100 if is_share(column) else 1
    mean, _, low, high = interval([times * value for value in values])
    return f"{mean:.1f}" + (f" ± {(high - low) / 2:.1f}" if len(values) > 1 else "")


def difference(each: Tried) -> str:
    if not each.seeds:
        return "-"
    if each.low == each.high:
        return f"{each.mean:+.1f} (on every seed)"
    return f"{each.mean:+.1f} ({each.low:+.1f} to {each.high:+.1f})"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"


def _scores(rows: pandas.DataFrame) -> str:
    """Detectors on the runs of one grid."""
    from flray.results.detectors import summary  # which imports torch

    return to_markdown(summary(rows)[DRIFT if rows["drift"].any() else QUIET].round(3).reset_index())


# figure -----------------------------------------------------------------------------------------------
def forest(tried: Mapping[int, Tried]) -> Any:
    """Forest plot: our difference with its 95 % interval and single seeds, the paper's as a diamond; a row for each
    claim, by its number on the page. Colour and mark are the verdict's."""
    names = [textwrap.fill(f"{number}  {each.claim.claim}", 94) for number, each in tried.items()]
    heights = [0.15 * (1 + name.count("\n")) + 0.11 for name in names]
    figure, axis = one_axis(None, 11.5, 1.2 + sum(heights))
    places = [sum(heights[:row]) + height / 2 for row, height in enumerate(heights)]
    axis.axvline(0, color="black", linewidth=0.8, zorder=1)
    for each, y in zip(tried.values(), places, strict=True):
        if each.printed is not None:
            axis.scatter([each.printed], [y], color=THEIRS, marker="D", s=30, zorder=2)
        if each.seeds:
            colour, marker, face = MARKS.get(each.verdict, UNDECIDED)
            axis.plot([each.low, each.high], [y, y], color=colour, linewidth=2, zorder=3, solid_capstyle="butt")
            axis.scatter([each.mean], [y], color=face, edgecolor=colour, marker=marker, s=36, zorder=4)
            seeds = [y + 0.09] * each.seeds
            axis.scatter(each.differences, seeds, color=colour, s=9, alpha=0.6, linewidth=0, zorder=3)
    axis.set_yticks(places, names, fontsize=8)
    axis.set_ylim(sum(heights) or 1.0, 0)
    axis.set_xlabel("points in the claim's direction")
    if max(map(abs, axis.get_xlim())) > 10:
        axis.set_xscale("symlog", linthresh=10, linscale=1.6)
        ticks = [-50, -20, -10, -5, 0, 5, 10, 20, 50]
        axis.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel("points in the claim's direction (logarithmic beyond 10)")
    _legend(figure, axis)
    return figure


def trend(tried: Mapping[int, Tried]) -> Any:
    """The difference of each claim against what its other side reaches, both with 95 % intervals and single seeds;
    points have the numbers of the claims on the page."""
    figure, axis = one_axis(None, 7.0, 4.2)
    axis.axhline(0, color="black", linewidth=0.8, zorder=1)
    for number, each in ((number, each) for number, each in tried.items() if each.seeds):
        colour, marker, face = MARKS.get(each.verdict, UNDECIDED)
        worse = [each.worse[seed] for seed in each.common]
        x, _, left, right = interval(worse)
        axis.plot([left, right], [each.mean] * 2, color=colour, linewidth=1, zorder=2)
        axis.plot([x, x], [each.low, each.high], color=colour, linewidth=2, zorder=3, solid_capstyle="butt")
        axis.scatter([x], [each.mean], color=face, edgecolor=colour, marker=marker, s=36, zorder=4)
        axis.scatter(worse, each.differences, color=colour, s=9, alpha=0.6, linewidth=0, zorder=3)
        axis.annotate(str(number), (x, each.high), (0, 3), textcoords="offset points", ha="center", fontsize=8)
    first = next(iter(tried.values())).claim
    axis.set_xlabel(f"{first.column(first.worse)} of {first.worse.run}, %")
    axis.set_ylabel("points in the claim's direction")
    _legend(figure, axis, paper=False)
    return figure


def trend_sentence(tried: Sequence[Tried]) -> str:
    """The change of the difference from the first claim that was run to the last one, paired by seed."""
    run = [each for each in tried if each.seeds]
    gains = [dict(zip(each.common, each.differences, strict=True)) for each in (run[0], run[-1])] if run else [{}, {}]
    seeds = sorted(gains[0].keys() & gains[1].keys())
    if len(run) < 2 or len(seeds) < 2:
        return ""
    mean, _, low, high = interval([gains[1][seed] - gains[0][seed] for seed in seeds])
    return (
        f"From the first of these claims to the last, the difference changes by {mean:+.1f} points ({low:+.1f} to "
        f"{high:+.1f}, paired over {len(seeds)} seeds)."
    )


def _legend(figure: Any, axis: Any, paper: bool = True) -> None:
    handles = [axis.scatter([], [], color=THEIRS, marker="D", s=30, label="paper")] if paper else []
    for verdict, (colour, marker, face) in {**MARKS, "neither, 95 % interval": UNDECIDED}.items():
        (handle,) = axis.plot(
            [], [], color=colour, marker=marker, markerfacecolor=face, linewidth=2, label=f"ours: {verdict}"
        )
        handles.append(handle)
    figure.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
