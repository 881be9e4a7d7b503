"""The output of `flray reproduce`: tables on the terminal, reproduce.md, a CSV, a figure, a page of several tables."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import ConfigError
from flray.files import atomic_write
from flray.reference.outcome import Compared, Judged, table_of
from flray.reference.verdict import POWER
from flray.results.blank import blank
from flray.results.figures import plain, save
from flray.results.spreadsheet import csv

if TYPE_CHECKING:
    from rich.table import Table

OURS, THEIRS = "#0072B2", "#E69F00"  # of Okabe and Ito, as in every figure
JOINED = "#9aa5b1"
HEADS = ("method", "paper", "ours", "seeds", "difference")


def title_of(judged: Judged) -> str:
    """`CIFAR-10, LDA 0.1`, and the measure if it is not the accuracy."""
    measure = "" if judged.measure == "accuracy" else f": {judged.measure}"
    return f"{judged.setting.name}{measure}"


def lines_of(row: Compared) -> tuple[str, ...]:
    """A row as text, by `HEADS`: per cent, mean ± standard deviation over seeds."""
    theirs = f"{row.printed.mean:.2f}" + ("" if row.printed.std is None else f" ± {row.printed.std:.2f}")
    ours = "-" if not row.ours else f"{row.mean:.2f}" + (f" ± {row.std:.2f}" if len(row.ours) > 1 else "")
    return row.name, theirs, ours, row.seeds, f"{row.mean - row.printed.mean:+.2f}" if row.ours else "-"


def render(judged: Judged) -> Table:
    """A cell for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(f"{judged.setting.key}, {title_of(judged)}: {judged.verdict}"),
        caption=escape("\n".join([judged.why, *worth(judged)])),
        title_justify="left",
        caption_justify="left",
    )
    for head in HEADS:
        table.add_column(head, justify="left" if head == "method" else "right")
    for row in judged.rows:
        table.add_row(*map(escape, lines_of(row)))
    return table


def worth(judged: Judged) -> list[str]:
    """How often the verdict comes by chance, and the smallest difference that the seeds detect, as sentences."""
    chance = [] if judged.by_chance == "-" else [f"comes by chance: {judged.by_chance}"]
    power = f"with {100 * POWER:.0f} % power these seeds see {judged.sees}"
    return chance + ([] if judged.sees == "-" else [power])


def in_common(judged: Sequence[Judged]) -> list[str]:
    """What the seeds share although it should vary; a sentence for each kind of cell."""
    return list(dict.fromkeys(each.common for each in judged if each.common))


def markdown(key: str, scale: str, judged: Sequence[Judged], seeds: int, again: str, picture: str) -> str:
    """The section about one table: verdicts, then every cell with its numbers and commands."""
    paper, table = judged[0].setting.paper, judged[0].setting.table
    counted = table.seeds or paper.seeds
    printed = f"over {counted} seeds" if counted and counted > 1 else "of one run"
    others = list(dict.fromkeys(each.another for each in judged if each.another))
    only = f" Ours is {'; '.join(others)}: only the order of methods can be compared." if others else ""
    alike = "".join(f" {text}" for text in in_common(judged))
    power = f"{100 * POWER:.0f} % power"
    lines = [
        f"## {paper.paper}, {table_name(key)}: {table.title} ({scale} scale)",
        "",
        f"{paper.source}. Per cent, mean ± standard deviation; the paper's {printed}, ours over {seeds}.{only}{alike}",
        "",
        f"| cell | verdict | comes by chance | seen with {power} | why |",
        "|---|---|---|---|---|",
        *(f"| {title_of(each)} | {each.verdict} | {each.by_chance} | {each.sees} | {each.why} |" for each in judged),
        "",
        f"![ours beside the paper's]({picture})",
        "",
        f"    {again}",
        "",
    ]
    for each in judged:
        lines += [f"### {title_of(each)}: {each.verdict}", ""]
        if each.rows:
            lines += ["| " + " | ".join(HEADS) + " |", "|---|---:|---:|---:|---:|"]
            lines += ["| " + " | ".join(lines_of(row)) + " |" for row in each.rows] + [""]
        notes: dict[str, list[str]] = {}
        for row in each.rows:
            notes.setdefault(row.printed.note, []).append(row.name)
        remarks = [f"* {_some(names, each)}: {note}." for note, names in notes.items() if note]
        reasons = [f"* {name} was not run: {why}." for name, why in each.skipped]
        lines += [*remarks, *reasons, ""] if remarks or reasons else []
        lines += [*(f"    {command}" for command in each.commands), ""]
    return "\n".join(lines).rstrip() + "\n"


def _some(names: Sequence[str], judged: Judged) -> str:
    """The names of rows, or "The paper" for all of them."""
    return "The paper" if len(names) == len(judged.rows) else ", ".join(names)


def table_name(key: str) -> str:
    """`Table 2` of `fedsol/table2`."""
    return re.sub(r"^(table|figure)(\d+)", r"\1 \2", key.partition("/")[2]).capitalize()


