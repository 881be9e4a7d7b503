"""Commands that look and train nothing new: `flray list | doctor | replay | compare | report | bench`."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.show import (
    Imports,
    Overrides,
    import_modules,
    markdown,
    markdown_rows,
    own_modules,
    print_left_out,
    print_rows,
    print_table,
    runs_in,
)
from flray.cli.unused import refuse_unused
from flray.core.schema.errors import FlrayError, unknown
from flray.engine.progress import stage

if TYPE_CHECKING:
    from flray.results.report_page import Lead

KINDS = ("algorithms", "datasets", "models", "partitions", "drifts", "diagnostics", "metrics", "config")
FORMATS = ("table", "markdown", "csv", "json")


def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="|".join(KINDS),
            autocompletion=lambda: list(KINDS),
            help="what to list; config: every key of an experiment and of a sweep",
        ),
    ],
    name: Annotated[str | None, typer.Argument(help="one of them: everything about it")] = None,
    format: Annotated[str, typer.Option(help="table or json; algorithms: markdown, a page of all cards")] = "table",
    imports: Imports = None,
) -> None:
    """What there is: names with their options, defaults and bounds.

    `flray list config evaluate`: the keys of a section.
    """
    from flray.config.declared import declared_only

    own_modules()
    import_modules(imports)
    with declared_only():
        _print_list(kind, name, format)


def _print_list(kind: str, name: str | None, format: str) -> None:
    from flray.cli.catalog import catalog, detail, page

    if format == "markdown" and kind == "algorithms" and name is None:
        print(page(), end="")
        return
    if format not in ("table", "json"):
        raise FlrayError(f"--format {format}: table or json (and markdown for all algorithms)")
    if name is None:
        rows = catalog(kind)
        print(json.dumps(rows, indent=1, default=str)) if format == "json" else print_rows(
            rows, f"{kind} (flray list {kind} NAME for more)"
        )
        return
    text, rows = detail(kind, name)
    if format == "json":
        print(json.dumps({"name": name, "text": text, "options": rows}, indent=1, default=str))
        return
    markdown(text)
    print_rows(rows, f"keys of {name}" if kind == "config" else f"options of {name}")


def doctor(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Overrides = None,
    figure: Annotated[Path | None, typer.Option(help="PNG of the partition")] = None,
    working_dir: Annotated[
        Path | None, typer.Option(help="what `ray job submit --working-dir` would upload of this folder")
    ] = None,
    write_rayignore: Annotated[
        bool, typer.Option("--write-rayignore", help="write a .rayignore there first, if there is none")
    ] = False,
    imports: Imports = None,
) -> None:
    """Check a configuration before it runs: data, partition, model, memory, disk, actors, the upload of a job.

    Trains nothing.
    """
    from flray.config.declared import check_declared
    from flray.config.loader import load_config
    from flray.core.schema.plain import read

    own_modules()
    content = read(config.read_text(errors="replace"), str(config)) if config.is_file() else None
    own = [*(imports or []), *((content.get("imports") or []) if isinstance(content, dict) else [])]
    if own:
        names = ", ".join(map(str, own))
        print(f"note: doctor imports these modules, which runs their code: {names}", file=sys.stderr, flush=True)
    check_declared(lambda: load_config(config, overrides or [], imports or []))
    with stage("loading torch"):
        from flray.doctor import beside, examine, examine_upload

        cells = load_config(config, overrides or [], imports or [])
    if write_rayignore:
        from flray.engine.ray.job_folder import write_rayignore as write

        working_dir = working_dir or Path()
        print(f"{working_dir / '.rayignore'}: {'written' if write(working_dir) else 'is there, and stays as it is'}")
    if working_dir is not None:
        print_rows(examine_upload(cells[0], working_dir), f"ray job submit --working-dir {working_dir}")
    rows, table = examine(cells[0], figure)
    print_rows(rows, str(config))
    print(table)
    if figure is not None:
        print(f"partition figure: {figure}")
        if beside(figure).exists() and cells[0].drift is not None:
            print(f"drift figure: {beside(figure)}")


def replay(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    client: Annotated[int, typer.Option(help="client id")],
    round: Annotated[
        int | None,
        typer.Option(help="round, from 1 over all tasks; default: the one after the last checkpoint, or the last"),
    ] = None,
) -> None:
    """Repeat one client of one round in this process, to the same bits: for a debugger, or after a client failed."""
    from flray.engine.replay import Replay, at_failure

    own_modules()
    again = Replay(folder)
    rounds = again.experiment.total_rounds
    if round is not None and not 1 <= round <= rounds:
        raise FlrayError(f"--round {round}: the run has rounds 1 to {rounds}")
    at = min(at_failure(folder), rounds - 1) if round is None else round - 1
    for who, _, row in again.goto(at).clients(only=client):
        print_rows([{"client": who, "round": at + 1, **row}], f"client {who}, round {at + 1}")


def compare(
    folders: Annotated[list[str], typer.Argument(help="run folders (or URIs), or folders that hold them")],
    format: Annotated[str, typer.Option(help="table, markdown, csv or json")] = "table",
    metric: Annotated[str, typer.Option(help="of the table over seeds: a column of the table of runs")] = "test/acc",
    against: Annotated[
        str | None,
        typer.Option(metavar="ALGORITHM|KEY=VALUE|FOLDER", help="a setting: paired differences to it, with tests"),
    ] = None,
) -> None:
    """One table of several runs: last, best and mean accuracy, bytes, seconds; mean and 95 % interval over seeds.

    Of runs over tasks ACC, FT, AIA, BWT, FWT and task prediction as well, of runs through a drift the accuracy before,
    at the end of the window and finally, by inference mode; `--metric ACC` (`ACC@MODE`) compares on one of them.

    With --against: the differences to that setting on the same seeds, their t- and bootstrap intervals, g_z, and
    Holm-corrected p-values (csv, json: only these).

    Of three methods or more over several settings Friedman's test of their ranks and Nemenyi's critical difference
    (`flray figure ranks` draws them). At the end which setting is best, or that no difference was found, what is not
    comparable, with the keys, and unequal cost; a folder that cannot be read is a line on stderr.
    """
    if format not in FORMATS:
        raise unknown("--format", format, FORMATS)
    from flray.results import by_mode, paired, summary, to_markdown
    from flray.results import compare as compare_runs
    from flray.results.answers import verdict
    from flray.results.comparable import caveats
    from flray.results.fair import NOTE, NUMBERS, fairness
    from flray.results.paired import caption
    from flray.results.ranks import over_settings
    from flray.results.readable import FLAWED
    from flray.results.rendering import spelled, spelled_numbers
    from flray.results.spreadsheet import csv
    from flray.results.tables import settings_of

    runs = runs_in(folders)
    frame = compare_runs(runs)
    differences = paired(frame, against, metric) if against is not None else None
    over, more = over_settings(frame, metric)
    said = [*(verdict(frame, metric) if len(settings_of(frame)) > 1 else []), *over]
    if len(evenly := fairness(frame)):
        more = {"Over clients and classes": spelled_numbers(evenly, NUMBERS, NOTE)} | more
    said += caveats(runs, frame, metric, against)
    for row in frame[frame["status"].str.startswith(FLAWED)].to_dict("records"):
        print(f"not counted: {row['folder']}: {row['status']}", file=sys.stderr)
    if format == "json":
        print((frame if differences is None else differences).to_json(orient="records", indent=1))
    elif format == "csv":
        print(csv(frame if differences is None else differences), end="")
    elif format == "markdown":
        print(to_markdown(frame))
        if differences is not None:
            print(f"{caption(differences)}:\n")
        print(to_markdown(summary(frame, metric) if differences is None else differences))
        for title, table in (spelled(by_mode(frame)) | more).items() if differences is None else ():
            print(f"{title}:\n\n{to_markdown(table)}")
    else:
        print_table(frame, metric, against, more)
    for sentence in said:
        print(f"* {sentence}", file=sys.stderr if format in ("json", "csv") else sys.stdout)


def report(
    folders: Annotated[
        list[str], typer.Argument(help="run folders (or URIs), or folders that hold them: a grid, an ablation, a sweep")
    ],
    out: Annotated[Path | None, typer.Option(help="the page; default: report.html, or .md, .json")] = None,
    format: Annotated[
        str | None, typer.Option(help="html, md or json; default: how the name of --out ends, or html")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="what settings are judged by: a column of `flray compare`; default: test/acc, or an ablation's"
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="ALGORITHM|KEY=VALUE|FOLDER", help="a setting: paired differences to it, with tests"),
    ] = None,
) -> None:
    """One self-contained page about runs: which is better, by how much, how sure, at what cost, what was forgotten.

    Of a sweep's folder its trials, what mattered and the final runs; of an ablation's its cells against the reference.

    A folder that cannot be read is named there with the reason; the good runs are still shown.
    """
    from flray.results.report_formats import FORMATS
    from flray.results.report_page import Lead, gather, write

    form = format or (out.suffix if out is not None else "").removeprefix(".") or "html"
    if form not in FORMATS:
        raise unknown("report format", form, FORMATS)
    lead = [_trials(Path(folder), form == "html") for folder in folders if (Path(folder) / "sweep.yaml").exists()]
    first = Lead(*(tuple(chain.from_iterable(parts)) for parts in zip(*lead, strict=True))) if lead else None
    page = gather(folders, metric, against, drawn=form == "html", lead=first)
    print_left_out(page.broken, page.notes)
    print(write(page, out or Path(f"report.{form}"), form))


def _trials(folder: Path, drawn: bool) -> Lead:
    """What a report says of a sweep's trials; nothing where its studies cannot be read, which is a line on stderr."""
    from flray.results.report_page import Lead
    from flray.rundir.reader import runs_below
    from flray.tuning.trials_page import trials_lead

    try:
        return trials_lead(folder, drawn)
    except FlrayError as error:
        if runs_below(folder):  # without any the folder is left out as a whole
            print(f"left out: the trials of {folder}: {error}", file=sys.stderr)
        return Lead()


