"""Decision regions of 2-D data: the global model before a round, every client's after local training, the global model
after it; as a strip of panels, and as a film."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flray.core.schema.errors import ConfigError
from flray.engine.progress import tracked
from flray.results.colours import MARKERS, cycle, palette
from flray.results.figures import Folders, blank, drawing, figure_of, given, names_of, open_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from flray.engine.replay import Replay

RESOLUTION = 150  # points along each feature
MODELS = ("before", "local", "after")
FRAMES = 60  # of a film, where no rounds are named
CLIENTS = 3  # of a cohort that are shown
SECONDS = 12.0  # that a film takes, at 10 frames a second and at 1 at most


class Panel(NamedTuple):
    """One model: its title, the class that it predicts for points `[B, 2]`, the samples to highlight (None: all)."""

    title: str
    predict: Callable[[np.ndarray], np.ndarray]
    own: np.ndarray | None


def decision_regions(
    folders: Folders,
    rounds: Sequence[int] | None = None,
    models: Sequence[str] = ("local", "after"),
    clients: Sequence[int] | None = None,
    axes: Iterable[Axes] | None = None,
) -> Figure:
    """A strip of panels for each run: for every round the models that `models` names, of `before`, `local` and `after`.

    `before` and `after` are the global model, `local` the clients' models after local training (FedProj Figure 1).
    Default `rounds`: the first, one after a quarter of the run, and the last; `clients`: three of each cohort whose
    classes differ most. A client's panel highlights its own samples. Titles have the accuracy over all samples, train
    and test. The runs are replayed, which is fast with `checkpoint.every=1 checkpoint.keep=0`. Draws into `axes`, run
    by run, if given. Raises `ConfigError` for data without exactly two features, a client outside the cohort, or a
    round that a run did not reach.
    """
    replays, labels, rounds = _opened(folders, rounds)
    strips = [[_panels(replay, round, models, clients) for round in rounds] for replay in replays]
    widths = [max(len(strip[i]) for strip in strips) for i in range(len(rounds))]
    if axes is not None:
        single = iter(given(axes, len(replays) * sum(widths), "a panel for each run, round and model"))
        places = [[[next(single) for _ in range(width)] for width in widths] for _ in replays]
        figure = figure_of(places[0][0][0])
    else:
        figure, places = _strip(rounds, widths, labels)
    for replay, strip, line in zip(replays, strips, places, strict=True):
        for panels, row in zip(strip, line, strict=True):
            _fill(row, panels, replay, _limits(replays))
    return figure


def film(
    folders: Folders,
    out: str | Path,
    rounds: Sequence[int] | None = None,
    models: Sequence[str] = ("local", "after"),
    clients: Sequence[int] | None = None,
) -> Path:
    """Writes an animated GIF: a frame a round (by default up to 60 over the whole run), a row of panels a run. Returns
    the path.

    Other arguments as in :func:`decision_regions`. The last frame is shown longer.
    """
    from matplotlib.animation import PillowWriter

    replays, labels, rounds = _opened(folders, rounds, FRAMES)
    first = [_panels(replay, rounds[0], models, clients) for replay in replays]
    width = max(map(len, first))
    figure, places = _strip([rounds[0]], [width], labels)
    writer = PillowWriter(fps=min(10, max(1, round(len(rounds) / SECONDS))))
    with drawing(out) as path, writer.saving(figure, str(path), dpi=100):
        for number in tracked(rounds, "decision regions", "round"):
            figure.subfigs[0].suptitle(f"round {number}", fontsize=12, fontweight="bold")
            for replay, (row,) in zip(replays, places, strict=True):
                _fill(row, _panels(replay, number, models, clients), replay, _limits(replays))
            if number == rounds[0]:  # the panels of all frames stand where those of the first do
                figure.draw_without_rendering()
                figure.set_layout_engine("none")
            # the last one stays
            for _ in range(1 + (number == rounds[-1]) * 2 * writer.fps):
                writer.grab_frame()
    return Path(out)


def _opened(
    folders: Folders, rounds: Sequence[int] | None, most: int | None = None
) -> tuple[list[Replay], list[str], list[int]]:
    """(replays of the runs, their names, the rounds to show); default: `most` over the whole run, or three."""
    from flray.engine.replay import Replay

    runs = open_runs(folders)
    done = [int(run.rounds["done"].max()) if len(run.rounds) else 0 for run in runs]
    if rounds is None:
        last = max(min(done), 1)
        some = [1, math.ceil(last / 4), last] if most is None else np.linspace(1, last, min(most, last)).round()
        rounds = [int(round) for round in some]
    if not rounds or min(rounds) < 1:
        raise ConfigError(f"decision_regions: rounds {tuple(rounds)} must be one or more numbers from 1")
    for run, reached in zip(runs, done, strict=True):
        if max(rounds) > reached:
            raise ConfigError(
                f"decision_regions: {run.folder} has {reached} rounds and round {max(rounds)} was asked for; choose "
                f"rounds up to {reached}"
            )
    replays = [Replay(run.folder) for run in runs]
    for replay in replays:
        shape, name = replay.runtime.dataset.input_shape, replay.runtime.dataset.name
        if shape != (2,):
            what = f"{shape[0]} features" if len(shape) == 1 else f"images of shape {shape}"
            hint = "run it with data.pca=2" if len(shape) == 1 and shape[0] > 2 else "use tabular data with data.pca=2"
            raise ConfigError(
                f"decision_regions: {replay.folder} has {what} (data set {name!r}) and a plane has 2; {hint}"
            )
    return replays, names_of(runs), sorted(set(rounds))


# models -------------------------------------------------------------------------------------------
def _panels(replay: Replay, round: int, models: Sequence[str], clients: Sequence[int] | None) -> list[Panel]:
    """The requested models of round `round` (from 1), in the order of `MODELS`."""
    wrong = [name for name in models if name not in MODELS]
    if wrong or not models:
        raise ConfigError(f"decision_regions: models {', '.join(wrong) or 'none'}: choose of {', '.join(MODELS)}")
    panels = []
    clock = replay.goto(round - 1).next_round()
    if "before" in models:
        panels.append(_global(replay, clock, "before"))
    if "local" in models:
        panels += _locals(replay, clock, clients)
    if "after" in models:
        replay.goto(round)
        panels.append(_global(replay, clock, "global" if len(models) < len(MODELS) else "after"))
    return panels


def _global(replay: Replay, clock: Any, title: str) -> Panel:
    import torch

    from flray.core.messages import map_tensors

    runtime, ctx = replay.runtime, replay.runtime.context(clock)
    published = map_tensors(torch.clone, runtime.algorithm.published(ctx, replay.state))
    return Panel(title, _predictor(replay, lambda x: runtime.algorithm.predict(ctx, published, x)), None)


def _locals(replay: Replay, clock: Any, clients: Sequence[int] | None) -> Iterator[Panel]:
    runtime = replay.runtime
    if not clients:  # those of the cohort whose classes differ most
        classes, labels = len(runtime.dataset.classes), runtime.dataset.train.y
        held = {
            each: replay.scenario.shares(clock, np.array([each])).indices for each in sorted(replay.cohort().tolist())
        }
        clients = most_unlike(
            {each: np.bincount(labels[own], minlength=classes) for each, own in held.items()}, CLIENTS
        )
    for client in clients:
        _, update, _ = next(replay.clients(client))
        point = runtime.algorithm.model_of(runtime.context(clock), update)
        if point is None:
            name = type(runtime.algorithm).__name__
            raise ConfigError(f"decision_regions: {name} sends no local model up in round {clock.done + 1}")
        # the next client reuses the engine's own buffers
        model = runtime.objective.at(point[0].clone(), point[1].clone())
        shares = replay.scenario.shares(clock, np.array([client]))
        yield Panel(f"client {client}", _predictor(replay, model), shares.indices)


def most_unlike(counts: Mapping[int, np.ndarray], number: int) -> list[int]:
    """`number` of the clients with samples by class `counts[client] [C]`, ascending: the first, then always the one
    whose class shares are farthest (L1 distance) from their nearest among those chosen."""
    shares = {client: own / max(own.sum(), 1) for client, own in counts.items()}
    first, *rest = shares
    chosen = [first]
    while rest and len(chosen) < number:
        far = [min(np.abs(shares[client] - shares[other]).sum() for other in chosen) for client in rest]
        chosen.append(rest.pop(int(np.argmax(far))))
    return sorted(chosen)


def _predictor(replay: Replay, logits: Callable[[Tensor], Tensor]) -> Callable[[np.ndarray], np.ndarray]:
    """The class `[B]` of raw samples `[B, 2]`."""
    import torch

    from flray.engine.this_process import as_in_a_run

    @as_in_a_run
    def predict(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return logits(replay.runtime.normalizer(np.array(x, dtype=np.float32))).argmax(dim=1).cpu().numpy()

    return predict


# drawing ------------------------------------------------------------------------------------------
def _strip(rounds: Sequence[int], widths: Sequence[int], labels: Sequence[str]) -> tuple[Figure, list[list[list[Any]]]]:
    """A new figure and its axes by run, round and model: a block of `widths` panels for each round, a row for each
    run."""
    figure = blank(max(1.6 * sum(widths) + 0.7, 4.2), 1.95 * len(labels) + 0.9)
    shares = [widths[0] + 0.18, *widths[1:]]  # the runs' names stand at the first block's left
    blocks = figure.subfigures(1, len(rounds), width_ratios=shares, wspace=0.03, squeeze=False)[0]
    places: list[list[list[Any]]] = [[] for _ in labels]
    for block, round, width in zip(blocks, rounds, widths, strict=True):
        block.suptitle(f"round {round}", fontsize=12, fontweight="bold")
        for line, row in zip(places, block.subplots(len(labels), width, squeeze=False), strict=True):
            line.append(row.tolist())
    for line, label in zip(places, labels, strict=True):
        line[0][0].set_ylabel(label, fontsize=12, fontweight="bold")
    return figure, places


def _fill(row: Sequence[Any], panels: Sequence[Panel], replay: Replay, limits: np.ndarray) -> None:
    """Draws the models of one run and round, and once a legend of the markers below the figure."""
    from matplotlib.lines import Line2D

    classes = replay.runtime.dataset.classes
    for axis, panel in zip(row, panels, strict=False):
        draw_regions(axis, panel, _samples(replay), len(classes), limits)
    for axis in row[len(panels) :]:
        axis.set_axis_off()
    figure = figure_of(row[0])
    if figure.legends:
        return
    look: dict[str, Any] = {"linestyle": "", "markeredgecolor": "black", "markersize": 7}
    handles = [
        Line2D([], [], marker=cycle(MARKERS, c), markerfacecolor=colour, label=name, **look)
        for c, (name, colour) in enumerate(zip(classes, palette(len(classes)), strict=True))
    ]
    if any(panel.own is not None for panel in panels):
        look |= {"markeredgecolor": "#666666", "markersize": 4}
        handles.append(Line2D([], [], marker="o", markerfacecolor="none", label="other clients' samples", **look))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=10)


def draw_regions(
    axis: Any, panel: Panel, samples: tuple[np.ndarray, np.ndarray], num_classes: int, limits: np.ndarray
) -> None:
    """Draws the regions, the samples `(x [n, 2], y [n])` and the accuracy of one model into a cleared axis; `limits
    [2, 2]` are the lower and the upper corner of the plane."""
    from matplotlib.colors import ListedColormap, to_rgb

    x, y = samples
    colours, label = palette(num_classes), axis.get_ylabel()
    pale = [tuple(1 - 0.38 * (1 - v) for v in to_rgb(colour)) for colour in colours]
    for artist in [*axis.images, *axis.collections]:  # of an earlier frame
        artist.remove()
    across, up = np.linspace(limits[0], limits[1], RESOLUTION).T
    grid = np.stack(np.meshgrid(across, up), axis=-1)  # row by row from below
    region = panel.predict(grid.reshape(-1, 2)).reshape(RESOLUTION, RESOLUTION)
    shades = ListedColormap(pale)
    look: dict[str, Any] = {"vmin": -0.5, "vmax": num_classes - 0.5, "interpolation": "nearest", "aspect": "auto"}
    axis.imshow(region, cmap=shades, extent=limits.T.ravel(), origin="lower", zorder=0, **look)
    for c in np.unique(region)[1:]:  # a line between regions, for print without colours
        axis.contour(across, up, region == c, levels=[0.5], colors="#444444", linewidths=0.7, zorder=1)
    own = np.isin(np.arange(len(y)), panel.own) if panel.own is not None else np.ones(len(y), dtype=bool)
    for c, colour in enumerate(colours):
        style = {"marker": cycle(MARKERS, c), "zorder": 2}
        others, own_points = x[(y == c) & ~own], x[(y == c) & own]
        axis.scatter(*others.T, s=5, facecolors="none", edgecolors="#555555", linewidths=0.35, alpha=0.7, **style)
        axis.scatter(*own_points.T, s=13, color=colour, edgecolors="black", linewidths=0.45, **{**style, "zorder": 3})
    right, is_global = float((panel.predict(x) == y).mean()), panel.own is None
    weight = "bold" if is_global else "normal"
    axis.set_title(f"{panel.title}\n{100 * right:.1f} %", fontsize=10, fontweight=weight, pad=3)
    axis.set(xlim=limits[:, 0], ylim=limits[:, 1], xticks=[], yticks=[], ylabel=label)
    for side in axis.spines.values():
        side.set_linewidth(1.6 if is_global else 0.6)


def _samples(replay: Replay) -> tuple[np.ndarray, np.ndarray]:
    """Every sample `(x [n, 2], y [n])`, the train split first: panels index it by train row."""
    train, test = replay.runtime.dataset.train, replay.runtime.dataset.test
    if test.x is train.x:
        return np.array(train.x), np.array(train.y)
    return np.concatenate([train.x, test.x]), np.concatenate([train.y, test.y])


def _limits(replays: Iterable[Replay]) -> np.ndarray:
    """Lower and upper corner `[2, 2]` of all samples, with a margin of 6 %."""
    points = np.concatenate([_samples(replay)[0] for replay in replays])
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.06 * np.maximum(high - low, 1e-6)
    corners: np.ndarray = np.stack([low - margin, high + margin]).astype(np.float64)
    return corners
