"""The loss on a plane through a model, along the Hessian's two sharpest directions or two filter-normalised random
ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flray.core.network.layout import Layout
from flray.core.protocol.context import Context
from flray.core.protocol.seeding import rng
from flray.metrics.landscape import losses, sharpest
from flray.metrics.reading import ProbeSample

Watch = Callable[[Sequence[Any]], Iterable[Any]]  # yields its argument's items and shows progress


def loss_on_plane(
    loss: Callable[[Tensor], float], w: Tensor, x: Tensor, y: Tensor, at: NDArray[np.float64], watch: Watch = iter
) -> NDArray[np.float64]:
    """`loss(w + a x + b y)` for all a and b in `at [n]`, `[n, n]` with rows b and columns a.

    `w`, `x`, `y [P]` are a point and two directions. `watch` iterates over the points, for example a progress bar.
    """
    losses = np.empty((len(at), len(at)))
    for row, column in watch(list(np.ndindex(losses.shape))):
        losses[row, column] = loss(w + float(at[column]) * x + float(at[row]) * y)
    return losses


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
