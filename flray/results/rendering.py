"""Tables on the terminal, in notebooks, in Markdown and as CSV: accuracies in per cent, bytes and seconds in units."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flray.algorithms import as_written
from flray.core.schema.errors import printable
from flray.core.schema.plain import written
from flray.core.schema.registry import readable
from flray.engine.progress import size
from flray.metrics.names import LAST, OF_ALARMS, OF_DRIFT, OF_EXEMPLARS, OF_TASKS, mode_words
from flray.results.alarms import PROBE
from flray.results.continual import is_column
from flray.results.intervals import ENDS, MIN_PAIRS, interval_words, is_never, is_share, lowest, seeds_of

if TYPE_CHECKING:
    import pandas
    from rich.table import Table as RichTable

_BRIEF = ("ACC", "FT", "drift/acc_before", "drift/acc_end", "drift/acc_final")  # columns that fit into a row a run
_OVER_ROUNDS = ("test/acc_best", "test/acc_mean10")  # over tasks or a drift the rounds of a run are not alike
_PARTS = {
    "Over tasks": (*OF_TASKS, *OF_EXEMPLARS), "Through the drift": OF_DRIFT, "Alarms of latent forgetting": OF_ALARMS,
}  # fmt: skip
_VARIANTS = ("ACC_pooled", "FT_std")
_OF_ALGORITHMS = ("algorithm", "algorithm.name", "detector")  # columns whose values are algorithms
# of the metric that a table is about
_STATISTICS = ("mean", "std", "low", "high", "diff", "diff_low", "diff_high", "boot_low", "boot_high")
_ENDS_OF_DIFFERENCES = ("diff_low", "diff_high", "boot_low", "boot_high")
_OF_MEANS = {"to/rounds": "to/rounds/mean"}  # shown with a decimal, as half the interval is
_HEADS = {
    "test/acc": "test acc %", "test/acc_best": "best %", "test/acc_mean10": f"last {LAST} tests %",
    "comm/bytes": "sent", "time/s": "time", "client_steps": "local steps", "client_flops": "local FLOPs",
    "comm/up_bytes": "sent up", "comm/down_bytes": "sent down",
    "proxy_examples": "proxy samples", "time/client_s": "clients' time", "time/server_s": "server's time",
    "client/acc_mean": "clients' mean %", "client/acc_p10": "p10 %", "client/acc_worst": "worst client %",
    "client/gini": "Gini", "client/acc_minority": "minority %", "class/acc_worst": "worst class %",
    "to/rounds": "rounds", "to/steps": "local steps", "to/bytes": "sent", "to/virtual": "virtual time",
    "val/acc": "val acc %", "low": "95 % from", "high": "to", "diff": "diff.", "diff_low": "95 % from",
    "diff_high": "to", "boot_low": "boot. from", "boot_high": "to", "effect": "effect g_z",
    "holm_t": "p (t)", "holm_wilcoxon": "p (W)",
    "task_prediction": "right task %", "drift/acc_before": "before %", "drift/acc_end": "end of window %",
    "drift/acc_missing": "missing classes %", "drift/acc_final": "final %", "drift/recovered_after": "recovered after",
    "detect/precision": "precision", "detect/recall": "recall", "detect/f1": "F1", "detect/f1_adjusted": "adjusted F1",
    "exemplars/kept": "exemplars", "exemplars/bytes": "exemplar bytes",
    "detect/delay": "delay", "detect/missed": "missed", "detect/on_before": "on before",
    "detect/false_alarms": "false alarms",
    "drift/worst_drop": "worst drop %", **{name: f"{name} %" for name in OF_TASKS if name != "task_prediction"},
}  # fmt: skip


def render(frame: pandas.DataFrame, title: str = "") -> RichTable:
    """A table of `compare` or `summary` for the terminal: accuracies in per cent, bytes and seconds in units."""
    right = [is_number(frame, column) for column in shown_columns(frame)]
    return rich_table(*cells(frame), right, title or _common_name(frame), caption_of(frame) or "")


def rich_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[bool], title: str, caption: str, **look: Any
) -> RichTable:
    """A table of plain text for the terminal; `right` marks the columns of numbers."""
    from rich.table import Table as RichTable
    from rich.text import Text

    below = Text(caption, "table.caption") if caption else None
    table = RichTable(title=Text(title, "table.title"), caption=below, caption_justify="left", **look)
    for head, number in zip(heads, right, strict=True):
        table.add_column(Text(head), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def spelled(frame: pandas.DataFrame) -> dict[str, pandas.DataFrame]:
    """The table of `by_mode` or `modes_of` for `render` and `to_markdown`: tables of tasks, drift and alarms (a row a
    detector) by title, with mean ± half the interval, which is not cut off, in one cell.

    Leaves out metrics without values, and variants that differ from another metric only in the divisor.
    """
    import pandas

    tables = {}
    table = frame
    lead = [c for c in map(str, frame) if not is_column(_of_end(c))]
    for title, metrics in _PARTS.items():
        frame, first = (table, lead) if metrics is not OF_ALARMS else (_by_detector(table, lead), [*lead, "detector"])
        names = [name for name in metrics if name in frame and frame[name].notna().any()]
        part = frame[frame[names].notna().any(axis=1)] if names else frame.iloc[:0]
        if part.empty:
            continue
        rows = part.to_dict("records")
        names = [name for name in names if name not in _VARIANTS]
        heads = dict(zip(names, _headings([*first, *names])[len(first) :], strict=True))
        texts = {heads[name]: [_spelled(name, row) for row in rows] for name in names}
        shown = pandas.DataFrame({**{column: part[column].tolist() for column in first}, **texts})
        notes = [_HALF] if _have_interval(texts) else []
        if _HEADS["detect/delay"] in texts:
            notes.append("delay: rounds to the first alarm that begins in the window")
        if _HEADS["detect/missed"] in texts:
            notes.append("missed: none begins in it; on before: one was on when it began")
        if _HEADS[OF_EXEMPLARS[0]] in texts:
            notes.append("exemplars are raw samples of earlier tasks, which their clients keep")
        lines = ["; ".join(notes), mode_words(part["mode"]) if metrics is not OF_ALARMS else ""]
        shown.attrs["caption"] = "\n".join(line for line in lines if line) or None
        tables[title] = shown
    return tables


def _by_detector(frame: pandas.DataFrame, lead: Sequence[str]) -> pandas.DataFrame:
    """A row for each detector, with the columns `detect/f1@fedmemo` as `detect/f1` and `detector`; the diagnostic comes
    last."""
    import pandas

    columns = [column for column in map(str, frame) if column.startswith("detect/")]
    whose = {column: _of_end(column.partition("@")[2]) for column in columns}
    rows = [
        {**{column: row[column] for column in lead}, "detector": detector}
        | {column.replace(f"@{detector}", ""): row[column] for column in columns if whose[column] == detector}
        for row in frame.to_dict("records")
        for detector in sorted(set(whose.values()), key=lambda name: (name == PROBE, name))
    ]
    names = dict.fromkeys(column.replace(f"@{detector}", "") for column, detector in whose.items())
    return pandas.DataFrame(rows, columns=[*lead, "detector", *names])


def spelled_numbers(frame: pandas.DataFrame, names: Sequence[str], note: str = "") -> pandas.DataFrame:
    """A table of settings for `render` and `to_markdown`: each of `names` with its `low` and `high` in one cell,
    mean ± half its interval, and how many seeds have it where these are fewer than `n`. Leaves out names without
    values."""
    import pandas

    rows, present = frame.to_dict("records"), [name for name in names if frame[name].notna().any()]
    ends = {f"{name}{end}" for name in names for end in ENDS}
    lead = {column: frame[column].tolist() for column in map(str, frame) if column not in ends}
    heads = dict(zip(present, _headings([*lead, *present])[len(lead) :], strict=True))
    texts = {heads[name]: [_spelled(name, row) for row in rows] for name in present}
    shown = pandas.DataFrame({**lead, **texts})
    half = _HALF if _have_interval(texts) else ""
    shown.attrs["caption"] = "; ".join(part for part in (half, note) if part) or None
    return shown


_HALF = "±: half the 95 % t-interval of the mean over seeds"


def _have_interval(texts: Mapping[str, Iterable[str]]) -> bool:
    return any("±" in text for column in texts.values() for text in column)


def _spelled(name: str, row: Mapping[Any, Any]) -> str:
    unit_of = _OF_MEANS.get(name, name)
    text, half = shown_value(unit_of, row[name]), row.get(f"{name}_half", math.nan)
    if text == "never" and row.get("n", 1) > 1:
        return f"never on {row[f'{name}_never']} seeds"
    seeds = seeds_of(name, row)
    if not math.isnan(half) and seeds >= MIN_PAIRS:
        number, *unit = shown_value(unit_of, half).split()
        if unit == text.split()[1:] and unit in ([], ["s"]):
            number = _alike(number, text.split()[0])
        # the mean's unit is not repeated: 1.46 MB ± 0.12, but 1.46 MB ± 439 kB
        text += f" ± {number}" if unit == text.split()[1:] else f" ± {' '.join([number, *unit])}"
    return text + few_words(seeds, row)


def few_words(seeds: int, row: Mapping[Any, Any]) -> str:
    """` (2 seeds)`: how many have a metric, where these are fewer than the row's `n`."""
    return f" ({seeds} seed{'s' * (seeds > 1)})" if seeds < row.get("n", 0) else ""


