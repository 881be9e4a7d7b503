"""Results of a command on stdout: tables on a terminal, plain columns off it, records as JSON.

Progress, notes and what to try next go through the logger `flray` to stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import printable, unknown
from flray.core.schema.plain import jsonable
from flray.files import disk_problem
from flray.log import LOGGER
from flray.streams import is_terminal, silence

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, Group, RenderableType
    from rich.table import Table

    from flray.rundir.reader import Run

Rows = Sequence[Mapping[str, Any]]
WIDEST = 100_000  # columns of a table that may be of any width

_gone = False  # stdout takes nothing more
_failed = False  # and not only because its reader has ended, which is no fault


def write(text: object = "", end: str = "\n") -> None:
    with _harmless():
        print(printable(str(text)), end=end)


def flush() -> bool:
    """Hand over what was written. Returns whether stdout takes more."""
    with _harmless():
        if sys.stdout is not None:
            sys.stdout.flush()
    return not _gone


def failed() -> bool:
    """Whether results were lost because stdout could not be written."""
    return _failed


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """A stdout that takes nothing more (`| head`, a full disk, a terminal that is gone) is no reason to stop: a run's
    results are in its folder."""
    global _gone, _failed
    try:
        yield
    except UnicodeError:  # a stdout of the caller's own that lacks a character takes the next ones
        raise
    except (OSError, ValueError) as error:  # ValueError: it was closed
        if not _gone and isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            _failed = True
            LOGGER.error(f"cannot write to stdout: {(disk_problem(error) or ('it is closed', ''))[0]}")
        _gone = True
        silence(sys.stdout)


def suggest(commands: Iterable[str]) -> None:
    """Commands to try next, on stderr: they are no result."""
    LOGGER.info("next:    " + "\n         ".join(commands))


# records ------------------------------------------------------------------------------------------
def check_format(format: str, allowed: Sequence[str] = ("table", "json")) -> None:
    """Raises `ConfigError` with the nearest format for an unknown one."""
    if format not in allowed:
        raise unknown("--format", format, allowed)


def write_rows(rows: Rows, title: str, format: str = "table") -> None:
    if format == "json":
        write_json(list(rows))
    elif format == "markdown":
        write(markdown_rows(rows), end="")
    else:
        print_rows(rows, title)


def write_json(value: object, indent: int | None = 1) -> None:
    """JSON as every parser reads it (:func:`jsonable`); without `indent` one line."""
    write(json.dumps(jsonable(value), indent=indent, allow_nan=False))


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as JSON has them."""
    from flray.results.rendering import rows_for_json

    rows: list[dict[str, Any]] = jsonable(rows_for_json(frame))
    return rows


def markdown_rows(rows: Rows) -> str:
    """Records as a Markdown table."""
    from flray.results.rendering import in_markdown

    names = _columns(rows)
    body = [[in_markdown(_cell(row.get(name))) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *body))


def _columns(rows: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


# tables -------------------------------------------------------------------------------------------
def show(*parts: RenderableType) -> None:
    """Tables and text. Off a terminal a table is plain columns, and so is one whose numbers the terminal is too narrow
    for."""
    from rich.console import Group
    from rich.table import Table

    for part in parts:
        if isinstance(part, Group):
            show(*part.renderables)
        elif is_terminal(sys.stdout) and (not isinstance(part, Table) or _fits(part, console())):
            with _harmless():
                console().print(part)
        else:
            write(plain_text(part), end="")


def _fits(table: Table, screen: Console) -> bool:
    """Whether the numbers of a table, its columns at the right, are whole on the screen. If that is narrow, their
    headings get several lines."""
    from rich.measure import Measurement

    numbers = [column for column in table.columns if column.justify == "right"]
    whole = screen.options.update_width(WIDEST)
    if not numbers or Measurement.get(screen, whole, table).maximum <= screen.width:
        return True
    for column in numbers:
        lines = [line for cell in column.cells for line in str(cell).splitlines()]
        column.width = max(map(len, [*lines, *str(column.header).split()]))
    if Measurement.get(screen, whole, table).minimum <= screen.width:
        return True
    for column in numbers:
        column.width = None
    return False


def console() -> Console:
    """Rich's console on stdout. Text in it is :func:`printable`: only rich's own escape codes reach the terminal."""
    from rich.console import Console

    class PrintableConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return PrintableConsole(emoji=False)


def plain_text(part: RenderableType) -> str:
    """A table or a text as lines of any width; the titles of a table are lines of their own."""
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    if isinstance(part, Group):
        return "".join(map(plain_text, part.renderables))
    texts: list[Any] = [part]
    if isinstance(part, Table):
        texts = [part.title, part, part.caption]
        part.box, part.title, part.caption, part.pad_edge = None, None, None, False
    stream = io.StringIO()
    console = Console(file=stream, width=WIDEST, color_system=None, force_terminal=False, emoji=False)
    for text in texts:
        if text is not None:
            console.print(Text.from_markup(text, emoji=False) if isinstance(text, str) else text, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def markdown(text: str) -> None:
    """Markdown, rendered on a terminal, as it is written off it."""
    if not is_terminal(sys.stdout):
        write(text)
        return
    from rich.markdown import Markdown

    show(Markdown(text))


def print_rows(rows: Rows, title: str) -> None:
    from flray.results.rendering import rich_table

    names = _columns(rows)
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    show(rich_table(names, cells, [False] * len(names), title, "", title_justify="left"))


# tables of runs -----------------------------------------------------------------------------------
def print_comparison(frame: pandas.DataFrame, metric: str = "test/acc", against: str | None = None) -> None:
    from flray.results import render
    from flray.results.comparison import Comparison
    from flray.rundir.reader import Run

    compared = Comparison([Run(folder) for folder in frame["folder"]], frame, frame, metric, against)
    show(*(render(table, title) for title, table in compared.tables.items()))
    for sentence in compared.sentences:
        write(f"* {sentence}")


def tables_by_mode(run: Run) -> list[Any]:
    """Tables of a run over tasks or through a drift: a row for each inference mode; its alarms."""
    from flray.results import render
    from flray.results.by_mode import modes_of
    from flray.results.rendering import spelled

    return [render(table, title) for title, table in spelled(modes_of(run)).items()]


def sheet_of(run: Run) -> Group:
    """The page of a run that `flray show` prints. Raises `CheckpointError` for another folder."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from flray.results.essentials import essentials

    title = Text(run.place, "table.title")
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in essentials(run).items():
        table.add_row(Text(name, "bold"), Text(text))
    return Group(table, *tables_by_mode(run))
