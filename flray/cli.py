"""The command line: `flray run | resume | list | doctor | replay | figure | compare | bench`."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from flray.core.errors import FlrayError

app = typer.Typer(
    help="Federated learning that does not forget, on Ray.\n\nStart with: flray run configs/quickstart.yaml",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="overrides; commas and a..b make a grid")]
Imports = Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", help="import first: your own algorithms, models, sources")]


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="run folder (a grid: the folder that holds the run folders)")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run that is already in the folder")] = False,
    imports: Imports = None,
) -> None:
    """Run an experiment, or a grid of them.

    `flray run configs/quickstart.yaml algorithm=fedavg,feddf seed=0..4 algorithm.lr=0.1`
    """
    _own_modules()
    _start_ray_early(config, overrides or [])
    from flray.config import load_config
    from flray.experiment import default_folder

    cells = load_config(config, overrides or [], imports or [])
    if len(cells) > 1:
        from flray.grid import run_grid

        _print_table(run_grid(cells, out or Path("runs") / cells[0].name, overwrite=overwrite))
        return
    from flray.engine.simulation import simulate

    folder = out or default_folder(cells[0])
    simulate(cells[0], folder, overwrite=overwrite, progress=True)
    _report(folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="rounds, resources, address, checkpoint")] = None,
) -> None:
    """Continue a run from its last good checkpoint, to the same bits as if it had never stopped."""
    from flray.experiment import resume as resume_run

    _own_modules()
    resume_run(folder, *(overrides or []), progress=True)
    _report(folder)


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(metavar="algorithms|datasets|models|partitions|metrics", help="what to list")],
    name: Annotated[str | None, typer.Argument(help="one of them: everything about it")] = None,
    format: Annotated[str, typer.Option(help="table or json; algorithms: markdown, a page of all cards")] = "table",
    imports: Imports = None,
) -> None:
    """What there is: names with their options, defaults and bounds."""
    from flray.catalog import catalog, detail, page

    _own_modules()
    _import(imports)
    if format == "markdown" and kind == "algorithms" and name is None:
        print(page(), end="")
        return
    if format not in ("table", "json"):
        raise FlrayError(f"--format {format}: table or json (and markdown for all algorithms)")
    if name is None:
        rows = catalog(kind)
        print(json.dumps(rows, indent=1, default=str)) if format == "json" else _print_rows(
            rows, f"{kind} (flray list {kind} NAME for more)"
        )
        return
    text, rows = detail(kind, name)
    if format == "json":
        print(json.dumps({"name": name, "text": text, "options": rows}, indent=1, default=str))
        return
    _markdown(text)
    _print_rows(rows, f"options of {name}")


@app.command()
def doctor(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Overrides = None,
    figure: Annotated[Path | None, typer.Option(help="PNG of the partition")] = None,
    imports: Imports = None,
) -> None:
    """Check a configuration before it runs: data, partition, model, memory, disk, actors. Trains nothing."""
    from flray.config import load_config
    from flray.doctor import examine

    _own_modules()
    cells = load_config(config, overrides or [], imports or [])
    rows, table = examine(cells[0], figure)
    _print_rows(rows, str(config))
    print(table)
    if figure is not None:
        print(f"partition figure: {figure}")


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(help="run folder")],
    client: Annotated[int, typer.Option(help="client id")],
    round: Annotated[int | None, typer.Option(help="round, from 1; default: the one after the last checkpoint")] = None,
) -> None:
    """Repeat one client of one round in this process, to the same bits: for a debugger, or after a client failed."""
    from flray.engine.replay import Replay, at_failure

    _own_modules()
    at = at_failure(folder) if round is None else round - 1
    for who, _, row in Replay(folder).goto(at).clients(only=client):
        _print_rows([{"client": who, "round": at + 1, **row}], f"client {who}, round {at + 1}")


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(help="run folders")],
    format: Annotated[str, typer.Option(help="table, markdown, csv or json")] = "table",
) -> None:
    """One table of several runs: last, best and mean accuracy, bytes, seconds; mean and 95 % interval over seeds."""
    from flray.results import compare as compare_runs
    from flray.results import summary, to_markdown

    frame = compare_runs(folders)
    if format == "json":
        print(frame.to_json(orient="records", indent=1))
    elif format == "csv":
        print(frame.to_csv(index=False), end="")
    elif format == "markdown":
        print(to_markdown(frame), to_markdown(summary(frame)), sep="\n\n")
    else:
        _print_table(frame)


@app.command()
def figure(
    kind: Annotated[str, typer.Argument(metavar="curves|clients|decision-regions")],
    folders: Annotated[list[Path], typer.Argument(help="run folders")],
    out: Annotated[Path, typer.Option(help="PNG file")] = Path("figure.png"),
    metric: Annotated[str, typer.Option(help="curves: a column of rounds/")] = "test/acc",
    rounds: Annotated[str, typer.Option(help="decision-regions: rounds to show")] = "1,5,20",
) -> None:
    """A picture of runs: learning curves, the clients' personalised accuracies, or decision regions (2-D data)."""
    from flray.core.errors import unknown
    from flray.results import clients, curves, decision_regions

    if kind == "curves":
        curves(folders, metric=metric, out=out)
    elif kind == "clients":
        clients(folders, out=out)
    elif kind == "decision-regions":
        decision_regions(folders, rounds=[int(r) for r in rounds.split(",")], out=out)
    else:
        raise unknown("figure", kind, ["curves", "clients", "decision-regions"])
    print(out)


