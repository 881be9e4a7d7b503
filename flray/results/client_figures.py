"""Pictures of clients: the samples that each holds (a bubble a client and class), what a drift leaves of them (a cell a
class and round), their personalised accuracy, and when each worked on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flray.core.schema.errors import ConfigError
from flray.data.cache import Array
from flray.results.axes import HOURS
from flray.results.colours import colours_of, markers_of
from flray.results.figures import (
    Folders,
    at_whole_numbers,
    by_setting,
    draw_cells,
    end_at_all,
    figure_of,
    grid_of,
    headline,
    one_axis,
    open_runs,
)
from flray.rundir.reader import Run
from flray.scenario import Scenario, partition_table

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLIENTS = 50
MANY, FEW = "#0072B2", "#9fb3c8"  # a number, and the total that it is a part of
TWO = "a line of bars or curves, and a row for each class below it"
MOST_BARS = 1500  # of a timeline
COLOURS = {
    "delivers": "#0072B2", "stops early": "#56B4E9", "late": "#D55E00", "leaves": "#CC79A7", "too old": "#E69F00"
}  # fmt: skip
"""Of what comes of a client's work (Okabe and Ito's colours), in the order of the legend."""


def partition_figure(
    scenario: Scenario, labels: Array, classes: Sequence[str], axes: Iterable[Axes] | None = None
) -> Figure:
    """The samples of the first 50 clients over all tasks, drawn by `counts_figure` before a run has written them."""
    shown = min(MOST_CLIENTS, scenario.population)
    counts = partition_table(scenario.union(shown), labels, len(classes)).to_numpy()
    return counts_figure(counts, scenario.population, classes, axes)


def counts_figure(
    counts: NDArray[np.int64], population: int, classes: Sequence[str], axes: Iterable[Axes] | None = None
) -> Figure:
    """Samples of at most 50 clients by class, `counts [K, C]` of the first K clients of a `population`: the area of a
    bubble is the number of samples of a class, a bar above is that of the client. Draws into two `axes` if given."""
    counts = counts[:MOST_CLIENTS]
    shown = len(counts)
    width = 2.5 + max(3.5, 0.24 * shown)
    bars, grid = _two(axes, width, classes)
    height = figure_of(bars).get_size_inches()[1]

    bars.bar(np.arange(shown), counts.sum(axis=1), color=MANY, width=0.7)
    bars.set_ylabel("samples")
    some = f"first {shown} of {population:,} clients" if shown < population else f"{shown} clients"
    headline(bars, f"{some}, {counts.sum():,} samples; bubble: samples of a class (largest {counts.max():,})")
    bars.grid(axis="x", visible=False)

    client, label = np.nonzero(counts)
    # the largest bubble just fits its cell, in points
    cell = 72 * min((width - 1.5) / shown, (height - 2.0) / len(classes))
    areas = (0.95 * cell) ** 2 * counts[client, label] / max(1, counts.max())
    grid.scatter(client, label, s=areas, color=MANY, linewidths=0)
    grid.set(xlabel="client", xlim=(-0.7, shown - 0.3), ylim=(len(classes) - 0.4, -0.6))
    ticks = range(0, shown, 1 if shown <= 20 else 5)
    grid.set_xticks(ticks, [str(t) for t in ticks], fontsize=8)
    return figure_of(grid)


def drift_figure(
    table: pandas.DataFrame, rounds: int, classes: Sequence[str], axes: Iterable[Axes] | None = None
) -> Figure:
    """The share of each class that a drift leaves in every round, of the samples that the round's cohort holds (grey:
    none); above it the number of samples, held and left.

    `table` comes from `drift_table`; `rounds` are those over all tasks. Draws into two `axes` if given.
    """
    sums = table.groupby(["class", "round"])[["kept", "of"]].sum()
    index = [range(len(classes)), range(1, rounds + 1)]
    kept, of = (sums[name].unstack().reindex(index=index[0], columns=index[1]) for name in ("kept", "of"))
    share = kept / of
    share.loc[:, ~share.columns.isin(table["round"])] = 1.0  # rounds without drift are not in the table
    line, grid = _two(axes, 7.0, classes)
    line.plot(index[1], of.sum(min_count=1), color=FEW, linewidth=3, label="held")
    line.plot(index[1], kept.sum(min_count=1), color=MANY, linewidth=1.5, label="left by the drift")
    line.set_ylim(bottom=0)
    line.set_ylabel("samples")
    line.legend(fontsize=8, frameon=False, ncols=2)
    headline(line, "the cohort's samples in the rounds of the drift, and below by class")
    look: dict[str, Any] = {
        "aspect": "auto",
        "extent": (0.5, rounds + 0.5, len(classes) - 0.5, -0.5),
        "interpolation": "nearest",
    }
    cells = draw_cells(grid, share.to_numpy(), shades="Blues", limits=(0, 1), bad="#c9c9c9", **look)
    at_whole_numbers(grid, "round")
    grid.figure.colorbar(cells, ax=grid, label="share of the class that is left")
    return figure_of(grid)


def _two(axes: Iterable[Axes] | None, width: float, classes: Sequence[str]) -> list[Any]:
    """The caller's axes, or those of a new figure: a low one above one with a row for each class."""
    rows = max(1.5, min(9.0, 0.3 * len(classes)))
    pair = grid_of(axes, 2, TWO, (width, rows + 2.2), sharex=True, height_ratios=[1.2, rows])
    step = -(-len(classes) // 30)
    pair[1].set_ylabel("class")
    pair[1].set_yticks(range(0, len(classes), step), [str(c) for c in classes[::step]], fontsize=8)
    return pair


def clients(folders: Folders, axis: Axes | None = None) -> Figure:
    """The personalised test (over tasks the last one): the clients' accuracies on their own test shares, a point for
    each client, for each number of fine-tuning epochs and each setting.

    The clients of all seeds are in one box, with whiskers from the 10th to the 90th percentile. Draws into `axis` if
    given. Raises `ConfigError` if a run has no personalised test.
    """
    import pandas
    from matplotlib.lines import Line2D

    runs_of = {label: list(seeds.values()) for label, seeds in by_setting(open_runs(folders)).items()}
    for run in (run for seeds in runs_of.values() for run in seeds):
        if run.last_personal.empty:
            raise ConfigError(f"{run.folder} has no personalised test; run it with evaluate.finetune_epochs=[0,1,5]")
    tested = [pandas.concat([run.last_personal for run in seeds]) for seeds in runs_of.values()]
    epochs = sorted({int(value) for rows in tested for value in rows["finetune_epochs"]})
    figure, axis = one_axis(axis, min(11.0, max(5.0, 1.6 + 0.75 * len(epochs) * len(runs_of))))
    width, handles = 0.8 / len(runs_of), []
    looks = zip(runs_of, tested, colours_of(runs_of), markers_of(runs_of), strict=True)
    for number, (label, rows, colour, marker) in enumerate(looks):
        for place, count in enumerate(epochs):
            values = 100 * rows.loc[rows["finetune_epochs"] == count, "test/acc"].dropna().to_numpy(float)
            middle = place + (number - (len(runs_of) - 1) / 2) * width
            across = middle + width * np.linspace(-0.25, 0.25, len(values))
            axis.scatter(across, values, s=14, color=colour, marker=marker, alpha=0.6, lw=0, clip_on=False, zorder=3)
            axis.boxplot(
                values, positions=[middle], widths=0.75 * width, whis=(10, 90), showfliers=False, manage_ticks=False,
                patch_artist=True, boxprops={"facecolor": f"{colour}40", "edgecolor": colour},
                medianprops={"color": "black", "linewidth": 2}, whiskerprops={"color": colour},
                capprops={"color": colour},
            )  # fmt: skip
        handles.append(Line2D([], [], color=colour, marker=marker, linestyle="", markersize=8, label=label))
    axis.set_xticks(range(len(epochs)), [f"{count} epoch{'' if count == 1 else 's'}" for count in epochs])
    axis.set(xlabel="fine-tuning", ylabel="accuracy on a client's own tests (%)")
    axis.grid(axis="x", visible=False)
    end_at_all(axis)
    most = max(map(len, runs_of.values()))
    seeds = f"clients of {most} seeds" if most > 1 else "clients"
    headline(axis, f"points: {seeds}; box: the middle half and the median; whiskers: 10th to 90th percentile")
    axis.legend(handles=handles, framealpha=0.85, title="from left to right" if len(runs_of) > 1 else None)
    return figure


# the virtual clock --------------------------------------------------------------------------------
def worked(run: Run) -> pandas.DataFrame:
    """When the clients of a run worked: `round` (or server step), `client`, `began` and `until` in virtual seconds, and
    `fate`: delivers, stops early, late, leaves, too old.

    It is planned again from the run's folder, as `coordination` says. Raises `ConfigError` without `devices`.
    """
    import pandas

    from flray.engine.replay import Replay

    rounds = Replay(run.folder).deliveries(len(run.rounds))
    rows = [(number, *each) for number, work in enumerate(rounds, start=1) for each in work]
    return pandas.DataFrame(rows, columns=["round", "client", "began", "until", "fate"])


def timeline(run: Run, axis: Axes | None = None) -> Figure:
    """Draws :func:`worked` of the first rounds, a strip a client, the slowest at the bottom; a grey line ends a round.

    At most 50 clients, of all speeds, and 1,500 works. Draws into `axis` if given, without a legend."""
    table = worked(run)
    if table.empty:
        raise ConfigError(f"{run.place}: no round is done, so nobody has worked")
    last = int(table["round"].iloc[: MOST_BARS + 1].max())
    table = table[table["round"] <= max(last - (len(table) > MOST_BARS), 1)]
    last = int(table["round"].max())
    length = (table["until"] - table["began"]).groupby(table["client"]).median().sort_values(ascending=False)
    clients = length.index[np.linspace(0, len(length) - 1, min(len(length), MOST_CLIENTS)).round().astype(int)].tolist()
    place = {client: number for number, client in enumerate(clients)}
    rounds = run.rounds
    ends = rounds.loc[rounds["done"] <= last, "time/virtual_s"].to_numpy(float)
    size, unit = next(unit for unit in HOURS if ends[-1] >= 2 * unit[0] or unit is HOURS[-1])

    plot_height = 1.6 + 0.16 * len(clients)
    figure, plot = one_axis(axis, height=plot_height)
    for fate, colour in COLOURS.items():
        rows = table[(table["fate"] == fate) & table["client"].isin(place)]
        if len(rows):
            at = rows["client"].map(place)
            width = (rows["until"] - rows["began"]) / size
            plot.barh(
                at, width, left=rows["began"] / size, height=0.7, color=colour, edgecolor="white", lw=0.4, label=fate
            )
    plot.vlines(ends / size, -0.6, len(clients) - 0.4, color="0.8", lw=0.6, zorder=0)
    step = max(1, len(clients) // 25)
    plot.set_yticks(range(0, len(clients), step), [str(client) for client in clients[::step]], fontsize=7)
    plot.set(xlabel=f"virtual time ({unit})", ylabel="client, the slowest below", xlim=(0, ends[-1] / size * 1.01))
    some = f"{len(clients)} of {len(length)} clients" if len(clients) < len(length) else f"{len(length)} clients"
    headline(plot, f"{some} in rounds 1 to {last} of {len(run.rounds)}")
    plot.grid(visible=False)
    if axis is None:
        figure_of(plot).legend(loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure
