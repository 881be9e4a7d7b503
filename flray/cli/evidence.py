"""`flray papers evidence`: the page on which each claim of the papers is tried, and the runs behind it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.arguments import own_modules
from flray.cli.interrupts import interruptible
from flray.cli.output import write, write_rows
from flray.core.schema.errors import ConfigError, FlrayError
from flray.files import results_folder
from flray.log import LOGGER
from flray.shipped import is_installed

if TYPE_CHECKING:
    from flray.config.experiment import Experiment


def evidence(
    page: Annotated[
        Path | None, typer.Option(help="default: evidence.md, of detectors detectors.md, in this folder")
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
        bool, typer.Option("--detectors", help="detectors of vanished classes instead: detectors.md")
    ] = False,
) -> None:
    """Write the page of the papers' claims: each in a sentence, its test, its figure, its commands.

    `flray papers evidence` needs the table alone. `flray papers evidence --run runs/evidence` runs the grids of the
    page in their order, in this process; the same command continues. `flray papers evidence --collect runs/evidence`
    writes what has finished into the table. The same three with `--detectors` are about the detectors of vanished
    classes.
    """
    from flray.reference import evidence as of
    from flray.reference.evidence_page import write_page
    from flray.reference.plan import configs_folder

    if (setting or dry_run) and run is None:
        raise ConfigError("--setting and --dry-run choose runs: add --run FOLDER")
    source, default, keys = (of.DETECTORS, of.SCORES, of.SCORED) if detectors else (of.CLAIMS, of.TABLE, of.KEYS)
    content = of.evidence(claims or source).model_copy(update={"detectors": detectors})
    home = configs_folder(configs)
    place = table or (Path(default.name) if is_installed(home) and collect is not None else default)
    if run is not None:
        own_modules()
        _run(list(of.planned(results_folder(run, None), home, content, setting or [])), run, dry_run)
        return
    if collect is not None:
        of.add_runs(collect, place, keys, home, content)
    known = of.read_table(place, keys)
    of.check_read(known, content, home)
    paths = write_page(page or Path(f"{source.stem}.md"), known, content)
    write(f"table:   {place}, {len(known[['setting', 'run', 'seed']].drop_duplicates())} runs")
    write(f"page:    {', '.join(map(str, paths))}")


def _run(cells: list[tuple[Experiment, Path]], root: Path, dry_run: bool) -> None:
    """Run the unfinished cells one after the other. Raises the last error after all others were tried."""
    from flray.config.grid import cell_status

    if dry_run:
        states = [cell_status(cell, folder) for cell, folder in cells]
        rows = [{"folder": str(folder), "is": state} for (_, folder), state in zip(cells, states, strict=True)]
        write_rows(rows, f"{len(rows)} runs, {states.count('finished')} finished")
        return
    failed: FlrayError | None = None
    with interruptible(root, "the same command continues"):
        from flray.running import simulate

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
