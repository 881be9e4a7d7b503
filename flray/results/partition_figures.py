"""Pictures of a partition (one bubble a client and class) and of a drift (one cell a class and round)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flray.data.cache import Array
from flray.results.blank import blank, figure_of, given
from flray.results.figures import at_whole_numbers, headline, plain
from flray.scenario import Scenario, partition_table

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLIENTS = 50
MANY, FEW = "#0072B2", "#9fb3c8"  # a number, and the total that it is a part of


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
    """Samples of clients by class, `counts [K, C]` of the first K clients of a `population`: the area of a bubble is
    the number of samples of a class, a bar above is that of the client.

    Shows at most 50 clients. Draws into two `axes`, for the bars and the bubbles, if given.
    """
    counts = counts[:MOST_CLIENTS]
    shown = len(counts)
    width, rows = 2.5 + max(3.5, 0.24 * shown), _rows(classes)
    bars, grid = _two(axes, width, rows)
    height = figure_of(bars).get_size_inches()[1]

    bars.bar(np.arange(shown), counts.sum(axis=1), color=MANY, width=0.7)
    bars.set_ylabel("samples")
    some = f"first {shown} of {population:,} clients" if shown < population else f"{shown} clients"
    headline(bars, f"{some}, {counts.sum():,} samples; bubble: samples of a class (largest {counts.max():,})")
    plain(bars)
    bars.grid(axis="x", visible=False)

    client, label = np.nonzero(counts)
    # the largest bubble just fits its cell, in points
    cell = 72 * min((width - 1.5) / shown, (height - 2.0) / len(classes))
    areas = (0.95 * cell) ** 2 * counts[client, label] / max(1, counts.max())
    grid.scatter(client, label, s=areas, color=MANY, linewidths=0)
    grid.set_xlabel("client")
    grid.set_xlim(-0.7, shown - 0.3)
    grid.set_ylim(len(classes) - 0.4, -0.6)
    _name(grid, classes)
    ticks = range(0, shown, 1 if shown <= 20 else 5)
    grid.set_xticks(ticks, [str(t) for t in ticks], fontsize=8)
    plain(grid)
    return figure_of(grid)


def drift_figure(
    table: pandas.DataFrame, rounds: int, classes: Sequence[str], axes: Iterable[Axes] | None = None
) -> Figure:
    """The share of each class that a drift leaves in every round, of the samples that the round's cohort holds; above
    it the number of samples, held and left.

    `table` comes from `drift_table`; `rounds` are the run's rounds over all tasks. A cell is grey if the cohort holds
    no sample of the class. Draws into two `axes`, for the lines and the cells, if given.
    """
    sums = table.groupby(["class", "round"])[["kept", "of"]].sum()
    index = [range(len(classes)), range(1, rounds + 1)]
    kept, of = (sums[name].unstack().reindex(index=index[0], columns=index[1]) for name in ("kept", "of"))
    share = kept / of
    share.loc[:, ~share.columns.isin(table["round"])] = 1.0  # rounds without drift are not in the table
    line, grid = _two(axes, 7.0, _rows(classes))
    line.plot(index[1], of.sum(min_count=1), color=FEW, linewidth=3, label="held")
    line.plot(index[1], kept.sum(min_count=1), color=MANY, linewidth=1.5, label="left by the drift")
    line.set_ylim(bottom=0)
    line.set_ylabel("samples")
    line.legend(fontsize=8, frameon=False, ncols=2)
    headline(line, "the cohort's samples in the rounds of the drift, and below by class")
    plain(line)
    extent = (0.5, rounds + 0.5, len(classes) - 0.5, -0.5)
    cells = grid.imshow(share, vmin=0, vmax=1, cmap="Blues", aspect="auto", extent=extent, interpolation="nearest")
    grid.set_facecolor("#c9c9c9")
    _name(grid, classes)
    grid.set_xlabel("round")
    at_whole_numbers(grid.xaxis)
    grid.figure.colorbar(cells, ax=grid, label="share of the class that is left")
    return figure_of(grid)


def _rows(classes: Sequence[str]) -> float:
    """The height in inches of one row for each class."""
    return max(1.5, min(9.0, 0.3 * len(classes)))


def _two(axes: Iterable[Axes] | None, width: float, rows: float) -> list[Any]:
    """The caller's axes, or those of a new figure: a low one above one of `rows` inches."""
    if axes is not None:
        return given(axes, 2, "a line of bars or curves, and a row for each class below it")
    pair: list[Any] = blank(width, rows + 2.2).subplots(2, 1, sharex=True, height_ratios=[1.2, rows]).tolist()
    return pair


def _name(grid: Any, classes: Sequence[str]) -> None:
    grid.set_ylabel("class")
    step = -(-len(classes) // 30)
    grid.set_yticks(range(0, len(classes), step), [str(c) for c in classes[::step]], fontsize=8)
