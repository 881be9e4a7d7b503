"""Sharpness of the loss at the global model: the largest eigenvalues of its Hessian (FedSOL Figure 8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from flray.core.network.objective import BoundModel
from flray.core.protocol.context import Context
from flray.core.protocol.probe import Place, Probe, Reads, RoundView, Row
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
