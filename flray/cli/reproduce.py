"""`flray papers reproduce`: runs of the papers' tables, our numbers beside theirs, with a verdict."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.cli.arguments import own_modules, parallel_runs
from flray.cli.interrupts import interruptible
from flray.cli.output import check_format, show, suggest, write, write_json, write_rows
from flray.cli.runs import starting
from flray.core.schema.errors import ConfigError, FlrayError, unknown
from flray.engine.progress import stage
from flray.files import quoted, results_folder
from flray.log import LOGGER

if TYPE_CHECKING:
    from flray.reference.papers import Setting
    from flray.reference.plan import RunPlan

Changes = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="e.g. data.root=DATA; others change the scale")
]
Cells = Annotated[
    list[str] | None, typer.Option(help='"CIFAR-10, LDA 0.1", or a part of a name; several times; default: all')
]
Margin = Annotated[
    float | None,
    typer.Option(min=0.01, help="points within which two numbers are the same, of the paper's runs; default 2"),
]


def _tables() -> list[str]:
    from flray.reference.papers import papers, tables

    return [*papers(), *tables()]


Table = Annotated[
    str | None,
    typer.Argument(help="a paper or one of its tables: fedsol, fedsol/table2", autocompletion=_tables),
]


def reproduce(
    table: Table = None,
    overrides: Changes = None,
    cells: Cells = None,
    methods: Annotated[str, typer.Option(help="of the rows only these, with commas: FedAvg,FedSOL")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="0, 1, ... of every run")] = 3,
    scale: Annotated[str, typer.Option(help="small: cut down, order only; full: the paper's")] = "small",
    margin: Margin = None,
    concurrency: Annotated[str, typer.Option(help="runs at a time: auto, or a number")] = "auto",
    out: Annotated[Path | None, typer.Option(help="folder of runs and results; default runs/PAPER-TABLE-SCALE")] = None,
    page: Annotated[Path | None, typer.Option(help="also write the result into this page of several tables")] = None,
    configs: Annotated[Path | None, typer.Option(help="the folder configs/ of flray's repository")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the runs, run none")] = False,
    format: Annotated[str, typer.Option(help="of the list and of --dry-run: table or json")] = "table",
) -> None:
    """Run the cells of the papers' tables, and compare our numbers with the paper's.

    `flray papers reproduce` lists every table and what can run here. `flray papers reproduce fedsol/table2 --cells
    "CIFAR-10, LDA 0.1"` runs a cell; the same command continues where it stopped.

    A verdict is the result of a test at 5 % in each cell: reproduced, not reproduced, order holds, order does not hold,
    or inconclusive; incomplete if a method diverged, is unfinished or missing. Each has the probability that it comes
    by chance, and the smallest difference that these seeds can show.
    """
    from flray.config.declared import declared_only
    from flray.reference.papers import chosen, papers

    check_format(format)
    _check_options(None, scale, concurrency)
    if table is None or table in papers():
        if cells or methods or dry_run or out or page:
            raise ConfigError("name one table, such as fedsol/table2; flray papers reproduce lists them")
        with declared_only():
            return _list(table, scale, configs, overrides or [], format)
    _check_options(table, scale, concurrency)
    own_modules()
    from flray.reference.plan import configs_folder, forget_experiments, plan

    settings = chosen(table, cells or [])
    _check_margin(margin, settings, scale, overrides or [])
    root = results_folder(out or Path("runs") / f"{table.replace('/', '-')}-{scale}", None)
    home = configs_folder(configs)
    only = [name.strip() for name in methods.split(",") if name.strip()]
    wanted = (settings, scale, seeds, root / "runs", home, only, overrides or [])
    with declared_only():
        planned = plan(*wanted)
    if dry_run:
        _show_plan(planned, scale, seeds, overrides or [], format)
        return
    if not planned.runs:
        reasons = dict.fromkeys(why for *_, why in planned.skipped)
        raise ConfigError(f"no run of {table} is possible here: {'; '.join(reasons)}")
    forget_experiments()
    with stage("loading torch"):
        planned = plan(*wanted)
    failed = _run(planned, root, home, overrides or [], concurrency, f"{table} {scale}")
    again = _again(table, overrides, cells, methods, seeds, scale, margin)
    _judge(planned, root, table, scale, overrides or [], margin, again, page)
    if failed is not None:
        raise failed


def _check_options(table: str | None, scale: str, concurrency: str) -> None:
    """Raises `ConfigError` for a table that does not exist or cannot be run, and for other options' values."""
    from flray.reference.papers import SCALES, papers, tables

    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    parallel_runs(concurrency)
    if table is None:
        return
    if "=" in table:
        raise ConfigError(f"{table} stands where a table belongs: the table comes first, then key=value")
    if table not in tables():
        raise unknown("table", table, [*tables(), *papers()])
    if why := tables()[table][1].why_not:
        raise ConfigError(f"{table} cannot be run: {why}")


def _check_margin(margin: float | None, settings: Sequence[Setting], scale: str, overrides: list[str]) -> None:
    from flray.reference.plan import another

    if margin is not None and all(another(setting, scale, overrides) for setting in settings):
        raise ConfigError("--margin: these are not the paper's runs, so only the order is judged; leave --margin out")


