"""Figures of runs over tasks: accuracy on each task after each task, its mean over the tasks so far, and predicted
against true tasks.

Axes count tasks from 0, as the column `task` of the tables does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.metrics.classification import per_class
from flray.metrics.forgetting import accuracy_curve, average_accuracy, forgetting
from flray.results.figures import (
    Folders,
    by_setting,
    draw_cells,
    figure_of,
    grid_of,
    headline,
    open_runs,
    plain,
    spread_words,
)
from flray.results.learning import curve_of, lines
from flray.rundir.by_task import task_tests
from flray.rundir.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

TO_COME = "#8a94a31c"  # of tasks to come, on a light ground and on a dark one
NUMBERED = 10  # tasks up to which the cells of a matrix have room for their numbers


def accuracy_by_task(folders: Folders, mode: str | None = None, axes: Iterable[Axes] | None = None) -> Figure:
    """The accuracy matrix of every setting (mean over seeds) beside the mean accuracy over the tasks so far.

    A row of a matrix is the test after a task, so a column that darkens downwards is a task that was forgotten. `mode`
    is an inference mode, or several by comma; default: all modes of a single setting, or the first mode of each
    of several settings. Tasks that have not ended in all seeds are left out. Draws into `axes` if given: one for each
    matrix, then one for the curve. Raises `ConfigError` if a run has no tests of single tasks, or no such mode.
    """
    found = _matrices(open_runs(folders), mode)
    matrices_of = {label: matrices for label, (_, matrices) in found.items()}
    count = len(matrices_of) + 1
    columns = next((number for number in (3, 2, 4) if count % number == 0), min(count, 3))
    size = 3.6 * columns, 3.5 * math.ceil(count / columns)
    *squares, curve = grid_of(axes, count, "an accuracy matrix for each setting, and a curve", size, columns)
    for axis, (label, matrices) in zip(squares, matrices_of.items(), strict=True):
        acc, lost = (100 * np.mean([of(R[:, : len(R)]) for R in matrices]) for of in (average_accuracy, forgetting))
        ended, tasks = matrices[0].shape
        learned = np.arange(tasks) <= np.arange(ended)[:, None]
        title = f"{label}\nACC@{found[label][0]} {acc:.1f} %, FT {lost:.1f} %"
        _shares(axis, np.where(learned, np.mean(matrices, axis=0), np.nan), title)
        axis.set(xlabel="tested on task (0 is the first)", ylabel="after task")
    if max(matrices[0].shape[1] for matrices in matrices_of.values()) > NUMBERED:
        squares[0].figure.colorbar(squares[0].images[0], ax=squares, shrink=0.7, label="accuracy (%)")
    values = {
        label: np.stack([accuracy_curve(matrix[:, : len(matrix)]) for matrix in matrices])
        for label, matrices in matrices_of.items()
    }
    lines(curve, {label: curve_of(np.arange(of.shape[1]), of, "ACC") for label, of in values.items()}, 100)
    plain(curve, "after task (0 is the first)")
    curve.set(ylabel="mean accuracy on the tasks so far (%)", ylim=(0, 101))
    headline(curve, spread_words([len(matrices) for matrices in matrices_of.values()], "ACC", "thin lines"))
    curve.legend(frameon=False)
    return figure_of(curve)


def predicted_tasks(folders: Folders, mode: str | None = None, axes: Iterable[Axes] | None = None) -> Figure:
    """The predicted tasks against the true ones after the last task that has ended, one table for each setting and mode
    (mean over seeds), with the share of right tasks, a mean over tasks.

    `mode` is an inference mode, or several by comma; default: all modes that predict tasks. Draws into `axes` if given,
    one for each table. Raises `ConfigError` if no run has a mode that predicts tasks, or not this one.
    """
    tables_of = prediction_tables(open_runs(folders), mode)
    columns = min(len(tables_of), 3)
    size = 3.2 * columns + 0.8, 3.3 * math.ceil(len(tables_of) / columns) + 0.4
    panels = grid_of(axes, len(tables_of), "a table for each setting and mode", size, columns)
    for axis, (label, tables) in zip(panels, tables_of.items(), strict=True):
        right = 100 * np.mean([np.diagonal(table).mean() for table in tables])
        _shares(axis, np.mean(tables, axis=0), f"{label}\nright task {right:.1f} %")
        axis.set(xlabel="predicted task (0 is the first)", ylabel="true task")
    return figure_of(panels[0])


def _shares(axis: Any, matrix: NDArray[np.float64], title: str) -> None:
    """Draws a matrix `[E, T]` of shares in per cent; NaN is blank."""
    ended, tasks = matrix.shape
    few = tasks <= NUMBERED
    draw_cells(axis, 100 * matrix, ".0f" if few else "", bad=TO_COME, aspect="equal" if few else "auto")
    if few:
        axis.set(xticks=range(tasks), yticks=range(ended))
    axis.set_title(title, fontsize=9, loc="left")


def prediction_tables(runs: Sequence[Run], mode: str | None = None) -> dict[str, list[NDArray[np.float64]]]:
    """Returns, by setting and mode, for every seed the shares `[E, E]` of the test samples of each task (rows) that are
    sent to each task (columns), after the last of the E tasks that have ended in all seeds."""
    settings = by_setting(runs)
    tables_of: dict[str, list[NDArray[np.float64]]] = {}
    for label, seeds in settings.items():
        known = task_tests(next(iter(seeds.values())).tests)
        predicting = [name for name, tests in known.items() if tests.predicted is not None]
        for name in predicting if mode is None else [name.strip() for name in mode.split(",")]:
            tests = [run.task_tests(name) for run in seeds.values()]
            if name not in predicting:
                has = ", ".join(predicting) or "none of them"
                raise ConfigError(f"{label}: the mode {name} predicts no task; those that do: {has}")
            ended = min(len(own.right) for own in tests)
            counts = [_square(own.predicted[ended - 1], ended) for own in tests if own.predicted is not None]
            parts = [label] * (len(settings) > 1) + [name]
            tables_of[", ".join(parts)] = [per_class(count, count.sum(axis=1, keepdims=True)) for count in counts]
    if not tables_of:
        raise ConfigError(f"{runs[0].place}: no mode predicts tasks; fedprotip has such modes (tip_sample, tip_batch)")
    return tables_of


def _square(counts: NDArray[np.int64], ended: int) -> NDArray[np.int64]:
    """`[E, E]` of counts `[T, P]`; a task beyond the last column was never predicted."""
    shown = counts[:ended, :ended]
    return np.pad(shown, ((0, 0), (0, ended - shown.shape[1])))


def task_matrices(runs: Sequence[Run], mode: str | None = None) -> dict[str, list[NDArray[np.float64]]]:
    """Returns, by setting (or setting and mode), the accuracy matrices R `[E, T]` of all seeds."""
    return {label: matrices for label, (_, matrices) in _matrices(runs, mode).items()}


def _matrices(runs: Sequence[Run], mode: str | None) -> dict[str, tuple[str, list[NDArray[np.float64]]]]:
    """`task_matrices`, each with its inference mode."""
    settings = by_setting(runs)
    matrices_of: dict[str, tuple[str, list[NDArray[np.float64]]]] = {}
    for label, seeds in settings.items():
        first = next(iter(seeds.values()))
        known = list(task_tests(first.tests))
        modes = [None] if mode is None else [name.strip() for name in mode.split(",")]
        if mode is None and len(settings) == 1:
            modes = known or [None]
        for name in modes:
            matrices = [run.task_tests(name).matrix for run in seeds.values()]
            ended = min(map(len, matrices))
            parts = [label] * (len(settings) > 1 or name is None) + [name] * (len(modes) > 1)
            shown = ", ".join(map(str, parts or [name]))
            matrices_of[shown] = name or known[0], [matrix[:ended] for matrix in matrices]
    return matrices_of
