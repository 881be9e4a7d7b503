"""`flray reproduce`: the papers' tables again, ours beside theirs, with a verdict."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.cli.runs import starting
from flray.cli.show import console, interruptible, own_modules, print_rows, results_folder
from flray.core.schema.errors import ConfigError, FlrayError, unknown
from flray.engine.progress import stage

if TYPE_CHECKING:
    from flray.reference.plan import RunPlan


def reproduce(
    table: Annotated[str | None, typer.Argument(help="a paper or one of its tables: fedsol, fedsol/table2")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="e.g. data.root=DATA; others change the scale")
    ] = None,
    cells: Annotated[
        list[str] | None, typer.Option(help='"CIFAR-10, LDA 0.1", or a part of a name; several times; default: all')
    ] = None,
    methods: Annotated[str, typer.Option(help="of the rows only these, with commas: FedAvg,FedSOL")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="0, 1, ... of every run")] = 3,
    scale: Annotated[str, typer.Option(help="small: cut down, order only; full: the paper's")] = "small",
    margin: Annotated[
        float | None,
        typer.Option(min=0.01, help="points within which two numbers are the same, of the paper's runs; default 2"),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="runs at a time: auto, or a number")] = "auto",
    out: Annotated[Path | None, typer.Option(help="folder of runs and results; default runs/PAPER-TABLE-SCALE")] = None,
    page: Annotated[Path | None, typer.Option(help="also write the result into this page of several tables")] = None,
    configs: Annotated[Path | None, typer.Option(help="the folder configs/ of flray's repository")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the runs, run none")] = False,
) -> None:
    """The papers' tables again: run their cells, set ours beside the paper's, and say what holds.

    `flray reproduce` lists every table and what can run here. `flray reproduce fedsol/table2 --cells "CIFAR-10, LDA
    0.1"` runs a cell; the same command goes on where it stopped.

    A verdict is a test's, at 5 % in each cell: reproduced, not reproduced, order holds, order does not hold, else
    inconclusive; incomplete where a method diverged, is unfinished or missing. Beside it stand how often it comes by
    chance, and the smallest difference that these seeds can see.
    """
    from flray.reference.papers import SCALES, chosen, papers, tables

    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if table is None or table in papers():
        if cells or methods or dry_run or out or page:
            raise ConfigError("which table is it? name one, such as fedsol/table2: flray reproduce lists them")
        _list(table, scale, configs, overrides or [])
        return
    if "=" in table:
        raise ConfigError(f"{table} stands where a table belongs: the table comes first, then key=value")
    if table not in tables():
        raise unknown("table", table, [*tables(), *papers()])
    if why := tables()[table][1].why_not:
        raise ConfigError(f"{table} cannot be run: {why}")
    if concurrency != "auto" and not (concurrency.isdigit() and int(concurrency)):
        raise ConfigError(f"--concurrency {concurrency}: auto, or a number of at least 1")
    settings = chosen(table, cells or [])
    own_modules()
    from flray.config.grid import cell_status
    from flray.reference.outcome import judge
    from flray.reference.page import counts, in_common, markdown, put_on_page, render, write
    from flray.reference.plan import another, configs_folder, plan
    from flray.reference.verdict import MARGIN

    if margin is not None and all(another(setting, scale, overrides or []) for setting in settings):
        raise ConfigError("--margin: these are not the paper's runs, so the order alone is judged; leave it out")
    root = results_folder(out or Path("runs") / f"{table.replace('/', '-')}-{scale}", None)
    home = configs_folder(configs)
    with stage("loading torch"):
        planned = plan(settings, scale, seeds, root / "runs", home, _names(methods), overrides or [])
    if dry_run:
        _show_plan(planned, scale, overrides or [])
        return
    if not planned.runs:
        raise ConfigError(
            f"nothing of {table} can run here: {'; '.join(dict.fromkeys(why for *_, why in planned.skipped))}"
        )
    failed: FlrayError | None = None
    again = _again(table, overrides, cells, methods, seeds, scale, margin)
    if any(cell_status(run.experiment, run.folder) != "finished" for run in planned.runs):
        with starting(home / planned.runs[0].setting.config, overrides or [], trials=1):
            from flray.tuning.ablate import run_cells
        try:
            with interruptible(root, "the same command goes on"):
                run_cells(
                    [run.experiment for run in planned.runs],
                    [run.folder for run in planned.runs],
                    concurrency if concurrency == "auto" else int(concurrency),
                    label=f"{table} {scale}",
                )
        except FlrayError as error:  # of one run: the others are judged, and it is said at the end
            failed = error
    judged = judge(planned, scale, overrides or [], margin or MARGIN)
    for each in judged:
        console().print(render(each))
    paths = write(root, table, scale, judged, seeds, again)
    print(f"{table}: {counts(judged)}")
    for sentence in in_common(judged):
        print(f"note:    {sentence}")
    print(f"results: {', '.join(map(str, paths))}; {len(planned.runs)} run folders in {root / 'runs'}")
    if page is not None:
        section = markdown(table, scale, judged, seeds, again, paths[2].name)
        print(f"page:    {page}, with {put_on_page(page, table, scale, section, paths[2])}")
    print(f"next:    flray figure curves {root / 'runs'} --out curves.png")
    print(f"         flray report {root / 'runs'} --out report.html")
    if failed is not None:
        raise failed


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _again(
    table: str,
    overrides: list[str] | None,
    cells: list[str] | None,
    methods: str,
    seeds: int,
    scale: str,
    margin: float | None,
) -> str:
    """The command that gives the same, without where it was written to."""
    words = ["flray", "reproduce", table, *(overrides or [])]
    words += [word for name in cells or [] for word in ("--cells", name)]
    words += ["--methods", methods] if methods else []
    words += ["--seeds", str(seeds), "--scale", scale]
    words += ["--margin", f"{margin:g}"] if margin is not None else []
    return shlex.join(words)


def _show_plan(planned: RunPlan, scale: str, extra: list[str]) -> None:
    from flray.config.grid import cell_status
    from flray.reference.plan import commands

    rows: list[dict[str, Any]] = [
        {"cell": run.setting.name, "method": ", ".join(row.shown for row in run.rows), "seed": run.experiment.seed,
         "is": cell_status(run.experiment, run.folder), "folder": str(run.folder)}
        for run in planned.runs
    ]  # fmt: skip
    if rows:
        print_rows(rows, f"{len(rows)} runs")
    for setting, cell_run, why in planned.skipped:
        print(f"not run: {setting.name}, {', '.join(row.shown for row in cell_run.rows)}: {why}")
    for line in commands(planned.runs, scale, extra):
        print(line)


def _list(paper: str | None, scale: str, configs: Path | None, overrides: list[str]) -> None:
    """Every table of the papers, or of one: its cells, and which of them can run here."""
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
            cell_run = (
                f"{len(planned.skipped)} of {len(setting.runs)} methods cannot: "
                if planned.runs and planned.skipped
                else ""
            )
            grouped.setdefault(cell_run + "; ".join(reasons) if reasons else "yes", []).append(setting.name)
        if not table.cells:
            grouped = {f"no: {table.why_not}": [""]}
        for state, names in grouped.items():
            rows.append({"table": key, "about": table.title, "cells": "; ".join(names), "can run here": state})
    total = sum(len(table.cells) for _, table in tables().values())
    print_rows(rows, f"{len(papers())} papers, {len(tables())} tables, {total} cells ({scale} scale)")
    if where is None:
        print(f"note: {problem}")
    print('next:    flray reproduce fedsol/table2 --cells "CIFAR-10, LDA 0.1" --methods FedAvg,FedSOL --dry-run')
