"""The output of `flray papers reproduce`: tables on the terminal, reproduce.md, a CSV, a figure, a page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas

from flray.core.schema.errors import ConfigError
from flray.files import write_text, writing
from flray.reference.evidence import HERE, ROWS, read_table, write_table
from flray.reference.outcome import Compared, Judged, by_chance, seeds_of, sees
from flray.reference.papers import tables
from flray.reference.verdict import POWER
from flray.results.figures import blank, plain, save
from flray.results.rendering import csv, filled

if TYPE_CHECKING:
    from rich.table import Table

OURS, THEIRS = "#0072B2", "#E69F00"  # of Okabe and Ito, as in every figure
JOINED = "#9aa5b1"
STORED = HERE / "runs" / "reproduced.parquet"  # rows of the tables that were run here
HEADS = ("method", "paper", "ours", "seeds", "difference")


def title_of(judged: Judged) -> str:
    """`CIFAR-10, LDA 0.1`, and the measure if it is not the accuracy."""
    measure = "" if judged.measure == "accuracy" else f": {judged.measure}"
    return f"{judged.setting.name}{measure}"


def lines_of(row: Compared) -> tuple[str, ...]:
    """A row as text, by `HEADS`: per cent, mean ± standard deviation over seeds."""
    theirs, ours = _with_std(row.printed.mean, row.printed.std), _with_std(row.mean, row.std)
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


def markdown(frame: pandas.DataFrame, picture: str = "") -> str:
    """The page of the rows of `table_of`, of one table or several: verdicts, then each cell's numbers."""
    filters: dict[str, Callable[..., Any]] = {
        "some": lambda texts: [text for text in texts.fillna("").unique() if text],
        "table_name": table_name, "cells": _cells,
    }  # fmt: skip
    return filled(
        "flray.reference", "reproduce.md.j2", filters,
        sections=frame.groupby(["table", "scale"], sort=False), tables=tables(), picture=picture, heads=HEADS,
        power=round(100 * POWER), by_chance=by_chance, sees=sees,
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


def write(folder: Path, judged: Sequence[Judged], frame: pandas.DataFrame) -> list[Path]:
    """Writes `reproduce.md`, `.csv` and `.png` into `folder`, `frame` being `table_of(judged)`; returns their paths."""
    paths = [folder / f"reproduce.{kind}" for kind in ("md", "csv", "png")]
    with writing(folder, kind=ConfigError):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(paths[0], markdown(frame, paths[2].name), kind=ConfigError)
    write_text(paths[1], csv(frame), kind=ConfigError)
    save(figure(judged), paths[2])
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
