"""FedNTD (Lee et al., NeurIPS 2022, section 4): distil the global model's probabilities of all classes but the true
one.

loss = CE + beta tau^2 KL( sigma(z_g' / tau) || sigma(z' / tau) ), mean over the batch; z', z_g' = logits of the local
and the global model without the true class's (C - 1 entries). The global model is frozen, in eval mode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext
from flray.core.schema.hp import hp
from flray.ops.losses import cross_entropy, not_true_kl


class FedNTD(FedAvg, frozen=True):
    beta: float = hp(1.0, log=(0.01, 10.0), ge=0, doc="weight of the not-true distillation; 0: FedAvg")
    tau: float = hp(1.0, linear=(1.0, 5.0), gt=0, doc="temperature of the not-true distillation")

    def step_cost(self) -> float:
        return 1 + 1 / 3 if self.beta else 1.0

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        if not self.beta:
            return super().gradient(ctx, broadcast, client, local, batch)
        with torch.no_grad():
            teacher = ctx.seen(ctx.objective.at(broadcast.w, broadcast.b)(batch.x))

        def loss(f: BoundModel) -> Tensor:
            z, y = f(batch.x), batch.y
            known = y if ctx.classes is None else ctx.classes.seen.local(y)
            return cross_entropy(z, y, ctx.classes) + self.beta * not_true_kl(teacher, ctx.seen(z), known, self.tau)

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)
