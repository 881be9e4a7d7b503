"""The page of `flray evidence`: each claim in a sentence, its test and its figure; a forest plot of all of them."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.metrics.names import LAST, METRICS, mode_meaning
from flray.reference.evidence import (
    NOT_RUN,
    OTHER_WEIGHTS,
    Evidence,
    EvidenceSetting,
    Learns,
    Tried,
    climbed,
    evidence,
    learned,
    read_table,
)
from flray.reference.page import OURS, THEIRS
from flray.reference.papers import papers
from flray.reference.verdict import FAILS, HOLDS, LEVEL, POWER
from flray.results.blank import blank
from flray.results.figures import plain, save
from flray.results.intervals import interval, is_share

if TYPE_CHECKING:
    import pandas

# colour, marker and its face, by verdict
MARKS = {HOLDS: (OURS, "o", OURS), FAILS: ("#D55E00", "s", "#D55E00")}
UNDECIDED = ("#777777", "o", "white")
SHOWN = (  # columns of a setting's table
    "ACC", "FT", "AIA", "task_prediction", "drift/acc_before", "drift/acc_missing", "test/acc_mean10", "test/acc",
)  # fmt: skip
INTRODUCTION = """# Evidence: the papers' claims, tried where they can fail

Written by `flray evidence` from `flray/reference/runs/evidence.parquet` and `flray/reference/evidence.yaml` alone.
`flray evidence --collect runs/evidence` writes finished runs into that table. The commands of this page read the data
below `FLRAY_DATA` ([data sets](../docs/pages/how-to/data.md)).

A difference is in points, positive in the claim's direction: the mean over seeds of paired differences, with its 95 %
t-interval. The verdict is a two-sided paired t-test at 5 %: where two methods do not differ, "order holds" and "order
does not hold" come in 2.5 % of the claims each. It does not correct for the number of claims; Holm's p counts all
tested claims of this page. "Visible" is the smallest true difference that these seeds find with {power} % probability.
A pair has the same seed and the same starting weights. Each seed has its own partition, cohorts, first head and
batches. All seeds of a setting share the pretrained weights and the order of the classes, so intervals leave these
out. The paper's difference is of its own, larger experiment: only the direction can be compared.
"""


def write_page(page: Path, table: pandas.DataFrame, tried: Sequence[Tried], content: Evidence) -> list[Path]:
    """Write the page, and its figures beside it: all claims, and one for each setting with a tried claim.

    Returns the paths. Raises `ConfigError` if they cannot be written.
    """
    pictures = {"": page.with_name(f"{page.stem}.png")}
    by_setting: dict[str, list[Tried]] = {}
    for each in tried:
        by_setting.setdefault(each.claim.setting, []).append(each)
    for name, own in by_setting.items():
        if any(each.seeds for each in own):
            pictures[name] = page.with_name(f"{page.stem}_{name}.png")
    numbers = dict(enumerate((each for own in by_setting.values() for each in own), 1))
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        for name, path in pictures.items():
            drawn = {
                number: each
                for number, each in numbers.items()
                if (each.claim.setting == name if name else each.seeds > 0)
            }
            _with_few_colours(save(forest(drawn, dots=bool(name)), path))
        page.write_text(markdown(table, by_setting, content, pictures), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {page}: {error.strerror or error}") from error
    return [page, *pictures.values()]


# text -------------------------------------------------------------------------------------------------
def markdown(
    table: pandas.DataFrame,
    by_setting: Mapping[str, Sequence[Tried]],
    content: Evidence,
    pictures: Mapping[str, Path],
) -> str:
    hours = float(table["time/s"].sum()) / 3600 if "time/s" in table else 0.0
    tried = [each for own in by_setting.values() for each in own]
    tested = sum(not math.isnan(each.p) for each in tried)
    lines = [
        INTRODUCTION.format(power=round(100 * POWER)),
        f"![our differences with their intervals, beside the papers']({pictures[''].name})",
        "",
        f"{len(tried)} claims, {tested} tested, {len(table)} runs, {hours:.1f} hours of one process with one thread "
        "(sum of the rounds' wall time, on cores that other work shared; so at most as many core-hours).",
        "",
        *_verdicts(tried, content),
        "",
        "| | claim | verdict | ours | paper | Holm's p | seeds |",
        "|---:|---|---|---:|---:|---:|---:|",
    ]
    for number, each in enumerate(tried, 1):
        holm = "-" if math.isnan(each.holm) else f"{each.holm:.2g}"
        lines.append(
            f"| {number} | {each.claim.claim} | {each.verdict} | {_difference(each)} | {_points(each.printed)} | "
            f"{holm} | {each.seeds} |"
        )
    for name, own in by_setting.items():
        lines += ["", *_section(name, content.settings[name], own, table, pictures.get(name))]
    if content.ladder:
        lines += ["", *_ladder(climbed(table, content), content, table, by_setting.keys())]
    lines += ["", *_words(table)]
    return "\n".join(lines).rstrip() + "\n"


def _verdicts(tried: Sequence[Tried], content: Evidence) -> list[str]:
    """How many claims have each verdict: the papers' own in a setting like theirs, elsewhere, and those of ours."""
    kinds: dict[str, list[Tried]] = {
        "Claims with a printed number of a setting like this": [],
        "Claims whose printed number is of another data set or scale, or of another variant": [],
        "Claims without a printed number": [],
    }
    own, other, ours = kinds.values()
    for each in tried:
        elsewhere = each.claim.ours or content.settings[each.claim.setting].other
        (ours if each.printed is None else other if elsewhere else own).append(each)
    lines = ["| | claims | verdicts | Holm's p below 0.05 |", "|---|---:|---|---:|"]
    for kind, group in kinds.items():
        counts = Counter(each.verdict for each in group)
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in counts.most_common())
        lines.append(f"| {kind} | {len(group)} | {verdicts} | {sum(each.holm < LEVEL for each in group)} |")
    return lines


