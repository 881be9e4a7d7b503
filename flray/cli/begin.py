"""The first files, and the runs in a folder: `flray init | runs | show`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.cli.arguments import Format
from flray.cli.output import check_format, records, sheet_of, show as print_page, suggest, write, write_json, write_rows
from flray.core.schema.errors import ConfigError, FlrayError
from flray.files import atomic_write, quoted, writing
from flray.shipped import shipped

if TYPE_CHECKING:
    from flray.rundir.reader import Run

CONFIGS, NOTEBOOKS = shipped("configs"), shipped("notebooks")
# the files of a bare `flray init`
INIT = Path(__file__).parent / "init"
FIRST = (INIT / "my_algorithm.py", CONFIGS / "quickstart.yaml")

LINES = 20  # of the end of each file
TAIL = 2**18  # bytes of the end in which these lines are looked for
MARKS = (":job_id:", ":actor_name:", ":task_name:")  # lines that Ray writes for itself


Paper = StrEnum("Paper", ["fedproj", "fedsol", "fedprotip", "fedmemo"])  # whose configurations come with flray
# of which there is a template: a module, a test that passes and a configuration that runs
Own = StrEnum("Own", ["algorithm", "data", "model", "partition"])


def init(
    folder: Annotated[Path, typer.Argument(help="folder that gets the files")] = Path(),
    paper: Annotated[
        list[Paper] | None,
        typer.Option(help="a paper's configurations and sweeps instead of the two files; repeatable"),
    ] = None,
    notebooks: Annotated[
        bool, typer.Option("--notebooks", help="the notebooks and what they read instead of the two files")
    ] = False,
    own: Annotated[
        list[Own] | None, typer.Option(help="a part of your own, with its test and its configuration; repeatable")
    ] = None,
) -> None:
    """A quickstart to change: a configuration, and an algorithm of your own. No file is overwritten.

    `flray init --paper fedsol --notebooks`    `flray init study --own data && cd study && pytest`
    """
    chosen, parts = paper or [], [part.value for part in own or []]
    if parts and (chosen or notebooks):
        raise ConfigError("--own is for a folder of its own; leave --paper and --notebooks out")
    files = _papers([name.value for name in (Paper if notebooks else chosen)])
    if notebooks:
        files |= {path: Path("notebooks") / path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))}
    if not files:
        files = {path: Path(path.name) for path in FIRST if not parts or path.suffix == ".yaml"}
        files |= {INIT / name: Path(name) for part in parts for name in _template(part)}
    options = [*(f"--paper {name.value}" for name in chosen), *(["--notebooks"] if notebooks else [])]
    again = " ".join(["flray init FOLDER", *options, *(f"--own {part}" for part in parts)])
    existing = [folder / target for target in files.values() if (folder / target).exists()]
    if existing:
        raise ConfigError(f"{existing[0]} exists already; give another folder: {again}")
    for source, target in files.items():
        with writing(folder / target, f", or give another folder: {again}", ConfigError):
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(folder / target) as temporary:
                if target == Path("quickstart.yaml"):  # its commands, as they are typed beside it
                    temporary.write_text(source.read_text().replace("configs/", ""))
                else:
                    shutil.copyfile(source, temporary)
    if parts:
        enter = "" if folder == Path() else f"cd {quoted(folder)} && "
        write(f"written: {' '.join(str(folder / target) for target in files.values())}")
        checks = [f"{enter}flray check my_algorithm   (what it must keep to)"] * ("algorithm" in parts)
        suggest([*(f"{enter}flray run my_{part}.yaml" for part in parts), f"{enter}pytest", *checks])
        return
    _next_steps(folder, list(files.values()), [name.value for name in chosen], notebooks)


def _template(part: str) -> list[str]:
    return [f"my_{part}.py", f"test_my_{part}.py", f"my_{part}.yaml"]


def _next_steps(folder: Path, written: Sequence[Path], papers: Sequence[str], notebooks: bool) -> None:
    enter = "" if folder == Path() else f"cd {quoted(folder)} && "
    if not papers and not notebooks:
        write(f"written: {' '.join(str(folder / target) for target in written)}")
        own = "flray run quickstart.yaml algorithm=fedavg,my_algorithm --import my_algorithm"
        commands = [f"{enter}flray run quickstart.yaml", own, "flray check my_algorithm   (what it must keep to)"]
        suggest([*commands, "flray list config   (every key of a configuration)"])
        return
    folders = sorted({str((folder / target).parent) for target in written})
    write(f"written: {len(written)} files in {', '.join(folders)}")
    more = "(and the commands in configs/{}/README.md)"
    commands = [f"{enter}flray papers reproduce {name}   {more.format(name)}" for name in papers]
    suggest([*commands, *[f"{enter}jupyter lab notebooks/01_quickstart.ipynb"] * notebooks])


def _papers(names: Sequence[str]) -> dict[Path, Path]:
    """Files of the package -> paths below the new folder: `configs/` as in the repository, so that `extends` works."""
    copies: dict[Path, Path] = {}
    for name in names:
        sweeps = [path for path in (CONFIGS / "sweeps").glob("*.yaml") if path.stem.startswith((name, "compare"))]
        for path in (CONFIGS / "quickstart.yaml", *sorted((CONFIGS / name).iterdir()), *sorted(sweeps)):
            if path.suffix in (".yaml", ".md"):
                copies[path] = "configs" / path.relative_to(CONFIGS)
    return copies


def runs(
    folder: Annotated[str, typer.Argument(help="folder (or URI) that contains run folders, at any depth")] = "runs",
    format: Format = "table",
) -> None:
    """My runs, the newest first: status, algorithm, rounds done, last accuracy, age. Of a sweep its final runs, or its
    trials while there are none."""
    check_format(format)
    from flray.results.readable import notes_on_sweeps, warn_left_out
    from flray.rundir.reader import runs_below

    folders = runs_below(folder)
    if not folders:
        raise ConfigError(
            f"no run below {folder}; start one with flray run CONFIG, or name another folder: flray runs FOLDER"
        )
    warn_left_out((), notes_on_sweeps(folders, folder))
    rows = sorted(map(_record, folders), key=lambda row: -row["changed"])
    shown = rows if format == "json" else list(map(_row, rows))
    write_rows(shown, f"{len(rows)} run{'s' if len(rows) > 1 else ''} below {folder}", format)


def show(
    folders: Annotated[list[str], typer.Argument(help="run folders (or URIs), or folders that contain them")],
    logs: Annotated[
        bool, typer.Option("--logs", help="instead: the processes of the actors, and the end of what each has written")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="as rounds arrive, also of another machine's disk or of a storage")
    ] = False,
    every: Annotated[
        float | None, typer.Option(min=0.1, help="--follow: seconds between two looks; default 2, of a storage 10")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(help="--follow: also a report as an HTML file, written as rounds arrive; a browser reloads it"),
    ] = None,
    format: Format = "table",
) -> None:
    """The essentials of runs: rounds done, accuracy, curves, costs, the worst class and client, what was forgotten.

    With --follow: one run with the accuracy of each class over rounds; several, a grid or a sweep, a line a run. If the
    folder that will contain the run exists, it waits ten minutes for the run to begin. It reports a run whose process
    gives no sign of life as stalled. It ends with the runs: exit code 0 if all finished or diverged, else 1. Ctrl-C
    stops the display, not the run. It writes nothing into a run's folder. Off a terminal it prints a line for each
    tested round, and the essentials or the table of runs at the end. With `--format json` each line is a record: of a
    round, with the columns of the table `rounds` and `run`; of a `note`; the last one has `status` and `essentials`.
    """
    check_format(format)
    if follow:
        if logs:
            raise FlrayError("--logs and --follow are two questions; give one of them")
        from flray.cli.watch import watch

        return watch(folders, every, format, page)
    if every is not None or page is not None:
        option = "--every" if every is not None else "--page"
        raise FlrayError(f"{option} is for --follow; give it too, or leave it out")
    from flray.results.readable import runs_in

    runs = runs_in(folders)
    if format == "json":
        write_json([{"run": run.place, "logs": process_logs(run)} if logs else _essentials(run) for run in runs])
        return
    for run in runs:
        if logs:
            write("\n".join(process_logs(run)))
        else:
            print_page(sheet_of(run))


def _essentials(run: Run) -> dict[str, Any]:
    """The numbers of `flray compare`, the lines of `flray show`, and the metrics of each inference mode."""
    from flray.results import compare
    from flray.results.by_mode import modes_of
    from flray.results.essentials import essentials

    (numbers,) = records(compare([run]))
    return {"run": run.place, "numbers": numbers, "lines": essentials(run), "modes": records(modes_of(run))}


def _record(place: str | Path) -> dict[str, Any]:
    from flray.core.schema.errors import CheckpointError
    from flray.results.tables import planned_rounds, settings
    from flray.rundir.reader import Run
    from flray.rundir.uri import is_uri

    record: dict[str, Any] = {
        "run": str(place), "status": "", "algorithm": None, "done": 0, "rounds": None, "accuracy": None,
        "changed": 0.0,  # seconds since 1970; 0: unknown, of a run in a storage
    }  # fmt: skip
    try:
        run = Run(place)
        record["status"] = run.standing.partition(";")[0].partition(":")[0]
        if not is_uri(place):
            changes = [path.stat().st_mtime for path in (run.folder / "STATUS", run.folder / "rounds") if path.exists()]
            record["changed"] = max(changes, default=0.0)
        config, rounds = settings(run), run.rounds
    except CheckpointError as error:
        return {**record, "status": f"damaged: {error}"}
    tested = next((rounds[name].dropna().tolist() for name in ("test/acc", "val/acc") if name in rounds), [])
    return record | {
        "algorithm": config.get("algorithm.name"),
        "done": len(rounds),
        "rounds": planned_rounds(config) or None,
        "accuracy": tested[-1] if tested else None,
    }


def _row(record: dict[str, Any]) -> dict[str, str]:
    from flray.algorithms import as_written

    damaged = record["status"].startswith("damaged")
    accuracy, changed = record["accuracy"], record["changed"]
    return {
        "run": record["run"],
        "status": record["status"],
        "algorithm": as_written(record["algorithm"] or ""),
        "rounds": "" if damaged else f"{record['done']}/{record['rounds'] or '?'}",
        "accuracy": "" if accuracy is None else f"{accuracy:.2%}",
        "age": _age(time.time() - changed) if changed else "",
    }


def _age(seconds: float) -> str:
    """`3 min`, `5 h`, `12 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def process_logs(run: Run) -> list[str]:
    """Lines of text: each process of the run (actor, node, process id, file) and the last `LINES` lines of its output
    and its errors, where the file is on this machine."""
    processes: list[dict[str, Any]] = run.environment["actors"].get("processes", [])
    if not processes:
        return [f"{run.folder}: no actors; a run with resources.executor=local writes to its own terminal"]
    text = []
    for process in processes:
        text.append(f"{process['actor']}  node {process['node']}  pid {process['pid']}  {process['log'] or 'no file'}")
        files = [Path(process["log"]), Path(process["log"]).with_suffix(".err")] if process["log"] else []
        text += [f"    {line}" for path in files if path.is_file() for line in _end(path)]
    return text


def _end(path: Path) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL, 0))
        lines = file.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip() and not line.startswith(MARKS)][-LINES:]
