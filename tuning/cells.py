"""Given experiments as trials of Ray Tune, side by side on the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from flray.config.experiment import Experiment
from flray.engine.progress import stage
from flray.engine.ray.capacity import cpus_needed
from flray.engine.ray.cluster import connect
from flray.tuning.drive import drive, place
from flray.tuning.show import Show
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


def on_cluster(
    cells: Sequence[tuple[Experiment, Path]],
    concurrency: int | str,
    overwrite: bool,
    label: str,
    done: int,
    progress: bool,
) -> Show:
    """Runs each experiment into its folder; `done` are as many others that had ended before. Returns what was shown.

    Raises `KeyboardInterrupt` after Ctrl-C.
    """
    first = cells[0][0]
    with stage("starting Ray", progress):
        needed = max(cpus_needed(cell) for cell, _ in cells)
        connect(first.address, needed, trials=1, insecure=first.resources.insecure_ray)
    groups: dict[Any, list[tuple[Experiment, Path]]] = {}
    for cell, folder in cells:  # those that take other actors come after one another
        groups.setdefault((cell.resources, cell.algorithm.centralized), []).append((cell, folder))
    with Show(label, done + len(cells), done, {}, progress) as show:
        for members in groups.values():
            placement = place(members[0][0], concurrency)
            jobs = [
                Job.of(folder.name, folder, cell, (), [(cell.total_rounds, 1)], overwrite) for cell, folder in members
            ]
            drive(members[0][1].parent, Cells(jobs), FIFOScheduler(), placement, len(jobs), lambda: False, show)
    if len(show.ended) < len(cells):
        raise KeyboardInterrupt  # Ray Tune keeps it to itself
    return show
