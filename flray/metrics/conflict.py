"""Conflicts of local gradients with proximal, memory and global ones: cosines along local training (FedSOL Figure
3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cosine_similarity

from flray.core.protocol.context import Context
from flray.core.protocol.probe import ClientView, Place, Probe, Reads, Row
from flray.metrics.reading import ProbeSample, due
from flray.metrics.theory import agreement, kappa
from flray.ops.losses import cross_entropy, kl

Against = Literal["proximal", "memory", "global"]


class GradientConflict(Probe, frozen=True):
    """A row for each observed local step: cosines of the local gradient with other gradients at the step's start, all
    on models in train mode with fixed statistics. The first step is not observed: it starts at the received model,
    where the proximal gradient is 0.

    The local gradient is that of the cross-entropy on the step's batch. `proximal`: of the KL divergence from the
    received model on the same batch (`loss_proximal`); `memory`: of the same on a batch of public data (`loss_memory`,
    needs the `proxy` section); `global`: of the cross-entropy on test samples, for analysis. `cos_...` is of the local
    gradient, `move_...` of the step taken by the algorithm and its optimiser, w before - w after. With plain SGD the
    step is FedSOL's g_u (Figure 3); momentum adds earlier steps, weight decay adds w, so measure g_u with
    `algorithm.momentum=0 algorithm.weight_decay=0`. A negative cosine is a conflict; NaN: one of the two is 0.

    If the broadcast has the ensemble's logits on public data (FedProj), `memory` is the divergence from these.

    With `global` also `zeta` and `descent` of the step's batch (`theory.Agreement`). With `memory` besides FedProj's
    `kappa` at this point (`theory.kappa`: the cosine of the global with the memory gradient; its Assumption 5.5 fails
    if it is not above 0), and `descent_projected`, the descent of the batch's gradient after projection off the memory
    gradient.

    The share of steps that FedProj projects is its `project/share`; of other algorithms, the share of rows whose
    `cos_memory` is negative is what it would project (`results.diagnoses.conflict`).
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "step"})

    every: int = Field(10, ge=1, description="local steps between two observations, from the second on")
    rounds: int = Field(1, ge=1, description="rounds between two observations, from the first on")
    against: tuple[Against, ...] = Field(("proximal", "global"), min_length=1, description="gradients to compare with")
    samples: int = Field(256, ge=1, description="test samples of the global gradient, public samples of the memory's")

    @property
    def reads(self) -> Reads:
        needs: dict[str, Literal["tests", "proxy"]] = {"global": "tests", "memory": "proxy"}
        return frozenset(needs[kind] for kind in self.against if kind in needs)

    def observe(self, ctx: Context, view: ClientView, memory: Any) -> tuple[Sequence[Row], Any]:
        if not due(ctx, self.rounds):
            return [], memory
        if view.place == "start":
            points = view.model_of(view.broadcast), view.model_of(view.local)
            return [], None if None in points else points
        there = view.model_of(view.local)
        if memory is None or there is None:
            return [], memory
        received, here = memory  # `here`: the start of this step
        memory = received, there
        if view.steps < 2 or (view.steps - 2) % self.every:
            return [], memory
        batch = view.batch
        classes = None if ctx.classes is None else ctx.classes.of(batch.y)
        _, local = ctx.objective.value_and_grad(
            lambda f: cross_entropy(f(batch.x), batch.y, classes), here[0], here[1], "train_frozen"
        )
        row: dict[str, Any] = {"step": view.steps}
        others: dict[str, Tensor] = {}
        for kind in self.against:
            loss, other = self._other(ctx, kind, here, received, view)
            others[kind] = other
            row[f"cos_{kind}"], row[f"move_{kind}"] = cosine(local, other), cosine(here[0] - there[0], other)
            row[f"loss_{kind}"] = float(loss)
        if "global" in others:
            row["zeta"], row["descent"] = agreement(local, others["global"])
            if "memory" in others:
                row["kappa"] = kappa(others["global"], others["memory"])
                row["descent_projected"] = agreement(local, others["global"], others["memory"]).descent
        return [row], memory

    def _other(
        self,
        ctx: Context,
        kind: Against,
        here: tuple[Tensor, Tensor],
        received: tuple[Tensor, Tensor],
        view: ClientView,
    ) -> tuple[Tensor, Tensor]:
        """(loss, gradient `[P]`) of the loss `kind`."""
        if kind == "global":
            sample = ProbeSample.of(ctx, self.samples, "conflict")
            y = torch.from_numpy(sample.y).to(sample.x.device)
            seen = None if ctx.classes is None else ctx.classes.seen
            return ctx.objective.value_and_grad(lambda f: cross_entropy(f(sample.x), y, seen), *here, "train_frozen")
        x, target, broadcast = view.batch.x, None, view.broadcast
        if kind == "memory":
            proxy = ctx.require_proxy()
            answered = hasattr(broadcast, "memory") and len(broadcast.logits) > 0  # FedProj's buffer
            size = len(broadcast.logits) if answered else proxy.size
            numbers = ctx.rng("probe conflict").choice(size, min(self.samples, size), replace=False)
            if answered:
                places = torch.from_numpy(numbers).to(broadcast.logits.device)
                target = ctx.seen(broadcast.logits[places])
                numbers = numbers if broadcast.memory is None else broadcast.memory.cpu().numpy()[numbers]
            x = proxy.inputs(numbers)
        if target is None:
            with torch.no_grad():
                target = ctx.seen(ctx.objective.at(*received)(x))
        return ctx.objective.value_and_grad(lambda f: kl(target, ctx.seen(f(x))), *here, "train_frozen")


def cosine(g: Tensor, other: Tensor) -> float:
    """Cosine of the angle between two gradients `[P]`, in float64; NaN where one of them is 0."""
    a, b = g.double(), other.double()
    return float(cosine_similarity(a, b, dim=0, eps=0)) if a.any() and b.any() else float("nan")
