"""Tables to paste into a paper: a row a setting, mean ± half the 95 % interval, as LaTeX (booktabs) and Markdown.

Digits by the interval: half of it has one significant digit, two if the first is 1, and never less than whole numbers;
the mean ends at the same place. No number has an exponent.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flray.results.answers import never, survivors
from flray.results.by_mode import by_mode
from flray.results.intervals import MIN_PAIRS, half_width, is_share, seeds_of
from flray.results.paired import describe
from flray.results.rendering import digits_lost, few_words, filled, heading, shown_columns, shown_value
from flray.results.tables import keys_of, summary

if TYPE_CHECKING:
    import pandas

TASKS = ("ACC", "FT", "task_prediction")  # of `metrics.names.OF_TASKS`, those that papers print
UNITS = {"comm/bytes": "bytes", "time/s": "s", "detect/delay": "rounds", "drift/recovered_after": "rounds"}
NOISE = 1e-12  # of the mean: a smaller interval is rounding of equal numbers
ESCAPED = {
    "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}", "<": r"\textless{}",
    ">": r"\textgreater{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}",
    "|": r"\textbar{}", "[": "{[}",  # after the end of a row it would begin an argument
}  # fmt: skip


def paper_table(frame: pandas.DataFrame, metric: str = "test/acc") -> pandas.DataFrame:
    """Text cells of `compare`'s table over seeds: the keys of a setting, `n` seeds, and `metric` (shares in per cent);
    over tasks the inference mode, ACC, FT and right tasks instead of `test/acc`, which stands for the ACC of a setting
    without tasks. `attrs["caption"]` says so, and what ± is."""
    import pandas

    modes = by_mode(frame) if metric == "test/acc" else frame.iloc[:0]
    names = [name for name in TASKS if name in modes]
    table = summary(frame, metric)
    table["mean_half"] = [half_width(std, n) for std, n in zip(table["std"], table["n"], strict=True)]
    without, exact = table.iloc[:0], digits_lost(frame, keys_of(frame))
    if len(modes) and names:
        keys = keys_of(frame)
        known = {(row.get("name"), describe(row, exact)) for row in modes[keys].to_dict("records")}
        rows_of = table[keys].to_dict("records")
        without = table[[(row.get("name"), describe(row, exact)) not in known for row in rows_of]]
        ends = {"mean": "ACC", "mean_half": "ACC_half"}
        table = pandas.concat([modes, without.rename(columns=ends)[[*keys, "n", *ends.values()]].assign(mode="-")])
    else:
        names = ["mean"]
    columns = shown_columns(table[[key for key in (*keys_of(frame), "mode") if key in table]])
    lead = [key for key in columns if key in table]
    values = {name: _measured(metric if name == "mean" else name) for name in names}
    short = Counter([*map(heading, lead), "n", *values.values()])
    heads = {key: heading(key) if short[heading(key)] == 1 else key for key in lead}  # partition.name, model.name
    rows: list[dict[str, Any]] = []
    for row in table.to_dict("records"):
        cells = {head: _cell(name, row, metric) for name, head in values.items()}
        rows.append(
            {**{head: shown_value(key, row[key], exact) for key, head in heads.items()}, "n": str(row["n"]), **cells}
        )
    shown = pandas.DataFrame(rows)
    words = ["±: half the 95 % t-interval of the mean over n seeds"]
    if not (table["n"] >= MIN_PAIRS).any():
        words = ["mean over n seeds; two seeds have no interval" if (table["n"] > 1).any() else "one seed each"]
    words += [f"{setting}: {what}" for setting, what in survivors(frame, metric).items()]
    words += [sentence.rstrip(".") for sentence in never(frame, metric)]
    words += [
        f"{describe(setting)} has no tasks, its ACC is test/acc"
        for setting in without.loc[without["n"] > 0, keys_of(frame)].to_dict("records")
    ]
    shown.attrs["caption"] = "; ".join(words)
    return shown


def _measured(metric: str) -> str:
    """The heading of a metric with its unit."""
    head, unit = heading(metric), UNITS.get(metric.partition("@")[0])
    if unit is not None:
        return f"{head} ({unit})"
    return f"{head} %" if is_share(metric) and "%" not in head else head


def _cell(name: str, row: dict[Any, Any], metric: str) -> str:
    unit = metric if name == "mean" else name
    scale = 100 if is_share(unit) else 1
    mean, half = (scale * float(row.get(f"{name}{end}", math.nan)) for end in ("", "_half"))
    seeds = seeds_of(name, row)
    half = half if seeds >= MIN_PAIRS else math.nan
    if math.isinf(mean):
        return shown_value(unit, mean)
    if math.isnan(half) and scale == 100 and not math.isnan(mean):
        return f"{mean + 0.0:.2f}{few_words(seeds, row)}"  # per cent of one or two seeds
    return with_interval(mean, half) + few_words(seeds, row)


def with_interval(mean: float, half: float) -> str:
    """`93.7 ± 3.6` with the digits that the interval leaves; without an interval four significant ones; `-` for NaN."""
    if math.isnan(mean):
        return "-"
    if math.isnan(half):
        return _significant(mean)
    if half <= NOISE * abs(mean):
        return f"{_significant(mean)} ± 0"
    place = math.floor(math.log10(half))
    decimals = max(-place + (1 if half / 10**place < 2 else 0), 0)
    return f"{round(mean, decimals) + 0.0:.{decimals}f} ± {half:.{decimals}f}"  # no -0


def _significant(number: float) -> str:
    """At least four significant digits, and all before the point."""
    place = math.floor(math.log10(abs(number))) if number else 0
    text = f"{number + 0.0:.{max(3 - place, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def latex_table(table: pandas.DataFrame) -> str:
    """The cells as a LaTeX `table` with the rules of booktabs; `\\usepackage{booktabs}` in the preamble."""
    columns = "".join("r" if _is_numeric(table[name]) else "l" for name in table)
    heads, rows = [str(name) for name in table], table.to_numpy().tolist()
    content = {"caption": table.attrs["caption"], "columns": columns, "heads": heads, "rows": rows}
    return filled("flray.results", "table.tex.j2", {"escaped": _escaped}, **content)


def _is_numeric(cells: Sequence[str] | Any) -> bool:
    return all(cell == "-" or cell.partition(" ")[0].lstrip("-").replace(".", "", 1).isdigit() for cell in cells)


def _escaped(text: str) -> str:
    if re.fullmatch(r"-[\d.]+", text):  # a minus, not a hyphen
        return f"${text}$"
    safe = "".join(ESCAPED.get(letter, letter) for letter in text)
    number, sign, half = safe.partition(" ± ")
    return rf"${number} \pm {half}$" if sign else safe.replace("±", r"$\pm$")