def _words(table: pandas.DataFrame) -> list[str]:
    """The meanings of the columns and modes on the page."""
    words = {**METRICS, "test/acc_mean10": f"mean of `test/acc` over the last {LAST} tested rounds"}
    names = [name for name in SHOWN if any(str(key).partition("@")[0] == name for key in table)]
    modes = dict.fromkeys(str(key).partition("@")[2] for key in table)
    lines = [
        "## Words",
        "",
        "± is half the 95 % t-interval over seeds. `ACC@tip_batch` is ACC in that inference mode.",
        "",
    ]
    meanings = {name: words[name].partition(";")[0] for name in names}
    lines += [f"* `{name}`: {text.partition('/: ')[2] or text}." for name, text in meanings.items()]
    return lines + [f"* mode `{mode}`: {text}." for mode in modes if (text := mode_meaning(mode))]


def _section(
    name: str, setting: EvidenceSetting, tried: Sequence[Tried], table: pandas.DataFrame, picture: Path | None
) -> list[str]:
    rows = table[table["setting"] == name]
    lines = [f"## {name}", "", f"{setting.about}.", ""]
    if setting.learns is not None:
        lines += [_condition(table, name, setting.learns), ""]
    if picture is not None:
        lines += [f"![differences of single seeds, their mean and interval]({picture.name})", ""]
    for each in tried:
        lines += [f"**{each.claim.claim}** {_sentence(each, setting)}", ""]
    if len(rows):
        lines += [*_numbers(rows), ""]
        flops = float(rows["client_flops"].sum())
        work = f", {flops / 1e15:.2f} PFLOP of local steps" if flops > 0 else ""
        lines += [
            f"{len(rows)} runs, {float(rows['time/s'].sum()) / 3600:.2f} hours of one process{work}{_origin(rows)}.",
            "",
        ]
    lines += _assumption(rows)
    return [*lines, *(f"    {command}" for command in setting.commands(name))]


def _origin(rows: pandas.DataFrame) -> str:
    """The starting weights and the commits of the runs."""
    weights, commits = (sorted({str(each)[:8] for each in rows[key] if each}) for key in ("weights", "git"))
    parts = [f"weights {', '.join(weights)}"] if weights else []
    parts += [f"commits {', '.join(commits)}"] if commits else []
    return "".join(f"; {part}" for part in parts)


