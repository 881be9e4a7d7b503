"""What runs say, on one page: which is better, by how much, how sure, at what cost, and what was forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.core.disk import whole
from flray.core.errors import ConfigError, unknown
from flray.results import pictures
from flray.results.answers import at_what_cost, costs_of, labels, verdict, what_was_forgotten
from flray.results.by_mode import by_mode
from flray.results.paired import caption, paired
from flray.results.readable import Broken, found, sound
from flray.results.rendering import cells, is_number, spelled, to_markdown
from flray.results.tables import compare, settings, summary
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

FORMATS = ("html", "md", "json")


@dataclass(frozen=True)
class Report:
    """Everything that the page shows; `frame`, `table`, `modes` and `costs` are DataFrames.

    `answers` are sentences. `table` has a row a setting over its seeds, with paired differences where `against` was
    given. `modes` is empty without tasks or a drift. `same` are the configuration's keys that all runs share, `changed`
    those that differ, by run. `pictures` are (title, what it shows, inline SVG).
    """

    title: str
    metric: str
    answers: tuple[str, ...]
    frame: pandas.DataFrame
    table: pandas.DataFrame
    modes: pandas.DataFrame
    costs: pandas.DataFrame
    same: Mapping[str, Any]
    changed: pandas.DataFrame
    pictures: tuple[tuple[str, str, str], ...]
    broken: tuple[Broken, ...]
    notes: tuple[str, ...]


def report(
    folders: Iterable[str | Path | Run],
    out: str | Path = "report.html",
    format: str = "html",
    metric: str = "test/acc",
    against: str | None = None,
) -> Path:
    """Write one self-contained page about runs: `html` (light and dark, wide and narrow), `md` or `json`.

    `metric` is a column of `compare`'s table, `against` a setting as `paired` reads it. Folders that cannot be read are
    named on the page with the reason, the others are shown. Returns the path; raises `ConfigError` where no run can be
    read, or none has the metric.
    """
    if format not in FORMATS:
        raise unknown("report format", format, FORMATS)
    return write(gather(folders, metric, against, drawn=format == "html"), out, format)


def write(page: Report, out: str | Path, format: str) -> Path:
    """The page as a file of one of `FORMATS`. Raises `ConfigError` where it cannot be written."""
    text = {"html": as_html, "md": as_markdown, "json": as_json}[format](page)
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as aside:
            aside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the report {path}: {error.strerror or error}") from error
    return path


def gather(
    folders: Iterable[str | Path | Run], metric: str = "test/acc", against: str | None = None, drawn: bool = True
) -> Report:
    """What a report says of these runs; without `drawn` there are no pictures."""
    looked = found(folders)
    runs, flawed = sound(looked.runs)
    broken = [*looked.broken, *flawed]
    if not runs:
        why = f": {broken[0]}" if broken else "; name at least one"
        raise ConfigError(f"report: no run folder that can be read{why}")
    frame = compare(runs)
    names = list(map(labels(frame), frame.to_dict("records")))
    table = summary(frame, metric) if against is None else paired(frame, against, metric)
    costs, modes = costs_of(runs, names), by_mode(frame)
    configs = [settings(run) for run in runs]
    same = {key: value for key, value in configs[0].items() if all(c.get(key) == value for c in configs)}
    return Report(
        title=", ".join(dict.fromkeys(str(name) for name in frame["name"])),
        metric=metric,
        answers=(*verdict(frame, metric), *at_what_cost(costs, frame, metric), *what_was_forgotten(modes, frame)),
        frame=frame,
        table=table,
        modes=modes,
        costs=costs,
        same=same,
        changed=_changed(configs, runs, same),
        pictures=pictures.of(runs, names, metric) if drawn else (),
        broken=tuple(broken),
        notes=tuple(looked.notes),
    )


def _changed(configs: Sequence[Mapping[str, Any]], runs: Sequence[Run], same: Mapping[str, Any]) -> pandas.DataFrame:
    """One row a key that is not the same in all runs, one column a run."""
    import pandas

    keys = [key for key in dict.fromkeys(key for config in configs for key in config) if key not in same]
    shown = {run.place: [config.get(key, "-") for key in keys] for run, config in zip(runs, configs, strict=True)}
    return pandas.DataFrame({"key": keys, **shown})


# pages -------------------------------------------------------------------------------------------
def as_json(page: Report) -> str:
    """The numbers as one JSON object; NaN becomes null."""
    return json.dumps(
        {
            "title": page.title,
            "metric": page.metric,
            "answers": page.answers,
            "runs": json.loads(page.frame.to_json(orient="records")),
            "settings": json.loads(page.table.to_json(orient="records")),
            "modes": json.loads(page.modes.to_json(orient="records")),
            "costs": json.loads(page.costs.to_json(orient="records")),
            "same": page.same,
            "changed": json.loads(page.changed.to_json(orient="records")),
            "broken": [broken._asdict() for broken in page.broken],
        },
        indent=1,
    )


def as_markdown(page: Report) -> str:
    """The answers and the tables; no pictures."""
    parts = [f"# {page.title}\n", "\n".join(f"* {answer}" for answer in page.answers) + "\n"]
    for title, table, note in _tables(page):
        parts.append(f"## {title}\n\n" + (f"{note}\n\n" if note else "") + to_markdown(table))
    if page.broken:
        listed = "\n".join(f"* {broken.folder}: {broken.why}" for broken in page.broken)
        parts.append(f"## Left out\n\n{listed}\n")
    return "\n".join(parts)


def as_html(page: Report) -> str:
    """One page without any other file: style, tables and pictures (SVG) are in it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("flray.results"), autoescape=True, undefined=StrictUndefined)
    tables = []
    for title, table, note in _tables(page):
        heads, rows = cells(table)
        right = [is_number(table, column) for column in table.columns][: len(heads)]
        tables.append({"title": title, "note": note, "heads": heads, "rows": rows, "right": right})
    return environment.get_template("report.html.j2").render(
        report=page, tables=tables, same={k: v for k, v in page.same.items() if v is not None}
    )


def _tables(page: Report) -> list[tuple[str, pandas.DataFrame, str]]:
    """(title, table, note) of every table of the page that has rows."""
    against = caption(page.table) if "diff" in page.table else ""
    listed = [
        ("Settings", page.table, against),
        *((title, table, "") for title, table in spelled(page.modes).items()),
        ("Cost", page.costs, "A whole run, mean over seeds; times are those of this machine."),
        ("Runs", page.frame, ""),
    ]
    return [(title, table, note) for title, table, note in listed if len(table)]
