"""Runs given experiments side by side: the cells of a grid, or of an ablation.

Small runs need no Ray: they are computed in processes of this machine. Others are trials of Ray Tune on the cluster. A
second call continues where the first stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment, algorithm_name
from flray.config.grid import cell_status, labels
from flray.config.small import names_ray, runs_here
from flray.core.schema.errors import ConfigError, FlrayError
from flray.engine.message_sizes import message_sizes
from flray.engine.prepare import build_data, build_scenario
from flray.engine.progress import stage
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.this_process import alone
from flray.models import MODELS
from flray.models.libraries import LIBRARIES
from flray.results import compare
from flray.rundir.folder import check_inputs, check_root
from flray.rundir.provenance import check_sources
from flray.tuning import processes
from flray.tuning.display import Display


def run_cells(
    cells: Sequence[Experiment],
    folders: Sequence[Path],
    concurrency: int | str = "auto",
    *,
    overwrite: bool = False,
    progress: bool = True,
    label: str = "grid",
) -> None:
    """Runs each cell into its folder. A finished (or diverged) cell is not run again; an unfinished one is resumed.

    Raises `ConfigError` if two cells have one folder, `CheckpointError` if a folder holds another experiment,
    `FlrayError` if a cell failed (after all others are done), and `KeyboardInterrupt` after Ctrl-C.
    """
    if twice := [folder for place, folder in enumerate(folders) if folder in folders[:place]]:
        raise ConfigError(f"two of these runs would have the folder {twice[0]}; name each of them once")
    if overwrite:
        check_inputs(cells, folders)
    state = [cell_status(cell, folder, overwrite) for cell, folder in zip(cells, folders, strict=True)]
    for cell, folder, status in zip(cells, folders, state, strict=True):
        if status == "finished":
            check_sources(cell, folder)
    left = [(cell, folder) for cell, folder, status in zip(cells, folders, state, strict=True) if status != "finished"]
    if not left:
        return
    for cell in {cell.data.model_dump_json(): cell for cell in cells}.values():
        with stage(f"reading data: {cell.data.source}", progress):
            build_data(cell)  # errors in the data come before anything starts
    check_networks([cell for cell, _ in left], progress)
    folders[0].parent.mkdir(parents=True, exist_ok=True)
    done = len(cells) - len(left)
    if all(runs_here(cell) and not names_ray(cell) for cell, _ in left):
        with Display(label, len(cells), done, {}, progress) as display:
            jobs = [processes.Job.of(folder, cell, overwrite) for cell, folder in left]
            processes.run_jobs(jobs, processes.at_once(left[0][0], concurrency), display)
    else:
        from flray.tuning.drive import on_cluster

        display = on_cluster(left, concurrency, overwrite, label, done, progress)
    failed = [status for status in display.ended if status.startswith("failed")]
    if failed:
        raise FlrayError(f"{len(failed)} of {len(cells)} cells failed; the first: {failed[0].removeprefix('failed: ')}")


def check_networks(cells: Sequence[Experiment], progress: bool = False) -> None:
    """Raises `ConfigError`, with the algorithm's name, for a network of the user's own that lacks what an algorithm of
    these cells reads. A client makes one step of each kind of cell; a number of the algorithm's makes no other kind."""
    kinds: dict[str, Experiment] = {}
    for cell in cells:
        if cell.model.name not in MODELS.own_paths() and cell.model.name.partition(":")[0] not in LIBRARIES:
            values = cell.dump()
            words = {key: value for key, value in values["algorithm"].items() if isinstance(value, str | bool)}
            sections = [values[key] for key in ("model", "data", "tasks", "aggregation")]
            kinds.setdefault(json.dumps([words, sections], sort_keys=True, default=str), cell)
    for cell in kinds.values():
        name = algorithm_name(cell.algorithm)
        with stage(f"trying model {cell.model.name} with {name}", progress), alone(None):
            scenario = build_scenario(cell, build_data(cell))
            try:
                message_sizes(Runtime(cell, TaskSummary.of(scenario)), scenario)
            except ConfigError as error:
                raise ConfigError(f"algorithm {name}: {error}") from None
            except FlrayError:
                continue  # its run says so, where it belongs


def run_grid(
    cells: Sequence[Experiment],
    root: Path,
    concurrency: int | str = "auto",
    *,
    overwrite: bool = False,
    progress: bool = True,
) -> Any:
    """Runs every cell into `ROOT/LABEL`; returns the table of all cells (DataFrame)."""
    check_root(root)
    folders = [root / label for label in labels(cells)]
    run_cells(cells, folders, concurrency, overwrite=overwrite, progress=progress, label=root.name)
    return compare(folders)
