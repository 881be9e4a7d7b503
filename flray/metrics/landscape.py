"""Sharpness of the loss at the global model: the largest eigenvalues of its Hessian (FedSOL Figure 8).

Also the loss on a plane through a model that two directions span: the sharpest ones, or filter-normalised random
ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from flray.core.network.layout import Layout
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import Context
from flray.core.protocol.probe import Place, Probe, Reads, RoundView, Row
from flray.core.protocol.seeding import rng
from flray.metrics.reading import BLOCK, ProbeSample, due
from flray.ops.losses import cross_entropy


class Landscape(Probe, frozen=True):
    """A row for each observed round: the largest eigenvalues lambda_1 >= lambda_2 ... of the Hessian of the global
    model's mean cross-entropy on test samples (batch norm in eval mode), and `ratio`, lambda_1 / lambda_count.

    They come from Lanczos iterations on Hessian-vector products (`scipy.sparse.linalg.eigsh`), each of which costs
    about four gradients on the samples. For a stored checkpoint: `Replay(run).observe(Landscape())`.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"round"})

    every: int = Field(10, ge=1, description="rounds between two observations, from the first on")
    count: int = Field(5, ge=1, description="number of eigenvalues")
    samples: int | None = Field(500, ge=1, description="test samples, drawn once in a run; none: all")

    @property
    def reads(self) -> Reads:
        return frozenset({"tests"})

    def observe(self, ctx: Context, view: RoundView, memory: Any) -> tuple[Sequence[Row], Any]:
        point = view.model_of(view.after) if due(ctx, self.every) and ctx.clock.phase == "round" else None
        if point is None:
            return [], memory
        values, _ = sharpest(ctx, *point, ProbeSample.of(ctx, self.samples, "landscape"), self.count)
        row = {f"lambda_{i}": float(value) for i, value in enumerate(values, 1)}
        row["ratio"] = float(values[0] / values[-1]) if values[-1] else float("nan")
        return [row], memory


