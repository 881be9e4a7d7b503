"""Latent forgetting in any algorithm: the variance of the weight update, FedMemo's detector on it, and the gradient
measures of FedMemo's section G at the global model.

It compares the clients' aggregated model with the one at the round's start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from flray.core.network.objective import Objective
from flray.core.protocol.classes import ClassSet
from flray.core.protocol.context import Context
from flray.core.protocol.probe import FinishView, Place, Probe, Reads, Row
from flray.metrics.conflict import cosine
from flray.metrics.reading import ProbeSample, average, due
from flray.ops.detect import Detector, variance
from flray.ops.proxy_step import full_gradient

FisherLabels = Literal["sampled", "empirical"]


class LatentForgetting(Probe, Detector, frozen=True):
    """A row for each round with clients: `wv`, its moving mean `smoothed`, the `reference`'s mean, the `threshold`, and
    the `alarm`. For other detectors the cohort's `concentration`, and if the network has a head the share `raised` of
    each class's row (`Signal`). With `method: classes` or `both`, `vanished` has the probability that each class is
    gone.

    WV is that of the clients' aggregate, before a server optimiser, distillation or repair. If the updates have no
    model (`Algorithm.model_of`), it is that of the server's model. `reference` and `threshold` are NaN before there are
    any. `configs/fedmemo/README.md` explains the numbers and their limits.

    With `gradients_every` also, at the model of the round's start: `gradient_variance` of the public data's full
    gradient (the `proxy` section, with labels), its `cosine` with the clients' pseudo-gradient, and `fisher_trace` on
    test samples, a backward pass for each.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"finish"})

    gradients_every: int = Field(0, ge=0, description="rounds between two measurements of gradients; 0: never")
    fisher_samples: int = Field(500, ge=1, description="test samples of the Fisher trace")
    fisher_labels: FisherLabels = Field("sampled", description="labels drawn from the model, or those of the data")

    @property
    def reads(self) -> Reads:
        return frozenset({"proxy", "proxy_labels", "tests"}) if self.gradients_every else frozenset()

    def observe(self, ctx: Context, view: FinishView, memory: Any) -> tuple[Sequence[Row], Any]:
        # of a private round without clients the update is the server's noise
        if not len(view.cohort.weights) and (self.per_cohort or view.updates is not None):
            return [], memory
        before, after = view.model_of(view.before), average(view) or view.model_of(view.after)
        if ctx.clock.phase != "round" or ctx.clock.exchange or before is None or after is None:
            return [], memory
        state = self.initial_state() if memory is None else memory
        signal = self.measure(ctx.objective, before[0], after[0], view.cohort.weights)
        reading = self.compare(state, signal)
        state, alarm = self.detect(state, signal)
        row: dict[str, Any] = {**reading.row, "alarm": alarm, "concentration": signal.concentration}
        if signal.raised is not None:
            row["raised"] = signal.raised.tolist()
        if reading.vanished is not None:
            row["vanished"] = reading.vanished.tolist()
        if self.gradients_every and due(ctx, self.gradients_every):
            row |= self._gradients(ctx, *before, after[0])
        return [row], state

    def _gradients(self, ctx: Context, w: Tensor, b: Tensor, after: Tensor) -> dict[str, float]:
        proxy, seen = ctx.require_proxy(), None if ctx.classes is None else ctx.classes.seen
        y = proxy.labels(np.arange(proxy.size))
        index = np.arange(proxy.size) if seen is None else np.flatnonzero(seen.has(y).cpu())
        _, g = full_gradient(ctx.objective, w, b, proxy, index, classes=seen)
        sample = ProbeSample.of(ctx, self.fisher_samples, "fisher")
        labels = torch.from_numpy(sample.y).to(w.device) if self.fisher_labels == "empirical" else None
        trace = fisher_trace(ctx.objective, w, b, sample.x, labels, ctx.rng("latent_forgetting", "fisher"), seen)
        return {
            "gradient_variance": gradient_variance(ctx.objective, g),
            "cosine": cosine(g, w - after),  # the pseudo-gradient is -(after - w) / eta, for any eta > 0
            "fisher_trace": trace,
        }


def gradient_variance(objective: Objective, g: Tensor) -> float:
    """GV = (1/d) sum_j (g_j - mean g)^2 of a gradient `[P]` over the d trained elements, in float64."""
    return variance(objective.views(g).values())


def fisher_trace(
    objective: Objective,
    w: Tensor,
    b: Tensor,
    x: Tensor,
    y: Tensor | None = None,
    draws: np.random.Generator | None = None,
    classes: ClassSet | None = None,
) -> float:
    """tr F = E_x E_y ||grad_w log p(y | x)||^2 over inputs `x [n, ...]`, one y each, in eval mode.

    y is drawn from the model's own p(. | x) with `draws` (a sum over the cumulated probabilities), or the labels
    `y [n]` are given (the empirical Fisher). `classes`: the classes of p; None: all. n backward passes.
    """
    model, total, g = objective.at(w, b, grad=True), 0.0, torch.zeros_like(w)
    chance = None if draws is None else draws.random(len(x))
    for i in range(len(x)):
        logits = model(x[i : i + 1])
        logits = logits if classes is None else classes.narrow(logits)
        if y is not None:
            label = y[i : i + 1] if classes is None else classes.local(y[i : i + 1])
        else:
            assert chance is not None, "sampled labels need a generator"
            below = logits.detach().double().softmax(1).cumsum(1) < chance[i]
            label = below.sum(1).clamp_max(logits.shape[1] - 1)
        g = objective.gradient(cross_entropy(logits, label), model.leaves, g)
        total += float(g.double() @ g.double())
    return total / len(x)
