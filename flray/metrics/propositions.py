"""Both sides of FedSOL's Propositions 1 and 2 along the local training of any algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from flray.core.network.objective import BoundModel
from flray.core.protocol.context import Context
from flray.core.protocol.probe import ClientView, Place, Probe, Row
from flray.metrics.reading import due
from flray.metrics.theory import proposition_1, proposition_2
from flray.ops.losses import cross_entropy, kl


class Propositions(Probe, frozen=True):
    """A row for each observed local step: both sides of FedSOL's Propositions 1 and 2 at the point after the step, on
    its batch, for a step of length `gamma` with a shift `rho` (Eq. 5, the same for all parameters).

    L_l is the cross-entropy, L_p the KL divergence from the received model at `temperature`. `prop1_...` are the
    columns of Proposition 1 (`theory.ProximalChange`), `prop2_...` of Proposition 2 (`theory.LocalChange`). The steps
    are computed and not taken. There is no row if L_p has no gradient there.
    """

    at: ClassVar[frozenset[Place]] = frozenset({"start", "step"})

    every: int = Field(10, ge=1, description="local steps between two observations, from the first on")
    rounds: int = Field(1, ge=1, description="rounds between two observations, from the first on")
    rho: float = Field(0.1, gt=0, description="length of the shift (rho)")
    gamma: float = Field(0.01, gt=0, description="length of the step (gamma)")
    temperature: float = Field(3.0, gt=0, description="temperature of L_p")

    def observe(self, ctx: Context, view: ClientView, memory: Any) -> tuple[Sequence[Row], Any]:
        if not due(ctx, self.rounds):
            return [], memory
        if view.place == "start":
            return [], view.model_of(view.broadcast)
        here = view.model_of(view.local)
        if memory is None or here is None or (view.steps - 1) % self.every:
            return [], memory
        batch = view.batch
        classes = None if ctx.classes is None else ctx.classes.of(batch.y)
        with torch.no_grad():
            target = ctx.seen(ctx.objective.at(*memory)(batch.x))
        local = OnBatch(ctx, here[1], lambda f: cross_entropy(f(batch.x), batch.y, classes))
        proximal = OnBatch(ctx, here[1], lambda f: kl(target, ctx.seen(f(batch.x)), self.temperature))
        row: dict[str, Any] = {"step": view.steps}
        for name, proposition in (("prop1", proposition_1), ("prop2", proposition_2)):
            changes = proposition(local, proximal, here[0], self.rho, self.gamma)
            if changes is None:
                return [], memory
            row |= {f"{name}_{part}": value for part, value in changes._asdict().items()}
        return [row], memory


@dataclass(frozen=True)
class OnBatch:
    """A loss of the model as a function of its parameters (`theory.Loss`); batch norm is in train mode with fixed
    statistics `b [Q]`."""

    ctx: Context
    b: Tensor
    loss: Callable[[BoundModel], Tensor]

    def value(self, w: Tensor) -> float:
        with torch.no_grad():
            return float(self.loss(self.ctx.objective.at(w, self.b, "train_frozen")))

    def gradient(self, w: Tensor) -> Tensor:
        return self.ctx.objective.value_and_grad(self.loss, w, self.b, "train_frozen")[1]

    def product(self, w: Tensor, v: Tensor) -> Tensor:
        return self.ctx.objective.hvp(self.loss, w, self.b, v, "train_frozen")
