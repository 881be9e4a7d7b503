"""The loss around the global models of runs, on a plane through each model, with one colour scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flray.core.schema.errors import ConfigError, unknown
from flray.engine.progress import tracked
from flray.results.figures import Folders, few_log_ticks, figure_of, grid_of, names_of, open_runs
from flray.rundir.reader import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from flray.core.protocol.context import Context

# labels of the axes of a plane
DIRECTIONS = {
    "eigen": ("along the sharpest direction", "along the second sharpest"),
    "random": ("along a random direction", "along another one"),
}
VALUES = 5  # eigenvalues: lambda_1 to lambda_5


class Surface(NamedTuple):
    """The loss `[n, n]` of one model at the coefficients `at [n]` along two directions (row: second, column: first);
    the largest eigenvalues of its Hessian, descending, none for random directions; how many samples were read."""

    at: NDArray[np.float64]
    loss: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    samples: int


def landscape(
    folders: Folders,
    round: int | None = None,
    directions: str = "eigen",
    points: int = 21,
    span: float = 1.0,
    samples: int = 500,
    axes: Iterable[Axes] | None = None,
) -> Figure:
    """The mean cross-entropy on test samples around each run's global model, one panel a run (FedSOL Figure 8).

    The model is the final one, or that after `round` rounds, replayed from the nearest checkpoint. The plane contains
    the model and the unit eigenvectors of its Hessian's two largest eigenvalues (`directions="eigen"`, with lambda_1
    and lambda_1 / lambda_5 in the title), or two filter-normalised Gaussian directions (`"random"`, Li et al. 2018),
    from -`span` to `span` in `points` steps each. `samples` are drawn once a run. Batch norm uses its running
    statistics. Draws into `axes` if given, one for each run. Raises `ConfigError` for other directions, fewer than 3
    points, a span of 0, and a run without such a model.
    """
    from flray.engine.this_process import as_in_a_run

    if directions not in DIRECTIONS:
        raise unknown("directions", directions, DIRECTIONS)
    if points < 3 or not 0 < span < math.inf:
        raise ConfigError(f"landscape: points {points}, span {span:g}: give at least 3 points and a span above 0")
    runs = open_runs(folders)
    surfaces = [as_in_a_run(surface_of)(run, round, directions, points, span, samples) for run in runs]
    columns = min(len(runs), 4)
    size = 2.9 * columns + 1.3, 3.1 * math.ceil(len(runs) / columns) + 0.4
    places = grid_of(axes, len(runs), "a surface for each run", size, columns)
    if axes is None:
        moment = "the final global model" if round is None else f"the global model after {round} rounds"
        figure_of(places[0]).suptitle(f"mean loss around {moment} (cross)", fontsize=10)
    scale, levels = _scale([surface.loss for surface in surfaces])
    for axis, surface, name in zip(places, surfaces, names_of(runs), strict=True):
        drawn = surface_panel(axis, surface, scale, levels, name)
        axis.set_xlabel(DIRECTIONS[directions][0])
    for axis in places[::4] if axes is None else places[:1]:
        axis.set_ylabel(DIRECTIONS[directions][1])
    words = f"loss on {max(surface.samples for surface in surfaces)} test samples"
    bar = figure_of(places[0]).colorbar(drawn, ax=places, label=words, shrink=0.9)
    few_log_ticks(bar.ax.yaxis)
    bar.ax.minorticks_off()
    return figure_of(places[0])


def surface_panel(axis: Any, surface: Surface, scale: Any, levels: Sequence[float], title: str = "") -> Any:
    """Draws one surface: colours on the norm `scale`, contours at `levels`, a cross at the model.

    Returns the image, for a colour bar. Points with a loss that is not finite are grey.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    at = surface.at
    shades = colormaps["viridis"].with_extremes(bad="#c9c9c9")
    drawn = axis.pcolormesh(at, at, surface.loss, cmap=shades, norm=scale, shading="gouraud", rasterized=True)
    if np.all(np.diff(levels) > 0):  # a diverged model has no levels
        axis.contour(at, at, surface.loss, levels=levels, colors="white", linewidths=0.7, alpha=0.8)
    axis.plot([0], [0], marker="P", color="white", markeredgecolor="black", markersize=9)
    if len(surface.eigenvalues) == VALUES:
        first, last = surface.eigenvalues[[0, -1]]
        title += f"\n$\\lambda_1$ = {first:.3g},  $\\lambda_1/\\lambda_{VALUES}$ = {first / last:.3g}" if last else ""
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_aspect("equal")
    axis.grid(visible=False)
    axis.spines[:].set_visible(True)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    return drawn


def _scale(losses: Sequence[NDArray[np.float64]]) -> tuple[Any, list[float]]:
    """A logarithmic norm for all surfaces, and levels of contours, four a decade."""
    from matplotlib.colors import LogNorm

    values = np.concatenate([loss[np.isfinite(loss)].ravel() for loss in losses])
    if not len(values):
        raise ConfigError("landscape: no loss is finite around any of the models; take a smaller --span")
    low, high = max(float(values.min()), 1e-6), max(float(values.max()), 2e-6)
    count = max(8, round(4 * math.log10(high / low)))
    return LogNorm(low, high), np.geomspace(low, high, count + 2)[1:-1].tolist()


# numbers ------------------------------------------------------------------------------------------
def surface_of(run: Run, round: int | None, directions: str, points: int, span: float, samples: int) -> Surface:
    """The surface of one run's model, with a progress bar. Raises `ConfigError` where there is no such model."""
    from flray.metrics.landscape import loss_on_plane, mean_loss, random_plane, sharpest_plane
    from flray.metrics.reading import ProbeSample

    ctx, w, b = _model(run, round)
    sample = ProbeSample.of(ctx, samples, "landscape")
    if directions == "eigen":
        x, y, eigenvalues = sharpest_plane(ctx, w, b, sample, VALUES)
    else:
        (x, y), eigenvalues = random_plane(w, ctx.objective.layout, ctx.seed), np.empty(0)
    at = np.linspace(-span, span, points)
    watch = partial(tracked, label=f"loss around {run.place}", unit="point")
    return Surface(at, loss_on_plane(mean_loss(ctx, b, sample), w, x, y, at, watch), eigenvalues, len(sample.y))


def _model(run: Run, round: int | None) -> tuple[Context, Tensor, Tensor]:
    """(context of a moment with the test set in it, w `[P]`, b `[Q]` of the model at that moment)."""
    from flray.core.protocol.clock import Clock
    from flray.engine.replay import Replay, runtime_of
    from flray.models.weights import read_weights

    if round is None:
        if not (run.folder / "model.safetensors").is_file():
            raise ConfigError(f"{run.place} has no final model (it is {run.status}); ask for a round that it has done")
        scenario, runtime = runtime_of(run)
        last = len(scenario.stages) - 1
        clock = Clock(last, run.task_rounds - 1, done=run.task_rounds * (last + 1) - 1)
        w, b = runtime.objective.from_state_dict(read_weights(str(run.folder)))
    else:
        replay = Replay(run.folder).goto(round)
        runtime, clock = replay.runtime, replay.here()
        model = runtime.algorithm.model_of(runtime.context(clock), replay.state)
        if model is None:
            raise ConfigError(f"{run.place}: {type(runtime.algorithm).__name__} has no global model to look around")
        w, b = model[0].clone(), model[1].clone()
    ctx = runtime.reveal(runtime.context(clock), frozenset({"tests"}))
    return ctx, w, b
