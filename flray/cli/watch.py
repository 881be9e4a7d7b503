"""Runs while they go on: `flray watch RUN...`."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.cli.output import check_format, plain_text, records, sheet_of, write, write_json
from flray.core.schema.errors import CheckpointError, FlrayError
from flray.rundir.folder import is_run
from flray.rundir.reader import runs_below
from flray.rundir.uri import is_uri

if TYPE_CHECKING:
    import pandas

    from flray.results.watching import Glance
    from flray.rundir.reader import Run

EVERY_S = (2.0, 10.0)  # between two looks: into a folder, into a storage


def watch(
    places: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="run folders or URIs; a folder that holds runs, a grid, a sweep"),
    ],
    every: Annotated[
        float | None, typer.Option(min=0.1, help="seconds between two looks; default 2, of a storage 10")
    ] = None,
    format: Annotated[str, typer.Option(help="table, or json: a record a line, as rounds arrive")] = "table",
    page: Annotated[
        Path | None,
        typer.Option(help="also a report as an HTML file, written again as rounds arrive; a browser reloads it"),
    ] = None,
) -> None:
    """Runs, live, as rounds arrive: in a folder, on another machine's disk, or in a storage.

    One run: its essentials, and the accuracy of each class over rounds. Several, a grid or a sweep: a line a run. If
    the folder that will contain the run exists, it waits ten minutes for the run to begin. It reports a run whose
    process gives no sign of life as stalled. It ends with the runs: exit code 0 if all finished or diverged, else 1.
    Ctrl-C stops the display, not the run. It writes nothing into a run's folder. Off a terminal it prints a line for
    each tested round, and the essentials or the table of runs at the end.

    With `--format json` each line is a record: of a round, with the columns of the table `rounds` and `run`; of a
    `note`; the last one has `status` and `essentials`.
    """
    check_format(format)
    pause = every or EVERY_S[any(map(is_uri, places))]
    try:
        if page is not None or len(places) > 1 or _holds_runs(places[0]):
            if format == "json":
                raise FlrayError("--format json is for one run, without --page; name its folder")
            from flray.cli.watch_many import watch_many

            good = watch_many(places, pause, page)
        else:
            shown = _records if format == "json" else _live if sys.stdout.isatty() else _lines
            good = _of_one(places[0], pause, shown)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(0 if good else 1)


def _of_one(place: str, pause: float, shown: Callable[[Any], bool]) -> bool:
    """Shows the run at `place`, or the runs of a grid that begins there meanwhile. Returns whether all are good."""
    from flray.results.watching import glances

    try:
        return shown(glances(place, pause))
    except CheckpointError:
        if shown is _records or not _holds_runs(place):
            raise
    from flray.cli.watch_many import watch_many

    return watch_many([place], pause, None)


def _holds_runs(place: str) -> bool:
    """Whether this is a folder that is no run and has runs, or a sweep, inside."""
    if is_uri(place):
        return False
    folder = Path(place)
    if (folder / "sweep.yaml").exists():
        return True
    return folder.is_dir() and not is_run(folder) and bool(runs_below(folder))


def _live(views: Any) -> bool:
    """One page that is redrawn; the last one stays. Returns whether the run finished."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    sheet: Any = Text("")
    classes = ""
    with Live(auto_refresh=False) as live:
        for glance in views:
            sheet = _sheet(glance) or sheet
            classes = _classes(glance.run) if glance.run is not None and glance.news else classes
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
                sys.stdout.flush()
    if glance.run is not None:
        write(plain_text(sheet_of(glance.run)), end="")
    return bool(glance.good)


def _records(views: Any) -> bool:
    """A line of JSON for each round and note, and one at the end. Returns whether the run finished."""
    from flray.results.essentials import essentials

    written, noted = 0, ""
    for glance in views:
        if glance.run is not None and glance.news:
            rounds = _rounds(glance.run)
            for row in [] if rounds is None else records(rounds[rounds["done"] > written]):
                written = row["done"]
                write_json({"run": glance.run.place, **row}, indent=None)
        if glance.note and _unchanging(glance.note) != noted:
            noted = _unchanging(glance.note)
            write_json({"note": glance.note}, indent=None)
        sys.stdout.flush()
    if glance.run is not None:
        end = {"status": glance.run.status, "essentials": essentials(glance.run)}
        write_json({"run": glance.run.place, **end}, indent=None)
    return bool(glance.good)


def _unchanging(text: str) -> str:
    """Without seconds and progress, which alone make no new line."""
    return re.sub(r"for \d+ (s|min)|\d+/\d+$", "", text)


def _rounds(run: Run) -> pandas.DataFrame | None:
    """The table of rounds; None if it is being rewritten at this moment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lost rows: the essentials name them too
        try:
            return run.rounds
        except CheckpointError:
            return None


def _sheet(glance: Glance) -> Any:
    """The page if it changed; None if it did not, or if a table is being rewritten at this moment."""
    if glance.run is None or not glance.news:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lost rows: the page names them too
        try:
            return sheet_of(glance.run)
        except CheckpointError:
            return None


def _classes(run: Run) -> str:
    """The accuracy of each class over rounds, a line a class; empty while a table is being rewritten."""
    from flray.results.watching_many import classes_over_rounds

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rows that are not there yet: the table is drawn over them
            return "\n".join(classes_over_rounds(run))
    except CheckpointError:
        return ""


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
