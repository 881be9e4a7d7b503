"""How a partition looks, one bubble a client and class, and a drift, one cell a class and round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flray.data.cache import Array
from flray.scenario.partition import partition_table
from flray.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas

MOST_CLIENTS = 50


def partition_figure(scenario: Scenario, labels: Array, classes: Sequence[str], path: Path | str) -> None:
    """A PNG of what the first 50 clients hold in any task.

    The area of a bubble is the samples of a class, a bar above them those of the client.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = min(MOST_CLIENTS, scenario.population)
    counts = partition_table(scenario.union(shown), labels, len(classes)).to_numpy()
    width, height = 2.5 + max(3.5, 0.24 * shown), 2.0 + max(1.5, min(9.0, 0.3 * len(classes)))
    canvas = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    bars, grid = canvas.subplots(2, 1, sharex=True, height_ratios=[1.2, height - 1.2])

    bars.bar(np.arange(shown), counts.sum(axis=1), color="#7a8ca3", width=0.7)
    bars.set_ylabel("samples")
    some = f"first {shown} of {scenario.population:,} clients" if shown < scenario.population else f"{shown} clients"
    bars.set_title(
        f"{some}, {counts.sum():,} samples; bubble area = samples of a class (largest {counts.max():,})",
        fontsize=9,
        loc="left",
    )
    bars.spines[["top", "right"]].set_visible(False)

    client, label = np.nonzero(counts)
    # the largest bubble just fits its cell, in points
    cell = 72 * min((width - 1.5) / shown, (height - 2.0) / len(classes))
    grid.scatter(
        client,
        label,
        s=(0.95 * cell) ** 2 * counts[client, label] / max(1, counts.max()),
        color="#2b6ca3",
        linewidths=0,
    )
    grid.set_xlabel("client")
    grid.set_xlim(-0.7, shown - 0.3)
    grid.set_ylim(len(classes) - 0.4, -0.6)
    step = -(-len(classes) // 30)
    grid.set_yticks(range(0, len(classes), step), [str(c) for c in classes[::step]], fontsize=8)
    ticks = range(0, shown, 1 if shown <= 20 else 5)
    grid.set_xticks(ticks, [str(t) for t in ticks], fontsize=8)
    grid.grid(color="#e4e7eb", linewidth=0.6)
    grid.set_axisbelow(True)
    canvas.savefig(path, dpi=120)


def drift_figure(table: pandas.DataFrame, rounds: int, classes: Sequence[str], path: Path | str) -> None:
    """A PNG of what a drift leaves of each class in every round, as a share of what the round's cohort holds.

    `table` is that of `drift_table`, `rounds` those of the run over all tasks; where the cohort holds nothing of a
    class anyway the cell is grey. Above it the samples that the cohort trains on, of those that it holds.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sums = table.groupby(["class", "round"])[["kept", "of"]].sum()
    index = [range(len(classes)), range(1, rounds + 1)]
    kept, of = (sums[name].unstack().reindex(index=index[0], columns=index[1]) for name in ("kept", "of"))
    share = kept / of
    share.loc[:, ~share.columns.isin(table["round"])] = 1.0  # rounds without drift are not in the table
    canvas = Figure(figsize=(7.0, 2.2 + max(1.5, min(9.0, 0.3 * len(classes)))), layout="constrained")
    FigureCanvasAgg(canvas)
    line, grid = canvas.subplots(2, 1, sharex=True, height_ratios=[1.2, max(1.5, min(9.0, 0.3 * len(classes)))])
    line.plot(index[1], of.sum(min_count=1), color="#a9b4c2", label="held")
    line.plot(index[1], kept.sum(min_count=1), color="#2b6ca3", label="left")
    line.set_ylim(bottom=0)
    line.set_ylabel("samples")
    line.legend(fontsize=8, frameon=False, ncols=2)
    line.set_title(
        "samples of the cohort in the rounds of the drift; below the share of each class that is left",
        fontsize=9,
        loc="left",
    )
    line.spines[["top", "right"]].set_visible(False)
    extent = (0.5, rounds + 0.5, len(classes) - 0.5, -0.5)
    cells = grid.imshow(share, vmin=0, vmax=1, cmap="Blues", aspect="auto", extent=extent, interpolation="nearest")
    grid.set_facecolor("#c9c9c9")
    step = -(-len(classes) // 30)
    grid.set_yticks(range(0, len(classes), step), [str(c) for c in classes[::step]], fontsize=8)
    grid.set_xlabel("round")
    canvas.colorbar(cells, ax=grid, label="share left")
    canvas.savefig(path, dpi=120)