def _assumption(rows: pandas.DataFrame) -> list[str]:
    """FedProj's Assumption 5.5 in the runs that observed it."""
    seen = rows[rows["kappa/looks"].notna()] if "kappa/looks" in rows else rows.iloc[:0]
    lines = []
    for run, own in seen.groupby("run"):
        looks, share = own["kappa/looks"], 100 * own["kappa/fails"]
        there, elsewhere = own["kappa/rises_there"], own["kappa/rises_elsewhere"]
        failed = looks * own["kappa/fails"]
        fails = f"{np.average(share, weights=looks):.1f} % of {looks.sum():.0f} observed local steps"
        words = (
            f"{run}: Assumption 5.5 (kappa > 0, the cosine of the global and the memory gradient) fails in {fails} (by "
            f"seed {share.min():.1f} to {share.max():.1f} %)."
        )
        if failed.sum():
            raised = 100 * float((failed * there.fillna(0)).sum() / failed.sum())
            held = float((looks - failed).sum())
            other = 100 * float(((looks - failed) * elsewhere.fillna(0)).sum()) / max(held, 1)
            words += (
                f" There a step along the projected gradient raises the test loss, to first order, in {raised:.1f} % "
                f"of the steps{'; in the others in ' + format(other, '.1f') + ' %' if held else ''}."
            )
        lines += [words, ""]
    return lines


def _ladder(
    climbs: Sequence[Mapping[str, Tried]], content: Evidence, table: pandas.DataFrame, shown: Collection[str]
) -> list[str]:
    """The claims at several scales; `shown`: settings whose commands stand on the page already."""
    scales = list(dict.fromkeys(scale for climb in climbs for scale in climb))
    lines = [
        "## A ladder: does a small scale predict a larger one?",
        "",
        "The same difference at several scales, with its 95 % interval. Bold: the interval, not corrected for the "
        "number of claims, excludes 0. Tiny and small start from random weights, evidence from pretrained ones: a step "
        "changes both.",
        "",
        "| claim | " + " | ".join(scales) + " | paper |",
        "|---|" + "---:|" * (len(scales) + 1),
    ]
    for climb in climbs:
        first = next(iter(climb.values()))
        cells = [_rung(climb[scale]) if scale in climb else "" for scale in scales]
        lines.append(f"| {first.claim.claim} | {' | '.join(cells)} | {_points(first.printed)} |")
    lines += ["", _predicts(climbs), ""]
    for name in dict.fromkeys(setting for ladder in content.ladder for setting in ladder.scales.values()):
        if name not in shown:
            setting, runs = content.settings[name], int((table["setting"] == name).sum())
            lines += [f"{name}: {setting.about}; {runs} runs.", ""]
            lines += [*(f"    {command}" for command in setting.commands(name)), ""]
    return lines


def ladder_sentence() -> str:
    """Whether orders at a small scale were those at the next larger one in the stored runs."""
    said = _predicts(climbed(read_table(), evidence()))
    return f"does a small scale predict a larger one? The ladder of flray evidence: {said}"


def _rung(tried: Tried) -> str:
    return f"**{_difference(tried)}**" if _significant(tried) else _difference(tried)


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


def _condition(table: pandas.DataFrame, name: str, condition: Learns) -> str:
    """Whether the setting can judge, in words."""
    mean, seeds = learned(table, name, condition)
    wanted = f"Condition: {condition.run} has at least {condition.at_least:g} % of {condition.metric}. "
    note = f" {condition.note}" if condition.note else ""
    if not seeds:
        return f"{wanted}Not known yet.{note}"
    return f"{wanted}{'Met' if mean >= condition.at_least else 'Not met'}: {mean:.1f} % over {seeds} seeds.{note}"


def _sentence(each: Tried, setting: EvidenceSetting) -> str:
    """The test of a claim in words."""
    claim = each.claim
    note = f" {claim.note}" if claim.note else ""
    if each.printed is not None and setting.other:
        note = f" {setting.other}{note}"
    theirs = (
        f" The paper ({papers()[claim.paper].paper}) prints {_points(each.printed)}."
        if each.printed is not None
        else ""
    )
    if each.verdict == NOT_RUN:
        return f"Not run.{theirs}{note}"
    if each.verdict == OTHER_WEIGHTS:
        return f"Not tested: its runs start from different weights.{theirs}{note}"
    columns = dict.fromkeys(claim.column(side) for side in (claim.better, claim.worse))
    by = " against ".join(f"`{column}`" for column in columns)
    lost = f" {each.diverged} runs diverged." if each.diverged else ""
    seen = "" if math.isnan(each.seen) else f"; visible {each.seen:.1f} points"
    p = "" if math.isnan(each.p) else f"; p {each.p:.2g}, Holm {each.holm:.2g}"
    ours = f"{each.verdict.capitalize()} by {by}: {_difference(each)} over {each.seeds} seeds{p}{seen}."
    return f"{ours}{theirs}{lost}{note} Its runs took {each.hours:.2f} hours."


