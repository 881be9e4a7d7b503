"""Commands that read: `flray list | doctor | replay | report | bench`."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.cli.arguments import (
    Against,
    Format,
    Imports,
    Overrides,
    complete_kind,
    complete_metric,
    complete_name,
    own_modules,
)
from flray.cli.output import (
    check_format,
    markdown,
    print_rows,
    records,
    suggest,
    write,
    write_json,
    write_rows,
)
from flray.core.schema.errors import ConfigError, FlrayError
from flray.engine.progress import stage
from flray.files import check_local
from flray.log import LOGGER

if TYPE_CHECKING:
    from flray.config.experiment import Experiment


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            autocompletion=complete_kind,
            help="what to list; without it the kinds; config: every key of an experiment and of a sweep",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(help="one of them: everything about it", autocompletion=complete_name)
    ] = None,
    format: Annotated[str, typer.Option(help="table or json; algorithms: markdown, a page of all cards")] = "table",
    imports: Imports = None,
) -> None:
    """Names with their options, defaults and bounds; without a kind, the kinds of names.

    `flray list algorithms`: in groups. `flray list config evaluate`: the keys of a section.
    """
    from flray.config.declared import declared_only
    from flray.core.schema.registry import imported

    own_modules()
    for module in imports or []:
        imported(module, f"--import {module}")
    with declared_only():
        _print_list(kind, name, format)


def _print_list(kind: str | None, name: str | None, format: str) -> None:
    from flray.cli.catalog import beside, catalog, detail, kinds, page

    if format == "markdown" and kind == "algorithms" and name is None:
        write(page(), end="")
        return
    check_format(format)
    if kind is None:
        write_rows(kinds(), "flray list KIND, flray list KIND NAME", format)
        return
    if name is None:
        rows = catalog(kind)
        if kind != "algorithms" or format == "json":
            if kind == "fits" and format == "table":
                rows = [
                    {key: ("x" if value else "") if isinstance(value, bool) else value for key, value in row.items()}
                    for row in rows
                ]
            write_rows(rows, f"{kind} (flray list {kind} NAME for more)", format)
            if format == "table" and (more := beside(kind)):
                write(more)
            return
        for group, members in groupby(rows, key=itemgetter("group")):
            print_rows([{key: row[key] for key in ("name", "about", "keeps")} for row in members], group)
        write(beside(kind))
        suggest(["flray list algorithms NAME"])
        return
    text, rows = detail(kind, name)
    if format == "json":
        write_json({"name": name, "text": text, "options": rows})
        return
    markdown(text)
    if rows:
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
    nodes: Annotated[
        str | None,
        typer.Option(help="by comma, e.g. 1,100: also what the run takes on so many nodes like this machine"),
    ] = None,
    format: Format = "table",
    imports: Imports = None,
) -> None:
    """Check a configuration before it runs: data, partition, model, memory, disk, actors, the upload of a job.

    Trains nothing. But `--nodes 1,8,100` trains two clients for some seconds, without Ray, and prints a row for each
    number of nodes like this machine: memory, bytes and seconds of a round, seconds and core hours of the run.
    """
    from flray.config.declared import check_declared
    from flray.config.loader import load_config
    from flray.config.read import read_yaml

    check_format(format)
    words = nodes.split(",") if nodes is not None else []
    if not all(word.isdecimal() and int(word) for word in words):
        raise FlrayError(f"--nodes {nodes}: give numbers from 1, with commas, e.g. 1,8,100")
    own_modules()
    content = read_yaml(config) if config.is_file() else None
    own = [*(imports or []), *((content.get("imports") or []) if isinstance(content, dict) else [])]
    if own:
        LOGGER.info(f"note: doctor imports these modules, which runs their code: {', '.join(map(str, own))}")
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
    planned = _on_nodes(cells[0], list(map(int, words)))
    if format == "json":
        partition = records(findings.partition.reset_index())
        return write_json({"checks": [*upload, *findings.checks], "partition": partition, "nodes": planned})
    if upload:
        print_rows(upload, f"ray job submit --working-dir {working_dir}")
    print_rows(findings.checks, str(config))
    write(findings.partition.to_string() + ("" if findings.all_clients else "\n..."))
    if figure is not None:
        write(f"partition figure: {figure}")
        if drift_picture(figure).exists() and cells[0].drift is not None:
            write(f"drift figure: {drift_picture(figure)}")
    _print_nodes(planned)


def _on_nodes(experiment: Experiment, numbers: list[int]) -> list[dict[str, Any]]:
    if not numbers:
        return []
    from flray.planning import table

    with stage("measuring two clients"):
        return table(experiment, numbers)


def _print_nodes(planned: list[dict[str, Any]]) -> None:
    if planned:
        from flray.planning import NOTES, in_words

        print_rows(list(map(in_words, planned)), "nodes like this machine")
        write("\n".join(f"* {note}" for note in NOTES))


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
    check_local(folder)
    own_modules()
    from flray.config.declared import check_declared
    from flray.rundir.reader import load_federated

    def check() -> None:
        run = load_federated(folder)
        last = run.task_rounds * run.experiment.num_tasks
        if round is not None and not 1 <= round <= last:
            raise ConfigError(f"--round {round}: the run has rounds 1 to {last}")

    check_declared(check)
    from flray.engine.replay import Replay, at_failure

    check()
    again = Replay(folder)
    at = min(at_failure(folder), again.last_round - 1) if round is None else round - 1
    rows = [{"client": number, "round": at + 1, **row} for number, _, row in again.goto(at).clients(only=client)]
    write_rows(rows, f"client {client}, round {at + 1}", format)


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
            help="what settings are judged by: a column of `flray compare`; default: test/acc, or an ablation's",
            autocompletion=complete_metric,
        ),
    ] = None,
    against: Against = None,
) -> None:
    """One self-contained page about runs: which is better, by how much, how sure, at what cost, what was forgotten.

    The page of a sweep's folder shows its trials, the importance of the hyper-parameters and the final runs; that of an
    ablation its cells against the reference. It names each folder that cannot be read, with the reason.
    """
    from flray.api import sweep_lead
    from flray.results.readable import warn_left_out
    from flray.results.report_page import form_of, gather, write as write_page

    form = form_of(out, format)
    page = gather(folders, metric, against, drawn=form == "html", lead=sweep_lead(folders, form == "html"))
    warn_left_out(page.broken, page.notes)
    write(write_page(page, out or Path(f"report.{form}"), form))


BENCHES = "cli,startup,W1,W2,buffered,memory,sweep"


def bench(
    only: Annotated[str | None, typer.Option(help=f"of {BENCHES}; default: all but buffered, sweep")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="rounds per measurement")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="interleaved repetitions")] = 3,
    format: Annotated[str, typer.Option(help="table, markdown or json")] = "table",
) -> None:
    """Rounds of W1 and W2 beside a bare PyTorch loop that does the same gradient steps; the first error, the start, the
    memory, a sweep."""
    check_format(format, ("table", "markdown", "json"))
    from flray.bench import bench as measured

    write_rows(measured(None if only is None else only.split(","), rounds, repeats), "flray bench", format)
