"""`flray compare`: tables of runs and settings, on the terminal, in Markdown and LaTeX, as CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.arguments import Against, complete_metric
from flray.cli.output import check_format, records, show, write, write_json
from flray.core.schema.errors import FlrayError, unknown
from flray.log import LOGGER

if TYPE_CHECKING:
    import pandas

    from flray.results.comparison import Comparison

FORMATS = ("table", "markdown", "latex", "csv", "json")


def compare(
    folders: Annotated[list[str], typer.Argument(help="run folders (or URIs), or folders that hold them")],
    format: Annotated[str, typer.Option(help="table, markdown, latex (to paste into a paper), csv or json")] = "table",
    style: Annotated[
        str | None,
        typer.Option(
            help="paper: one table, mean and interval with the digits it leaves; with markdown (latex: so)",
            autocompletion=lambda: ["paper"],
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(help="of the table over seeds: a column of the table of runs", autocompletion=complete_metric),
    ] = "test/acc",
    against: Against = None,
    at: Annotated[
        str | None,
        typer.Option(help="the same cost: AXIS=NUMBER; axis: rounds, steps, bytes, up, flops, virtual, seconds"),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="the cost of a target: METRIC=NUMBER, e.g. test/acc=0.8", autocompletion=complete_metric),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="also every run, every test, tasks, drift, clients and classes, and ranks")
    ] = False,
) -> None:
    """A row a setting: mean and 95 % interval over seeds, the difference to the best one (or to --against) on the same
    seeds, bytes and seconds. The last lines name the setting with the highest mean, or say that no difference was
    found, and list what is not comparable, with the keys. Two seeds tell no difference. `--format csv` and `json` have
    a row a run, with --against a row a difference.

    Runs over tasks add ACC, FT, AIA, BWT, FWT and task prediction. Runs through a drift add the accuracy before the
    window, at its end, and finally. Both are by inference mode; `--metric ACC` (`ACC@MODE`) compares on one of them.

    With --stats: the table of runs; t- and bootstrap intervals, g_z and Holm-corrected p-values of the differences to
    --against; clients and classes; of three methods or more over several settings Friedman's test of their ranks and
    Nemenyi's critical difference (`flray figure ranks` draws them).

    With --at: what was measured up to there, e.g. `virtual=3600`. With --to: rounds, local steps, bytes and virtual
    time until the metric first reaches the number (`--metric to/bytes` compares by another one of them). A folder that
    cannot be read is a warning.
    """
    check_format(format, FORMATS)
    _check_paper(format, style, {"--against": against, "--at": at, "--to": to, "--stats": True if stats else None})
    from flray.results.comparison import comparison
    from flray.results.readable import runs_in

    runs = runs_in(folders)
    compared = comparison(runs, metric, against, at, to)
    for text in _not_counted(compared.frame):
        LOGGER.warning(text)
    if format == "latex" or style == "paper":
        return _write_paper(compared, format)
    _write(compared, format, stats)


def _check_paper(format: str, style: str | None, given: Mapping[str, object]) -> None:
    """Raises `FlrayError` for options that a table for a paper does not have, and for two questions at once."""
    if style not in (None, "paper"):
        raise unknown("--style", style, ["paper"])
    if style is not None and format not in ("markdown", "latex"):
        raise FlrayError("--style paper is for --format markdown or latex")
    if given["--at"] is not None and given["--to"] is not None:
        raise FlrayError("--at and --to are two questions; give one of them")
    for option, value in given.items():
        if value is not None and (format == "latex" or style is not None):
            raise FlrayError(f"{option} changes nothing in a table for a paper; use --format markdown without --style")


def _write_paper(compared: Comparison, format: str) -> None:
    from flray.results.answers import held_out
    from flray.results.paper_tables import latex_table, paper_table
    from flray.results.rendering import to_markdown

    for text in (*held_out(compared.frame, compared.metric), *compared.caveats()):
        LOGGER.warning(text)
    table = paper_table(compared.frame, compared.metric)
    write(latex_table(table) if format == "latex" else to_markdown(table), end="")


def _write(compared: Comparison, format: str, stats: bool) -> None:
    """The tables and the sentences; CSV and JSON have one table, a row a run or a difference."""
    from flray.results import render, to_markdown
    from flray.results.rendering import csv, in_markdown

    tables, sentences = compared.statistics if stats else (compared.tables, compared.sentences)
    one = compared.frame if compared.differences is None else compared.differences
    if format == "json":
        write_json(records(one))
    elif format == "csv":
        write(csv(one), end="")
    elif format == "markdown":
        for title, table in tables.items():
            write(f"{title}:\n\n{to_markdown(table)}" if title else to_markdown(table))
    else:
        show(*(render(table, title) for title, table in tables.items()))
    for sentence in sentences:
        line = f"* {in_markdown(sentence) if format == 'markdown' else sentence}"
        LOGGER.info(line) if format in ("json", "csv") else write(line)


def _not_counted(frame: pandas.DataFrame) -> list[str]:
    """A line for each run whose numbers are in no mean: its files are damaged or were changed."""
    from flray.results.readable import FLAWED

    flawed = frame[frame["status"].str.startswith(FLAWED)].to_dict("records")
    return [f"not counted: {row['folder']}: {row['status']}" for row in flawed]
