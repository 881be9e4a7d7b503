"""Figures of runs: a metric over a key of an ablation, personalised accuracy over clients; what all figures share."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.errors import ConfigError
from flray.results.blank import one_axis
from flray.results.colours import MARKERS, colours_of, cycle, palette
from flray.results.intervals import interval, interval_words, is_share, lowest
from flray.results.paired import key_named, missing
from flray.results.rendering import is_number
from flray.results.tables import differing, keys_of, over_seeds, settings
from flray.rundir.reader import Run, load

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# seeds from which an interval is drawn; below, the single seeds say more than 12.7 (two) or 4.3 (three) standard errors
FEW = 5


# ablation ------------------------------------------------------------------------------------------
def ablation(
    frame: pandas.DataFrame, key: str | None = None, metric: str = "test/acc", axis: Axes | None = None
) -> Figure:
    """`metric` of `compare`'s table over one key in which the runs differ: mean over seeds, a point a run, and from 5
    seeds on the 95 % t-interval.

    `key` is that key (`algorithm.rho`, or `rho`); default: the key of numbers with the most values, or else the key
    with the most. A line for each combination of the other keys. Numbers are an axis (logarithmic from a ratio of 30),
    other values stand side by side; a setting that has no such key is a dashed level. Draws into `axis` where one is
    given; raises `ConfigError` when the runs differ in nothing, or have no such metric.
    """
    key, cells, lost = ablation_cells(frame, key, metric)
    numbers, scale = is_number(frame, key), 100 if is_share(metric) else 1
    places = list(dict.fromkeys(value for line in cells.values() for value in line if value is not None))
    figure, plot = one_axis(axis, max(6.4, 0 if numbers else 0.35 * len(places) * len(cells)))
    colours = _colours(frame, key, cells)
    for number, (name, line) in enumerate(cells.items()):
        colour, marker = colours[number], cycle(MARKERS, number)
        if None in line:
            plot.axhline(
                scale * interval(line[None])[0],
                color=colour,
                linestyle="--",
                label=f"{name} (no {key.rpartition('.')[2]})",
            )
        offset = 0.6 * ((number + 0.5) / len(cells) - 0.5)  # of values side by side
        points = {
            value if numbers else places.index(value) + offset: scale * np.array(line[value])
            for value in places
            if value in line
        }
        if not points:
            continue
        x = np.array(sorted(points), dtype=float)
        mean, _, low, high = scale * np.array([_interval(points[place] / scale, metric) for place in x]).T
        low, high = (np.where([len(points[place]) >= FEW for place in x], bound, np.nan) for bound in (low, high))
        if numbers:
            plot.plot(x, mean, color=colour, marker=marker, linewidth=2, label=name)
            plot.fill_between(x, low, high, color=colour, alpha=0.16, linewidth=0)
        else:
            plot.errorbar(x, mean, [mean - low, high - mean], fmt=marker, color=colour, capsize=4, label=name)
        for place in x:
            beside = place + (0 if numbers else 0.04)
            plot.scatter(
                np.full(len(points[place]), beside), points[place], s=10, color=colour, alpha=0.5, linewidth=0, zorder=3
            )
    if numbers:
        _scale(plot, [value for value in places if value > 0], min(places))
    else:
        plot.set_xticks(range(len(places)), [str(value) for value in places])
    plot.set_xlabel(key)
    plot.set_ylabel(f"{metric} (%)" if scale == 100 else metric)
    words = spread_words(
        [len(values) for line in cells.values() for values in line.values()],
        metric,
        "points",
        "band" if numbers else "bars",
    )
    headline(plot, words + (f"; {lost}" if lost else ""))
    if scale == 100:
        end_at_all(plot, 100 * lowest(metric))
    plain(plot)
    if len(cells) > 1:
        plot.legend(frameon=False)
    return figure


def _colours(frame: pandas.DataFrame, key: str, names: Iterable[str]) -> list[str]:
    """Of the lines of an ablation: their algorithms' own, where a line is one algorithm."""
    algorithms = frame["algorithm"].unique()
    if len(algorithms) == 1:
        return colours_of(f"{algorithms[0]}, {name}" for name in names)
    return palette(len(list(names))) if key == "algorithm" else colours_of(names)


