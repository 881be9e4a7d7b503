"""Per-FedAvg (Fallah et al., NeurIPS 2020, Algorithm 1): an initial model that adapts to a client in one gradient step.

w' = w - gamma grad L(w; B1);   w <- w - beta [I - gamma H(w; B1)] grad L(w'; B2)
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flray.algorithms.fedavg import Carry, FedAvg, OwnStatistics
from flray.core.messages import Batch, Broadcast, ServerState, Update
from flray.core.protocol.algorithm import Predictor
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import FineTuning
from flray.core.schema.hp import hp
from flray.ops.optim import sgd_direction_


class MetaCarry(Carry):
    """FedAvg's carry, whose `moments.steps` counts batches, the adapted point `ahead [P]` (w') and the batch that led
    there (B1)."""

    ahead: Tensor
    first: Batch | None


class PerFedAvg(FedAvg[ServerState, Broadcast, Update, OwnStatistics, MetaCarry], frozen=True):
    form: Literal["clean", "code"] = hp(
        "clean", doc="clean: momentum of outer gradients alone; code: one optimiser makes both steps"
    )
    beta: float = hp(0.01, log=(1e-4, 1.0), gt=0, doc="learning rate of the outer step (beta)")
    hf: bool = hp(False, doc="Hessian-vector term by finite differences (HF); false: first order (FO)")
    delta: float = hp(1e-3, log=(1e-4, 0.1), gt=0, doc="half width of the finite difference (hf)")
    adaptation: Literal["step", "meta"] | None = hp(
        None, doc="fine-tuning: one plain gradient step (paper), or the meta steps again (code); none: the form's own"
    )

    # how much data -----------------------------------------------------------------------------
    @property
    def local_batches(self) -> tuple[int, int]:
        return self.batch_size, 2 * self.local_epochs  # more than any client needs: local_steps ends it

    def local_steps(self, num_examples: np.ndarray) -> np.ndarray:
        return 2 * self.pairs(self.epoch_batches(num_examples), self.local_epochs)

    def pairs(self, per_epoch: np.ndarray, epochs: int) -> np.ndarray:
        """Pairs of batches `[K]` in `epochs` epochs of clients with `per_epoch [K]` batches."""
        return np.asarray(
            epochs * -(-per_epoch // self.local_epochs) if self.form == "code" else -(-per_epoch * epochs // 2)
        )

    def step_cost(self) -> float:
        return 2.0 if self.hf else 1.0  # two more gradients at every other batch

    # client -----------------------------------------------------------------------------------
    def start(self, ctx: Context, w: Tensor, b: Tensor) -> MetaCarry:
        carry = super().start(ctx, w, b)
        return MetaCarry.of(carry, ahead=ctx.objective.scratch("ahead", w), first=None)

    def step(
        self, ctx: ClientContext, down: Broadcast, client: OwnStatistics, carry: MetaCarry, batch: Batch
    ) -> MetaCarry:
        steps = carry.moments.steps
        inner = steps % 2 == 0
        loss, g = self.gradient(ctx, down, client, carry if inner else carry.replace(w=carry.ahead), batch)
        carry.loss.add_(loss)
        if inner:
            if self.form == "code":
                torch.add(carry.w, self.direction(ctx, down, carry, g), alpha=-self.learning_rate(ctx), out=carry.ahead)
            else:
                self.adapt(ctx, carry, g)
        else:
            if self.hf:
                self.curve_(ctx, down, client, carry, g)
            seen = steps if self.form == "code" else steps // 2
            optimizer = carry.replace(moments=carry.moments.replace(steps=seen))
            carry.w.add_(self.direction(ctx, down, optimizer, g), alpha=-self.beta)
        return carry.replace(moments=carry.moments.replace(steps=steps + 1), first=batch if inner else None)

    def adapt(self, ctx: ClientContext, carry: MetaCarry, g: Tensor) -> Tensor:
        """w' `[P]`, in `carry.ahead`: a plain gradient step from w along `g`, which it consumes."""
        v = sgd_direction_(carry.w, g, carry.moments, 0, self.weight_decay, ctx.objective.reached())
        return torch.add(carry.w, v, alpha=-self.learning_rate(ctx), out=carry.ahead)

    def curve_(self, ctx: ClientContext, down: Broadcast, client: OwnStatistics, carry: MetaCarry, v: Tensor) -> None:
        """v <- v - gamma H(w; B1) v, by a central difference of gradients (HF); batch-norm statistics stay."""
        scratch = ctx.objective.scratch
        point, b, grad, bend = (
            scratch("probe", v),
            scratch("probe statistics", carry.b),
            scratch("probe gradient", v),
            scratch("bend", v),
        )
        bend.zero_()
        assert carry.first is not None  # an outer step follows an inner one
        for sign in (1, -1):
            torch.add(carry.w, v, alpha=sign * self.delta, out=point)
            probe = carry.replace(w=point, b=b.copy_(carry.b), grad=grad)
            bend.add_(self.gradient(ctx, down, client, probe, carry.first)[1], alpha=sign)
        v.add_(bend, alpha=-self.learning_rate(ctx) / (2 * self.delta))

    # personalised evaluation ------------------------------------------------------------------
    def personalize(self, ctx: ClientContext, down: Broadcast, client: OwnStatistics, batches: FineTuning) -> Predictor:
        carry = self.start(ctx, down.w, self.statistics_before(down, client))
        if (self.adaptation or ("meta" if self.form == "code" else "step")) == "step":
            first = next(iter(batches), None)
            w = carry.w if first is None else self.adapt(ctx, carry, self.gradient(ctx, down, client, carry, first)[1])
            return ctx.objective.at(w, carry.b)
        per_epoch = max(int(self.epoch_batches(np.array(ctx.num_examples))), 1)
        steps = 2 * int(self.pairs(np.array(per_epoch), len(batches) // per_epoch))
        for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(batches)), steps):
            carry = self.step(ctx, down, client, carry, batch)
        return ctx.objective.at(carry.w, carry.b)