def sharpest(
    ctx: Context, w: Tensor, b: Tensor, sample: ProbeSample, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The `count` largest eigenvalues (descending) and eigenvectors `[P, count]` of the Hessian at `w` of the mean
    cross-entropy on the sample, over all classes seen so far."""
    parts = losses(ctx, sample)

    def product(v: NDArray[np.float64]) -> NDArray[np.float64]:
        direction = torch.from_numpy(v.astype(np.float32).reshape(-1)).to(w.device)
        total = torch.zeros_like(w, dtype=torch.float64)
        for loss in parts:
            total += ctx.objective.hvp(loss, w, b, direction)
        return total.cpu().numpy()

    start = ctx.rng("probe landscape").standard_normal(len(w))
    return top_eigenpairs(product, len(w), count, start)


def losses(ctx: Context, sample: ProbeSample) -> list[Callable[[BoundModel], Tensor]]:
    """The mean cross-entropy on the sample, over all classes seen so far, as a sum of parts, one for each block."""
    labels = torch.from_numpy(sample.y).to(sample.x.device)
    seen = None if ctx.classes is None else ctx.classes.seen

    def part(x: Tensor, y: Tensor) -> Callable[[BoundModel], Tensor]:
        return lambda model: cross_entropy(model(x), y, seen) * (len(y) / len(labels))

    return list(map(part, torch.split(sample.x, BLOCK), torch.split(labels, BLOCK)))


def top_eigenpairs(
    product: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    size: int,
    count: int,
    start: NDArray[np.float64],
    tolerance: float = 1e-3,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The `count` algebraically largest eigenvalues, descending, of the symmetric matrix `[size, size]` with the
    product `product`, and their eigenvectors `[size, count]`.

    Lanczos from the random vector `start [size]`, to a relative `tolerance`. A matrix with size at most `count` + 1 is
    built and solved directly. If the product with `start` is 0, the matrix is taken as 0 (a loss over one class has no
    curvature), with the first unit vectors. If it is not finite (a diverged model), the results are NaN.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    first = product(start)
    if not np.isfinite(first).all():
        return np.full(min(count, size), np.nan), np.full((size, min(count, size)), np.nan)
    if size <= count + 1:
        dense = np.stack([product(column) for column in np.eye(size)], axis=1)
        values, vectors = np.linalg.eigh((dense + dense.T) / 2)
    elif not first.any():
        return np.zeros(count), np.eye(size, count)
    else:
        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        values, vectors = eigsh(operator, k=count, which="LA", v0=start, tol=tolerance)
    order = np.argsort(values)[::-1][:count]
    return values[order], vectors[:, order]


# a plane through a model -----------------------------------------------------------------------------
Watch = Callable[[Sequence[Any]], Iterable[Any]]  # yields its argument's items and shows progress


def loss_on_plane(
    loss: Callable[[Tensor], float], w: Tensor, x: Tensor, y: Tensor, at: NDArray[np.float64], watch: Watch = iter
) -> NDArray[np.float64]:
    """`loss(w + a x + b y)` for all a and b in `at [n]`, `[n, n]` with rows b and columns a.

    `w`, `x`, `y [P]` are a point and two directions. `watch` iterates over the points, for example a progress bar.
    """
    grid = np.empty((len(at), len(at)))
    for row, column in watch(list(np.ndindex(grid.shape))):
        grid[row, column] = loss(w + float(at[column]) * x + float(at[row]) * y)
    return grid


def mean_loss(ctx: Context, b: Tensor, sample: ProbeSample) -> Callable[[Tensor], float]:
    """The mean cross-entropy on the sample over all classes seen so far, as a function of `w [P]`, of which `sharpest`
    takes the Hessian. Batch norm is in eval mode, with the statistics `b [Q]` at each point of the plane."""
    parts = losses(ctx, sample)

    @torch.no_grad()
    def loss(w: Tensor) -> float:
        model = ctx.objective.at(w, b)
        return sum(float(part(model)) for part in parts)

    return loss


def sharpest_plane(
    ctx: Context, w: Tensor, b: Tensor, sample: ProbeSample, count: int = 5
) -> tuple[Tensor, Tensor, NDArray[np.float64]]:
    """(x, y, values): unit eigenvectors `[P]` of the Hessian's two largest eigenvalues, and the `count` largest of
    those, descending (FedSOL Figure 8).

    The loss along them is its curvature: `a^2 lambda_1 / 2 + b^2 lambda_2 / 2` and the gradient's part, near `w`.
    The sign of an eigenvector is fixed: its largest entry is positive.
    """
    values, vectors = sharpest(ctx, w, b, sample, max(count, 2))
    vectors = vectors * np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0))
    x, y = (torch.from_numpy(vectors[:, i].astype(np.float32)).to(w.device) for i in (0, 1))
    return x, y, values


def random_plane(w: Tensor, layout: Layout, seed: int) -> tuple[Tensor, Tensor]:
    """Two Gaussian directions `[P]`, filter-normalised at `w [P]`; the same draws for all models of this layout."""
    draws = (rng(seed, "loss plane", name).standard_normal(layout.size, dtype=np.float32) for name in ("x", "y"))
    x, y = (filter_normalised(torch.from_numpy(draw).to(w.device), w, layout) for draw in draws)
    return x, y


def filter_normalised(direction: Tensor, w: Tensor, layout: Layout) -> Tensor:
    """The direction `d [P]` with each filter scaled to the norm of the model's: `d_ij |w_ij| / |d_ij|` for filter j of
    layer i (Li et al., "Visualizing the loss landscape of neural nets", NeurIPS 2018, section 4).

    A filter is a slice of a weight's first axis (a kernel of a convolution, a row of a linear layer). Tensors with
    fewer than two axes (biases, batch norm's weights) get 0, as in their code.
    """
    scaled = torch.zeros_like(direction)
    for entry in layout.entries:
        if len(entry.shape) < 2:
            continue
        drawn, trained = entry.view(direction), entry.view(w)
        axes = tuple(range(1, len(entry.shape)))
        norms = [torch.linalg.vector_norm(part, dim=axes, keepdim=True) for part in (trained, drawn)]
        entry.view(scaled).copy_(torch.where(norms[1] > 0, drawn * (norms[0] / norms[1]), 0.0))
    return scaled
