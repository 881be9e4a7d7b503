"""`flray compare`: tables of runs and settings, on the terminal, in Markdown and LaTeX, as CSV and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.arguments import Against, complete_metric, runs_in
from flray.cli.output import check_format, print_table, records, show, write, write_json
from flray.core.schema.errors import FlrayError, unknown
from flray.log import LOGGER

if TYPE_CHECKING:
    import pandas

    from flray.rundir.reader import Run

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
) -> None:
    """One table of several runs: last, best and mean accuracy, bytes, seconds; mean and 95 % interval over seeds.

    Runs over tasks add ACC, FT, AIA, BWT, FWT and task prediction. Runs through a drift add the accuracy before the
    window, at its end, and finally. Both are by inference mode; `--metric ACC` (`ACC@MODE`) compares on one of them.

    With --against: the differences to that setting on the same seeds, their t- and bootstrap intervals, g_z, and
    Holm-corrected p-values (csv, json: only these).

    With --at: what was measured up to there, e.g. `virtual=3600`. With --to: rounds, local steps, bytes and virtual
    time until the metric first reaches the number (`--metric to/bytes` compares by another one of them).

    With three methods or more over several settings: Friedman's test of their ranks and Nemenyi's critical difference
    (`flray figure ranks` draws them). The last lines name the setting with the highest mean, or say that no difference
    was found, and list settings that are not comparable (with the keys) and unequal costs. A folder that cannot be read
    is a warning.
    """
    check_format(format, FORMATS)
    _check_paper(format, style, {"--against": against, "--at": at, "--to": to})
    if at is not None:
        return _write_at(folders, format, metric, against, at)
    if to is not None:
        return _write_to(folders, format, metric, against, to)
    from flray.results import compare as compare_runs

    runs = runs_in(folders)
    frame = compare_runs(runs)
    if format == "latex" or style == "paper":
        return _write_paper(runs, frame, format, metric)
    return _write_all(runs, frame, format, metric, against)


def _check_paper(format: str, style: str | None, given: Mapping[str, str | None]) -> None:
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


def _write_paper(runs: list[Run], frame: pandas.DataFrame, format: str, metric: str) -> None:
    """The table for a paper, in LaTeX or Markdown."""
    from flray.results.comparable import caveats
    from flray.results.paper_tables import latex_table, paper_table
    from flray.results.rendering import to_markdown

    for text in _not_counted(frame) + caveats(runs, frame, metric, None):
        LOGGER.warning(text)
    table = paper_table(frame, metric)
    write(latex_table(table) if format == "latex" else to_markdown(table), end="")


def _write_at(folders: list[str], format: str, metric: str, against: str | None, at: str) -> None:
    """The tables and sentences of `--at`."""
    from flray.results import compare_at, summary
    from flray.results.targets import parsed

    runs = runs_in(folders)
    frame = compare_at(runs, *parsed("--at", at))
    several = against is None and frame["seed"].nunique() > 1
    tables = {f"At {at}: the last round that ends there or before": summary(frame, metric)} if several else {}
    _write_part(runs, frame, frame, format, metric, against, tables)


def _write_to(folders: list[str], format: str, metric: str, against: str | None, to: str) -> None:
    """The tables and sentences of `--to`."""
    from flray.results import compare_to
    from flray.results.rendering import spelled_numbers
    from flray.results.targets import COSTS, check_reference, parsed, reached, where_all_reach

    runs = runs_in(folders)
    frame = compare_to(runs, *parsed("--to", to))
    costs = [name for name in COSTS if name in frame]
    if metric not in costs:
        metric = "to/virtual" if "to/virtual" in costs else "to/rounds"
    tables = {f"To {to}": spelled_numbers(reached(frame), costs, "-: not every seed reaches it")}
    if against is not None:
        check_reference(frame, metric, against)
    compared, said = where_all_reach(frame, metric)
    _write_part(runs, frame, compared, format, metric, against, tables, said)


def _write_part(
    runs: list[Run],
    frame: pandas.DataFrame,
    compared: pandas.DataFrame,
    format: str,
    metric: str,
    against: str | None,
    tables: dict[str, pandas.DataFrame],
    said: Sequence[str] = (),
) -> None:
    """The runs of `frame`, `tables` by title, the paired differences and the verdict of those in `compared`."""
    from flray.results import paired, render, to_markdown
    from flray.results.answers import verdict
    from flray.results.comparable import caveats
    from flray.results.paired import caption
    from flray.results.rendering import csv
    from flray.results.tables import settings_of

    differences = paired(compared, against, metric) if against is not None else None
    if differences is not None:
        tables = {**tables, caption(differences): differences}
    shown = frame if differences is None else differences
    sentences = [*(verdict(compared, metric) if len(settings_of(compared)) > 1 else []), *said]
    sentences += caveats(runs, frame, metric, against if len(compared) == len(frame) else None, cost=False)
    for text in _not_counted(frame):
        LOGGER.warning(text)
    if format == "json":
        write_json(records(shown))
    elif format == "csv":
        write(csv(shown), end="")
    elif format == "markdown":
        write("\n".join([to_markdown(frame), *(f"{name}:\n\n{to_markdown(table)}" for name, table in tables.items())]))
    else:
        show(render(frame), *(render(table, name) for name, table in tables.items()))
    for sentence in sentences:
        LOGGER.info(f"* {sentence}") if format in ("json", "csv") else write(f"* {sentence}")


def _not_counted(frame: pandas.DataFrame) -> list[str]:
    """A line for each run whose numbers are in no mean: its files are damaged or were changed."""
    from flray.results.readable import FLAWED

    flawed = frame[frame["status"].str.startswith(FLAWED)].to_dict("records")
    return [f"not counted: {row['folder']}: {row['status']}" for row in flawed]


def _write_all(runs: list[Run], frame: pandas.DataFrame, format: str, metric: str, against: str | None) -> None:
    """The tables of runs, settings, modes, clients and ranks, and the sentences on them."""
    from flray.results import by_mode, paired, summary, to_markdown
    from flray.results.answers import verdict
    from flray.results.by_mode import NOTE, NUMBERS, fairness
    from flray.results.comparable import caveats
    from flray.results.paired import caption
    from flray.results.ranks import over_settings
    from flray.results.rendering import csv, spelled, spelled_numbers
    from flray.results.tables import settings_of

    differences = paired(frame, against, metric) if against is not None else None
    over, more = over_settings(frame, metric)
    sentences = [*(verdict(frame, metric) if len(settings_of(frame)) > 1 else []), *over]
    if len(evenly := fairness(frame)):
        more = {"Over clients and classes": spelled_numbers(evenly, NUMBERS, NOTE)} | more
    sentences += caveats(runs, frame, metric, against)
    for text in _not_counted(frame):
        LOGGER.warning(text)
    if format == "json":
        write_json(records(frame if differences is None else differences))
    elif format == "csv":
        write(csv(frame if differences is None else differences), end="")
    elif format == "markdown":
        write(to_markdown(frame))
        if differences is not None:
            write(f"{caption(differences)}:\n")
        write(to_markdown(summary(frame, metric) if differences is None else differences))
        for title, table in (spelled(by_mode(frame)) | more).items() if differences is None else ():
            write(f"{title}:\n\n{to_markdown(table)}")
    else:
        print_table(frame, metric, against, more)
    for sentence in sentences:
        LOGGER.info(f"* {sentence}") if format in ("json", "csv") else write(f"* {sentence}")
