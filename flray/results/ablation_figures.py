"""A metric over one key in which runs differ, as a line; over two of them, as a heat map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.algorithms import as_written
from flray.core.schema.errors import ConfigError
from flray.results.colours import colour_of, colours_of, markers_of, palette
from flray.results.figures import (
    FEW,
    axis_label,
    draw_cells,
    end_at_all,
    headline,
    in_brief,
    no_narrower,
    one_axis,
    spread_words,
)
from flray.results.intervals import MIN_PAIRS, interval, is_share, lowest, smaller_is_better, widest
from flray.results.paired import as_text, key_named, missing
from flray.results.rendering import digits_lost, heading, is_number, shown_value
from flray.results.tables import keys_of, over_seeds

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def ablation(
    frame: pandas.DataFrame, key: str | None = None, metric: str = "test/acc", axis: Axes | None = None
) -> Figure:
    """`metric` of `compare`'s table over one key in which the runs differ: the mean over seeds, the 95 % t-interval
    from 5 seeds on, and a point for each run.

    `key` is that key (`algorithm.rho`, or `rho`); default: the numeric key with the most values, or else the key with
    the most values. Two keys by comma make a heat map (:func:`heat_map`). There is a line for each combination of the
    other keys. Numbers make an axis (logarithmic from a ratio of 30); other values stand side by side. A setting
    without the key is a dashed level. Draws into `axis` if given. Raises `ConfigError` if the runs differ in nothing,
    or have no such metric.
    """
    if key is not None and "," in key:
        return heat_map(frame, [part.strip() for part in key.split(",")], metric, axis)
    key, cells, left_out = ablation_cells(frame, key, metric)
    numbers, scale = is_number(frame, key), 100 if is_share(metric) else 1
    places = list(dict.fromkeys(value for line in cells.values() for value in line if value is not None))
    figure, plot = one_axis(axis, 6.4 if numbers else min(12.0, max(6.4, 0.5 * len(places) * len(cells))))
    by_algorithm = key == "algorithm" and len(cells) == 1
    looks = zip(cells.items(), _colours(frame, key, cells), markers_of(cells), strict=True)
    for number, ((name, line), colour, marker) in enumerate(looks):
        if None in line:
            level, without = scale * interval(line[None])[0], f"{name} (no {key.rpartition('.')[2]})"
            plot.axhline(level, color=colour, linestyle="--", label=without)
        known = [value for value in (sorted(places) if numbers else places) if value in line]
        offset = 0.6 * ((number + 0.5) / len(cells) - 0.5)  # of values side by side
        x = known if numbers else [places.index(value) + offset for value in known]
        points = [(at, scale * np.array(line[value])) for at, value in zip(x, known, strict=True)]
        colours = [colour_of(shown_value(key, value)) if by_algorithm else colour for value in known]
        if points:
            _draw(plot, points, metric, name, colours, marker, numbers)
    if numbers:
        _scale(plot, places)
    else:
        plot.set_xticks(range(len(places)), [shown_value(key, value) for value in places])
        plot.set_xlim(-0.6, len(places) - 0.4)
    plot.set_xlabel(heading(key))
    plot.set_ylabel(axis_label(metric))
    counts = [len(values) for line in cells.values() for values in line.values()]
    words = spread_words(counts, metric, "points", "band" if numbers else "bars")
    headline(plot, words + (f"; {left_out}" if left_out else ""))
    no_narrower(plot, scale * widest([values for line in cells.values() for values in line.values()], MIN_PAIRS))
    if scale == 100:
        end_at_all(plot, 100 * lowest(metric))
    if len(cells) > 1:
        plot.legend(frameon=False)
    return figure


def _draw(
    plot: Any,
    points: Sequence[tuple[float, Any]],
    metric: str,
    name: str,
    colours: Sequence[str],
    marker: str,
    joined: bool,
) -> None:
    """Means at (place, values of its seeds), joined with a band or apart with bars, and the seeds as dots."""
    x, share = [place for place, _ in points], is_share(metric)
    scale = 100 if share else 1
    bounds = [interval(seeds / scale, share=share, lowest=lowest(metric)) for _, seeds in points]
    enough = [len(seeds) >= FEW for _, seeds in points]
    mean, low, high = (scale * np.array([each[i] for each in bounds]) for i in (0, 2, 3))
    low, high = (np.where(enough, end, np.nan) for end in (low, high))
    if joined:
        plot.plot(x, mean, color=colours[0], marker=marker, linewidth=2, label=name)
        plot.fill_between(x, low, high, color=colours[0], alpha=0.16, linewidth=0)
    else:
        look = {"fmt": marker, "capsize": 4, "markersize": 8}
        for at, middle, down, up, colour in zip(x, mean, mean - low, high - mean, colours, strict=True):
            plot.errorbar([at], [middle], [[down], [up]], color=colour, **look)
        plot.plot([], [], marker=marker, linestyle="", color=colours[0], label=name)
    for (place, seeds), colour in zip(points, colours, strict=True):
        at = place if joined else place + 0.06
        plot.scatter([at] * len(seeds), seeds, s=12, color=colour, alpha=0.5, lw=0, zorder=3)


def heat_map(
    frame: pandas.DataFrame, keys: Sequence[str], metric: str = "test/acc", axis: Axes | None = None
) -> Figure:
    """`metric` of `compare`'s table over two keys, the first across and the second up: the mean over seeds in every
    cell, and a frame around the best.

    Cells without a finished run are grey. Draws into `axis` if given. Raises `ConfigError` unless there are two keys,
    the runs differ in no other key, and a run has finished.
    """
    from matplotlib.patches import Rectangle

    if len(keys) != 2:
        raise ConfigError(f"ablation: {len(keys)} keys ({', '.join(keys)}): one is a line, two are a heat map")
    frame = in_brief(frame)
    across, up = (key_named(frame, key) for key in keys)
    others = [key for key in _differing(frame) if key not in (across, up)]
    if others:
        raise ConfigError(
            f"ablation: the runs differ in {', '.join(others)} as well; name runs that have one value of it"
        )
    cells = {(row[up], row[across]): values for row, values, *_ in over_seeds(frame, metric) if len(values)}
    if not cells:
        raise ConfigError(f"ablation: no finished run has {metric!r}")
    rows, columns = (_sorted(place[i] for place in cells) for i in (0, 1))
    scale, lower = 100 if is_share(metric) else 1, smaller_is_better(metric)
    values = scale * np.array([[np.mean(cells.get((row, column), np.nan)) for column in columns] for row in rows])
    figure, plot = one_axis(axis, 2.6 + 0.8 * len(columns), 1.8 + 0.55 * len(rows))
    low, high = np.nanmin(values), np.nanmax(values)
    lacking = max(0.0, scale * widest(cells.values(), MIN_PAIRS) - (high - low)) / 2
    limits = low - lacking, high + lacking
    look: dict[str, Any] = {"shades": "viridis_r" if lower else "viridis", "limits": limits, "bad": "#c9c9c9"}
    drawn = draw_cells(plot, values, ".1f" if scale == 100 else ".3g", aspect="auto", origin="lower", **look)
    best = np.nanargmin(values) if lower else np.nanargmax(values)
    row, column = np.unravel_index(best, values.shape)
    plot.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=2.5, zorder=3))
    plot.set_xticks(range(len(columns)), [shown_value(across, value) for value in columns])
    plot.set_yticks(range(len(rows)), [shown_value(up, value) for value in rows])
    plot.set(xlabel=heading(across), ylabel=heading(up))
    words = [spread_words([len(seeds) for seeds in cells.values()], metric, "", ""), _left_out(frame, metric)]
    headline(plot, "; ".join(filter(None, [*words, "framed: the best"])))
    figure.colorbar(drawn, ax=plot, label=axis_label(metric))
    return figure


def ablation_cells(
    frame: pandas.DataFrame, key: str | None, metric: str
) -> tuple[str, dict[str, dict[Any, list[float]]], str]:
    """The data of `ablation`: the key, the metric of the seeds by line and value of the key (None: a setting without
    it), and a note on runs that are left out."""
    frame = in_brief(frame)
    keys = _differing(frame)
    if not keys:
        raise ConfigError("ablation: the runs differ in nothing but the seed; name runs of an ablation or a grid")
    if key is None:  # a key of numbers that has two of them, or else the one with the most values
        key = max(keys, key=lambda k: (is_number(frame, k) and frame[k].nunique() > 1, frame[k].nunique()))
    else:
        key = key_named(frame, key)
    keys.sort(key=lambda k: k != "algorithm")  # a line's name begins with its algorithm
    own: dict[str, set[str]] = {str(name): set(_differing(rows)) for name, rows in frame.groupby("algorithm")}
    cells: dict[str, dict[Any, list[float]]] = {}
    exact = digits_lost(frame, keys)
    for setting, values, *_ in over_seeds(frame, metric):
        others = {
            other: setting[other]
            for other in keys
            if other != key
            and not missing(setting[other])
            # a key of an algorithm tells its lines apart if the algorithm's own runs differ in it
            and (not other.startswith("algorithm.") or other in own.get(setting["algorithm"], ()))
        }
        name = ", ".join(
            shown_value(k, v) if k in ("name", "algorithm") else as_text(k, v, exact) for k, v in others.items()
        )
        if len(values):
            cells.setdefault(name, {})[None if missing(setting[key]) else setting[key]] = values.tolist()
    if not cells:
        raise ConfigError(f"ablation: no finished run has {metric!r}")
    return key, cells, _left_out(frame, metric)


def _left_out(frame: pandas.DataFrame, metric: str) -> str:
    """`1 runs diverged, 2 runs unfinished` of the runs that are in no mean; "": none."""
    _, _, diverged, unfinished = zip(*over_seeds(frame, metric), strict=True)
    counts = {"diverged": sum(diverged), "unfinished": sum(unfinished)}
    return ", ".join(f"{count} runs {what}" for what, count in counts.items() if count)


def _differing(frame: pandas.DataFrame) -> list[str]:
    return [key for key in keys_of(frame) if frame[key].nunique(dropna=False) > 1]


def _sorted(values: Iterable[Any]) -> list[Any]:
    """Each value once: numbers ascending, other values in their order."""
    once = list(dict.fromkeys(values))
    return sorted(once) if all(isinstance(value, int | float) for value in once) else once


def _colours(frame: pandas.DataFrame, key: str, names: Iterable[str]) -> list[str]:
    """A colour for each line of an ablation: the algorithm's own colour, where a line is one algorithm."""
    algorithms = frame["algorithm"].unique()
    if len(algorithms) == 1:
        return colours_of(f"{as_written(algorithms[0])}, {name}" for name in names)
    return palette(len(list(names))) if key == "algorithm" else colours_of(names)


def _scale(plot: Any, places: Sequence[float]) -> None:
    """Makes the axis logarithmic from a ratio of 30; with a zero it is linear up to the smallest other value."""
    positive = [value for value in places if value > 0]
    if min(places) < 0 or not positive or max(positive) < 30 * min(positive):
        return
    if min(places) > 0:
        plot.set_xscale("log")
    else:
        plot.set_xscale("symlog", linthresh=min(positive))
    if len(places) <= 10:
        plot.set_xticks(places, [f"{value:g}" for value in places])
        plot.minorticks_off()
