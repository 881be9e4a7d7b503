"""`flray evidence`: the page on which each claim of the papers is tried, and the runs behind it."""

from __future__ import annotations

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
    from flray.config.experiment import Experiment


def evidence(
    page: Annotated[
        Path | None, typer.Option(help="default: configs/evidence.md of a checkout, else evidence.md here")
    ] = None,
    collect: Annotated[
        Path | None, typer.Option(help="first write the table from the finished runs below this folder")
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
) -> None:
    """Write the page of the papers' claims: each in a sentence, its test, its figure, its commands.

    `flray evidence` needs the table alone. `flray evidence --run runs/evidence` runs the grids of the page in their
    order, in this process; the same command continues. `flray evidence --collect runs/evidence` makes the table from
    what has finished.
    """
    from flray.reference.evidence import CLAIMS, TABLE, judge, planned, read_table, write_table
    from flray.reference.evidence import collect as table_of
    from flray.reference.evidence import evidence as read
    from flray.reference.evidence_page import write_page
    from flray.reference.plan import configs_folder

    if (setting or dry_run) and run is None:
        raise ConfigError("--setting and --dry-run choose runs: add --run FOLDER")
    content, home = read(claims or CLAIMS), configs_folder(configs)
    # nothing is written among installed packages, whose `configs` is no link
    installed = home.resolve().parent == PACKAGE.resolve()
    place = table or (Path("evidence.parquet") if installed and collect is not None else TABLE)
    if run is not None:
        own_modules()
        _run(list(planned(results_folder(run, None), home, content, setting or [])), run, dry_run)
        return
    if collect is not None:
        write_table(table_of(collect, home, content), place)
    numbers = read_table(place)
    page = page or (Path() if installed else home) / "evidence.md"
    paths = write_page(page, numbers, judge(numbers, content), content)
    write(f"table:   {place}, {len(numbers)} runs")
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
