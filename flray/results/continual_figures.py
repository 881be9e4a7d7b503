"""Figures of runs over tasks and of runs whose data drift: accuracy on each task after each task, predicted against
true tasks; accuracy by class and round, the detector's signal and its alarms through the window.

Axes count tasks from 0, as the column `task` of the tables does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.algorithms import as_written
from flray.core.schema.errors import ConfigError
from flray.metrics.classification import per_class
from flray.metrics.forgetting import accuracy_curve, average_accuracy, forgetting
from flray.results.alarms import PROBE, alarms, method_of, signals
from flray.results.colours import colours_of
from flray.results.continual import DriftWindow, drift_window, tested_set
from flray.results.figures import (
    SHADE,
    Folders,
    at_whole_numbers,
    draw_cells,
    drawn_by_setting,
    few_log_ticks,
    figure_of,
    grid_of,
    headline,
    legend,
    open_runs,
    spread_words,
)
from flray.results.learning import curve_of, lines, over_seeds_of, seeds_words
from flray.results.rendering import spans
from flray.results.tables import settings
from flray.rundir.by_task import ClassCounts, class_counts, task_tests
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

TO_COME = "#8a94a31c"  # of tasks to come, on a light ground and on a dark one
NUMBERED = 10  # tasks up to which the cells of a matrix have room for their numbers
MOST = 6  # most settings with a panel in `by_class`
SHOWN = 6  # ranges of missing classes that the legend names
THRESHOLDS = (("--", "dashed"), ("-.", "dash-dotted"))  # of a run's detectors: its own first
MISSING, OTHERS = "missing classes", "other classes"


# tasks --------------------------------------------------------------------------------------------
def accuracy_by_task(folders: Folders, mode: str | None = None, axes: Iterable[Axes] | None = None) -> Figure:
    """The accuracy matrix of every setting (mean over seeds) beside the mean accuracy over the tasks so far.

    A row is the test after a task, so a column that darkens downwards is a task that was forgotten. `mode`: inference
    modes by comma; default: all of a single setting, or the first of each of several. Tasks that have not ended in all
    seeds are left out. Draws into `axes` if given: one for each matrix, then one for the curve. Raises `ConfigError` if
    a run has no tests of single tasks, or no such mode.
    """
    runs = open_runs(folders)
    found, (_, left_out) = task_matrices(runs, mode), drawn_by_setting(runs)
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
    at_whole_numbers(curve, "after task (0 is the first)")
    curve.set(ylabel="mean accuracy on the tasks so far (%)", ylim=(0, 101))
    counts = [len(matrices) for matrices in matrices_of.values()]
    headline(curve, spread_words(counts, "ACC", "thin lines") + left_out)
    curve.legend(frameon=False)
    return figure_of(curve)


def predicted_tasks(folders: Folders, mode: str | None = None, axes: Iterable[Axes] | None = None) -> Figure:
    """The predicted tasks against the true ones after the last task that has ended, one table for each setting and mode
    (mean over seeds).

    `mode`: inference modes by comma; default: all that predict tasks. Draws into `axes` if given, one for each table.
    Raises `ConfigError` if no run has a mode that predicts tasks, or not this one.
    """
    runs = open_runs(folders)
    tables_of, (_, left_out) = prediction_tables(runs, mode), drawn_by_setting(runs)
    columns = min(len(tables_of), 3)
    size = 3.2 * columns + 0.8, 3.3 * math.ceil(len(tables_of) / columns) + 0.4
    panels = grid_of(axes, len(tables_of), "a table for each setting and mode", size, columns)
    for axis, (label, tables) in zip(panels, tables_of.items(), strict=True):
        right = 100 * np.mean([np.diagonal(table).mean() for table in tables])
        _shares(axis, np.mean(tables, axis=0), f"{label}\nright task, mean over tasks: {right:.1f} %")
        axis.set(xlabel=f"predicted task (0 is the first){left_out}", ylabel="true task")
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
    settings, _ = drawn_by_setting(runs)
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
            counts = [own.predicted[ended - 1][:ended, :ended] for own in tests if own.predicted is not None]
            # a task beyond the last column was never predicted
            counts = [np.pad(count, ((0, 0), (0, ended - count.shape[1]))) for count in counts]
            parts = [label] * (len(settings) > 1) + [name]
            tables_of[", ".join(parts)] = [per_class(count, count.sum(axis=1, keepdims=True)) for count in counts]
    if not tables_of:
        raise ConfigError(f"{runs[0].place}: no mode predicts tasks; fedprotip has such modes (tip_sample, tip_batch)")
    return tables_of


def task_matrices(runs: Sequence[Run], mode: str | None) -> dict[str, tuple[str, list[NDArray[np.float64]]]]:
    """Returns, by setting (or setting and mode), the inference mode and the accuracy matrices R `[E, T]` of all
    seeds."""
    settings, _ = drawn_by_setting(runs)
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


# drift --------------------------------------------------------------------------------------------
def accuracy_through_drift(folders: Folders, mode: str | None = None, axes: Iterable[Axes] | None = None) -> Figure:
    """Accuracy on the missing and on the other classes over rounds, the window of missing data shaded.

    If a detector looked on, a panel has the variance of the weight update, each detector's reference and its threshold,
    and one a row of alarms for each setting and detector. Where a drift takes no whole class the accuracy is that of
    all classes. `mode`: an inference mode, by default the first. Draws into `axes` if given, one for each panel. Raises
    `ConfigError` if no run has a drift, or one has no tests of this mode.
    """
    runs = open_runs(folders)
    settings_of, _ = drawn_by_setting(runs)
    last = max(int(_counts(run, mode).done[-1]) for seeds in settings_of.values() for run in seeds.values())
    firsts = [next(iter(seeds.values())) for seeds in settings_of.values()]
    found = [drift_window(run, settings(run)) for run in firsts]
    windows = [window and window._replace(stop=min(window.stop, last + 1.0)) for window in found]
    if not any(windows):
        raise ConfigError(f"{runs[0].place} has no drift: run it with one, such as drift.name=remove_classes")
    watched, rows = _watched(settings_of), _alarms(settings_of)
    heights = [3.0, *([1.8] if watched else []), *([0.3 + 0.2 * len(rows)] if rows else [])]
    what = f"accuracy{', the variance of the update' * bool(watched)}{', the alarms' * bool(rows)}"
    places = grid_of(axes, len(heights), what, (7.2, sum(heights) + 0.8), sharex=True, height_ratios=heights)
    for axis, window in itertools.product(places, dict.fromkeys(filter(None, windows))):
        axis.axvspan(window.start - 0.5, window.stop - 0.5, color=SHADE, linewidth=0, zorder=0)
    _curves(places[0], runs, mode, windows)
    if watched:
        _signals(places[1], watched)
    if rows:
        _mark(places[-1], rows)
    places[-1].set_xlabel("round")
    return figure_of(places[0])


def by_class(runs: Sequence[Run], axes: Iterable[Axes] | None = None) -> Figure:
    """Heat maps of accuracy by class and round (mean over seeds), one a setting (FedSOL Figure 7(b)), with the window
    of a drift.

    Draws into `axes` if given, one for each of the first `MOST` settings. Raises `ConfigError` if no run counted by
    class in two rounds.
    """
    counted: dict[str, list[ClassCounts]] = {}
    windows: dict[str, DriftWindow | None] = {}
    settings_of, left_out = drawn_by_setting(runs)
    for label, seeds in settings_of.items():
        counts = [class_counts(run.tests, tested_set(settings(run))) for run in seeds.values() if len(run.tests)]
        tested_twice = [tested for tested in counts if tested is not None and len(tested.done) > 1]
        if tested_twice and len(counted) < MOST:
            counted[label] = tested_twice
            windows[label] = drift_window(first := next(iter(seeds.values())), settings(first))
    if not counted:
        raise ConfigError(f"{runs[0].place}: no run was tested in two rounds or more, so there is no class over rounds")
    size = 7.2, 1.1 + 1.7 * len(counted)
    places = grid_of(axes, len(counted), "the classes of each setting", size, sharex=True)
    for axis, (label, counts_of_seeds) in zip(places, counted.items(), strict=True):
        image = class_panel(axis, counts_of_seeds, windows[label], label)
    at_whole_numbers(places[-1], "round" + "; dashed: the drift; bold: its classes" * any(windows.values()) + left_out)
    figure = figure_of(places[0])
    figure.colorbar(image, ax=places, label="accuracy (%)", shrink=0.9)
    return figure


def _curves(axis: Any, runs: Sequence[Run], mode: str | None, windows: Sequence[DriftWindow | None]) -> None:
    """Draws accuracy over rounds, for each setting a solid line of the classes that it misses and a dashed one of the
    others. A setting without a drift has the classes of the first that has one."""
    taken = {window.classes for window in windows if window is not None and window.classes}
    missing = next((window.classes for window in windows if window is not None and window.classes), ())
    styles = {MISSING: "-", OTHERS: "--"} if missing else {"all classes": "-"}
    for part, style in styles.items():
        curves = over_seeds_of(runs, partial(_points, mode=mode, part=part, missing=missing), "test/acc")
        lines(axis, curves, 100, style=style)
    split = "validation" if all(tested_set(settings(run)) == "val" for run in runs) else "test"
    axis.set(ylabel=f"{split} accuracy (%)", ylim=(0, 101))
    headline(axis, f"{seeds_words(curves, 'test/acc')}; grey: samples missing")
    parts = spans(missing).split(", ")  # of many classes the first few, which leave room for the curves
    which = f" ({', '.join(parts[:SHOWN] + ['...'] * (len(parts) > SHOWN))})" if len(taken) == 1 else ""
    named = {part + which * (part == MISSING): style for part, style in styles.items()}
    legend(axis, curves, named, below=False)


def _signals(axis: Any, watched: Mapping[str, Mapping[str, pandas.DataFrame]]) -> None:
    """Draws the variance of the weight update, and the moving mean, reference and threshold of each of the detectors
    `watched`; the mean of a run's second detector is dashed like its threshold."""
    named: dict[str, None] = {}
    for colour, tables in watched.items():
        for second, (name, table) in enumerate(tables.items()):
            if not second:  # all detectors of a run read one WV
                axis.plot(table["done"], table["wv"], color=colour, linewidth=0.7, alpha=0.5)
            dashes, look = THRESHOLDS[name == PROBE]
            detector = "the diagnostic" if name == PROBE else as_written(name)
            looks = {
                "thick: mean of the last rounds": ("smoothed", 2, dashes if second else "-"),
                "dotted: reference": ("reference", 1, ":"),
                f"{look}: threshold of {detector}, alarm below it": ("threshold", 1, dashes),
            }
            for words, (column, width, style) in looks.items() if table["threshold"].notna().any() else ():
                axis.plot(table["done"], table[column], color=colour, linewidth=width, linestyle=style)
                named[words] = None
    axis.set_yscale("log")
    few_log_ticks(axis.yaxis)
    axis.set_ylabel("weight-update\nvariance")
    headline(axis, "; ".join(named))


