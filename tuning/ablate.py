"""Runs given experiments side by side on the cluster: the cells of a grid, or of an ablation.

A second call continues where the first stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from flray.config.experiment import Experiment
from flray.config.grid import cell_status, labels
from flray.core.schema.errors import ConfigError, FlrayError
from flray.engine.prepare import build_data
from flray.engine.progress import stage
from flray.engine.ray.capacity import cpus_needed
from flray.engine.ray.cluster import connect
from flray.results import compare
from flray.tuning.display import Show
from flray.tuning.drive import drive, place
from flray.tuning.trainable import Job


class Cells(Searcher):
    """A list of jobs as a searcher of Ray Tune."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__()
        self._jobs = list(jobs)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:  # FINISHED is a word
        return self._jobs.pop(0).config() if self._jobs else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Does nothing: the list does not depend on results."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the cells are run folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: a second call makes a new list of the unfinished cells."""


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
    twice = [folder for place, folder in enumerate(folders) if folder in folders[:place]]
    if twice:
        raise ConfigError(f"two of these runs would have the folder {twice[0]}; name each of them once")
    state = [cell_status(cell, folder, overwrite) for cell, folder in zip(cells, folders, strict=True)]
    unfinished = [i for i, status in enumerate(state) if status != "finished"]
    if not unfinished:
        return
    for cell in {cell.data.model_dump_json(): cell for cell in cells}.values():
        with stage(f"reading data: {cell.data.source}", progress):
            build_data(cell)  # errors in the data come before anything starts
    with stage("starting Ray", progress):
        connect(
            cells[0].address,
            max(cpus_needed(cells[i]) for i in unfinished),
            trials=1,
            insecure=cells[0].resources.insecure_ray,
        )
    folders[0].parent.mkdir(parents=True, exist_ok=True)
    groups: dict[Any, list[int]] = {}
    for i in unfinished:  # cells that take other actors come after one another
        groups.setdefault((cells[i].resources, cells[i].algorithm.centralized), []).append(i)
    with Show(label, len(cells), len(cells) - len(unfinished), {}, progress) as show:
        for members in groups.values():
            placement = place(cells[members[0]], concurrency)
            jobs = [
                Job.of(folders[i].name, folders[i], cells[i], (), [(cells[i].total_rounds, 1)], overwrite)
                for i in members
            ]
            drive(folders[0].parent, Cells(jobs), FIFOScheduler(), placement, len(jobs), lambda: False, show)
    if len(show.ended) < len(unfinished):
        raise KeyboardInterrupt  # Ray Tune keeps it to itself
    failed = [status for status in show.ended if status.startswith("failed")]
    if failed:
        raise FlrayError(f"{len(failed)} of {len(cells)} cells failed; the first: {failed[0].removeprefix('failed: ')}")


def run_grid(
    cells: Sequence[Experiment],
    root: Path,
    concurrency: int | str = "auto",
    *,
    overwrite: bool = False,
    progress: bool = True,
) -> Any:
    """Runs every cell into `ROOT/LABEL`; returns the table of all cells (DataFrame)."""
    folders = [root / label for label in labels(cells)]
    run_cells(cells, folders, concurrency, overwrite=overwrite, progress=progress, label=root.name)
    return compare(folders)
