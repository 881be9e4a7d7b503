"""Fed-ET (Cho et al., IJCAI 2022, section 3.2): the server learns a variance-weighted consensus of the clients, and the
logits of the clients that disagree with it.

Client: FedAvg. Server: trains the average on public data x. With the clients' logits s_k(x) and v_k the variance of s_k
over the classes:
y = argmax sum_k a_k s_k, a_k = v_k / sum_j v_j;  D = clients whose argmax is not y;
s_div = sum_{k in D} b_k s_k, b_k = v_k / sum_{j in D} v_j;
loss = mean_x [ CE(f, y) + lambda T^2 1[D not empty] KL( sigma(s_div / T) || sigma(f / T) ) ].
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from flray.aggregations.server_distillation import ServerDistillation
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import HasModel, Record, StreamedModels, Update
from flray.core.protocol.aggregation import Aggregated, Buffers
from flray.core.protocol.algorithm_section import Setting
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp
from flray.ops.distill import fit, index_batches, proxy_logits
from flray.ops.losses import cross_entropy, kl

FORMS = {"takfl": (0.1, 3.0), "paper": (0.05, 1.0)}  # lambda, T


class Consensus(Record):
    """For every proxy sample, among the C classes seen so far: the ensemble's `labels [n]` (y), the logits of clients
    that disagree, `diverse [n, C]` (s_div), and whether any client does, `disputed [n]`."""

    labels: Tensor
    diverse: Tensor
    disputed: Tensor


class FedET(ServerDistillation, FedAvg, frozen=True):
    asynchronous: ClassVar[bool] = False
    server_reason: ClassVar[str] = "its server distils a consensus of the clients"

    fedet: Literal["takfl", "paper"] = hp("takfl", doc="form of the weights and of samples on which all clients agree")
    diversity: float | None = hp(
        None, log=(0.01, 1.0), ge=0, doc="weight of the diversity term (lambda); none: the form's own"
    )
    temperature: float | None = hp(
        None, linear=(1.0, 5.0), gt=0, doc="temperature of the diversity term (T); none: the form's own"
    )

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        if setting.cohort != 1 or self.fedet == "paper":
            return super().unsuited(setting)
        says = "a round has one client, so no two disagree and every prediction is pulled towards the uniform one"
        return (*super().unsuited(setting), f"{says}; raise cohort.size, or set algorithm.fedet=paper")

    def ensemble(self, ctx: Context, updates: StreamedModels) -> Consensus:
        """The consensus over the proxy data, with K n C logits in memory and one client's model at a time."""
        proxy, size = ctx.require_proxy(), self.distill_batch_size
        w, b = updates.w, updates.b
        logits = [ctx.seen(proxy_logits(ctx.objective, w[k], b[k], proxy, size)) for k in range(len(w))]
        batches = index_batches(np.arange(proxy.size), size)
        parts = [self.consensus(torch.stack([z[index] for z in logits])) for index in batches]
        return Consensus(**{name: torch.cat([vars(part)[name] for part in parts]) for name in vars(parts[0])})

    def consensus(self, logits: Tensor) -> Consensus:
        """The consensus of the clients' `logits [K, B, C]`."""
        variance = logits.var(dim=2, correction=0)
        labels = self.weighted(logits, variance, torch.ones_like(variance)).argmax(1)
        dissent = logits.argmax(2) != labels
        return Consensus(labels, self.weighted(logits, variance, dissent), dissent.any(0))

    def weighted(self, logits: Tensor, variance: Tensor, members: Tensor) -> Tensor:
        """`[B, C]`: the members' `logits [K, B, C]` weighted by their variance `[K, B]` over its sum or (takfl) mean.

        `members [K, B]` are 0 or 1; without any the result is 0.
        """
        v = variance * members
        total = v.sum(0) if self.fedet == "paper" else v.sum(0) / members.sum(0).clamp_min(1)
        return torch.einsum("kb,kbc->bc", v / (total + 1e-12), logits)

    def distill(
        self,
        ctx: Context,
        before: HasModel,
        updates: StreamedModels,
        average: Update,
        teacher: Consensus,
        buffers: Buffers,
    ) -> Aggregated:
        """The model after training the average on the consensus, and metrics."""
        proxy = ctx.require_proxy()
        w, b, loss = fit(
            ctx, average.w, average.b, lambda z, index: self.loss(ctx.seen(z), teacher, index), proxy, **self.schedule
        )
        passes = len(updates.w) + self.distill_epochs
        return Aggregated(w, b, None, {"distill/loss": loss, "proxy_examples": float(passes * proxy.size)})

    def loss(self, z: Tensor, teacher: Consensus, index: Tensor) -> Tensor:
        """The server's loss, 0-dim, of the student's logits `z [B, C]` on the samples `index [B]`."""
        diversity, temperature = FORMS[self.fedet]
        diversity = diversity if self.diversity is None else self.diversity
        temperature = temperature if self.temperature is None else self.temperature
        diverse = teacher.diverse[index]
        if self.fedet == "paper":  # if no client disagrees the KL is 0
            diverse = torch.where(teacher.disputed[index, None], diverse, z)
        return cross_entropy(z, teacher.labels[index]) + diversity * temperature**2 * kl(diverse, z, temperature)