def class_panel(axis: Any, counts: Sequence[ClassCounts], window: DriftWindow | None, title: str = "") -> Any:
    """Draws accuracy by class and round (mean over seeds), with lines where the window begins and ends, and bold
    numbers of its classes. Returns the image, for a colour bar."""
    from matplotlib import colormaps

    done, shares = class_accuracies(counts)
    middles = (done[1:] + done[:-1]) / 2
    edges = np.concatenate([[done[0] - 0.5], middles, [done[-1] + 0.5]])
    number = shares.shape[1]
    shades = colormaps["viridis"].with_extremes(bad=SHADE)
    drawn = axis.pcolormesh(edges, np.arange(number + 1) - 0.5, 100 * shares.T, cmap=shades, vmin=0, vmax=100)
    drawn.set_rasterized(True)  # no seams between the cells, and a small file
    axis.set_ylim(number - 0.5, -0.5)
    step = math.ceil(number / 20)
    axis.set_yticks(range(0, number, step))
    axis.tick_params(axis="y", labelsize=8)
    gone = () if window is None else window.classes
    for place, tick in zip(range(0, number, step), axis.get_yticklabels(), strict=True):
        tick.set_fontweight("bold" if place in gone else "normal")
    for edge in [] if window is None else [window.start - 0.5, window.stop - 0.5]:
        if edge < edges[-1]:
            axis.axvline(edge, color="white", linewidth=2)
            axis.axvline(edge, color="#111111", linewidth=1, linestyle="--")
    axis.set_ylabel("class")
    axis.grid(visible=False)
    axis.spines[:].set_visible(True)
    axis.set_title(title, fontsize=9, loc="left")
    return drawn