def _alike(number: str, mean: str) -> str:
    """A number with the decimals of the mean, unless none of its digits would be left."""
    if "," in number or "," in mean:
        return number
    text = f"{float(number):.{len(mean.partition('.')[2])}f}"
    return text if float(text) or not float(number) else number


def _enough(frame: pandas.DataFrame) -> pandas.Series:
    """The rows whose means have an interval: two seeds cannot tell."""
    import pandas

    if "n" not in frame:
        return pandas.Series(True, index=frame.index)
    return pandas.to_numeric(frame["n"]) >= MIN_PAIRS  # a table for a paper has it as text


def _of_end(column: str) -> str:
    return next((column.removesuffix(end) for end in ENDS if end and column.endswith(end)), column)


def to_markdown(frame: pandas.DataFrame) -> str:
    """The table of `render` as Markdown."""
    heads, rows = cells(frame)
    texts = [[in_markdown(cell).replace("\n", " ") for cell in row] for row in (heads, *rows)]
    widths = [max(3, *(len(row[i]) for row in texts)) for i in range(len(heads))]
    right = [is_number(frame, column) for column in shown_columns(frame)]
    lines = [
        "| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)) + " |"
        for row in texts
    ]
    rule = "| " + " | ".join("-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)) + " |"
    note = in_markdown(caption_of(frame) or "")
    return "\n".join([lines[0], rule, *lines[1:], *(["", note] if note else [])]) + "\n"


def in_markdown(text: str) -> str:
    """Plain text in Markdown: `|` ends no cell of a table, `<` begins no tag, `&` no entity."""
    return re.sub(r"[\\|]|<(?=[A-Za-z/!?])|&(?=#?\w+;)", r"\\\g<0>", text)


def caption_of(frame: pandas.DataFrame) -> str | None:
    """How the intervals of a table were computed; empty if it has none."""
    if "caption" in frame.attrs:
        return frame.attrs["caption"]  # type: ignore[no-any-return]
    if "low" not in frame:
        return None
    shown = [frame["low"].notna() & _enough(frame), *([frame["diff_low"].notna()] if "diff_low" in frame else [])]
    if not any(column.any() for column in shown):
        return None
    metric = frame.attrs.get("metric", "test/acc")
    words = interval_words(metric)
    if "diff" in frame and is_share(metric):
        words += f" (of a difference: {'not cut off' if lowest(metric) else 'at -100 and 100'})"
    if "diff" in frame and _constant(frame).any():
        words += "; none of a difference that is the same on every seed"
    return words


def _common_name(frame: pandas.DataFrame) -> str:
    """The experiment's name if all rows share it; it becomes the table's title instead of a column."""
    names = set(frame["name"]) if "name" in frame else set()
    return str(names.pop()) if len(names) == 1 else ""


def shown_columns(frame: pandas.DataFrame) -> list[str]:
    """The columns that `cells` shows, in their order: those that differ or carry a result. Options of an algorithm with
    one value in all its rows come last in a table of runs, and are left out of the others."""
    hidden = {"folder", "p_t", "p_wilcoxon"} | ({"name"} if _common_name(frame) else set())
    hidden |= {column for column in ("diverged", "unfinished") if column in frame and not frame[column].any()}
    # where every run was tested once the best and the mean of the last are that test again
    hidden |= {c for c in _OVER_ROUNDS if c in frame and frame[c].equals(frame["test/acc"])}
    brief: list[str] = []
    if "status" in frame:  # a row a run: by mode, and all of them, is a table of its own
        brief = [c for c in _BRIEF if c in frame and frame[c].notna().any()]
        hidden |= {c for c in map(str, frame) if is_column(c) and c not in brief}
        hidden |= set(_OVER_ROUNDS) if brief else set()
    if "status" in frame and (frame["status"] == "finished").all():
        hidden.add("status")
    if "pairs" in frame and (frame["pairs"] == frame["n"]).all():
        hidden.add("pairs")
    implied = _implied(frame)
    columns = [column for column in frame.columns if column not in (*hidden, *brief, *implied)]
    if brief:
        place = columns.index("test/acc") if "test/acc" in columns else len(columns)
        columns[place:place] = brief
    return [*columns, *(implied if "status" in frame else ())]


def _implied(frame: pandas.DataFrame) -> list[str]:
    """The options of algorithms that have one value in all rows of an algorithm, in a table of several algorithms."""
    options = [column for column in map(str, frame) if column.startswith("algorithm.")]
    if "algorithm" not in frame or frame["algorithm"].nunique() < 2 or not options:
        return []
    values = frame[options].map(str).groupby(frame["algorithm"]).nunique()
    return [column for column in options if (values[column] == 1).all()]


def cells(frame: pandas.DataFrame) -> tuple[list[str], list[list[str]]]:
    """(headings, rows of text) of a table for display, without columns that carry no information."""
    columns, metric = shown_columns(frame), frame.attrs.get("metric", "test/acc")
    heads = _headings([metric if column == "mean" else column for column in columns])
    units = [_OF_MEANS.get(metric, metric) if column in _STATISTICS else column for column in columns]
    rows = []
    constant, enough = _constant(frame).tolist(), _enough(frame).tolist()
    plainly = partial(
        shown_value, exact=digits_lost(frame, [name for name in columns if "." in name and "/" not in name])
    )
    for row, same, several in zip(frame[columns].itertuples(index=False), constant, enough, strict=True):
        shown = [_signed if column.startswith(("diff", "boot_")) else plainly for column in columns]
        texts = [printable(show(unit, value)) for show, unit, value in zip(shown, units, row, strict=True)]
        no_interval = (*(_ENDS_OF_DIFFERENCES if same else ()), *(() if several else ("low", "high")))
        rows.append(["-" if column in no_interval else text for column, text in zip(columns, texts, strict=True)])
    return [printable(head) for head in heads], rows


def _headings(columns: Sequence[str]) -> list[str]:
    """The :func:`heading` of each column (`rho` for `algorithm.rho`), or more of its name where several have that:
    a cost to a target beside the setting `rounds`."""
    words = list(map(heading, columns))
    pairs = zip(columns, words, strict=True)
    return [_longer(column, word) if words.count(word) > 1 else word for column, word in pairs]


def _longer(column: str, word: str) -> str:
    more = {"to": " to target", "detect": " of alarms"}.get(column.partition("/")[0], "")
    return word + more if column in _HEADS else column


def _constant(frame: pandas.DataFrame) -> pandas.Series:
    """The rows whose paired difference is the same on every seed: an interval of width 0 is none."""
    import pandas

    if "diff_low" not in frame:
        return pandas.Series(False, index=frame.index)
    return (frame["diff_low"] == frame["diff_high"]) & (frame["pairs"] > 1)


def heading(column: str) -> str:
    """The heading of a column: its words, or the last part of its key; `partition` for `partition.name`."""
    *sections, word = column.split(".")
    return _HEADS.get(column, sections[-1] if sections and word in ("name", "source") else word)


def is_number(frame: pandas.DataFrame, column: str) -> bool:
    """Whether all values of a column are numbers or missing."""
    return all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool))
        for value in frame[column].tolist()
    )


