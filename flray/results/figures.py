"""Figures of runs: decision regions of 2-D data, and curves over rounds with their spread over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.core.errors import ConfigError, unknown
from flray.results.read import Run, load
from flray.results.tables import differing, interval, settings

if TYPE_CHECKING:
    import pandas
    from torch import Tensor

    from flray.engine.replay import Replay

# Okabe and Ito, "Color universal design" (2008): told apart with every common colour vision deficiency
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
RESOLUTION = 200  # grid points along the first feature


class Panel(NamedTuple):
    """One model: its title, the class it predicts for points `[B, 2]`, and the training samples to highlight (None: all)."""

    title: str
    predict: Callable[[np.ndarray], np.ndarray]
    own: np.ndarray | None


# decision regions ----------------------------------------------------------------------------------
def decision_regions(
    folders: Iterable[str | Path | Run],
    rounds: Sequence[int] = (1, 5, 20),
    out: str | Path = "decision_regions.png",
    clients: Sequence[int] | None = None,
) -> Path:
    """A PNG: one row a run; for each round the local models after local training, then the global model after that round.

    Needs 2-D tabular data. The models come from replaying the runs (`checkpoint.every=1 checkpoint.keep=0` makes that fast). `clients`: those
    shown, default the first three of each round's cohort. Titles hold the accuracy over every sample: train and, where it is another, test.
    As in FedProj's Iris pilot. Returns the path; raises `ConfigError` for other data or a round that a run did not reach.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from flray.engine.replay import Replay

    runs = _runs(folders)
    if not rounds or min(rounds) < 1:
        raise ConfigError(f"decision_regions: rounds {tuple(rounds)} must be one or more numbers from 1")
    for run in runs:
        _check_reached(run, rounds)
    rows = []
    for run in runs:
        replay = Replay(run.folder)
        _check_planar(replay)
        rows.append((replay, [_panels(replay, round, clients) for round in sorted(rounds)]))
    widths = [max(len(groups[i]) for _, groups in rows) for i in range(len(rounds))]
    limits = _limits([_samples(replay)[0] for replay, _ in rows])
    aspect = min(1.4, max(0.6, float((limits[1, 1] - limits[0, 1]) / (limits[1, 0] - limits[0, 0]) * 1.3)))

    figure = Figure(figsize=(1.75 * sum(widths) + 0.9, (1.75 * aspect + 0.3) * len(rows) + 1.0), layout="constrained")
    FigureCanvasAgg(figure)
    blocks = figure.subfigures(1, len(rounds), width_ratios=widths, wspace=0.015, squeeze=False)[0]
    labels = _labels(runs)
    for column, (block, round) in enumerate(zip(blocks, sorted(rounds), strict=True)):
        block.suptitle(f"round {round}", fontsize=12, fontweight="bold")
        axes = block.subplots(len(rows), widths[column], squeeze=False)
        for line, (replay, groups) in enumerate(rows):
            for place in range(widths[column]):
                axis = axes[line, place]
                if place >= len(groups[column]):
                    axis.set_axis_off()
                    continue
                _draw(axis, groups[column][place], replay, limits)
            if column == 0:
                axes[line, 0].set_ylabel(labels[line], fontsize=12, fontweight="bold")
    classes = rows[0][0].bench.dataset.classes
    handles = [
        Line2D([], [], linestyle="", marker=_cycle(MARKERS, c), markerfacecolor=colour, markeredgecolor="black", markersize=7, label=name)
        for c, (name, colour) in enumerate(zip(classes, _colours(len(classes)), strict=True))
    ]
    faint = Line2D([], [], linestyle="", marker="o", markerfacecolor="none", markeredgecolor="#666666", markersize=4, label="other clients' samples")
    figure.legend(handles=[*handles, faint], loc="outside lower center", ncols=len(handles) + 1, frameon=False, fontsize=10)
    return _save(figure, out)


def _panels(replay: Replay, round: int, wanted: Sequence[int] | None) -> list[Panel]:
    """The local models of round `round` (from 1) and the global model after it."""
    bench = replay.bench
    replay.goto(round - 1)
    panels = []
    if wanted:
        found = [update for client in wanted for update in replay.clients(client)]
    else:
        found = [update for _, update in zip(range(3), _copied(replay), strict=False)]
    for client, update, _ in found if wanted is None else _copies(found):
        model = bench.objective.at(update.w, update.b)
        panels.append(Panel(f"client {client}", _predictor(replay, model), np.asarray(replay.partition.client(client))))
    replay.goto(round)
    state = replay.state
    ctx = bench.context(0, round - 1, 0, replay.partition.num_clients, len(panels))
    panels.append(Panel("global", _predictor(replay, lambda x: bench.algorithm.predict(ctx, state, x)), None))
    return panels
