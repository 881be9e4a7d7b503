"""Decision regions of 2-D data: every client's model after local training, and the global model, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.core.errors import ConfigError
from flray.results.blank import blank
from flray.results.figures import MARKERS, cycle, names_of, open_runs, palette, save
from flray.rundir.reader import Run

if TYPE_CHECKING:
    from torch import Tensor

    from flray.engine.replay import Replay

RESOLUTION = 150  # grid points along the first feature


class Panel(NamedTuple):
    """One model: its title, the class it predicts for points `[B, 2]`, the samples to highlight (None: all)."""

    title: str
    predict: Callable[[np.ndarray], np.ndarray]
    own: np.ndarray | None


def decision_regions(
    folders: Iterable[str | Path | Run],
    rounds: Sequence[int] = (1, 5, 20),
    out: str | Path = "decision_regions.png",
    clients: Sequence[int] | None = None,
) -> Path:
    """Draw one row a run: for each round the local models after local training, then the global model after it.

    As in FedProj's Iris pilot (seed 000; spec 5.9). Needs 2-D tabular data. The models come from replaying the runs,
    which is fast with `checkpoint.every=1 checkpoint.keep=0`. `clients`: those shown, default the three lowest numbers
    of each round's cohort; a client's panel highlights its own samples. Titles hold the accuracy over every sample,
    train and (where there is one) test. Returns the path; raises `ConfigError` for other data, a client outside the
    cohort, or a round that a run did not reach.
    """
    from matplotlib.lines import Line2D

    from flray.engine.replay import Replay

    runs = open_runs(folders)
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

    figure = blank(1.55 * sum(widths) + 0.7, 1.75 * len(rows) + 0.9)
    blocks = figure.subfigures(1, len(rounds), width_ratios=widths, wspace=0.03, squeeze=False)[0]
    labels = names_of(runs)
    for column, (block, round) in enumerate(zip(blocks, sorted(rounds), strict=True)):
        block.suptitle(f"round {round}", fontsize=12, fontweight="bold")
        axes = block.subplots(len(rows), widths[column], squeeze=False)
        for line, (replay, groups) in enumerate(rows):
            samples = _samples(replay)
            for place in range(widths[column]):
                axis = axes[line, place]
                if place >= len(groups[column]):
                    axis.set_axis_off()
                    continue
                _draw(axis, groups[column][place], samples, len(replay.bench.dataset.classes), limits)
            if column == 0:
                axes[line, 0].set_ylabel(labels[line], fontsize=12, fontweight="bold")
    classes = rows[0][0].bench.dataset.classes
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=cycle(MARKERS, c),
            markerfacecolor=colour,
            markeredgecolor="black",
            markersize=7,
            label=name,
        )
        for c, (name, colour) in enumerate(zip(classes, palette(len(classes)), strict=True))
    ]
    faint = Line2D(
        [],
        [],
        linestyle="",
        marker="o",
        markerfacecolor="none",
        markeredgecolor="#666666",
        markersize=4,
        label="other clients' samples",
    )
    figure.legend(
        handles=[*handles, faint], loc="outside lower center", ncols=len(handles) + 1, frameon=False, fontsize=10
    )
    return save(figure, out)


def _panels(replay: Replay, round: int, clients: Sequence[int] | None) -> list[Panel]:
    """The local models of round `round` (from 1), then the global model after it."""
    import torch

    from flray.core.messages import map_tensors

    bench = replay.bench
    panels = []
    clock = replay.goto(round - 1).next_round()
    for client in clients or sorted(replay.cohort().tolist())[:3]:
        _, update, _ = next(replay.clients(client))
        point = bench.algorithm.point(bench.context(clock), update)
        if point is None:
            name = type(bench.algorithm).__name__
            raise ConfigError(f"decision_regions: {name} sends no local model up in round {round}")
        # the next client reuses the engine's own buffers
        model = bench.objective.at(point[0].clone(), point[1].clone())
        shares = replay.scenario.shares(clock, np.array([client]))
        panels.append(Panel(f"client {client}", _predictor(replay, model), shares.indices))
    replay.goto(round)
    ctx = bench.context(clock)
    published = map_tensors(torch.clone, bench.algorithm.published(ctx, replay.state))
    panels.append(Panel("global", _predictor(replay, lambda x: bench.algorithm.predict(ctx, published, x)), None))
    return panels


def _predictor(replay: Replay, logits: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    """The class `[B]` of raw samples `[B, 2]`."""
    import torch

    def predict(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return logits(replay.bench.normalizer(np.array(x, dtype=np.float32))).argmax(dim=1).cpu().numpy()

    return predict


def _draw(
    axis: Any, panel: Panel, samples: tuple[np.ndarray, np.ndarray], num_classes: int, limits: np.ndarray
) -> None:
    """Draw the regions, the samples `(x [n, 2], y [n])` and the accuracy of one model.

    `limits [2, 2]` are the lower and the upper corner of the plane.
    """
    from matplotlib.colors import ListedColormap, to_rgb
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.inspection import DecisionBoundaryDisplay

    class Fixed(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """What scikit-learn asks of a fitted classifier."""

        classes_ = np.arange(num_classes)

        def fit(self, x: Any, y: Any) -> Any:
            return self

        def predict(self, x: Any) -> np.ndarray:
            return panel.predict(np.asarray(x))

        def __sklearn_is_fitted__(self) -> bool:
            return True

    x, y = samples
    colours = palette(num_classes)
    pale = [tuple(1 - 0.38 * (1 - v) for v in to_rgb(colour)) for colour in colours]
    shade = {"cmap": ListedColormap(pale)} if num_classes == 2 else {"multiclass_colors": pale}
    DecisionBoundaryDisplay.from_estimator(
        Fixed(), limits, response_method="predict", plot_method="pcolormesh", eps=0, grid_resolution=RESOLUTION,
        vmin=0, vmax=num_classes - 1, zorder=0, rasterized=True, xlabel="", ylabel="", ax=axis, **shade,
    )  # fmt: skip
    own = np.isin(np.arange(len(y)), panel.own) if panel.own is not None else np.ones(len(y), dtype=bool)
    for c, colour in enumerate(colours):
        style = {"marker": cycle(MARKERS, c), "zorder": 2}
        there, here = x[(y == c) & ~own], x[(y == c) & own]
        axis.scatter(*there.T, s=5, facecolors="none", edgecolors="#555555", linewidths=0.35, alpha=0.7, **style)
        axis.scatter(*here.T, s=13, color=colour, edgecolors="black", linewidths=0.45, **{**style, "zorder": 3})
    right = float((panel.predict(x) == y).mean())
    axis.set_title(
        f"{panel.title}  {100 * right:.1f} %", fontsize=10, fontweight="bold" if panel.own is None else "normal", pad=3
    )
    axis.set(xlim=limits[:, 0], ylim=limits[:, 1], xticks=[], yticks=[])
    for side in axis.spines.values():
        side.set_linewidth(1.6 if panel.own is None else 0.6)


def _check_planar(replay: Replay) -> None:
    shape, name = replay.bench.dataset.input_shape, replay.bench.dataset.name
    if shape != (2,):
        what = f"{shape[0]} features" if len(shape) == 1 else f"images of shape {shape}"
        hint = "run it with data.pca=2" if len(shape) == 1 and shape[0] > 2 else "use tabular data with data.pca=2"
        raise ConfigError(f"decision_regions: {replay.folder} has {what} (data set {name!r}) and a plane has 2; {hint}")


def _check_reached(run: Run, rounds: Sequence[int]) -> None:
    done = int(run.rounds["done"].max()) if len(run.rounds) else 0
    if max(rounds) > done:
        raise ConfigError(
            f"decision_regions: {run.folder} has {done} rounds and round {max(rounds)} was asked for; choose rounds up "
            f"to {done}"
        )


def _samples(replay: Replay) -> tuple[np.ndarray, np.ndarray]:
    """Every sample `(x [n, 2], y [n])`, the train split first: panels index it by train row."""
    train, test = replay.bench.dataset.train, replay.bench.dataset.test
    if test.x is train.x:
        return np.array(train.x), np.array(train.y)
    return np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])


def _limits(points: Sequence[np.ndarray]) -> np.ndarray:
    """Lower and upper corner `[2, 2]` of all points, with a margin of 6 %."""
    low, high = np.min([x.min(axis=0) for x in points], axis=0), np.max([x.max(axis=0) for x in points], axis=0)
    margin = 0.06 * np.maximum(high - low, 1e-6)
    corners: np.ndarray = np.stack([low - margin, high + margin]).astype(np.float64)
    return corners
