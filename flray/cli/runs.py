"""Commands that train: `flray run | pretrain | resume`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from flray.cli.show import (
    Imports,
    Overrides,
    interruptible,
    own_modules,
    print_rows,
    report,
    report_grid,
    results_folder,
)
from flray.engine.progress import stage

whole_process = False  # `flray.cli.main` says when a command is one, and is not called by a test or a notebook


def run(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="run folder (a grid: the folder that holds the run folders)")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run that is already in the folder")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the complete configuration, or the grid's cells; run nothing")
    ] = False,
    imports: Imports = None,
) -> None:
    """Run an experiment, or a grid of them.

    `flray run configs/quickstart.yaml algorithm=fedavg,feddf seed=0..4 algorithm.lr=0.1`
    """
    own_modules()
    from flray.config.declared import check_declared
    from flray.config.grid import grid_rows
    from flray.config.keys import grid_notes
    from flray.config.loader import load_config
    from flray.config.overrides import count_cells
    from flray.rundir.folder import check_new, default_folder

    def check() -> None:
        cells = load_config(config, overrides or [], imports or [])
        if len(cells) > 1:
            grid_rows(cells, out or Path("runs") / cells[0].name, overwrite)
        elif not dry_run:
            check_new(out or default_folder(cells[0]), overwrite)

    count = count_cells(overrides or []) if config.is_file() else 0
    with stage(f"a grid of {count:,} cells", count > 1):
        check_declared(check)
    for note in grid_notes(overrides or []):
        print(f"note: {note}", file=sys.stderr)
    with nullcontext() if dry_run else starting(config, overrides or []):
        from flray.api import simulate

        cells = load_config(config, overrides or [], imports or [])
    if len(cells) > 1:
        root = results_folder(out or Path("runs") / cells[0].name, cells[0].storage)
        if dry_run:
            print_rows(grid_rows(cells, root, overwrite), f"{len(cells)} cells")
            return
        from flray.tuning.ablate import run_grid

        with interruptible(root, "the same command goes on"):
            frame = run_grid(cells, root, overwrite=overwrite)
        report_grid(frame, root)
        return
    folder = results_folder(out or default_folder(cells[0]), cells[0].storage)
    if dry_run:
        print(f"# {folder}\n{cells[0].yaml()}", end="")
        return
    with interruptible(folder):
        simulate(cells[0], folder, overwrite=overwrite, progress=True)
    report(folder)


def pretrain(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="run folder")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run that is already in the folder")] = False,
    imports: Imports = None,
) -> None:
    """Train the configuration's model in one place on its whole data set: weights to start from.

    `flray pretrain CONFIG data.source=cifar100 --out runs/pretrained`, then
    `flray run CONFIG model.weights=runs/pretrained`
    """
    own_modules()
    from flray.cli.pretrain import pretraining
    from flray.config.declared import check_declared
    from flray.rundir.folder import check_new, default_folder

    def check() -> None:
        checked = pretraining(config, overrides or [], imports or [])
        check_new(out or default_folder(checked), overwrite)

    check_declared(check)
    with starting(config, overrides or []):
        from flray.api import simulate

        experiment = pretraining(config, overrides or [], imports or [])
    folder = results_folder(out or default_folder(experiment), experiment.storage)
    with interruptible(folder):
        simulate(experiment, folder, overwrite=overwrite, progress=True)
    report(folder)
    print(f"         flray run {config} model.weights={folder}   (for other classes: model.weights_head=fresh)")


def resume(
    folder: Annotated[str, typer.Argument(help="run folder, or the URI of a run in a storage")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="rounds, resources, address, checkpoint, storage, track, profile"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="of a URI: the folder that gets the run folder; default runs")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="go on although this changed since the run began (the error names it); stays on record"),
    ] = None,
) -> None:
    """Continue a run from its last good checkpoint, to the same bits as if it had never stopped."""
    own_modules()
    with starting(Path(folder), overrides or []):
        from flray.api import resume as resume_run
        from flray.rundir.uri import is_uri, split
    with interruptible(Path(out or "runs") / split(folder)[1] if is_uri(folder) else Path(folder)):
        result = resume_run(folder, *(overrides or []), out=out, accept=accept or ())
    report(result.folder)


@contextmanager
def starting(source: Path, overrides: list[str], trials: int = 0) -> Iterator[None]:
    """Around a command's imports: Ray and its first processes start beside them, where it is the whole process.

    Only where the guess is that it needs one here (see :func:`runs_here`). `trials`: see `connect`.
    """
    early = whole_process and runs_here(source, overrides)
    with stage("starting Ray and torch" if early else "loading torch"):
        if early:
            from flray.engine.ray.cluster import Background, connect
            from flray.engine.threads import cores

            insecure = re.search(r"insecure_ray\s*[:=]\s*true", _text(source, overrides) or "") is not None
            Background(lambda: connect(None, cores(), trials, insecure))
        yield


def runs_here(source: Path, overrides: list[str]) -> bool:
    """Whether a run starts a Ray here, with as many CPUs as there are.

    `source` is a configuration, or the folder of a run or a sweep. This is a guess from the file's own text and the
    overrides: where the file that it `extends` says otherwise, another Ray takes the place of this one.
    """
    from flray.engine.threads import cores

    text = _text(source, overrides)
    if text is None:
        return False
    elsewhere = re.search(r"address\s*[:=]\s*(?!null|~)\S|executor\s*[:=]\s*local\b", text)
    counts = re.findall(r"(?:client_actors|num_cpus)\s*[:=]\s*(\d+)", text)
    return "\ufffd" not in text and elsewhere is None and all(int(count) <= cores() for count in counts)


def _text(source: Path, overrides: list[str]) -> str | None:
    """The file that `source` is or holds, and the overrides; None: there is no file."""
    file = next((path for path in (source, source / "config.yaml", source / "sweep.yaml") if path.is_file()), None)
    return None if file is None else "\n".join([file.read_text(errors="replace"), *overrides])