def shown_value(column: str, value: Any, exact: Container[str] = ()) -> str:
    """A value of a column as it is shown; per cent without the sign. That of one of the keys `exact` has all digits."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if column in exact:
        return exactly(value)
    if column in _OF_ALGORITHMS:
        return as_written(str(value))
    if is_never(column, value):
        return "never"
    if column.startswith("detect/") and not column.startswith("detect/delay"):
        return f"{value:.3g}" if column in ("detect/on_before", "detect/missed") else f"{value:.3f}"
    if column.partition("@")[0] in ("drift/recovered_after", "detect/delay"):
        return f"{value:.3g} rounds" if value != 1 else "1 round"
    if is_share(column):
        return f"{round(100 * value, 2) + 0.0:.2f}"  # no -0.00
    if column.endswith(("/bytes", "_bytes")):
        return size(value)
    if column == "client_flops":
        return size(value, "")
    if column in ("client_steps", "proxy_examples", "exemplars/kept", "to/steps"):
        return f"{value:,.0f}"
    if column == "to/rounds":
        return f"{value:.4g}"
    if column == _OF_MEANS["to/rounds"]:
        return f"{value:.1f}"
    if column == "to/virtual" and value < 120:
        return f"{value:.3g} s"
    if column.startswith("time/") or column == "to/virtual":
        return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"
    if column.startswith("holm_"):
        return f"{value:.2g}"
    if column == "client/gini":
        return f"{value:.3f}"
    if column in ("effect", "rank"):
        return f"{value:.2f}"
    return in_short(value)


def in_short(value: Any) -> str:
    """A value of a key in tables and names: a number with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else readable(str(value))


