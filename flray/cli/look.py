"""Commands that read: `flray list | doctor | replay | compare | report | bench`."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.arguments import (
    Format,
    Imports,
    Overrides,
    import_modules,
    own_modules,
    refuse_unused,
    runs_in,
    warn_left_out,
)
from flray.cli.output import (
    check_format,
    markdown,
    print_rows,
    print_table,
    records,
    write,
    write_json,
    write_rows,
)
from flray.core.schema.errors import FlrayError, unknown
from flray.engine.progress import stage
from flray.log import LOGGER

if TYPE_CHECKING:
    from flray.results.report_page import Lead

KINDS = (
    "algorithms", "datasets", "models", "partitions", "drifts", "encodings", "diagnostics", "metrics", "config",
)  # fmt: skip
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
    """Names with their options, defaults and bounds.

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
        write(page(), end="")
        return
    check_format(format)
    if name is None:
        write_rows(catalog(kind), f"{kind} (flray list {kind} NAME for more)", format)
        return
    text, rows = detail(kind, name)
    if format == "json":
        write_json({"name": name, "text": text, "options": rows})
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
        bool, typer.Option("--write-rayignore", help="first write a .rayignore into that folder, unless it has one")
    ] = False,
    format: Format = "table",
    imports: Imports = None,
) -> None:
    """Check a configuration before it runs: data, partition, model, memory, disk, actors, the upload of a job.

    Trains nothing.
    """
    from flray.config.declared import check_declared
    from flray.config.loader import load_config
    from flray.core.schema.plain import read

    check_format(format)
    own_modules()
    content = read(config.read_text(errors="replace"), str(config)) if config.is_file() else None
    own = [*(imports or []), *((content.get("imports") or []) if isinstance(content, dict) else [])]
    if own:
        names = ", ".join(map(str, own))
        LOGGER.info(f"note: doctor imports these modules, which runs their code: {names}")
    check_declared(lambda: load_config(config, overrides or [], imports or []))
    with stage("loading torch"):
        from flray.doctor import drift_picture, examine, examine_upload

        cells = load_config(config, overrides or [], imports or [])
    if write_rayignore:
        from flray.engine.ray.job_folder import write_rayignore as ignore

        working_dir = working_dir or Path()
        LOGGER.info(f"{working_dir / '.rayignore'}: {'written' if ignore(working_dir) else 'exists, not changed'}")
    upload = [] if working_dir is None else examine_upload(cells[0], working_dir)
    findings = examine(cells[0], figure)
    if format == "json":
        partition = records(findings.partition.reset_index())
        write_json({"checks": [*upload, *findings.checks], "partition": partition})
        return
    if upload:
        print_rows(upload, f"ray job submit --working-dir {working_dir}")
    print_rows(findings.checks, str(config))
    write(findings.partition.to_string() + ("" if findings.all_clients else "\n..."))
    if figure is not None:
        write(f"partition figure: {figure}")
        if drift_picture(figure).exists() and cells[0].drift is not None:
            write(f"drift figure: {drift_picture(figure)}")


def replay(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    client: Annotated[int, typer.Option(help="client id")],
    round: Annotated[
        int | None,
        typer.Option(help="round, from 1 over all tasks; default: the one after the last checkpoint, or the last"),
    ] = None,
    format: Format = "table",
) -> None:
    """Repeat one client of one round in this process, to the same bits: for a debugger, or after a client failed."""
    check_format(format)
    own_modules()
    from flray.cli.checks import check_replay
    from flray.config.declared import check_declared

    check_declared(lambda: check_replay(folder, round))
    from flray.engine.replay import Replay, at_failure

    check_replay(folder, round)
    again = Replay(folder)
    at = min(at_failure(folder), again.experiment.total_rounds - 1) if round is None else round - 1
    rows = [{"client": number, "round": at + 1, **row} for number, _, row in again.goto(at).clients(only=client)]
    write_rows(rows, f"client {client}, round {at + 1}", format)


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

    Runs over tasks add ACC, FT, AIA, BWT, FWT and task prediction. Runs through a drift add the accuracy before the
    window, at its end, and finally. Both are by inference mode; `--metric ACC` (`ACC@MODE`) compares on one of them.

    With --against: the differences to that setting on the same seeds, their t- and bootstrap intervals, g_z, and
    Holm-corrected p-values (csv, json: only these).

    With three methods or more over several settings: Friedman's test of their ranks and Nemenyi's critical difference
    (`flray figure ranks` draws them). The last lines name the best setting, or say that no difference was found, and
    list settings that are not comparable (with the keys) and unequal costs. A folder that cannot be read is a warning.
    """
    check_format(format, FORMATS)
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
    sentences = [*(verdict(frame, metric) if len(settings_of(frame)) > 1 else []), *over]
    if len(evenly := fairness(frame)):
        more = {"Over clients and classes": spelled_numbers(evenly, NUMBERS, NOTE)} | more
    sentences += caveats(runs, frame, metric, against)
    for row in frame[frame["status"].str.startswith(FLAWED)].to_dict("records"):
        LOGGER.warning(f"not counted: {row['folder']}: {row['status']}")
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

    The page of a sweep's folder shows its trials, the importance of the hyper-parameters and the final runs; that of an
    ablation its cells against the reference. It names each folder that cannot be read, with the reason.
    """
    from flray.results.report_formats import FORMATS
    from flray.results.report_page import Lead, gather
    from flray.results.report_page import write as write_page

    form = format or (out.suffix if out is not None else "").removeprefix(".") or "html"
    if form not in FORMATS:
        raise unknown("report format", form, FORMATS)
    lead = [_trials(Path(folder), form == "html") for folder in folders if (Path(folder) / "sweep.yaml").exists()]
    first = Lead(*(tuple(chain.from_iterable(parts)) for parts in zip(*lead, strict=True))) if lead else None
    page = gather(folders, metric, against, drawn=form == "html", lead=first)
    warn_left_out(page.broken, page.notes)
    write(write_page(page, out or Path(f"report.{form}"), form))


def _trials(folder: Path, drawn: bool) -> Lead:
    """What a report says of a sweep's trials; nothing, and a warning, if its studies cannot be read."""
    from flray.results.report_page import Lead
    from flray.rundir.reader import runs_below
    from flray.tuning.trials_page import trials_lead

    try:
        return trials_lead(folder, drawn)
    except FlrayError as error:
        if runs_below(folder):  # a folder without runs has its own warning
            LOGGER.warning(f"left out: the trials of {folder}: {error}")
        return Lead()


BENCHES = "cli,startup,W1,W2,calls,W3,W4,states,long,step,projected,detector,text,nodes,plan,sweep"
ALONE = ("table5", "diagnostics")  # their rows have other columns, so each is a call of its own


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
    check_format(format, ("table", "markdown", "json"))
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
    write_rows(rows, "flray bench", format)
