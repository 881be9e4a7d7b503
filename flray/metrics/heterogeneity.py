"""Distance of the clients' gradients from that of F = sum_k p_k F_k at a round's start: zeta (FedProj, section 5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flray.core.messages import Batch
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.probe import ClientView, Place, Probe, Reads, Row
from flray.metrics.conflict import cosine
from flray.metrics.reading import ProbeSample, due
from flray.metrics.theory import agreement
from flray.ops.losses import cross_entropy


class Heterogeneity(Probe, frozen=True):
    """A row for each client, at the model it received: `zeta` ||g_k - g|| and `descent` <g_k, g> / ||g||^2 of the full
    gradient g_k of its own samples F_k and g of F = sum_k p_k F_k over all clients of the task, p_k = n_k / n: the mean
    over all their training samples (for analysis, without the drift). Both are of the cross-entropy in
    eval mode. `local` ||g_k||, `global` ||g||, their `cosine`, and its aggregation `weight`.

    `results.diagnoses.heterogeneity` has the numbers of rounds and of a run: sum_k p_k ||g_k - g||^2 = zeta^2, and
    <sum_k p_k g_k, g> = descent ||g||^2. FedProj's kappa, and what a projection leaves of the descent along local
    training, are columns of `conflict`.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start"})

    every: int = Field(1, ge=1, description="rounds between two observations, from the first on")
    samples: int | None = Field(
        2000, ge=1, description="training samples of the global gradient, drawn once in a run; none: all"
    )

    @property
    def reads(self) -> Reads:
        return frozenset({"clients"})

    def observe(self, ctx: Context, view: ClientView, memory: Any) -> tuple[Sequence[Row], Any]:
        point = view.model_of(view.broadcast) if due(ctx, self.every) else None
        if point is None:
            return [], memory
        assert isinstance(ctx, ClientContext)
        sample = ProbeSample.of(ctx, self.samples, "heterogeneity")
        labels = torch.from_numpy(sample.y).to(sample.x.device)
        g_k, g = mean_gradient(ctx, *point, view.data.plain), mean_gradient(ctx, *point, [Batch(sample.x, labels)])
        numbers = agreement(g_k, g)
        return [
            {
                "zeta": numbers.zeta,
                "descent": numbers.descent,
                "local": float(g_k.double().norm()),
                "global": float(g.double().norm()),
                "cosine": cosine(g_k, g),
                "weight": ctx.weight,
            }
        ], memory


def mean_gradient(ctx: Context, w: Tensor, b: Tensor, batches: Iterable[Batch]) -> Tensor:
    """Gradient `[P]` at `(w, b)`, in eval mode, of the mean cross-entropy over all samples of the batches."""
    total, count = torch.zeros_like(w), 0
    for batch in batches:
        classes = None if ctx.classes is None else ctx.classes.of(batch.y)

        def loss(f: Any, batch: Batch = batch, classes: Any = classes) -> Tensor:
            return cross_entropy(f(batch.x), batch.y, classes)

        total.add_(ctx.objective.value_and_grad(loss, w, b, "eval")[1], alpha=len(batch.y))
        count += len(batch.y)
    return total / max(count, 1)
