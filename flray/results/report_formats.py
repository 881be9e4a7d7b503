"""A report as HTML, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import unknown
from flray.results.fair import NOTE, NUMBERS
from flray.results.paired import caption
from flray.results.rendering import caption_of, cells, is_number, shown_columns, spelled, spelled_numbers, to_markdown

if TYPE_CHECKING:
    import pandas

    from flray.results.report_page import ReportPage

FORMATS = ("html", "md", "json")
RANKS = "Mean ranks"  # title of a table, and of the picture that says the same


def text_of(page: ReportPage, format: str) -> str:
    """The page in one of `FORMATS`."""
    formats = {"html": as_html, "md": as_markdown, "json": as_json}
    if format not in formats:
        raise unknown("report format", format, FORMATS)
    return formats[format](page)


def as_json(page: ReportPage) -> str:
    """The numbers as one JSON object; NaN becomes null."""
    tables = {
        "runs": page.frame,
        "settings": page.table,
        "ranks": page.ranks,
        "clients_and_classes": page.evenly,
        "modes": page.modes,
        "costs": page.costs,
        "changed": page.changed,
    }
    lead = {section.title: section.table for section in page.lead if section.table is not None}
    return json.dumps(
        {
            "title": page.title,
            "setting": page.setting,
            "metric": page.metric,
            "answers": page.answers,
            "caveats": page.caveats,
            "lead": {title: _records(table) for title, table in lead.items()},
            **{name: _records(table) for name, table in tables.items()},
            "same": page.same,
            "notes": page.notes,
            "broken": [broken._asdict() for broken in page.broken],
        },
        indent=1,
    )


def _records(table: pandas.DataFrame) -> Any:
    return json.loads(table.to_json(orient="records"))


def as_markdown(page: ReportPage) -> str:
    """The sentences and the tables; no pictures."""
    parts = [f"# {page.title}\n", f"{page.setting}\n" if page.setting else ""]
    parts.append("\n".join(f"* {answer}" for answer in page.answers) + "\n")
    mind = (*page.caveats, *(f"{note}." for note in page.notes))
    if mind:
        parts.append("## What to mind\n\n" + "\n".join(f"* {sentence}" for sentence in mind) + "\n")
    lead = [(part.title, part.table, part.note) for part in page.lead if part.table is not None]
    for title, table, note in (*lead, *_tables(page)):
        parts.append(f"## {title}\n\n" + (f"{note}\n\n" if note else "") + to_markdown(table))
    if len(page.changed):
        parts.append(f"## Configuration: keys that differ\n\n{to_markdown(page.changed)}")
    if page.broken:
        parts.append("## Left out\n\n" + "\n".join(f"* {broken}" for broken in page.broken) + "\n")
    return "\n".join(part for part in parts if part)


def as_html(page: ReportPage, refresh: int = 0) -> str:
    """One page in a single file, with style, tables and pictures (SVG). A browser loads it again every `refresh`
    seconds; 0: never."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("flray.results"), autoescape=True, undefined=StrictUndefined)
    drawn = {RANKS} if any(title == RANKS for title, *_ in page.pictures) else set()
    first, *others = (_part(title, note, table) for title, table, note in _tables(page) if title not in drawn)
    return environment.get_template("report.html.j2").render(
        page=page,
        refresh=refresh,
        lead=[_part(*part) for part in page.lead],
        first=first,
        pictures=[_part(title, note, None, picture) for title, note, picture in page.pictures],
        tables=others,
        changed=_part("", "", page.changed),
        same={key: value for key, value in page.same.items() if value is not None},
    )


def _part(title: str, note: str, table: pandas.DataFrame | None, picture: str = "") -> dict[str, Any]:
    """A section for the template: the cells of its table as text, and which columns are numbers."""
    part: dict[str, Any] = {"title": title, "notes": [note] if note else [], "picture": picture, "rows": []}
    if table is None:
        return part
    heads, rows = cells(table)
    right = [is_number(table, column) for column in shown_columns(table)]
    below = caption_of(table)
    return part | {"heads": heads, "rows": rows, "right": right, "notes": [n for n in (note, below) if n]}


def _tables(page: ReportPage) -> Iterator[tuple[str, pandas.DataFrame, str]]:
    """(title, table, note) of the tables of the page; the table of settings is the first."""
    yield "Settings", page.table, caption(page.table) if "diff" in page.table else ""
    if len(page.ranks):
        yield RANKS, page.ranks, ""
    for title, table in spelled(page.modes).items():
        yield title, table, ""
    if len(page.evenly):
        yield "Clients and classes", spelled_numbers(page.evenly, NUMBERS, NOTE), ""
    yield "Cost", page.costs, "A whole run, mean over seeds; times are those of this machine."
    yield "Runs", page.frame, ""
