"""Where a newcomer begins, and what is there already: `flray init | runs | show`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from flray.cli.show import console, print_rows, runs_in, sheet_of
from flray.core.schema.errors import ConfigError

TEMPLATES = Path(__file__).parent / "init"


def init(folder: Annotated[Path, typer.Argument(help="folder that gets the two files")] = Path()) -> None:
    """A quickstart to change: a configuration, and an algorithm of your own. Nothing that is there is written over."""
    files = sorted(path for path in TEMPLATES.iterdir() if path.suffix in (".py", ".yaml"))
    there = [folder / file.name for file in files if (folder / file.name).exists()]
    if there:
        raise ConfigError(f"{there[0]} is there already; give another folder: flray init FOLDER")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            (folder / file.name).write_text(file.read_text().replace("configs/", ""))
    except OSError as error:
        raise ConfigError(
            f"cannot write to {folder}: {error.strerror or error}; give another folder: flray init FOLDER"
        ) from error
    print("written:", *(folder / file.name for file in files))
    print("next:    " + ("" if folder == Path() else f"cd {folder} && ") + "flray run quickstart.yaml")
    print("         flray run quickstart.yaml algorithm=fedavg,my_algorithm --import my_algorithm")
    print("         flray list config   (every key of a configuration)")


def runs(
    folder: Annotated[Path, typer.Argument(help="folder that holds run folders, at any depth")] = Path("runs"),
) -> None:
    """My runs, the newest first: status, algorithm, rounds done, last accuracy, age."""
    from flray.rundir.reader import runs_below

    found = [Path(run) for run in runs_below(folder)]
    if not found:
        raise ConfigError(
            f"no run below {folder}; start one with flray run CONFIG, or name another folder: flray runs FOLDER"
        )
    rows = sorted(map(_row, found), key=lambda row: -row.pop("_changed"))
    print_rows(rows, f"{len(rows)} run{'s' if len(rows) > 1 else ''} below {folder}")


def show(
    folders: Annotated[list[str], typer.Argument(help="run folders (or URIs), or folders that hold them")],
) -> None:
    """The essentials of runs: how far, how good, curves, costs, the worst class and client, what was forgotten."""
    for run in runs_in(folders):
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