def _mark(axis: Any, rows: Sequence[tuple[str, str, list[NDArray[np.int64]]]]) -> None:
    """Draws a row of `_alarms`, a bar where there was an alarm; the fewer seeds had it, the paler."""
    from matplotlib.colors import to_rgba

    for place, (_, colour, seeds) in enumerate(rows):
        rounds, count = np.unique(np.concatenate(seeds), return_counts=True)
        shades = [to_rgba(colour, share) for share in count / len(seeds)]
        axis.bar(rounds, 0.7, 1.0, place - 0.35, color=shades, linewidth=0)
    axis.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=8)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    several = any(len(seeds) > 1 for *_, seeds in rows)
    axis.set_title("alarms" + "; pale: of some seeds" * several, fontsize=9, loc="left")
    axis.grid(axis="y", visible=False)


def _alarms(settings_of: Mapping[str, Mapping[Any, Run]]) -> list[tuple[str, str, list[NDArray[np.int64]]]]:
    """(name, colour, rounds with an alarm of each seed) for each setting and detector that looked on."""
    rows = []
    for (label, seeds), colour in zip(settings_of.items(), colours_of(settings_of), strict=True):
        alarms_of = [alarms(run) for run in seeds.values()]
        for name in dict.fromkeys(name for of in alarms_of for name in of):
            own = [of[name] for of in alarms_of if name in of]
            rows.append((f"{label} (diagnostic)" if name == PROBE else label, colour, own))
    return rows


