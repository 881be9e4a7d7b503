"""`flray evidence`: the page on which each claim of the papers is tried, and the runs behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.arguments import own_modules
from flray.cli.begin import PACKAGE
from flray.cli.interrupts import interruptible, results_folder
from flray.cli.output import write, write_rows
from flray.core.schema.errors import ConfigError, FlrayError
from flray.log import LOGGER

if TYPE_CHECKING:
    import pandas

    from flray.config.experiment import Experiment
    from flray.reference.evidence import Evidence


def evidence(
    page: Annotated[
        Path | None, typer.Option(help="default: configs/evidence.md of a checkout, else evidence.md here")
    ] = None,
    collect: Annotated[
        Path | None,
        typer.Option(help="first write the finished runs below this folder into the table; its other rows stay"),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="first run what is not finished, one after the other, into this folder")
    ] = None,
    setting: Annotated[list[str] | None, typer.Option(help="of --run: only this setting; several times")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="of --run: print the runs and their states")] = False,
    claims: Annotated[
        Path | None, typer.Option(help="YAML file of settings and claims; default: the one that flray contains")
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(help="Parquet table; default: flray's own, without a checkout --collect writes evidence.parquet"),
    ] = None,
    configs: Annotated[Path | None, typer.Option(help="the folder configs/ of flray's repository")] = None,
    detectors: Annotated[
        bool, typer.Option("--detectors", help="detectors of vanished classes instead: configs/fedmemo/detectors.md")
    ] = False,
) -> None:
    """Write the page of the papers' claims: each in a sentence, its test, its figure, its commands.

    `flray evidence` needs the table alone. `flray evidence --run runs/evidence` runs the grids of the page in their
    order, in this process; the same command continues. `flray evidence --collect runs/evidence` writes what has
    finished into the table. The same three with `--detectors` are about the detectors of vanished classes.
    """
    from flray.reference.evidence import evidence as read
    from flray.reference.evidence import planned, read_table, updated, write_table
    from flray.reference.plan import configs_folder

    if (setting or dry_run) and run is None:
        raise ConfigError("--setting and --dry-run choose runs: add --run FOLDER")
    source, default, keys, own = _stored(detectors)
    content, home = read(claims or source), configs_folder(configs)
    # nothing is written among installed packages, whose `configs` is no link
    installed = home.resolve().parent == PACKAGE.resolve()
    place = table or (Path(default.name) if installed and collect is not None else default)
    if run is not None:
        own_modules()
        _run(list(planned(results_folder(run, None), home, content, setting or [])), run, dry_run)
        return
    if collect is not None:
        found = _collected(collect, home, content, detectors)
        write_table(updated(read_table(place, keys), found), place)
    _write_page(page or (Path(Path(own).name) if installed else home / own), place, keys, content, detectors)


def _stored(detectors: bool) -> tuple[Path, Path, Sequence[str], str]:
    """The file of claims, the table, its columns and its page below `configs/`."""
    if detectors:
        from flray.reference import detector_runs  # which imports torch

        return detector_runs.STORED
    from flray.reference.evidence import CLAIMS, KEYS, TABLE

    return CLAIMS, TABLE, KEYS, "evidence.md"


def _collected(root: Path, home: Path, content: Evidence, detectors: bool) -> pandas.DataFrame:
    if detectors:
        from flray.reference import detector_runs

        return detector_runs.collect(root, content)
    from flray.reference.evidence import collect

    return collect(root, home, content)


def _write_page(page: Path, table: Path, keys: Sequence[str], content: Evidence, detectors: bool) -> None:
    from flray.reference.evidence import judge, read_table
    from flray.reference.evidence_page import write_page

    numbers = read_table(table, keys)
    if detectors:
        from flray.reference import detector_runs

        paths, runs = [detector_runs.write_page(page, numbers, content)], detector_runs.count(numbers)
    else:
        paths, runs = write_page(page, numbers, judge(numbers, content), content), len(numbers)
    write(f"table:   {table}, {runs} runs")
    write(f"page:    {', '.join(map(str, paths))}")


def _run(cells: list[tuple[Experiment, Path]], root: Path, dry_run: bool) -> None:
    """Run the unfinished cells one after the other. Raises the last error after all others were tried.

    A second process may do the same: the lock of a run folder gives it the next cell, with an error for the other.
    """
    from flray.config.grid import cell_status

    if dry_run:
        states = [cell_status(cell, folder) for cell, folder in cells]
        rows = [{"folder": str(folder), "is": state} for (_, folder), state in zip(cells, states, strict=True)]
        write_rows(rows, f"{len(rows)} runs, {states.count('finished')} finished")
        return
    failed: FlrayError | None = None
    with interruptible(root, "the same command continues"):
        from flray.api import simulate

        for cell, folder in cells:
            try:
                state = cell_status(cell, folder)
                if state == "finished":
                    continue
                LOGGER.info(str(folder))
                simulate(cell, folder, resume=state == "resumed", progress=False)
            except FlrayError as error:
                LOGGER.error(f"{folder}: {error}")
                failed = error
    if failed is not None:
        raise failed
