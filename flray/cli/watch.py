"""A run while it goes on: `flray watch RUN`."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.cli.show import console, sheet_of
from flray.core.schema.errors import CheckpointError
from flray.rundir.uri import is_uri

if TYPE_CHECKING:
    from rich.console import Console

    from flray.results.watching import Glance
    from flray.rundir.reader import Run

EVERY_S = (2.0, 10.0)  # between two looks: into a folder, into a storage


def watch(
    place: Annotated[str, typer.Argument(metavar="RUN", help="run folder, or the URI of a run in a storage")],
    every: Annotated[
        float | None, typer.Option(min=0.1, help="seconds between two looks; default 2, of a storage 10")
    ] = None,
) -> None:
    """The essentials of a run, live, as rounds arrive: in a folder, on another machine's disk, or in a storage.

    A run that has not begun is waited for, ten minutes, where the folder that will hold it exists. One without a sign
    of life is said to be stalled. It ends by itself when the run has ended: exit code 0 when that finished (or
    diverged), else 1. Ctrl-C ends the watching alone. It writes nothing into the run. Where standard output is no
    terminal: a line whenever a round was tested, and the essentials at the end.
    """
    from flray.results.watching import glances

    views = glances(place, every or EVERY_S[is_uri(place)])
    screen = console()
    try:
        good = (_live if screen.is_terminal else _plain)(views, screen)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(0 if good else 1)


def _live(views: Any, screen: Console) -> bool:
    """One page that is drawn anew; the last one stays. Returns whether the run came to its end."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    sheet: Any = Text("")
    with Live(console=screen, auto_refresh=False) as live:
        for glance in views:
            sheet = _sheet(glance) or sheet
            note = [Text(glance.note, style="yellow")] if glance.note else []
            live.update(Group(sheet, *note), refresh=True)
    return bool(glance.good)


def _plain(views: Any, screen: Console) -> bool:
    """Lines for a file or a pipe; the page at the end. Returns whether the run came to its end."""
    said: set[str] = set()
    for glance in views:
        texts = [_last(glance.run)] if glance.run is not None and glance.news else []
        for text in [*texts, glance.note]:
            same = re.sub(r"for \d+ (s|min)|\d+/\d+$", "", text)  # how long it is stalled, or how far, is no news
            if text and same not in said:
                said.add(same)
                print(text, flush=True)
    if glance.run is not None:
        screen.print(sheet_of(glance.run))
    return bool(glance.good)


def _sheet(glance: Glance) -> Any:
    """The page where there is news; None: the last one holds, also where a table is just being written anew."""
    if glance.run is None or not glance.news:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lost rows: the page itself and `flray show` tell
        try:
            return sheet_of(glance.run)
        except CheckpointError:
            return None


def _last(run: Run) -> str:
    """`round 3: test/acc 0.7632`, of the last round that was tested; the status before there is one."""
    try:
        rounds = run.rounds
    except CheckpointError:
        return ""
    for name in ("test/acc", "val/acc"):
        if name in rounds and rounds[name].notna().any():
            row = rounds.dropna(subset=name).iloc[-1]
            return f"round {int(row['done'])}: {name} {row[name]:.4f}"
    return run.status
