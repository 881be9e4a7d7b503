"""Figures of accuracy by class and round, and of runs whose data drift: accuracy and the detector's signal through the
window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.metrics.classification import per_class
from flray.results.alarms import PROBE, alarms, method_of, signals
from flray.results.colours import colours_of
from flray.results.continual import DriftWindow, drift_window, tested_set
from flray.results.figures import (
    INK,
    SHADE,
    Folders,
    at_whole_numbers,
    by_setting,
    figure_of,
    grid_of,
    headline,
    open_runs,
    plain,
    spread_words,
)
from flray.results.learning import lines, over_seeds_of
from flray.results.tables import settings
from flray.rundir.by_task import ClassCounts, class_counts
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MOST = 6  # most settings with a panel in `by_class`
THRESHOLDS = ("--", "-.")  # of a run's detectors: its own first
MARKERS = ("v", "x")


def accuracy_through_drift(folders: Folders, mode: str | None = None, axes: Iterable[Axes] | None = None) -> Figure:
    """Accuracy over rounds with the window of missing data shaded; below it, for every setting, accuracy by class.

    If a detector looked for latent forgetting, marks at the top are rounds with its alarm, and a panel has the variance
    of the weight update, each detector's reference and its threshold. `mode` is an inference mode, by default the
    first. Draws into `axes` if given: the curve, the variance if there is one, a panel for each setting. Raises
    `ConfigError` if no run has a drift, or one has no tests of this mode.
    """
    runs = open_runs(folders)
    settings_of = by_setting(runs)
    counts = {label: [_counts(run, mode) for run in seeds.values()] for label, seeds in settings_of.items()}
    last = max(int(tested.done[-1]) for seeds in counts.values() for tested in seeds)
    windows = [_window(next(iter(seeds.values())), last) for seeds in settings_of.values()]
    if not any(windows):
        raise ConfigError(f"{runs[0].place} has no drift: run it with one, such as drift.name=remove_classes")
    watched = _watched(settings_of)
    size = min(3.0, max(1.3, 0.2 * next(iter(counts.values()))[0].total.shape[1]))
    heights = [3.0, *([1.8] if watched else []), *[size] * len(settings_of)]
    variance = "the update's variance, " if watched else ""
    what = f"accuracy, {variance}and the classes of each setting"
    total = sum(heights) + 0.3 * len(heights)
    places = grid_of(axes, len(heights), what, (8.4, total), sharex=True, height_ratios=heights)
    split = "validation" if all(tested_set(settings(run)) == "val" for run in runs) else "test"
    _curves(places[0], runs, mode, windows, split)
    _mark_alarms(places[0], settings_of)
    if watched:
        _shade(places[1], windows)
        _signals(places[1], watched)
    for axis, (label, seeds), window in zip(places[-len(settings_of) :], counts.items(), windows, strict=True):
        drawn = class_panel(axis, seeds, window, label)
    figure = figure_of(places[0])
    figure.colorbar(drawn, ax=places, label="accuracy of a class (%)", shrink=0.5, aspect=30, anchor=(0, 0))
    places[-1].set_xlabel("round")
    return figure


def by_class(runs: Sequence[Run], axes: Iterable[Axes] | None = None) -> Figure | None:
    """Heat maps of accuracy by class and round (mean over seeds), one a setting (FedSOL Figure 7(b)); None if no run
    counted by class.

    Draws into `axes` if given, one for each of the first `MOST` settings.
    """
    counted: dict[str, list[ClassCounts]] = {}
    for label, seeds in by_setting(runs).items():
        counts = [class_counts(run.tests, tested_set(settings(run))) for run in seeds.values() if len(run.tests)]
        tested_twice = [tested for tested in counts if tested is not None and len(tested.done) > 1]
        if tested_twice and len(counted) < MOST:
            counted[label] = tested_twice
    if not counted:
        return None
    size = 7.2, 1.1 + 1.7 * len(counted)
    places = grid_of(axes, len(counted), "the classes of each setting", size, sharex=True)
    for axis, (label, counts_of_seeds) in zip(places, counted.items(), strict=True):
        image = class_panel(axis, counts_of_seeds, None, label)
    places[-1].set_xlabel("round")
    at_whole_numbers(places[-1].xaxis)
    figure = figure_of(places[0])
    figure.colorbar(image, ax=places, label="accuracy (%)", shrink=0.9)
    return figure


# panels -------------------------------------------------------------------------------------------
def _curves(
    axis: Any, runs: Sequence[Run], mode: str | None, windows: Sequence[DriftWindow | None], split: str
) -> None:
    """Draws accuracy over rounds, a line for each setting, with the windows shaded and the missing classes named."""
    _shade(axis, windows)
    for window in dict.fromkeys(window for window in windows if window is not None):
        place = {"xycoords": ("data", "axes fraction"), "xytext": (3, 4), "textcoords": "offset points"}
        axis.annotate(_missing(window.classes), (window.start - 0.5, 0.0), fontsize=8, color=INK, **place)
    curves = over_seeds_of(runs, lambda run: _points(run, mode), "test/acc")
    lines(axis, curves, 100)
    axis.set(ylabel=f"{split} accuracy (%)", ylim=(0, 101))
    headline(axis, spread_words([len(curve.seeds) for curve in curves.values()], "test/acc", "thin lines"))
    plain(axis)
    axis.legend(frameon=False, loc="lower right")


def _signals(axis: Any, watched: Mapping[str, Mapping[str, pandas.DataFrame]]) -> None:
    """Draws the variance of the weight update over rounds on a logarithmic scale.

    `watched`: `_watched`. A thick line is the moving mean of a detector; that of a run's second detector is dashed like
    its threshold. The alarm is on while the mean is below the threshold, which is a fraction of the reference. Of a
    detector without a threshold WV alone is drawn.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    handles: dict[str, Any] = {}
    for colour, tables in watched.items():
        for second, (name, table) in enumerate(tables.items()):
            if not second:  # all detectors of a run read one WV
                axis.plot(table["done"], table["wv"], color=colour, linewidth=0.7, alpha=0.5)
            dashes = THRESHOLDS[_place(name)]
            looks = {
                "mean of the last rounds": ("smoothed", 2, dashes if second else "-"),
                "reference": ("reference", 1, ":"),
                f"{name}: alarm below": ("threshold", 1, dashes),
            }
            for words, (column, width, style) in looks.items() if table["threshold"].notna().any() else ():
                (line,) = axis.plot(table["done"], table[column], color=colour, linewidth=width, linestyle=style)
                handles.setdefault(words, line)
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel("weight-update\nvariance")
    plain(axis)
    if handles:
        look = {"ncols": len(handles), "loc": "lower right", "bbox_to_anchor": (1, 0.96)}
        axis.legend(handles.values(), handles.keys(), frameon=False, fontsize=8, **look)


