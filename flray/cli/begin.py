"""Where a newcomer begins, and what is there already: `flray init | runs | show`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from flray.cli.show import console, print_rows, runs_in, sheet_of
from flray.core.schema.errors import ConfigError
from flray.rundir.logs import process_logs

PACKAGE = Path(__file__).parents[1]
TEMPLATES = PACKAGE / "cli" / "init"
CONFIGS, NOTEBOOKS = PACKAGE / "configs", PACKAGE / "notebooks"  # links in a checkout, folders in a wheel


class Paper(Enum):
    """The papers whose configurations come with flray."""

    fedproj = "fedproj"
    fedsol = "fedsol"
    fedprotip = "fedprotip"
    fedmemo = "fedmemo"


def init(
    folder: Annotated[Path, typer.Argument(help="folder that gets the files")] = Path(),
    paper: Annotated[
        list[Paper] | None,
        typer.Option(help="a paper's configurations and sweeps instead of the two files; repeatable"),
    ] = None,
    notebooks: Annotated[
        bool, typer.Option("--notebooks", help="the notebooks and what they read instead of the two files")
    ] = False,
) -> None:
    """A quickstart to change: a configuration, and an algorithm of your own. No file is overwritten.

    `flray init --paper fedsol --notebooks`
    """
    chosen = paper or []
    files = _papers([name.value for name in (Paper if notebooks else chosen)]) | (_notebooks() if notebooks else {})
    if not files:
        files = {path: Path(path.name) for path in sorted(TEMPLATES.iterdir()) if path.suffix in (".py", ".yaml")}
    there = [folder / target for target in files.values() if (folder / target).exists()]
    if there:
        raise ConfigError(f"{there[0]} is there already; give another folder: flray init FOLDER")
    try:
        for source, target in files.items():
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            if source.parent == TEMPLATES:
                (folder / target).write_text(source.read_text().replace("configs/", ""))
            else:
                shutil.copyfile(source, folder / target)
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder}: {error.strerror or error}; give another folder: flray init FOLDER"
        ) from error
    _next_steps(folder, list(files.values()), [name.value for name in chosen], notebooks)


def _next_steps(folder: Path, written: Sequence[Path], papers: Sequence[str], notebooks: bool) -> None:
    enter = "" if folder == Path() else f"cd {folder} && "
    if not papers and not notebooks:
        print("written:", *(folder / target for target in written))
        print(f"next:    {enter}flray run quickstart.yaml")
        print("         flray run quickstart.yaml algorithm=fedavg,my_algorithm --import my_algorithm")
        print("         flray list config   (every key of a configuration)")
        return
    print(
        f"written: {len(written)} files in {', '.join(sorted({str((folder / target).parent) for target in written}))}"
    )
    for name in papers:
        print(f"next:    {enter}the commands of configs/{name}/README.md; flray reproduce {name} --dry-run")
    if notebooks:
        print(f"next:    {enter}jupyter lab notebooks/01_quickstart.ipynb")


def _papers(names: Sequence[str]) -> dict[Path, Path]:
    """By file of the package its place below the new folder: `configs/` as in the repository, so that commands and
    `extends` hold."""
    found: dict[Path, Path] = {}
    for name in names:
        sweeps = [path for path in (CONFIGS / "sweeps").glob("*.yaml") if path.stem.startswith((name, "compare"))]
        for path in (CONFIGS / "quickstart.yaml", *sorted((CONFIGS / name).iterdir()), *sorted(sweeps)):
            if path.suffix in (".yaml", ".md"):
                found[path] = "configs" / path.relative_to(CONFIGS)
    return found


def _notebooks() -> dict[Path, Path]:
    return {path: Path("notebooks") / path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))}


def runs(
    folder: Annotated[Path, typer.Argument(help="folder that holds run folders, at any depth")] = Path("runs"),
) -> None:
    """My runs, the newest first: status, algorithm, rounds done, last accuracy, age."""
    from flray.rundir.reader import runs_below

    folders = [Path(run) for run in runs_below(folder)]
    if not folders:
        raise ConfigError(
            f"no run below {folder}; start one with flray run CONFIG, or name another folder: flray runs FOLDER"
        )
    rows = sorted(map(_row, folders), key=lambda row: -row.pop("_changed"))
    print_rows(rows, f"{len(rows)} run{'s' if len(rows) > 1 else ''} below {folder}")


def show(
    folders: Annotated[list[str], typer.Argument(help="run folders (or URIs), or folders that hold them")],
    logs: Annotated[
        bool, typer.Option("--logs", help="instead: the processes of the actors, and the end of what each has written")
    ] = False,
) -> None:
    """The essentials of runs: how far, how good, curves, costs, the worst class and client, what was forgotten."""
    for run in runs_in(folders):
        if logs:
            print("\n".join(process_logs(run)))
        else:
            console().print(sheet_of(run))


def _row(folder: Path) -> dict[str, Any]:
    """One run; what is damaged about it stands in its status."""
    from flray.core.schema.errors import CheckpointError
    from flray.results.tables import planned_rounds, settings
    from flray.rundir.reader import Run

    run, changed = (
        Run(folder),
        max((path.stat().st_mtime for path in (folder / "STATUS", folder / "rounds") if path.exists()), default=0.0),
    )
    row: dict[str, Any] = {"run": str(folder), "status": run.standing.partition(";")[0].partition(":")[0]}
    try:
        config, rounds = settings(run), run.rounds
        tested = next((rounds[name].dropna().tolist() for name in ("test/acc", "val/acc") if name in rounds), [])
        accuracy = f"{tested[-1]:.2%}" if tested else ""
        row |= {
            "algorithm": config.get("algorithm.name"),
            "rounds": f"{len(rounds)}/{planned_rounds(config) or '?'}",
            "accuracy": accuracy,
        }
    except CheckpointError as error:
        row["status"] = f"damaged: {error}"
    return {**row, "age": _age(time.time() - changed) if changed else "", "_changed": changed}


def _age(seconds: float) -> str:
    """`3 min`, `5 h`, `12 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
