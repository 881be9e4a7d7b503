"""Learning curves: a column of `rounds/` over rounds, local steps, bytes, FLOPs or seconds; a line a setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.core.schema.errors import ConfigError, unknown
from flray.results.axes import AXES, along, axis_named
from flray.results.colours import colours_of, markers_of, styles_of
from flray.results.figures import (
    FEW,
    Folders,
    at_whole_numbers,
    axis_label,
    by_setting,
    drawn_seeds,
    end_at_all,
    headline,
    left_out_words,
    no_narrower,
    one_axis,
    open_runs,
    spread_words,
)
from flray.results.intervals import MIN_PAIRS, interval, is_share, widest
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_INSIDE = 6  # names of a legend that fit inside the panel
LONGEST_INSIDE = 30  # characters of such a name
DENSITY = 14  # characters of a line below it, an inch


class Curve(NamedTuple):
    """A metric of one setting after `rounds [R]`, at `x [R]` (mean over seeds): the mean over seeds, the bounds of
    its 95 % interval `[R]` (NaN for one seed), and each seed's own x and values `[seeds, R]`.

    `last` is the last round that any seed has, `left_out` counts the seeds that failed or diverged (`drawn_seeds`).
    """

    rounds: np.ndarray
    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds_x: np.ndarray
    seeds: np.ndarray
    last: int
    left_out: Counter[str]


def curves(folders: Folders, metric: str = "test/acc", x: str = "rounds", axis: Axes | None = None) -> Figure:
    """Draws a column of `rounds/` over `x`, one of `axes.AXES`, one line a setting.

    Runs that differ only in the seed share a line: the mean over seeds, up to the last round that all of them have.
    Seeds that failed or diverged are left out where another has finished.
    From 5 seeds on a band is the 95 % t-interval of the mean; below that each seed is a thin line. Over other axes than
    rounds a point lies at the seeds' mean x. Draws into `axis` if given. Raises `ConfigError` if no run has the metric
    or the axis.
    """
    return draw(learning_curves(open_runs(folders), metric, x), metric, x, axis)


def draw(curves: Mapping[str, Curve], metric: str, x: str, axis: Axes | None = None) -> Figure:
    """Draws curves by setting into a new figure or the given axis."""
    x, longest = axis_named(x), max(map(len, curves))
    outside = (len(curves) > MOST_INSIDE or longest > LONGEST_INSIDE) and axis is None
    figure, plot = one_axis(axis, height=4.4 + 0.06 * outside * len(curves))
    scale = 100 if is_share(metric) else 1
    most, units = max(curve.seeds_x.max() for curve in curves.values()), AXES[x].units or ((1.0, ""),)
    size, unit = next((unit for unit in units if most >= 2 * unit[0]), units[-1])
    lines(plot, curves, scale, size)
    label = f"{AXES[x].label} ({unit})" if unit else AXES[x].label
    plot.set_xlabel(label)
    if x == "rounds":
        at_whole_numbers(plot, label)
    elif AXES[x].log:
        plot.set_xscale("log")
    plot.set_ylabel(axis_label(metric))
    headline(plot, seeds_words(curves, metric))
    no_narrower(plot, scale * widest([curve.seeds[:, -1] for curve in curves.values()], MIN_PAIRS))
    if scale == 100:
        end_at_all(plot)
    if outside:
        columns = max(1, min(3, int(DENSITY * figure.get_figwidth()) // longest))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
    else:
        plot.legend(frameon=False)
    return figure


def seeds_words(curves: Mapping[str, Curve], metric: str) -> str:
    """What the lines are of: how many seeds, which are left out, and where a line ends before some of its seeds do."""
    words = spread_words([len(curve.seeds) for curve in curves.values()], metric, "thin lines")
    words += left_out_words(curve.left_out for curve in curves.values())
    ends = [f"{name} ({curve.rounds[-1]})" for name, curve in curves.items() if curve.rounds[-1] < curve.last]
    more = f" and {len(ends) - 3} more" if len(ends) > 3 else ""
    return words + "; to the last round that all seeds have: " * bool(ends) + ", ".join(ends[:3]) + more


def lines(
    axis: Any, curves: Mapping[str, Curve], scale: float = 1.0, unit: float = 1.0, style: str | None = None
) -> None:
    """Draws curves by setting: `scale` times their values over x / `unit`. `style`: of all lines; None: one each."""
    styles = styles_of(curves) if style is None else [style] * len(curves)
    looks = zip(curves, colours_of(curves), styles, markers_of(curves), strict=True)
    uneven = len({len(curve.seeds) for curve in curves.values()}) > 1  # else the title says how many
    for number, (label, colour, dashes, marker) in enumerate(looks):
        curve = curves[label]
        count = len(curve.seeds)
        name = f"{label} ({count} seed{'s' if count > 1 else ''})" if uneven else label
        x, mean = curve.x / unit, scale * curve.mean
        # about ten markers a line, those of the next line a little further on
        every = 1 if len(x) <= 12 else (0.02 * (number % 5), 0.1)
        look = {"linestyle": dashes, "marker": marker, "markersize": 5, "markevery": every}
        axis.plot(x, mean, color=colour, linewidth=2, label=name, **look)
        if count >= FEW:
            axis.fill_between(x, scale * curve.low, scale * curve.high, color=colour, alpha=0.16, linewidth=0)
        elif count > 1:
            axis.plot(curve.seeds_x.T / unit, scale * curve.seeds.T, color=colour, linewidth=0.8, alpha=0.4)


def learning_curves(runs: Sequence[Run], metric: str, x: str = "rounds") -> dict[str, Curve]:
    """The curves of `curves` by setting. Raises `ConfigError` if no run has the metric or the axis."""
    x = axis_named(x)
    tables = [run.rounds for run in runs]
    present = {name for table in tables for name in table.columns if table[name].notna().any()}
    if metric not in present:
        if metric == "test/acc" and "val/acc" in present:
            raise ConfigError("these runs have val/acc and no test/acc; give --metric val/acc")
        raise unknown("metric", metric, present, "the runs' rounds")
    curves = over_seeds_of(
        runs, lambda run: _points(run, run.rounds, metric, x) if metric in run.rounds else None, metric
    )
    if not curves:
        raise ConfigError(
            f"curves: no round in which all seeds of a setting have {metric!r}; leave out the runs that have just begun"
        )
    return curves


def over_seeds_of(
    runs: Sequence[Run], points: Callable[[Run], pandas.DataFrame | None], metric: str
) -> dict[str, Curve]:
    """A curve for each setting, at the index values that all its seeds have; `{}` if there are none.

    `points(run)` returns the columns `x` and `y` by index (a round, a task), or None for a run without such a curve.
    `metric` names the values.
    """
    curves = {}
    for label, members in by_setting(runs).items():
        drawn, left_out = drawn_seeds(members)
        tables = [table for table in map(points, drawn.values()) if table is not None]
        places = sorted(set.intersection(*(set(table.index) for table in tables))) if tables else []
        if places:
            values = np.stack([table.loc[places, "y"] for table in tables])
            x = np.stack([table.loc[places, "x"] for table in tables])
            last = max(table.index.max() for table in tables)
            curves[label] = curve_of(np.array(places), values, metric, x)._replace(last=last, left_out=left_out)
    return curves


def curve_of(places: np.ndarray, values: np.ndarray, metric: str, x: np.ndarray | None = None) -> Curve:
    """The curve of the seeds' `values [seeds, R]` at `places [R]`, or at each seed's own `x [seeds, R]`."""
    x = np.broadcast_to(places.astype(float), values.shape) if x is None else x
    mean, _, low, high = np.array([interval(column, share=is_share(metric)) for column in values.T]).T
    return Curve(places, x.mean(axis=0), mean, low, high, x, values, places[-1], Counter())


def _points(run: Run, table: pandas.DataFrame, metric: str, axis: str) -> pandas.DataFrame:
    """`x` and `y` by rounds done, for rounds with the metric; 0 is the initial model, if it was tested and the axis has
    a place for it."""
    place = along(run, table, axis, table[metric].notna())
    points = table.assign(x=place, y=table[metric]).set_index("done")[["x", "y"]].dropna().astype(float)
    first = run.initial(metric)
    if first is not None and not AXES[axis].log:  # at 0 bytes
        points.loc[0] = 0.0, first
    return points.sort_index()