def _place(detector: str) -> int:
    """0 for an algorithm's own detector, 1 for the diagnostic."""
    return int(detector == PROBE)


def class_panel(axis: Any, counts: Sequence[ClassCounts], window: DriftWindow | None, title: str = "") -> Any:
    """Draws accuracy by class and round (mean over seeds), with lines where the window begins and ends.

    Returns the image, for a colour bar. Missing classes have bold numbers; classes without a test sample are grey.
    """
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
    axis.set_title(title, fontsize=9, loc="left")
    return drawn


def _shade(axis: Any, windows: Iterable[DriftWindow | None]) -> None:
    """Shades the rounds of the windows."""
    for window in dict.fromkeys(window for window in windows if window is not None):
        axis.axvspan(window.start - 0.5, window.stop - 0.5, color=SHADE, linewidth=0, zorder=0)


def _missing(classes: Sequence[int]) -> str:
    """`samples of classes 0-4 missing`."""
    if not classes:
        return "samples missing"
    if len(classes) > 2 and list(classes) == list(range(classes[0], classes[-1] + 1)):
        return f"samples of classes {classes[0]}-{classes[-1]} missing"
    few = ", ".join(map(str, classes[:6])) + (", ..." if len(classes) > 6 else "")
    return f"samples of class{'es' if len(classes) > 1 else ''} {few} missing"


def _mark_alarms(axis: Any, by_label: Mapping[str, Mapping[Any, Run]]) -> None:
    """Marks rounds with an alarm at the top, a row for each setting and detector; the fewer seeds have the alarm, the
    fainter.

    The legend names the detector of a mark.
    """
    level, named = 0, set()
    for runs, colour in zip(by_label.values(), colours_of(by_label), strict=True):
        alarms_of = [alarms(run) for run in runs.values()]
        for name in dict.fromkeys(name for of in alarms_of for name in of):
            own = [of[name] for of in alarms_of if name in of]
            rounds, count = np.unique(np.concatenate(own), return_counts=True)
            look = {"marker": MARKERS[_place(name)], "s": 16, "color": colour, "linewidth": _place(name)}
            if len(rounds):
                height, label = np.full(len(rounds), 0.98 - 0.045 * level), f"alarm ({name})"
                look |= {"transform": axis.get_xaxis_transform(), "label": None if name in named else label}
                axis.scatter(rounds, height, alpha=count / len(own), **look)
                named.add(name)
            level += 1
    if named:
        axis.legend(frameon=False)


# data ------------------------------------------------------------------------------------
def _window(run: Run, last: int) -> DriftWindow | None:
    """The window of a run's drift, cut off at round `last`."""
    window = drift_window(run, settings(run))
    return None if window is None else window._replace(stop=min(window.stop, last + 1.0))


def _watched(settings_of: Mapping[str, Mapping[Any, Run]]) -> dict[str, dict[str, pandas.DataFrame]]:
    """`alarms.signals` of one run of each setting that has some, by the setting's colour.

    A detector whose statistic is no mean of WV has its `wv` alone, the other columns are NaN.
    """
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
    """(rounds `[N]` that all seeds tested, accuracy by class `[N, C]`, the mean over the seeds that tested the
    class)."""
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


def _points(run: Run, mode: str | None) -> pandas.DataFrame:
    import pandas

    counts = _counts(run, mode)
    values = per_class(counts.right.sum(axis=1), counts.total.sum(axis=1))
    return pandas.DataFrame({"x": counts.done.astype(float), "y": values}, index=counts.done).dropna()