def figure(judged: Sequence[Judged]) -> Any:
    """Our mean and the paper's for every method, and single seeds as small dots; a row of panels for each cell.

    If all cells are the paper's own experiments, ours and the paper's numbers are joined on one axis. Otherwise only
    the order can be compared. Then each has its own axis, with a line through the methods: if the order holds, both
    lines go the same way.
    """
    shown = [each for each in judged if each.rows]
    heights, apart = [len(each.rows) for each in shown] or [1], any(each.another for each in shown)
    drawn = blank(9.6 if apart else 7.2, 1.0 + 0.34 * sum(heights) + 0.75 * len(heights))
    panels = drawn.subplots(len(heights), 1 + apart, squeeze=False, height_ratios=heights)
    for axes, each in zip(panels, shown, strict=False):
        panel(axes, each)
    if shown:
        handles = [
            panels[0, 0].scatter([], [], color=THEIRS, marker="D", s=36, label="paper"),
            panels[0, 0].scatter([], [], color=OURS, s=40, label="ours: mean, small dots: single seeds"),
        ]
        drawn.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
        for axis in panels[-1]:
            axis.set_xlabel("accuracy (%)" if all(each.measure == "accuracy" for each in shown) else "%")
    return drawn


def panel(axes: Sequence[Any], judged: Judged) -> None:
    """Draws one cell on one axis, or on two (the paper's and ours): methods from the paper's best at the top to its
    worst."""
    rows = sorted(judged.rows, key=lambda row: row.printed.mean, reverse=judged.lower)
    theirs, ours = axes[0], axes[-1]
    done = [(row.mean, y) for y, row in enumerate(rows) if row.ours]
    if theirs is not ours:
        theirs.plot([row.printed.mean for row in rows], range(len(rows)), color=JOINED, linewidth=1.2, zorder=1)
        ours.plot([x for x, _ in done], [y for _, y in done], color=JOINED, linewidth=1.2, zorder=1)
    for y, row in enumerate(rows):
        if row.ours:
            if theirs is ours:
                ours.plot([row.printed.mean, row.mean], [y, y], color=JOINED, linewidth=1.2, zorder=1)
            ours.scatter([*row.ours.values()], [y] * len(row.ours), color=OURS, s=9, alpha=0.6, linewidth=0, zorder=2)
            ours.scatter([row.mean], [y], color=OURS, s=40, zorder=3)
        theirs.scatter([row.printed.mean], [y], color=THEIRS, marker="D", s=36, zorder=3)
    for axis in axes:
        names = [row.name if row.complete else f"{row.name} (seeds: {row.seeds})" for row in rows]
        axis.set_yticks(range(len(rows)), names if axis is theirs else [""] * len(rows))
        axis.set_ylim(-0.6, len(rows) - 0.4)
        plain(axis)
    lower = " (lower is better)" if judged.lower else ""
    theirs.set_title(f"{title_of(judged)}{lower}: {judged.verdict}", fontsize=10, loc="left")


def write(folder: Path, key: str, scale: str, judged: Sequence[Judged], seeds: int, again: str) -> list[Path]:
    """Writes `reproduce.md`, `.csv` and `.png` into `folder`; returns their paths."""
    paths = [folder / f"reproduce.{kind}" for kind in ("md", "csv", "png")]
    folder.mkdir(parents=True, exist_ok=True)
    section = markdown(key, scale, judged, seeds, again, paths[2].name)
    with atomic_write(paths[0]) as path:
        path.write_text(f"# Reproduced\n\n{section}", encoding="utf-8")
    paths[1].write_text(csv(table_of(judged)), encoding="utf-8")
    save(figure(judged), paths[2])
    return paths


INTRODUCTION = """# The papers' tables, run here

Written by `flray reproduce TABLE ... --page FILE`: every section is one call, and a second call writes it again.
Nothing is pasted by hand. What a verdict means: [flray/reference](../flray/reference/README.md).
"""


def put_on_page(page: Path, key: str, scale: str, section: str, picture: Path) -> Path:
    """Puts the section of a table on a page of several, in place of an earlier one; the figure lies beside the page.

    Returns the figure's path. Raises `ConfigError` if the page cannot be written.
    """
    beside = page.with_name(f"{page.stem}_{key.replace('/', '_')}_{scale}.png")
    begin, end = f"<!-- {key} {scale} -->", f"<!-- end of {key} {scale} -->"
    block = f"{begin}\n{section.replace(f']({picture.name})', f']({beside.name})')}{end}\n"
    try:
        text = page.read_text(encoding="utf-8") if page.exists() else INTRODUCTION
        if begin in text and end in text:
            head, _, rest = text.partition(begin)
            after = rest.partition(end)[2].lstrip("\n")
            text = head + block + (f"\n{after}" if after else "")
        else:
            text = f"{text.rstrip()}\n\n{block}"
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, beside)
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {page}: {error.strerror or error}") from error
    return beside


def counts(judged: Sequence[Judged]) -> str:
    """`2 order holds, 1 not comparable`."""
    numbers: dict[str, int] = {}
    for each in judged:
        numbers[each.verdict] = numbers.get(each.verdict, 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in numbers.items())
