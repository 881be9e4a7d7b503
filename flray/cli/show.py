"""What the commands share: their common arguments, tables on the terminal, what to try next."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from flray.rundir.reader import Run


LISTED = 10  # folders that are left out, a line each; of more of them the first one and their number


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """For the shell: keys of the configuration file that is given, and names of algorithms.

    Nothing that imports torch.
    """
    from flray.algorithms import ALGORITHMS

    key, sign, value = incomplete.partition("=")
    lead = f"{key}="
    before = ctx.params.get("overrides") or []
    if before[-1:] == ["="]:  # bash breaks words there
        key, sign, value, lead = before[-2], "=", incomplete, ""
    if sign:
        names = ALGORITHMS.names() if key in ("algorithm", "algorithm.name") else []
        return [f"{lead}{name}" for name in names if name.startswith(value)]
    try:
        config = yaml.safe_load(Path(ctx.params["config"]).read_text())
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        config = {}
    return [f"{name}=" for name in dict.fromkeys(("seed", *_dotted(config))) if name.startswith(incomplete)]


def _dotted(values: Any, prefix: str = "") -> Iterator[str]:
    """The keys of nested mappings; of a section with a name, the section first."""
    for key, value in values.items() if isinstance(values, dict) else ():
        if not isinstance(value, dict) or "name" in value:
            yield f"{prefix}{key}"
        yield from _dotted(value, f"{prefix}{key}.")


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="overrides; commas and a..b make a grid", autocompletion=complete_override
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="MODULE", help="import first: your own algorithms, models, sources"),
]


def own_modules() -> None:
    """The user's modules are found in the working directory, here and in the actors."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)


def results_folder(folder: Path, storage: str | None) -> Path:
    """Returns the folder of results.

    Warns where Ray deletes it, with the copy of the working directory that it made for a job.
    """
    if storage is None and "working_dir_files" in folder.absolute().parts:
        warnings.warn(
            f"{folder} lies in Ray's copy of the job's working directory and goes with it; give --out on shared disk, "
            "or storage=URI",
            stacklevel=2,
        )
    return folder


def import_modules(modules: list[str] | None) -> None:
    from flray.core.schema.registry import imported

    for module in modules or []:
        imported(module, f"--import {module}")


@contextlib.contextmanager
def interruptible(folder: Path, again: str | None = None) -> Iterator[None]:
    """Ctrl-C is the exit code 130 and SIGTERM (a stopped job) 143; the last line names the folder and how to go on.

    `again`: how that is done where it is not `flray resume FOLDER`.
    """
    before = signal.getsignal(signal.SIGTERM)
    # Ray leaves it as it is, and a run in one process would have none
    if ours := before is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        print(_left(folder, again), file=sys.stderr)
        # a SystemExit here is SIGTERM's, and its code 1 where Ray was waiting and raised it anew
        raise typer.Exit(130 if isinstance(stopped, KeyboardInterrupt) else 143) from None
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def _left(folder: Path, again: str | None) -> str:
    if again is not None and folder.exists():
        return f"interrupted; what is done is in {folder}; {again}"
    if (folder / "config.yaml").exists():
        return f"interrupted; finished rounds are saved in {folder}, continue with: flray resume {folder}"
    return f"interrupted before the first round; nothing is left in {folder}"


def report(folder: Path) -> None:
    """Where the results are and what to try next."""
    from flray.core.protocol.clock import task_name
    from flray.rundir.reader import load
    from flray.rundir.uri import join

    run = load(folder)
    split = run.experiment.evaluate.split
    tested = run.rounds.dropna(subset=f"{split}/acc") if f"{split}/acc" in run.rounds else run.rounds.iloc[:0]
    if len(tested):
        last = tested.iloc[-1]
        what = "test" if split == "test" else "validation"
        when = f"round {int(last['done'])}" + (
            f", {task_name(int(last['task']))}" if run.experiment.num_tasks > 1 else ""
        )
        print(f"{when}: {what} accuracy {last[f'{split}/acc']:.2%}, loss {last[f'{split}/loss']:.4f}")
    personal = run.last_personal
    if len(personal):
        for epochs, rows in personal.groupby("finetune_epochs"):
            accuracies = rows["test/acc"].dropna()
            spread = f"{accuracies.mean():.2%} +- {accuracies.std(ddof=0):.2%} over {len(accuracies)} clients"
            print(f"clients on their own test shares, {epochs} epochs of fine-tuning: {spread}")
    print_modes(run)
    print_stored_samples(run)
    if run.status.startswith("diverged"):
        print(run.status)
    tasks, drift = ["tasks"] * (run.experiment.num_tasks > 1), ["drift"] * (run.experiment.drift is not None)
    figures = ["curves", *tasks, *drift]
    look = f", tensorboard --logdir {folder}/tensorboard" if importlib.util.find_spec("tensorboard") else ""
    print(f"results: {folder}   (pandas.read_parquet('{folder}/rounds'){look})")
    if run.experiment.storage is not None:
        print(f"storage: {join(run.experiment.storage, folder.absolute().name)}")
    commands = [
        f"flray run {folder}/config.yaml algorithm={other_algorithm(run.experiment)}   (flray list algorithms)",
        *(f"flray figure {kind} {folder} --out {kind}.png" for kind in figures),
    ]
    if run.status.startswith("diverged"):
        lr = getattr(run.experiment.algorithm, "lr", 0.1) / 3
        commands.insert(0, f"flray run {folder}/config.yaml algorithm.lr={lr:.2g}")
    elif run.experiment.num_tasks == 1:  # more rounds a task would be another experiment
        commands.insert(0, f"flray resume {folder} rounds={max(run.experiment.rounds, 1) * 2}")
    print("next:    " + "\n         ".join(commands))


