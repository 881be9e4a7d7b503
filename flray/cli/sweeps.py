"""Commands that train many runs on one cluster: `flray sweep | ablate`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from flray.cli.runs import starting
from flray.cli.show import Imports, console, interruptible, other_algorithm, own_modules, print_table, results_folder
from flray.core.schema.errors import ConfigError
from flray.engine.progress import stage

FEW = 5  # seeds below which a paired test says little


def sweep(
    config: Annotated[Path, typer.Argument(help="YAML file of a sweep; with --resume: the folder of one")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="of the sweep (trials, hours, space.algorithm.rho, ...) or of its experiment (rounds, ...)",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the sweep (default runs/NAME)")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the sweep in the folder; trials, hours, ... may be raised")
    ] = False,
    imports: Imports = None,
) -> None:
    """Search hyper-parameters on a validation split, then compare the best on fresh seeds and the test set.

    `flray sweep configs/sweeps/fedsol_rho.yaml trials=40 hours=2`    `flray sweep runs/fedsol_rho --resume`
    """
    own_modules()
    from flray.config.declared import check_declared
    from flray.tuning.sweep_file import load_sweep

    if resume and out is not None:
        raise ConfigError("--out: a sweep goes on in its own folder; leave it out")
    if not resume:
        check_declared(lambda: load_sweep(config, overrides or [], imports or []))
    with starting(config, overrides or [], trials=1):
        from flray.tuning.sweep import default_folder, resume_sweep, run_sweep

        new_sweep = None if resume else load_sweep(config, overrides or [], imports or [])
    folder = config if new_sweep is None else results_folder(out or default_folder(new_sweep), None)
    with interruptible(folder, f"continue with: flray sweep {folder} --resume"):
        if new_sweep is None:
            resume_sweep(folder, overrides or [], imports or [])
        else:
            run_sweep(new_sweep, folder)
        stopped = (folder / "STATUS").read_text().startswith("interrupted")
        _report(folder, stopped)
        if stopped:
            raise KeyboardInterrupt  # Ray Tune keeps it to itself


def ablate(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=A,B,...", help="what is varied, and seeds: seed=0..4")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder that holds the cells' run folders (default runs/NAME-ablation)")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE", help="reference cell; default: the configuration's own values, else the first cell"
        ),
    ] = None,
    metric: Annotated[str, typer.Option(help="column that is compared")] = "test/acc",
    concurrency: Annotated[str, typer.Option(help="cells at a time; auto: what the cluster holds")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace cells that are there")] = False,
    imports: Imports = None,
) -> None:
    """Vary some keys, side by side on the cluster: mean, interval, and paired tests against the reference cell.

    `flray ablate configs/fedproj/cifar10_dir03.yaml algorithm.projection_rate=0,0.25,0.5,0.75,1 seed=0..4`

    The same command goes on where it stopped.
    """
    own_modules()
    from flray.config.declared import check_declared
    from flray.config.loader import load_config
    from flray.config.overrides import count_cells

    count = count_cells(overrides or [])
    if config.is_file() and count < 2:
        raise ConfigError(
            "ablate: give a key several values, e.g. algorithm.lr=0.01,0.1 seed=0..4; one experiment is flray run"
        )
    if concurrency != "auto" and not (concurrency.isdigit() and int(concurrency)):
        raise ConfigError(f"--concurrency {concurrency}: auto, or a number of at least 1")
    with stage(f"a grid of {count:,} cells", count > 1):
        check_declared(lambda: load_config(config, overrides or [], imports or []))
    with starting(config, overrides or [], trials=1):
        from flray.tuning.ablate import axes, check_comparison, reference_cell, run_grid, write_ablation

        cells = load_config(config, overrides or [], imports or [])
    root = results_folder(out or Path("runs") / f"{cells[0].name}-ablation", cells[0].storage)
    swept = axes(overrides or [])
    against = against or str(
        reference_cell(load_config(config, _fixed(overrides or [], swept), imports or [])[0], cells, root)
    )
    check_comparison(cells, root, metric, against)
    with interruptible(root, "the same command goes on"):
        frame = run_grid(cells, root, concurrency if concurrency == "auto" else int(concurrency), overwrite=overwrite)
    write_ablation(root, frame, against, metric, swept)
    print_table(frame, metric, against)
    print(f"results: {root}: ablation.parquet, {len(cells)} run folders")
    print(f"next:    flray report {root} --out report.html")
    print(f"         flray figure curves {root} --out curves.png")
    if swept:
        print(f"         flray figure ablation {root} --axis {swept[0]} --out ablation.png")
    seeds = sorted({cell.seed for cell in cells})
    if len(seeds) < FEW:
        # the folders of one seed have no seed in their names
        kept_too = "; what is done is kept" if len(seeds) > 1 else ""
        print(
            f"         the same with seed={seeds[0]}..{seeds[0] + FEW - 1}   (a paired test of fewer says "
            f"little{kept_too})"
        )


def _fixed(overrides: list[str], swept: list[str]) -> list[str]:
    return [text for text in overrides if text.partition("=")[0] not in (*swept, "seed")]


def _report(folder: Path, stopped: bool) -> None:
    """The best trials, the final table, and what to open next."""
    from flray.results import render
    from flray.results.answers import verdict
    from flray.results.paired import caption
    from flray.rundir.reader import load
    from flray.tuning.report import final_table, render_front, render_trials, trials_table
    from flray.tuning.trials import open_sweep, stored_sweep

    objectives, frame = open_sweep(folder).objectives, trials_table(folder)
    out = console()
    out.print(render_trials(frame, objectives))
    if len(objectives) > 1:
        out.print(render_front(frame, objectives))
    if (folder / "final").exists():
        again, over = final_table(folder)
        out.print(render(again, "the best again: fresh seeds, all training data, test set"))
        out.print(render(over, caption(over) if "reference" in over.attrs else "over seeds"))
        for sentence in verdict(again, "test/acc") if len(over) > 1 else ():
            print(sentence)
    print((folder / "STATUS").read_text().strip())
    figures = sorted(path.stem for path in folder.glob("figures/*.png"))
    tables = ", ".join(name for name in ("sweep.parquet", "final.csv") if (folder / name).exists())
    print(f"results: {folder}: {tables}, figures/ ({', '.join(figures)})")
    if stopped:
        return
    trials = stored_sweep(folder)["trials"]
    print(f"next:    flray sweep {folder} --resume trials={2 * trials}   (what is done is kept)")
    if runs := sorted((folder / "final").glob("*/config.yaml")):
        other = other_algorithm(load(runs[0].parent).experiment)
        print(f"         flray run {runs[0]} algorithm={other}   (flray list algorithms)")
        print(f"         flray figure curves {folder}/final --out final.png")
    if (folder / "study.journal").exists() and importlib.util.find_spec("optuna_dashboard"):
        print(f"         optuna-dashboard {folder}/study.journal")
