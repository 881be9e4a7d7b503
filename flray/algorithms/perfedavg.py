"""Per-FedAvg (Fallah et al., NeurIPS 2020, Algorithm 1): an initial model that adapts to a client in one gradient step.

w' = w - gamma grad L(w; B1);   w <- w - beta [I - gamma H(w; B1)] grad L(w'; B2)
"""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast, ServerState, Update
from flray.core.protocol.algorithm import Predictor
from flray.core.protocol.algorithm_section import of_fine_tuned_models
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import FineTuning
from flray.core.schema.hp import hp
from flray.ops.optim import sgd_direction_


class MetaLocalState(SGDState):
    """FedAvg's local state, where `moments.steps` counts batches; the adapted parameters `adapted [P]` (w') and the
    batch B1 of the inner step, `first`."""

    adapted: Tensor
    first: Batch | None


class PerFedAvg(FedAvg[ServerState, Broadcast, Update, OwnStatistics, MetaLocalState], frozen=True):
    cautions = (of_fine_tuned_models,)
    form: Literal["clean", "code"] = hp(
        "clean", doc="clean: momentum only of outer gradients; code: one optimiser takes both steps"
    )
    beta: float = hp(0.01, log=(1e-4, 1.0), gt=0, doc="learning rate of the outer step (beta)")
    hf: bool = hp(False, doc="Hessian-vector term by finite differences (HF); false: first order (FO)")
    delta: float = hp(1e-3, log=(1e-4, 0.1), gt=0, doc="half width of the finite difference (hf)")
    adaptation: Literal["step", "meta"] | None = hp(
        None,
        doc="fine-tuning: one plain gradient step (paper), or meta steps (code); none: step for clean, meta for code",
    )

    # number of local steps -----------------------------------------------------------------------------
    @property
    def local_batches(self) -> tuple[int, int]:
        return self.batch_size, 2 * self.local_epochs  # an upper bound: local_steps ends the loop

    def local_steps(self, num_examples: np.ndarray) -> np.ndarray:
        return 2 * self.batch_pairs(self.epoch_batches(num_examples), self.local_epochs)

    def batch_pairs(self, per_epoch: np.ndarray, epochs: int) -> np.ndarray:
        """Pairs of batches `[K]` in `epochs` epochs of clients with `per_epoch [K]` batches."""
        return np.asarray(
            epochs * -(-per_epoch // self.local_epochs) if self.form == "code" else -(-per_epoch * epochs // 2)
        )

    def step_cost(self) -> float:
        return 2.0 if self.hf else 1.0  # every other batch has two more gradients

    # client -----------------------------------------------------------------------------------
    @property
    def reads_step_number(self) -> bool:
        return True  # every other step is an inner one

    def local_state(self, ctx: Context, w: Tensor, b: Tensor) -> MetaLocalState:
        local = super().local_state(ctx, w, b)
        return MetaLocalState.of(local, adapted=ctx.objective.scratch("ahead", w), first=None)

    def step(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: MetaLocalState, batch: Batch
    ) -> MetaLocalState:
        steps = local.moments.steps
        inner = steps % 2 == 0
        loss, g = self.gradient(ctx, broadcast, client, local if inner else local.replace(w=local.adapted), batch)
        local.loss.add_(loss)
        if inner:
            if self.form == "code":
                torch.add(
                    local.w, self.direction(ctx, broadcast, local, g), alpha=-self.learning_rate(ctx), out=local.adapted
                )
            else:
                self.adapt(ctx, local, g)
        else:
            if self.hf:
                self.subtract_curvature_(ctx, broadcast, client, local, g)
            optimizer_steps = steps if self.form == "code" else steps // 2
            outer = local.replace(moments=local.moments.replace(steps=optimizer_steps))
            local.w.add_(self.direction(ctx, broadcast, outer, g), alpha=-self.beta)
        return local.replace(moments=local.moments.replace(steps=steps + 1), first=batch if inner else None)

    def adapt(self, ctx: ClientContext, local: MetaLocalState, g: Tensor) -> Tensor:
        """w' `[P]`, in `local.adapted`: a plain gradient step from w along `g`, which it consumes."""
        v = sgd_direction_(local.w, g, local.moments, 0, self.weight_decay, ctx.objective.reached())
        return torch.add(local.w, v, alpha=-self.learning_rate(ctx), out=local.adapted)

    def subtract_curvature_(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: MetaLocalState, v: Tensor
    ) -> None:
        """v <- v - gamma H(w; B1) v, by a central difference of gradients (HF); batch-norm statistics stay."""
        scratch = ctx.objective.scratch
        point, b, grad = scratch("probe", v), scratch("probe statistics", local.b), scratch("probe gradient", v)
        difference = scratch("bend", v).zero_()
        assert local.first is not None  # an outer step follows an inner one
        for sign in (1, -1):
            torch.add(local.w, v, alpha=sign * self.delta, out=point)
            probe = local.replace(w=point, b=b.copy_(local.b), grad=grad)
            difference.add_(self.gradient(ctx, broadcast, client, probe, local.first)[1], alpha=sign)
        v.add_(difference, alpha=-self.learning_rate(ctx) / (2 * self.delta))

    def personalize(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, batches: FineTuning
    ) -> Predictor:
        local = self.local_state(ctx, broadcast.w, self.statistics_before(broadcast, client))
        if (self.adaptation or ("meta" if self.form == "code" else "step")) == "step":
            w, first = local.w, next(iter(batches), None)
            if first is not None:
                w = self.adapt(ctx, local, self.gradient(ctx, broadcast, client, local, first)[1])
            return ctx.objective.at(w, local.b)
        per_epoch = max(int(self.epoch_batches(np.array(ctx.num_examples))), 1)
        steps = 2 * int(self.batch_pairs(np.array(per_epoch), len(batches) // per_epoch))
        for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(batches)), steps):
            local = self.step(ctx, broadcast, client, local, batch)
        return ctx.objective.at(local.w, local.b)
