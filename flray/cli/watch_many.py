"""Several runs while they go on: `flray watch FOLDER`, a table on the terminal and a report that a browser reloads."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flray.cli.output import print_rows, write
from flray.core.schema.errors import FlrayError
from flray.log import LOGGER
from flray.results.watching_many import Overview, overviews, row_of

PAGE_S = 15.0  # seconds between two versions of the page: its pictures take some


def watch_many(places: Sequence[str], every: float, page: Path | None) -> bool:
    """Shows the runs in and below `places` until all have ended; `page`: a file that is written as rounds arrive.

    Returns whether all finished or diverged.
    """
    paper = _Paper(places, page, every)
    if page is not None:
        LOGGER.info(f"page: {page.absolute().as_uri()}")
    views = overviews(places, every)
    return _live(views, paper) if sys.stdout.isatty() else _lines(views, paper)


def _live(views: Any, paper: _Paper) -> bool:
    from rich.live import Live

    good = False
    with Live(auto_refresh=False) as live:
        for view in views:
            live.update(_table(view), refresh=True)
            paper.update(view)
            good = view.good
    _name_missing(view)
    return good


def _name_missing(view: Overview) -> None:
    for line in view.missing:
        LOGGER.warning(line)
    for line in view.notes:
        LOGGER.info(f"note: {line}")


def _table(view: Overview) -> Any:
    from rich.markup import escape
    from rich.table import Table

    rows = [row_of(place, glance) for place, glance in view.glances.items()]
    names = ("run", "what", "status", "rounds", "accuracy", "curve", "note")
    shown = [name for name in names if any(row.get(name) for row in rows)]
    waiting = "\n".join(f"waiting: {line}" for line in view.missing)
    table = Table(caption=escape(waiting) if waiting and not view.over else None, caption_justify="left")
    for name in shown:
        table.add_column(name, justify="right" if name in ("rounds", "accuracy") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(escape(str(row.get(name, ""))) for name in shown))
    return table


def _lines(views: Any, paper: _Paper) -> bool:
    """Off a terminal: a line when a run has a new accuracy or status, and the table at the end."""
    last: dict[str, tuple[str, ...]] = {}
    view: Overview | None = None
    waited: set[str] = set()
    for view in views:
        for line in () if view.over else view.missing:
            if line not in waited:
                LOGGER.info(f"waiting: {line}")
            waited.add(line)
        for place, glance in view.glances.items():
            row = row_of(place, glance) if glance.news or place not in last else None
            facts = None if row is None else (row["status"], row["rounds"], row["accuracy"])
            if facts is not None and facts != last.get(place):
                last[place] = facts
                write(f"{place}: {' '.join(filter(None, facts))}")
                sys.stdout.flush()
        paper.update(view)
    if view is None:
        return False
    print_rows([row_of(place, glance) for place, glance in view.glances.items()], f"{len(view.glances)} runs")
    _name_missing(view)
    return view.good


class _Paper:
    """The report in a file, written again when something changed, at most every `PAGE_S` seconds."""

    def __init__(self, places: Sequence[str], file: Path | None, every: float) -> None:
        self.places, self.file, self.every = places, file, max(every, PAGE_S)
        self._written = -math.inf
        self._changed = True

    def update(self, view: Overview) -> None:
        """Writes the page if it is due; the last one has no reload."""
        self._changed |= view.news
        due = time.monotonic() - self._written >= self.every
        if self.file is None or not (view.over or (self._changed and due)):
            return
        from flray.cli.look import sweep_lead
        from flray.results.report_page import gather
        from flray.results.report_page import write as write_page

        try:
            page = gather(self.places, lead=sweep_lead(self.places, drawn=True))
        except FlrayError as error:  # no tested round yet, or a table that is being rewritten
            (LOGGER.warning if view.over else LOGGER.debug)(f"page: not written: {error}")
            return
        write_page(page, self.file, "html", 0 if view.over else round(self.every))
        self._written, self._changed = time.monotonic(), False