def _run(
    planned: RunPlan, root: Path, home: Path, overrides: list[str], concurrency: str, label: str
) -> FlrayError | None:
    """Run what is not finished. Returns the error of a run that failed: the other runs are judged all the same."""
    from flray.config.grid import cell_status

    if all(cell_status(run.experiment, run.folder) == "finished" for run in planned.runs):
        return None
    with starting(home / planned.runs[0].setting.config, overrides, trials=1):
        from flray.tuning.ablate import run_cells
    experiments, folders = [run.experiment for run in planned.runs], [run.folder for run in planned.runs]
    try:
        with interruptible(root, "the same command continues"):
            run_cells(experiments, folders, parallel_runs(concurrency), label=label)
    except FlrayError as error:
        return error
    return None


def _judge(
    planned: RunPlan,
    root: Path,
    table: str,
    scale: str,
    overrides: list[str],
    margin: float | None,
    again: str,
    page: Path | None,
) -> None:
    from flray.reference.evidence_page import ladder_sentence
    from flray.reference.outcome import counts, in_common, judge, put_on_page, render, table_of, write as write_results
    from flray.reference.verdict import MARGIN

    judged = judge(planned, scale, overrides, margin or MARGIN)
    rows = table_of(judged, scale, again)
    show(*(render(own) for _, own in rows.groupby(["cell", "measure"], sort=False)))
    paths = write_results(root, rows)
    write(f"{table}: {counts(judged)}")
    for sentence in in_common(judged):
        write(f"note:    {sentence}")
    if scale == "small":
        write(f"note:    {ladder_sentence()}")
    write(f"results: {', '.join(map(str, paths))}; {len(planned.runs)} run folders in {root / 'runs'}")
    if page is not None:
        write(f"page:    {page}, with {put_on_page(page, rows)}")
    suggest(
        [
            f"flray figure curves {quoted(root / 'runs')} --out curves.png",
            f"flray report {quoted(root / 'runs')} --out report.html",
        ]
    )


def _again(
    table: str,
    overrides: list[str] | None,
    cells: list[str] | None,
    methods: str,
    seeds: int,
    scale: str,
    margin: float | None,
) -> str:
    """The command that gives the same results, without its output folders."""
    words = ["flray", "papers", "reproduce", table, *(overrides or [])]
    words += [word for name in cells or [] for word in ("--cells", name)]
    words += ["--methods", methods] if methods else []
    words += ["--seeds", str(seeds), "--scale", scale]
    words += ["--margin", f"{margin:g}"] if margin is not None else []
    return shlex.join(words)


def _show_plan(planned: RunPlan, scale: str, seeds: int, extra: list[str], format: str) -> None:
    """The runs and their states, what cannot run here, and the commands of both."""
    from flray.config.grid import cell_status
    from flray.reference.plan import changed, commands

    rows: list[dict[str, Any]] = [
        {"cell": run.setting.name, "method": ", ".join(row.shown for row in run.rows), "seed": run.experiment.seed,
         "status": cell_status(run.experiment, run.folder), "folder": str(run.folder)}
        for run in planned.runs
    ]  # fmt: skip
    not_run = [
        {"cell": setting.name, "method": ", ".join(row.shown for row in cell_run.rows), "reason": reason}
        for setting, cell_run, reason in planned.skipped
    ]
    lines = commands(planned.runs, scale, extra)
    for setting, cell_run, _ in planned.skipped:
        if not setting.why_not(cell_run.line, scale):  # on a machine that has what is missing here
            lines += setting.commands(cell_run.line, scale, seeds, {cell_run.place}, changed(extra))
    if format == "json":
        write_json({"runs": rows, "not_run": not_run, "commands": lines})
        return
    if rows:
        write_rows(rows, f"{len(rows)} runs")
    for each in not_run:
        write(f"not run: {each['cell']}, {each['method']}: {each['reason']}")
    for line in lines:
        write(line)


def _list(paper: str | None, scale: str, configs: Path | None, overrides: list[str], format: str) -> None:
    """Every table of the papers, or of one paper: its cells, and which of them can run here."""
    from flray.reference.papers import papers, settings_of, tables

    rows = []
    try:
        from flray.reference.plan import configs_folder, plan

        where = configs_folder(configs)
    except FlrayError as error:
        where, problem = None, str(error)
    for key, (_, table) in tables().items():
        if paper is not None and key.partition("/")[0] != paper:
            continue
        grouped: dict[str, list[str]] = {}
        for setting in settings_of(key):
            if where is None:
                grouped.setdefault("?", []).append(setting.name)
                continue
            planned = plan([setting], scale, 1, Path("runs"), where, (), overrides)
            reasons = list(dict.fromkeys(why for *_, why in planned.skipped))
            some = planned.runs and planned.skipped
            prefix = f"{len(planned.skipped)} of {len(setting.runs)} methods cannot: " if some else ""
            grouped.setdefault(prefix + "; ".join(reasons) if reasons else "yes", []).append(setting.name)
        if not table.cells:
            grouped = {f"no: {table.why_not}": [""]}
        for state, names in grouped.items():
            rows.append({"table": key, "about": table.title, "cells": "; ".join(names), "can run here": state})
    total = sum(len(table.cells) for _, table in tables().values())
    write_rows(rows, f"{len(papers())} papers, {len(tables())} tables, {total} cells ({scale} scale)", format)
    if where is None:
        LOGGER.info(f"note: {problem}")
    suggest(['flray papers reproduce fedsol/table2 --cells "CIFAR-10, LDA 0.1" --methods FedAvg,FedSOL --dry-run'])
