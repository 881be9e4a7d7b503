"""Commands that train many runs on one cluster: `flray sweep | ablate`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from flray.cli.arguments import Against, Imports, complete_metric, complete_override, own_modules, parallel_runs
from flray.cli.finished import other_algorithm
from flray.cli.interrupts import interruptible, same_command
from flray.cli.output import print_comparison, show, suggest, write
from flray.cli.runs import starting
from flray.core.schema.errors import ConfigError
from flray.engine.progress import stage
from flray.files import quoted, results_folder

MIN_SEEDS = 5  # a paired test of fewer seeds has little power


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
        bool, typer.Option("--resume", help="continue the sweep in the folder; trials, hours, ... may be raised")
    ] = False,
    imports: Imports = None,
) -> None:
    """Search hyper-parameters on a validation split, then compare the best on fresh seeds and the test set.

    `flray sweep configs/sweeps/fedsol_rho.yaml trials=40 hours=2`    `flray sweep runs/fedsol_rho --resume`
    """
    own_modules()
    from flray.cli.checks import check_experiment
    from flray.config.declared import check_declared
    from flray.rundir.folder import to_resume_sweep
    from flray.tuning.sweep_file import load_sweep
    from flray.tuning.sweep_folder import CONFIG, check_folder, check_sweep, default_folder

    def check() -> None:
        if resume:
            check_sweep(config)
        checked = load_sweep(config / CONFIG if resume else config, overrides or [], imports or [])
        check_folder(config if resume else out or default_folder(checked), checked, resume)
        check_experiment(checked.experiment(checked.search_space.example()))

    if resume and out is not None:
        raise ConfigError("--out: a sweep continues in its own folder; leave --out out")
    check_declared(check)
    with starting(config, overrides or [], trials=1, imports=imports or []):
        from flray.tuning.sweep import resume_sweep, run_sweep

        new_sweep = None if resume else load_sweep(config, overrides or [], imports or [])
    folder = config if new_sweep is None else results_folder(out or default_folder(new_sweep), None)
    with interruptible(folder, f"continue with: {to_resume_sweep(folder)}"):
        if new_sweep is None:
            ended = resume_sweep(folder, overrides or [], imports or [])
        else:
            ended = run_sweep(new_sweep, folder)
        _report(folder, not ended)
        if not ended:
            raise KeyboardInterrupt


def ablate(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=A,B,...", help="what is varied, and seeds: seed=0..4", autocompletion=complete_override
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="folder of the run folders (default runs/NAME-ablation)")] = None,
    against: Against = None,
    metric: Annotated[str, typer.Option(help="column that is compared", autocompletion=complete_metric)] = "test/acc",
    concurrency: Annotated[str, typer.Option(help="runs at a time; auto: as many as fit on the cluster")] = "auto",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace runs that are already there")] = False,
    imports: Imports = None,
) -> None:
    """Run every combination of some keys: mean, interval, and paired tests against a reference.

    `flray ablate configs/fedproj/cifar10_dir03.yaml algorithm.projection_rate=0,0.25,0.5,0.75,1 seed=0..4`

    Without --against the reference has the configuration's own values, or is the first run. The same command continues
    where it stopped.
    """
    own_modules()
    from flray.cli.checks import check_cells
    from flray.config.declared import check_declared
    from flray.config.overrides import count_cells
    from flray.rundir.folder import grid_rows
    from flray.tuning.comparison import plan_ablation, write_ablation

    given = overrides or []

    def check() -> None:
        plan = plan_ablation(config, given, imports or [], out, against, metric)
        grid_rows(plan.cells, plan.root, overwrite)
        check_cells(plan.cells)

    at_once, count = parallel_runs(concurrency), count_cells(given)
    with stage(f"a grid of {count:,} cells", count > 1):
        check_declared(check)
    with starting(config, given, trials=1, imports=imports or []):
        from flray.tuning.ablate import run_grid

        plan = plan_ablation(config, given, imports or [], out, against, metric)
    root = results_folder(plan.root, plan.cells[0].storage)
    with interruptible(root, same_command(overwrite)):
        frame = run_grid(plan.cells, root, at_once, overwrite=overwrite)
    write_ablation(root, frame, plan.against, metric, plan.swept)
    print_comparison(frame, metric, plan.against)
    write(f"results: {root}: ablation.parquet, {len(plan.cells)} run folders")
    _suggest_after_ablation(root, plan.swept, sorted({cell.seed for cell in plan.cells}))


def _suggest_after_ablation(root: Path, swept: list[str], seeds: list[int]) -> None:
    commands = [
        f"flray report {quoted(root)} --out report.html",
        f"flray figure curves {quoted(root)} --out curves.png",
    ]
    if swept:
        commands.append(f"flray figure ablation {quoted(root)} --axis {swept[0]} --out ablation.png")
    if len(seeds) < MIN_SEEDS:
        # run folders of a single seed have no seed in their names, so they are not found again
        reused = "; finished runs are not repeated" if len(seeds) > 1 else ""
        more = f"seed={seeds[0]}..{seeds[0] + MIN_SEEDS - 1}"
        commands.append(f"the same with {more}   (a paired test of fewer seeds has little power{reused})")
    suggest(commands)


def _report(folder: Path, stopped: bool) -> None:
    from flray.results import render
    from flray.results.answers import verdict
    from flray.results.paired import caption
    from flray.tuning.report import final_runs, final_table, render_front, render_trials
    from flray.tuning.trials import open_sweep, stored_sweep, trials_table

    objectives, frame = open_sweep(folder).objectives, trials_table(folder)
    show(render_trials(frame, objectives))
    if len(objectives) > 1:
        show(render_front(frame, objectives))
    if final_runs(folder):
        ran = not stopped and stored_sweep(folder)["final"]["top"] != 0  # in this call
        again, over = final_table(folder)
        whose = "the best again" if ran else "final runs of an earlier call, by now perhaps not of the best"
        show(render(again, f"{whose}: fresh seeds, all training data, test set"))
        show(render(over, caption(over) if "reference" in over.attrs else "over seeds"))
        for sentence in verdict(again, "test/acc") if len(over) > 1 else ():
            write(sentence)
    write((folder / "STATUS").read_text().strip())
    figures = sorted(path.stem for path in folder.glob("figures/*.png"))
    tables = ", ".join(name for name in ("sweep.parquet", "final.csv") if (folder / name).exists())
    write(f"results: {folder}: {tables}, figures/ ({', '.join(figures)})")
    if not stopped:
        _suggest_after_sweep(folder)


def _suggest_after_sweep(folder: Path) -> None:
    from flray.rundir.folder import to_resume_sweep
    from flray.rundir.reader import load
    from flray.tuning.report import final_runs
    from flray.tuning.trials import stored_sweep

    sweep, status = stored_sweep(folder), (folder / "STATUS").read_text()
    spent = next((key for key in ("client_steps", "hours") if f"({key}: " in status), "trials")
    more = [f"{to_resume_sweep(folder)} {spent}={2 * sweep[spent]:g}   (finished trials are not repeated)"]
    commands = [] if "(space: " in status else more
    if runs := final_runs(folder):
        other = other_algorithm(load(runs[0]).experiment)
        again = f"flray run {quoted(Path(runs[0]) / 'config.yaml')} algorithm={other} evaluate.every=1"
        commands.append(f"{again}   (flray list algorithms)")
        commands.append(f"flray compare {quoted(folder / 'final')}")
    if (folder / "study.journal").exists() and importlib.util.find_spec("optuna_dashboard"):
        commands.append(f"optuna-dashboard {quoted(folder / 'study.journal')}")
    suggest(commands)