@app.command()
def bench(
    only: Annotated[str, typer.Option(help="workloads, by comma")] = "W1,W2,W3,step,server,startup",
    algorithms: Annotated[str | None, typer.Option(help="instead: local steps of these (by comma, or all) beside FedAvg's")] = None,
    rounds: Annotated[int | None, typer.Option(help="rounds per measurement")] = None,
    repeats: Annotated[int, typer.Option(help="interleaved repetitions")] = 3,
    format: Annotated[str, typer.Option(help="table or json")] = "table",
) -> None:
    """Speed and memory beside a bare PyTorch loop that does the same gradient steps, as ratios."""
    from flray import bench as benchmarks

    if algorithms is None:
        rows = benchmarks.bench(tuple(only.split(",")), rounds=rounds, repeats=repeats)
    else:
        from flray.bench.steps import compare_steps

        rows = compare_steps(algorithms.split(","), benchmarks.W1, repeats)
    print(json.dumps(rows, indent=1, default=str)) if format == "json" else _print_rows(rows, "flray bench")


# helpers ---------------------------------------------------------------------------------------
def _own_modules() -> None:
    """The user's modules are found in the working directory, here and in the actors."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def _start_ray_early(config: Path, overrides: list[str]) -> None:
    """Ray starts while torch is imported, unless the configuration says which Ray, or how much of it."""
    text = config.read_text() if config.is_file() else "resources:"
    if any(f"{key}:" in text or any(o.startswith(key) for o in overrides) for key in ("resources", "address")):
        return
    from flray.engine.cluster import Background, connect, cores

    Background(lambda: connect(None, cores()))


def _import(modules: list[str] | None) -> None:
    import importlib

    for module in modules or []:
        importlib.import_module(module)


def _report(folder: Path) -> None:
    """Where the results are and what to try next."""
    from flray.results import load

    run = load(folder)
    tested = run.rounds.dropna(subset="test/acc") if "test/acc" in run.rounds else run.rounds.iloc[:0]
    if len(tested):
        last = tested.iloc[-1]
        print(f"round {int(last['round'])}: test accuracy {last['test/acc']:.2%}, loss {last['test/loss']:.4f}")
    if len(run.personal):
        for epochs, rows in run.personal.groupby("finetune_epochs"):
            found = rows["test/acc"].dropna()
            spread = f"{found.mean():.2%} +- {found.std(ddof=0):.2%} over {len(found)} clients"
            print(f"clients on their own test shares, {epochs} epochs of fine-tuning: {spread}")
    if run.status.startswith("diverged"):
        print(run.status)
    print(f"results: {folder}   (pandas.read_parquet('{folder}/rounds'), tensorboard --logdir {folder}/tensorboard)")
    if run.status.startswith("diverged"):
        print(f"next:    flray run {folder}/config.yaml algorithm.lr={getattr(run.experiment.algorithm, 'lr', 0.1) / 3:.2g}")
    else:
        print(f"next:    flray resume {folder} rounds={run.experiment.rounds * 2}")
    print(f"         flray run {folder}/config.yaml algorithm={_other(run.experiment)}   (flray list algorithms)")
    print(f"         flray figure curves {folder} --out curves.png")


def _other(experiment: Any) -> str:
    from flray.experiment import algorithm_name

    if algorithm_name(experiment.algorithm) != "fedavg":
        return "fedavg"
    return "fedproj" if experiment.proxy is not None else "fedavg algorithm.local_epochs=1"


def _print_rows(rows: list[dict[str, Any]], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("" if row.get(name) is None else _cell(row[name]) for name in names))
    Console().print(table)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_table(frame: Any) -> None:
    """The runs, and their mean over seeds where there are several."""
    from rich.console import Console

    from flray.results import render, summary

    Console().print(render(frame))
    if frame["seed"].nunique() > 1:
        Console().print(render(summary(frame)))


def _markdown(text: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))


def main() -> None:
    """Entry point: a `FlrayError` is one line and exit code 2; Ctrl-C is 130."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False)  # typer turns Ctrl-C into the code 130
        if code == 130:
            print("interrupted; finished rounds are saved, continue with: flray resume RUN_FOLDER", file=sys.stderr)
        sys.exit(code if isinstance(code, int) else 0)
    except FlrayError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        show = getattr(error, "show", None)
        if show is not None:
            show()
        sys.exit(code)


if __name__ == "__main__":
    main()