BENCHES = "cli,startup,W1,W2,calls,W3,step,projected,detector,text,sweep"
ALONE = ("table5", "diagnostics")  # rows of another kind, so each by itself


def bench(
    ctx: typer.Context,
    only: Annotated[
        str | None,
        typer.Option(help=f"by comma, of {BENCHES}; default those of at most 6 minutes; or {' or '.join(ALONE)}"),
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(help="instead: local steps of these (by comma, or all) beside FedAvg's")
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="instead: a sweep's fixed cost and its cost per trial, beside runs in a row")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="instead: where the time of an evaluated round goes; of W2, or of --only")
    ] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds per measurement")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="interleaved repetitions")] = 3,
    format: Annotated[str, typer.Option(help="table, markdown or json")] = "table",
) -> None:
    """Speed and memory beside a bare PyTorch loop that does the same gradient steps, as ratios.

    `--only table5`: FedProj's Table 5, printed, by its model and measured. `--only diagnostics`: what each diagnostic
    costs.
    """
    if format not in ("table", "markdown", "json"):
        raise unknown("--format", format, ("table", "markdown", "json"))
    reads = {
        "--only table5": ("only", "rounds", "repeats"), "--only diagnostics": ("only", "repeats"),
        "--sweep": ("sweep", "rounds", "repeats"), "--profile": ("profile", "only", "rounds"),
        "--algorithms": ("algorithms", "repeats"), "": ("only", "rounds", "repeats"),
    }  # fmt: skip
    instead = "--sweep" if sweep else "--profile" if profile else "--algorithms" if algorithms is not None else ""
    way = instead or (f"--only {only}" if only in ALONE else "")
    refuse_unused(ctx, ("format", *reads[way]), f"flray bench {way}".rstrip())
    from flray import bench as benchmarks

    if not instead and only in ALONE:
        rows = benchmarks.alone(only, rounds, repeats)
    elif sweep:
        rows = benchmarks.sweep_costs(rounds, repeats)
    elif profile:
        from flray.bench.profile import profiles

        rows = profiles(tuple((only or "W2").split(",")), rounds)
    elif algorithms is None:
        rows = benchmarks.bench(None if only is None else only.split(","), rounds=rounds, repeats=repeats)
    else:
        from flray.bench.steps import compare_steps

        rows = compare_steps(algorithms.split(","), benchmarks.W1, repeats)
    if format == "markdown":
        print(markdown_rows(rows), end="")
        return
    print(json.dumps(rows, indent=1, default=str)) if format == "json" else print_rows(rows, "flray bench")