def other_algorithm(experiment: Any) -> str:
    from flray.config.experiment import algorithm_name

    if algorithm_name(experiment.algorithm) != "fedavg":
        return "fedavg"
    return "fedproj" if experiment.proxy is not None else "fedsol"


def report_grid(frame: Any, root: Path) -> None:
    """The table of a grid, where its runs are, and what to try next."""
    from flray.results.tables import keys_of

    print_table(frame)
    print(f"results: {root}: {len(frame)} run folders")
    print(f"next:    flray figure curves {root} --out curves.png")
    for kind in ["tasks"] * ("ACC" in frame) + ["drift"] * ("drift/acc_end" in frame):
        print(f"         flray figure {kind} {root} --out {kind}.png")
    if any(frame[key].nunique(dropna=False) > 1 for key in keys_of(frame)):
        print(f"         flray figure ablation {root} --out ablation.png")
        if frame["seed"].nunique() > 1:
            print(
                f"         flray compare {root} --against {frame['folder'].iloc[0]}   (paired differences on the same "
                "seeds)"
            )
    print(f"         flray resume {frame['folder'].iloc[0]} rounds={2 * max(frame['done'].max(), 1)}")


def runs_in(folders: list[str], sound_only: bool = False) -> list[Run]:
    """The runs in folders and below them, of a sweep its final ones; what is left out is a line each on stderr.

    With `sound_only` a run whose tables are damaged or lost is left out as well. Raises `CheckpointError` where none is
    left.
    """
    from flray.core.schema.errors import CheckpointError
    from flray.results.readable import readable_runs, sound

    runs, broken, notes = readable_runs(folders)
    if sound_only:
        runs, flawed = sound(runs)
        broken += flawed
    if not runs:
        more = f" (and {len(broken) - 1} more folders)" if len(broken) > 1 else ""
        raise CheckpointError(f"{broken[0]}{more}")
    print_left_out(broken, notes)
    return runs


def print_left_out(broken: Iterable[object], notes: Iterable[str] = ()) -> None:
    """Folders that are not shown and other notes, a line each on stderr."""
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    all_of_them = list(broken)
    for folder in all_of_them if len(all_of_them) <= LISTED else all_of_them[:1]:
        print(f"left out: {folder}", file=sys.stderr)
    if len(all_of_them) > LISTED:
        print(f"left out: {len(all_of_them) - 1} more folders, for reasons of their own", file=sys.stderr)


def console() -> Console:
    """Standard output; a file or a job's log is as wide as a table needs, not 80 columns."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 150)


def print_rows(rows: list[dict[str, Any]], title: str) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*("" if row.get(name) is None else _cell(row[name]) for name in names))
    console().print(table)


def markdown_rows(rows: list[dict[str, Any]]) -> str:
    """The same rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    body = [["" if row.get(name) is None else _cell(row[name]) for name in names] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in (names, ["---"] * len(names), *body))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def print_table(frame: Any, metric: str = "test/acc", against: str | None = None, more: Any = ()) -> None:
    """The runs; their mean over seeds where there are several, and the differences to a setting where one is given;
    what they learned and forgot where they have tasks or a drift; `more` tables by title."""
    from flray.results import by_mode, paired, render, summary
    from flray.results.paired import caption
    from flray.results.rendering import spelled

    console().print(render(frame))
    if against is not None:
        table = paired(frame, against, metric)
        console().print(render(table, caption(table)))
    elif frame["seed"].nunique() > 1:
        console().print(render(summary(frame, metric)))
    for title, table in spelled(by_mode(frame)).items() if against is None else ():
        console().print(render(table, title))
    for title, table in dict(more).items():
        console().print(render(table, title))


def print_modes(run: Run) -> None:
    """Of a run over tasks or through a drift: what it learned and forgot, a row an inference mode; its alarms."""
    for table in _modes(run):
        console().print(table)


def _modes(run: Run) -> list[Table]:
    from flray.results import render
    from flray.results.by_mode import modes_of
    from flray.results.rendering import spelled

    return [render(table, title) for title, table in spelled(modes_of(run)).items()]


def sheet_of(run: Run) -> Group:
    """The essentials of a run, as `flray show` and `flray watch` print them. Raises `CheckpointError` for a folder that
    is no run."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    from flray.results.essentials import essentials

    table = Table(title=escape(run.place), title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in essentials(run).items():
        table.add_row(f"[bold]{escape(name)}[/bold]", escape(text))
    return Group(table, *_modes(run))


def markdown(text: str) -> None:
    from rich.markdown import Markdown

    console().print(Markdown(text))


def print_stored_samples(run: Run) -> None:
    """Of an algorithm that keeps something of earlier tasks' samples: what it is, and how many bytes where."""
    from flray.engine.progress import size

    if "kept/clients" not in run.tasks or not len(rows := run.tasks.dropna(subset="kept/clients")):
        return
    row = rows.iloc[-1]
    clients, samples = int(row["kept/clients"]), int(row["kept/samples"])
    where = [f"{clients} clients: states of {size(row['kept/client_bytes'])}"] if clients else []
    where += [f"{samples} samples of {size(row['kept/sample_bytes'])}"] if samples else []
    where += [f"server: {size(row['kept/server_bytes'])} besides the model"]
    print(f"kept:    {run.experiment.algorithm.keeps} ({', '.join(where)})")