def _watched(settings_of: Mapping[str, Mapping[Any, Run]]) -> dict[str, dict[str, pandas.DataFrame]]:
    """`alarms.signals` of one run of each setting that has some, by the setting's colour. A detector whose statistic is
    no mean of WV has its `wv` alone."""
    watched = {}
    for seeds, colour in zip(settings_of.values(), colours_of(settings_of), strict=True):
        run = next((run for run in seeds.values() if signals(run)), None)
        tables = {} if run is None else signals(run)
        for name in tables:
            if run is not None and method_of(settings(run), name) != "moving_mean":
                tables[name] = tables[name].assign(smoothed=math.nan, reference=math.nan, threshold=math.nan)
        if tables := {name: table for name, table in tables.items() if table["wv"].notna().any()}:
            watched[colour] = tables
    return watched


def class_accuracies(counts: Sequence[ClassCounts]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(rounds `[N]` that all seeds tested, mean accuracy by class `[N, C]`)."""
    done = sorted(set.intersection(*(set(tested.done.tolist()) for tested in counts)))
    shares = []
    for tested in counts:
        rows = np.isin(tested.done, done)
        shares.append(per_class(tested.right[rows], tested.total[rows]))
    tested = np.sum(~np.isnan(shares), axis=0)
    mean = np.nansum(shares, axis=0) / np.where(tested, tested, np.nan)
    return np.array(done, np.int64), mean


def _counts(run: Run, mode: str | None) -> ClassCounts:
    counts = class_counts(run.tests, tested_set(settings(run)), mode)
    if counts is None:
        modes = run.tests["mode"].unique().tolist() if len(run.tests) else []
        raise ConfigError(
            f"{run.place} has no inference mode {mode!r}; choose one of {', '.join(modes)}"
            if modes
            else f"{run.place} has no tests yet: there is nothing to draw"
        )
    return counts


def _points(run: Run, mode: str | None, part: str, missing: Sequence[int]) -> pandas.DataFrame:
    """Accuracy after each test on a part of the classes: `MISSING`, `OTHERS`, or all. `missing`: of a run without a
    drift."""
    import pandas

    counts, window = _counts(run, mode), drift_window(run, settings(run))
    own = window.classes if window is not None and window.classes else missing
    gone = np.isin(np.arange(counts.total.shape[1]), own)
    chosen = {MISSING: gone, OTHERS: ~gone}.get(part, np.ones_like(gone))
    values = per_class(counts.right[:, chosen].sum(axis=1), counts.total[:, chosen].sum(axis=1))
    return pandas.DataFrame({"x": counts.done.astype(float), "y": values}, index=counts.done).dropna()