def exactly(value: Any) -> str:
    """A value of a key as a configuration has it, with all digits, and text that looks like a number in quotes."""
    return repr(float(value)) if isinstance(value, float) else written(value)


def digits_lost(frame: pandas.DataFrame, columns: Iterable[str]) -> set[str]:
    """Those of the columns in which two values are one `in_short`: 0.05 and 0.05000001."""
    values = {column: frame[column].dropna() for column in columns}
    return {column for column, known in values.items() if known.map(in_short).nunique() < known.nunique()}


def _signed(column: str, value: float) -> str:
    return ("+" if value > 0 else "-" if value < 0 else "") + shown_value(column, abs(value))


def spans(numbers: Iterable[int]) -> str:
    """`3-5, 9`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in parts)


# HTML ---------------------------------------------------------------------------------------------
class Table:
    """A table of `compare`, `summary`, `paired` or `spelled`, displayed as by `flray compare`; `frame` is the table
    itself, in plain numbers."""

    def __init__(self, frame: pandas.DataFrame) -> None:
        self.frame = frame

    def _repr_html_(self) -> str:
        heads, body = cells(self.frame)
        right = [is_number(self.frame, column) for column in shown_columns(self.frame)]
        bold = [f"<b>{html.escape(head)}</b>" for head in heads]
        table = html_table([bold, *([html.escape(cell) for cell in row] for row in body)], right)
        note = caption_of(self.frame)
        lines = html.escape(note or "").replace("\n", "<br>")
        return table + (f"<p><small>{lines}</small></p>" if note else "")

    def __repr__(self) -> str:
        return to_markdown(self.frame)


def html_table(rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> str:
    """An HTML table of cells that are HTML already; `right` marks the columns of numbers."""
    styles = [f' style="text-align: {"right" if number else "left"}"' for number in right]
    body = ""
    for row in rows:
        body += (
            "<tr>" + "".join(f"<td{styles[i] if styles else ''}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        )
    return f"<table>{body}</table>"


# JSON --------------------------------------------------------------------------------------------
def rows_for_json(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows with "never" where an infinity says that, because JSON has no infinity."""
    metric = frame.attrs.get("metric", "")

    def cell(name: str, value: Any) -> Any:
        return "never" if is_never(metric if name == "mean" else name, value) else value

    return [{str(name): cell(str(name), value) for name, value in row.items()} for row in frame.to_dict("records")]


# CSV that is safe in a spreadsheet -----------------------------------------------------------------
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of cells that spreadsheets compute (OWASP, CSV injection)


def csv(frame: pandas.DataFrame) -> str:
    """The table as CSV, without its index. A text that begins like a formula gets a leading `'`; numbers do not
    change."""
    named = frame.rename(columns=_plain)
    return named.map(_plain).to_csv(index=False)


def _plain(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return printable(f"'{value}" if value.startswith(FORMULA) else value)


# templates ----------------------------------------------------------------------------------------
def filled(package: str, template: str, filters: Mapping[str, Callable[..., Any]] = {}, **content: Any) -> str:
    """The text of a template of `package`, without blank lines at its end. In HTML values are escaped and printable.

    `x is nan` is a test of the templates.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    page = ".html" in template
    pages = Environment(
        loader=PackageLoader(package), trim_blocks=not page, lstrip_blocks=not page, undefined=StrictUndefined,
        autoescape=page, finalize=(lambda value: printable(value) if type(value) is str else value) if page else None,
    )  # fmt: skip
    pages.filters |= filters
    pages.tests["nan"] = math.isnan
    return pages.get_template(template).render(content).rstrip() + "\n"