def _numbers(rows: pandas.DataFrame) -> list[str]:
    """The runs of a setting over seeds, in per cent: mean ± half the 95 % t-interval; a line for each mode."""
    done = rows[rows["status"] == "finished"]
    names = [
        name for name in SHOWN if any(str(key).partition("@")[0] == name and rows[key].notna().any() for key in rows)
    ]
    if "ACC" in names:  # over tasks: `test/acc` is of the last test of all of them, for the joint bound alone
        names = [name for name in names if not name.startswith("test/")]
        joint = done["ACC"].isna()
        done = done.assign(ACC=done["ACC"].where(~joint, done.get("test/acc")))
    modes = dict.fromkeys(name.partition("@")[2] for name in map(str, rows) if name.partition("@")[0] in SHOWN)
    lines = [
        "| run | mode | seeds | " + " | ".join(names) + " |",
        "|---|---|---:|" + "---:|" * len(names),
    ]
    for run, own in done.groupby("run", sort=True):
        for mode in ["", *(mode for mode in modes if mode)]:
            columns = [f"{name}@{mode}" if mode else name for name in names]
            cells = [_mean(own[column].dropna().tolist(), column) if column in own else "" for column in columns]
            if any(cells):
                lines.append(f"| {run} | {mode or 'first'} | {own['seed'].nunique()} | " + " | ".join(cells) + " |")
    return lines


def _mean(values: Sequence[float], column: str) -> str:
    if not values:
        return ""
    times = 100 if is_share(column) else 1
    mean, _, low, high = interval([times * value for value in values])
    return f"{mean:.1f}" + (f" ± {(high - low) / 2:.1f}" if len(values) > 1 else "")


def _difference(each: Tried) -> str:
    if not each.seeds:
        return "-"
    return f"{each.mean:+.1f} ({each.low:+.1f} to {each.high:+.1f})"


def _points(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}"


# figure -----------------------------------------------------------------------------------------------
def forest(tried: Mapping[int, Tried], dots: bool = False) -> Any:
    """Forest plot: our difference with its 95 % interval, the paper's as a diamond; a row for each claim, by its number
    on the page. Colour and mark are the verdict's.

    `dots`: single seeds as well. Claims that were not run have no mark of ours.
    """
    names = [textwrap.fill(f"{number}  {each.claim.claim}", 94) for number, each in tried.items()]
    heights = [0.15 * (1 + name.count("\n")) + 0.11 for name in names]
    figure = blank(11.5, 1.2 + sum(heights))
    axis: Any = figure.subplots()
    places = [sum(heights[:row]) + height / 2 for row, height in enumerate(heights)]
    axis.axvline(0, color="black", linewidth=0.8, zorder=1)
    for each, y in zip(tried.values(), places, strict=True):
        if each.printed is not None:
            axis.scatter([each.printed], [y], color=THEIRS, marker="D", s=30, zorder=2)
        if each.seeds:
            colour, marker, face = MARKS.get(each.verdict, UNDECIDED)
            axis.plot([each.low, each.high], [y, y], color=colour, linewidth=2, zorder=3, solid_capstyle="butt")
            axis.scatter([each.mean], [y], color=face, edgecolor=colour, marker=marker, s=36, zorder=4)
            if dots:
                seeds = [y + 0.09] * each.seeds
                axis.scatter(each.differences, seeds, color=colour, s=9, alpha=0.6, linewidth=0, zorder=3)
    axis.set_yticks(places, names, fontsize=8)
    axis.set_ylim(sum(heights) or 1.0, 0)
    axis.set_xscale("symlog", linthresh=10, linscale=1.6)
    ticks = [-50, -20, -10, -5, 0, 5, 10, 20, 50]
    axis.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("points in the claim's direction (logarithmic beyond 10)")
    plain(axis)
    _legend(figure, axis)
    return figure


def _with_few_colours(path: Path) -> None:
    """Writes the picture again with 64 colours, a third of the bytes: `ray job submit` sends it with the repository."""
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def _legend(figure: Any, axis: Any) -> None:
    handles = [axis.scatter([], [], color=THEIRS, marker="D", s=30, label="paper")]
    for verdict, (colour, marker, face) in {**MARKS, "neither, 95 % interval": UNDECIDED}.items():
        (handle,) = axis.plot(
            [], [], color=colour, marker=marker, markerfacecolor=face, linewidth=2, label=f"ours: {verdict}"
        )
        handles.append(handle)
    figure.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
