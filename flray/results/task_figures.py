"""Figures of runs over tasks: accuracy on each task after each task, its mean over the tasks so far, and predicted
against true tasks.

Axes count tasks from 0, as the column `task` of the tables does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.metrics.classification import per_class
from flray.metrics.forgetting import accuracy_curve, average_accuracy, forgetting
from flray.results.blank import blank, figure_of, given
from flray.results.figures import at_whole_numbers, by_setting, headline, open_runs, plain, spread_words
from flray.results.learning import Curve, curve_of, lines
from flray.rundir.by_task import task_tests
from flray.rundir.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

SHADE = "#8a94a31c"  # of tasks to come, on a light ground and on a dark one
NUMBERED = 10  # tasks up to which the cells of a matrix have room for their numbers


def accuracy_by_task(
    folders: Iterable[str | Path | Run], mode: str | None = None, axes: Iterable[Axes] | None = None
) -> Figure:
    """The accuracy matrix of every setting (mean over seeds) beside the mean accuracy over the tasks so far.

    `mode` is an inference mode, or several by comma; default: all modes of a single setting, or the first mode of each
    of several settings. Tasks that have not ended in all seeds are left out. Draws into `axes` if given: one for each
    matrix, then one for the curve. Raises `ConfigError` if a run has no tests of single tasks, or no such mode.
    """
    matrices_of = task_matrices(open_runs(folders), mode)
    if axes is None:
        squares, curve = _places(len(matrices_of))
    else:
        *squares, curve = given(axes, len(matrices_of) + 1, "an accuracy matrix for each setting, and a curve")
    for axis, (label, matrices) in zip(squares, matrices_of.items(), strict=True):
        numbers = [np.mean([metric(R[:, : len(R)]) for R in matrices]) for metric in (average_accuracy, forgetting)]
        words = "ACC {:.1f} %, FT {:.1f} %".format(*(100 * value for value in numbers))
        matrix_panel(axis, np.mean(matrices, axis=0), f"{label}\n{words}")
    if max(matrices[0].shape[1] for matrices in matrices_of.values()) > NUMBERED:
        squares[0].figure.colorbar(squares[0].images[0], ax=squares, shrink=0.7, label="accuracy (%)")
    task_curves(curve, matrices_of)
    return figure_of(curve)


def predicted_tasks(
    folders: Iterable[str | Path | Run], mode: str | None = None, axes: Iterable[Axes] | None = None
) -> Figure:
    """The predicted tasks against the true ones after the last task that has ended, one table for each setting and mode
    (mean over seeds).

    `mode` is an inference mode, or several by comma; default: all modes that predict tasks. Draws into `axes` if given,
    one for each table. Raises `ConfigError` if no run has a mode that predicts tasks, or not this one.
    """
    tables_of = prediction_tables(open_runs(folders), mode)
    if axes is None:
        columns = min(len(tables_of), 3)
        rows = math.ceil(len(tables_of) / columns)
        figure = blank(3.2 * columns + 0.8, 3.3 * rows + 0.4)
        panels = np.atleast_1d(figure.subplots(rows, columns)).ravel().tolist()
        for axis in panels[len(tables_of) :]:
            axis.set_axis_off()
        panels = panels[: len(tables_of)]
    else:
        panels = given(axes, len(tables_of), "a table for each setting and mode")
    for axis, (label, tables) in zip(panels, tables_of.items(), strict=True):
        right = 100 * np.mean([np.diagonal(table).mean() for table in tables])
        shares_panel(axis, np.mean(tables, axis=0), f"{label}\nright task {right:.1f} % (mean over tasks)")
        axis.set_xlabel("predicted task (0 is the first)")
        axis.set_ylabel("true task")
    return figure_of(panels[0])


def prediction_tables(runs: Sequence[Run], mode: str | None = None) -> dict[str, list[NDArray[np.float64]]]:
    """Returns, by setting and mode, for every seed the shares `[E, E]` of the test samples of each task (rows) that are
    sent to each task (columns), after the last of the E tasks that have ended in all seeds."""
    settings = by_setting(runs)
    tables_of: dict[str, list[NDArray[np.float64]]] = {}
    for label, seeds in settings.items():
        known = task_tests(next(iter(seeds.values())).tests)
        predicting = [name for name, tests in known.items() if tests.predicted is not None]
        modes = predicting if mode is None else [name.strip() for name in mode.split(",")]
        for name in modes:
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
    square = np.zeros((ended, ended), np.int64)
    shown = counts[:ended, :ended]
    square[:, : shown.shape[1]] = shown
    return square


def _places(count: int) -> tuple[list[Any], Any]:
    """The axes of a new figure: `count` for matrices, and one for the curve: the last cell of the grid if that leaves
    no cell empty, else the right of it."""
    inside = next((columns for columns in (2, 3, 4) if columns <= count and (count + 1) % columns == 0), None)
    if inside is not None:
        rows = (count + 1) // inside
        figure = blank(3.6 * inside, 3.5 * rows)
        *axes, curve = figure.subplots(rows, inside).ravel().tolist()
        return axes, curve
    columns = next((columns for columns in (3, 2) if count % columns == 0), min(count, 3))
    rows = math.ceil(count / columns)
    figure = blank(2.8 * columns + 5.2, max(3.8, 3.0 * rows + 0.3))
    parts: Any = figure.subfigures(1, 2, width_ratios=(2.8 * columns, 5.2))
    axes = np.atleast_1d(parts[0].subplots(rows, columns)).ravel().tolist()
    for axis in axes[count:]:
        axis.set_axis_off()
    return axes[:count], parts[1].subplots()


def task_matrices(runs: Sequence[Run], mode: str | None = None) -> dict[str, list[NDArray[np.float64]]]:
    """Returns, by setting (or setting and mode), the accuracy matrices R `[E, T]` of all seeds."""
    settings = by_setting(runs)
    matrices_of: dict[str, list[NDArray[np.float64]]] = {}
    for label, seeds in settings.items():
        first = next(iter(seeds.values()))
        modes = [None] if mode is None else [name.strip() for name in mode.split(",")]
        if mode is None and len(settings) == 1:
            modes = list(task_tests(first.tests)) or [None]
        for name in modes:
            matrices = [run.task_tests(name).matrix for run in seeds.values()]
            ended = min(map(len, matrices))
            parts = [label] * (len(settings) > 1 or name is None) + [name] * (len(modes) > 1)
            matrices_of[", ".join(map(str, parts or [name]))] = [matrix[:ended] for matrix in matrices]
    return matrices_of


def matrix_panel(axis: Any, matrix: NDArray[np.float64], title: str = "") -> Any:
    """Draw an accuracy matrix R `[E, T]` of shares into an axis; returns the axis.

    A row is the test after a task. A column that darkens downwards is a task that was forgotten. Cells of tasks that
    had not been learned yet are blank.
    """
    ended, tasks = matrix.shape
    axis = shares_panel(axis, np.where(np.arange(tasks) <= np.arange(ended)[:, None], matrix, np.nan), title)
    axis.set_xlabel("tested on task (0 is the first)")
    axis.set_ylabel("after task")
    return axis


def shares_panel(axis: Any, matrix: NDArray[np.float64], title: str = "") -> Any:
    """Draw a matrix of shares into an axis in per cent; NaN is blank. Returns the axis."""
    from matplotlib import colormaps

    ended, tasks = matrix.shape
    percent = 100 * matrix
    shades = colormaps["viridis"].with_extremes(bad=SHADE)
    axis.imshow(percent, cmap=shades, vmin=0, vmax=100, aspect="auto" if tasks > NUMBERED else "equal")
    if tasks <= NUMBERED:
        for (row, column), value in np.ndenumerate(percent):
            if not np.isnan(value):
                shade = "white" if value < 60 else "#111111"
                axis.text(column, row, f"{value:.0f}", ha="center", va="center", color=shade, fontsize=8)
        axis.set_xticks(range(tasks))
        axis.set_yticks(range(ended))
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    axis.set_title(title, fontsize=9, loc="left")
    return axis


def task_curves(axis: Any, matrices_of: Mapping[str, Sequence[NDArray[np.float64]]]) -> Any:
    """Draws the mean accuracy over the tasks so far, after each task, one line for each name in `matrices_of`.

    Returns the axis."""
    lines(axis, {label: _curve(matrices) for label, matrices in matrices_of.items()}, 100)
    axis.set_xlabel("after task (0 is the first)")
    axis.set_ylabel("mean accuracy on the tasks so far (%)")
    at_whole_numbers(axis.xaxis)
    axis.set_ylim(0, 101)
    headline(axis, spread_words([len(matrices) for matrices in matrices_of.values()], "ACC", "thin lines"))
    plain(axis)
    axis.legend(frameon=False)
    return axis


def _curve(matrices: Sequence[NDArray[np.float64]]) -> Curve:
    values = np.stack([accuracy_curve(matrix[:, : len(matrix)]) for matrix in matrices])
    return curve_of(np.arange(values.shape[1]), values, "ACC")