def _interval(values: Iterable[float], metric: str) -> tuple[float, float, float, float]:
    return interval(values, share=is_share(metric), lowest=lowest(metric))


def _scale(plot: Any, positive: Sequence[float], smallest: float) -> None:
    """A logarithmic axis from a ratio of 30; where there is a zero, linear up to the smallest other value."""
    if smallest >= 0 and positive and max(positive) >= 30 * min(positive):
        if smallest > 0:
            plot.set_xscale("log")
        else:
            plot.set_xscale("symlog", linthresh=min(positive))


def ablation_cells(
    frame: pandas.DataFrame, key: str | None, metric: str
) -> tuple[str, dict[str, dict[Any, list[float]]], str]:
    """What `ablation` draws.

    Returns the key, the values of the seeds by line and value of the key (None: the line has none), and words on what
    is left out. Without `key` it is a number with the most values. Raises `ConfigError` where no key varies, or
    no run has finished.
    """
    keys = [key for key in keys_of(frame) if frame[key].nunique(dropna=False) > 1]
    if not keys:
        raise ConfigError("ablation: the runs differ in nothing but the seed; name runs of an ablation or a grid")
    key = (
        key_named(frame, key) if key is not None else max(keys, key=lambda k: (is_number(frame, k), frame[k].nunique()))
    )
    keys.sort(key=lambda k: k != "algorithm")  # a line's name begins with its algorithm
    cells: dict[str, dict[Any, list[float]]] = {}
    lost = {"diverged": 0, "unfinished": 0}
    for setting, values, diverged, unfinished in over_seeds(frame, metric):
        lost = {"diverged": lost["diverged"] + diverged, "unfinished": lost["unfinished"] + unfinished}
        others = {other: setting[other] for other in keys if other != key and not missing(setting[other])}
        name = ", ".join(
            str(v) if k in ("name", "algorithm") else f"{k.rpartition('.')[2]}={v}" for k, v in others.items()
        )
        if len(values):
            cells.setdefault(name, {})[None if missing(setting[key]) else setting[key]] = values.tolist()
    if not cells:
        raise ConfigError(f"ablation: no finished run has {metric!r}")
    return key, cells, ", ".join(f"{count} runs {what}" for what, count in lost.items() if count)


# clients -------------------------------------------------------------------------------------------
def clients(folders: Iterable[str | Path | Run], axis: Axes | None = None) -> Figure:
    """The personalised test: the clients' accuracies on their own test shares, a box and a point a client, for each
    number of fine-tuning epochs and each run; over tasks that at the end of the last one.

    Draws into `axis` where one is given; raises `ConfigError` when a run has no personalised test.
    """
    from matplotlib.patches import Patch

    runs = open_runs(folders)
    tested = [run.last_personal for run in runs]
    for run, rows in zip(runs, tested, strict=True):
        if rows.empty:
            raise ConfigError(f"{run.folder} has no personalised test; run it with evaluate.finetune_epochs=[0,1,5]")
    names = names_of(runs)
    colours = colours_of(names)
    epochs = sorted({int(value) for rows in tested for value in rows["finetune_epochs"]})
    figure, axis = one_axis(axis, max(5.0, 1.2 * len(epochs) * len(runs)))
    width = 0.8 / len(runs)
    for number, rows in enumerate(tested):
        for place, count in enumerate(epochs):
            values = 100 * rows.loc[rows["finetune_epochs"] == count, "test/acc"].dropna().to_numpy(float)
            middle = place + (number - (len(runs) - 1) / 2) * width
            axis.scatter(
                middle + width * np.linspace(-0.3, 0.3, len(values)),
                values,
                s=7,
                color=colours[number],
                alpha=0.5,
                linewidth=0,
            )
            axis.boxplot(
                values,
                positions=[middle],
                widths=0.75 * width,
                showfliers=False,
                manage_ticks=False,
                medianprops={"color": "black"},
            )
    axis.set_xticks(range(len(epochs)), [f"{count} epoch{'' if count == 1 else 's'}" for count in epochs])
    axis.set_xlabel("fine-tuning")
    axis.set_ylabel("accuracy on the client's own test share (%)")
    axis.spines[["top", "right"]].set_visible(False)
    end_at_all(axis)
    axis.legend(handles=[Patch(color=c, label=n) for c, n in zip(colours, names, strict=True)], frameon=False)
    return figure


