"""Runs while they go on, `flray show --follow`: one as a page, several as a table and as a page for a browser."""

from __future__ import annotations

import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from flray.cli.output import console, flush, plain_text, print_rows, records, sheet_of, write, write_json
from flray.core.schema.errors import CheckpointError, FlrayError
from flray.log import LOGGER
from flray.rundir.folder import is_run
from flray.rundir.reader import Run, runs_below
from flray.rundir.uri import is_uri
from flray.streams import is_terminal

if TYPE_CHECKING:
    from flray.results.watching import Overview

EVERY_S = (2.0, 10.0)  # between two looks: into a folder, into a storage
PAGE_S = 15.0  # between two versions of the page: its pictures take some

Read = TypeVar("Read")


def watch(places: Sequence[str], every: float | None, format: str, page: Path | None) -> None:
    """`flray show --follow`: its exit code says whether the runs are good."""
    pause = every or EVERY_S[any(map(is_uri, places))]
    try:
        if page is not None or len(places) > 1 or _holds_runs(places[0]):
            if format == "json":
                raise FlrayError("--format json is for one run, without --page; name its folder")
            good = _of_many(places, pause, page)
        else:
            shown = _records if format == "json" else _live if is_terminal(sys.stdout) else _lines
            good = _of_one(places[0], pause, shown)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(0 if good else 1)


def _holds_runs(place: str) -> bool:
    """Whether this is a folder that is no run and has runs, or a sweep, inside."""
    if is_uri(place):
        return False
    folder = Path(place)
    if (folder / "sweep.yaml").exists():
        return True
    return folder.is_dir() and not is_run(folder) and bool(runs_below(folder))


# one run ------------------------------------------------------------------------------------------
def _of_one(place: str, pause: float, shown: Callable[[Any], bool]) -> bool:
    """Shows the run at `place`, or the runs of a grid that begins there meanwhile. Returns whether all are good."""
    from flray.results.watching import glances

    try:
        return shown(glances(place, pause))
    except CheckpointError:
        if shown is _records or not _holds_runs(place):
            raise
    return _of_many([place], pause, None)


def _live(views: Any) -> bool:
    """One page that is redrawn; the last one stays. Returns whether the run finished."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from flray.results.watching import classes_over_rounds

    sheet: Any = Text("")
    classes = ""
    with Live(auto_refresh=False, console=console()) as live:
        for glance in views:
            if glance.run is not None and glance.news:
                sheet = _readable(sheet_of, glance.run) or sheet
                classes = "\n".join(_readable(classes_over_rounds, glance.run) or ())
            note = [Text(glance.note, style="yellow")] if glance.note else []
            live.update(Group(sheet, Text(classes), *note), refresh=True)
    return bool(glance.good)


def _lines(views: Any) -> bool:
    """Lines for a file or a pipe; the page at the end. Returns whether the run finished."""
    printed: set[str] = set()
    for glance in views:
        texts = [_last(glance.run)] if glance.run is not None and glance.news else []
        for text in [*texts, glance.note]:
            same = _unchanging(text)
            if text and same not in printed:
                printed.add(same)
                write(text)
        if not flush():
            return bool(glance.good)
    if glance.run is not None:
        write(plain_text(sheet_of(glance.run)), end="")
    return bool(glance.good)


def _records(views: Any) -> bool:
    """A line of JSON for each round and note, and one at the end. Returns whether the run finished."""
    from flray.results.essentials import essentials

    written, noted = 0, ""
    for glance in views:
        if glance.run is not None and glance.news:
            rounds = _readable(lambda run: run.rounds, glance.run)
            for row in [] if rounds is None else records(rounds[rounds["done"] > written]):
                written = row["done"]
                write_json({"run": glance.run.place, **row}, indent=None)
        if glance.note and _unchanging(glance.note) != noted:
            noted = _unchanging(glance.note)
            write_json({"note": glance.note}, indent=None)
        if not flush():
            return bool(glance.good)
    if glance.run is not None:
        end = {"status": glance.run.status, "essentials": essentials(glance.run)}
        write_json({"run": glance.run.place, **end}, indent=None)
    return bool(glance.good)


def _unchanging(text: str) -> str:
    """Without seconds and progress, which alone make no new line."""
    return re.sub(r"for \d+ (s|min)|\d+/\d+$", "", text)


def _readable(read: Callable[[Run], Read], run: Run) -> Read | None:
    """What `read` returns; None if a table is being rewritten at this moment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lost rows: the essentials name them too
        try:
            return read(run)
        except CheckpointError:
            return None


def _last(run: Run) -> str:
    """`round 3: test/acc 0.7632` of the last tested round; the status if no round was tested."""
    try:
        rounds = run.rounds
    except CheckpointError:
        return ""
    for name in ("test/acc", "val/acc"):
        if name in rounds and rounds[name].notna().any():
            row = rounds.dropna(subset=name).iloc[-1]
            return f"round {int(row['done'])}: {name} {row[name]:.4f}"
    return run.status


# several runs -------------------------------------------------------------------------------------
def _of_many(places: Sequence[str], every: float, page: Path | None) -> bool:
    """Shows the runs in and below `places` until all have ended; `page`: a file that is written as rounds arrive.
    Returns whether all finished or diverged."""
    from flray.results.watching import overviews, row_of

    paper = _Paper(places, page, every)
    if page is not None:
        LOGGER.info(f"page: {page.absolute().as_uri()}")
    views = overviews(places, every)
    view: Overview | None = None
    if is_terminal(sys.stdout):
        from rich.live import Live

        with Live(auto_refresh=False, console=console()) as live:
            for view in views:
                live.update(_table(view), refresh=True)
                paper.update(view)
    else:
        for view in _news(views):
            paper.update(view)
            if not flush() and paper.file is None:
                return bool(view.good)
        if view is not None:
            rows = [row_of(place, glance) for place, glance in view.glances.items()]
            print_rows(rows, f"{len(view.glances)} runs")
    if view is None:
        return False
    for line in view.missing:
        LOGGER.warning(line)
    for line in view.notes:
        LOGGER.info(f"note: {line}")
    return bool(view.good)


def _table(view: Overview) -> Any:
    from flray.results.rendering import rich_table
    from flray.results.watching import row_of

    rows = [row_of(place, glance) for place, glance in view.glances.items()]
    names = ("run", "what", "status", "rounds", "accuracy", "curve", "note")
    shown = [name for name in names if any(row.get(name) for row in rows)]
    waiting = "\n".join(f"waiting: {line}" for line in view.missing)
    texts = [[str(row.get(name, "")) for name in shown] for row in rows]
    right = [name in ("rounds", "accuracy") for name in shown]
    return rich_table(shown, texts, right, "", "" if view.over else waiting)


def _news(views: Iterable[Overview]) -> Iterator[Overview]:
    """The views; a line when a run has a new accuracy or status, or a place is waited for."""
    from flray.results.watching import row_of

    last: dict[str, tuple[str, ...]] = {}
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
        yield view


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
        from flray.api import sweep_lead
        from flray.results.report_page import gather, write as write_page

        try:
            page = gather(self.places, lead=sweep_lead(self.places, drawn=True))
        except FlrayError as error:  # no tested round yet, or a table that is being rewritten
            (LOGGER.warning if view.over else LOGGER.debug)(f"page: not written: {error}")
            return
        write_page(page, self.file, "html", 0 if view.over else round(self.every))
        self._written, self._changed = time.monotonic(), False
