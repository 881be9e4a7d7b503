"""The output of `flray papers reproduce`: tables on the terminal, reproduce.md, a CSV, a page."""

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
from flray.reference.outcome import Judged, seeds_of
from flray.reference.papers import tables
from flray.reference.verdict import POWER
from flray.results.rendering import csv, filled, rich_table

if TYPE_CHECKING:
    from rich.table import Table

OURS, THEIRS = "#0072B2", "#E69F00"  # of Okabe and Ito, as in every figure
STORED = HERE / "runs" / "reproduced.parquet"  # rows of the tables that were run here
HEADS = ("method", "paper", "ours", "seeds", "difference")


def render(rows: pandas.DataFrame) -> Table:
    """A cell for the terminal: the rows of `table_of` of one measure."""
    judged = rows.iloc[0]
    measure = "" if judged["measure"] == "accuracy" else f": {judged['measure']}"
    title = f"{judged['table']}, {judged['cell']}{measure}: {judged['verdict']}"
    right = [head != "method" for head in HEADS]
    caption = "\n".join([judged["because"], *worth(judged)])
    return rich_table(HEADS, map(_cells, rows.to_dict("records")), right, title, caption, title_justify="left")


def worth(judged: Any) -> list[str]:
    """Of a row of `table_of`: how often the verdict comes by chance, and the smallest difference that the seeds detect,
    as sentences."""
    said = []
    if not math.isnan(judged["chance"]):
        share = "below 0.1 %" if judged["chance"] < 0.001 else f"{100 * judged['chance']:.1f} %"
        said.append(f"comes by chance: {share} {judged['chance_of']}")
    if not math.isnan(judged["seen"]):
        power = f"with {100 * POWER:.0f} % power these seeds see"
        said.append(f"{power} {judged['seen']:.1f} points {judged['seen_of']}")
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