# shared --------------------------------------------------------------------------------------------
def open_runs(folders: Iterable[str | Path | Run]) -> list[Run]:
    if isinstance(folders, str | Path | Run):
        folders = [folders]
    runs = [folder if isinstance(folder, Run) else load(folder) for folder in folders]
    if not runs:
        raise ConfigError("no run folder given; name at least one")
    return runs


def names_of(runs: Sequence[Run], seeds: bool = True) -> list[str]:
    """The algorithm, and what tells a run from the others; the seed only where seeds differ and are wanted."""
    configs = [settings(run) for run in runs]
    keys = differing(configs)
    several = seeds and len({config.get("seed") for config in configs}) > 1
    labels = []
    for config in configs:
        name = config.get("algorithm.name")
        # two algorithms differ in many of their keys: the name says so, but for what differs within one of them
        own = differing([other for other in configs if other.get("algorithm.name") == name])
        telling = [key for key in keys if key in config and (key in own or not key.startswith("algorithm."))]
        parts = [str(name), *(f"{key.split('.')[-1]}={config[key]}" for key in telling)]
        labels.append(", ".join([*parts, f"seed {config.get('seed')}"] if several else parts))
    return labels


def by_setting(runs: Sequence[Run]) -> dict[str, dict[Any, Run]]:
    """The runs by their names without the seed, and by seed.

    The same setting with the same seed is the same run: the last one counts.
    """
    found: dict[str, dict[Any, Run]] = {}
    for run, label in zip(runs, names_of(runs, seeds=False), strict=True):
        found.setdefault(label, {})[settings(run).get("seed")] = run
    return found


def spread_words(seeds: Sequence[int], metric: str, single: str, spread: str = "band") -> str:
    """In words, what a figure shows besides the mean of `seeds` runs a setting: `single` ones, and their spread."""
    if max(seeds) == 1:
        return "one seed each"
    parts = ["mean over seeds"]
    if max(seeds) >= FEW:
        parts.append(f"{spread}: {interval_words(metric)}")
    if single == "points" or any(1 < count < FEW for count in seeds):
        parts.append(f"{single}: single seeds")
    return "; ".join(parts)


def headline(axis: Any, text: str) -> None:
    """A small title at the left, in lines that a figure of the usual width holds."""
    axis.set_title(textwrap.fill(text, 80), fontsize=9, loc="left")


def end_at_all(axis: Any, least: float = 0.0) -> None:
    """An axis of shares in per cent has nothing below 0 (of differences -100) and above 100."""
    low, high = axis.get_ylim()
    axis.set_ylim(max(low, least), min(high, 100))


def plain(axis: Any) -> None:
    """Two spines and a light grid."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(color="#e4e7eb", linewidth=0.6)
    axis.set_axisbelow(True)


def save(figure: Any, out: str | Path) -> Path:
    """Write the figure at 150 dots an inch; the suffix says in which format. Raises `ConfigError` where that fails."""
    with writing(out) as path:
        figure.savefig(path, dpi=150)
    return path


@contextmanager
def writing(out: str | Path) -> Iterator[Path]:
    """The path of a picture that is written in this block, in a folder that is there; what fails is a
    `ConfigError`."""
    path = Path(out)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield path
    except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib cannot write
        raise ConfigError(f"cannot write the figure {path}: {getattr(error, 'strerror', None) or error}") from error
