"""FedRCL (Seo et al., CVPR 2024, sections 3 and 4): supervised contrastive learning at every level, relaxed by a
penalty on near pairs.

loss = CE + scl_weight mean_{l,i} scl_i + penalty_weight mean_{l,i} penalty_i. Of every level l: representations before
the activation, averaged over pixels, of unit length; s_ij their inner products within the batch; Neg_i = samples of
other classes.

* `rcl: code` (official code): scl_i = -log( e^{s_ip/tau} / (e^{s_ip/tau} + sum of e^{s_in/tau} over the two largest
  s_in of Neg_i) ), p = the least similar sample of i's class, i itself among them;
  penalty_i = -log( e^{s_ii/tau} / (e^{s_ii/tau} + e^{r/tau}) ), r = the similarity to the least similar other sample of
  the class if that is at least `threshold`, otherwise (and where there is no other) -1.
* `rcl: paper` (restored): scl_i = sum over every other p of the class, against all of Neg_i; penalty_i with
  the sum of e^{s_ij/tau} over all other j of the class with s_ij at least `threshold` in place of e^{r/tau}.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext, Context
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.ops.contrast import RCLForm, cosine_matrices, divergence_penalty, relaxed_contrast
from flray.ops.losses import cross_entropy
from flray.ops.optim import clip_


class FedRCL(FedAvg, frozen=True):
    rcl: RCLForm = hp("code", doc="code: hardest pairs only; paper: sums over all pairs")
    tau: float = hp(0.05, log=(0.01, 1.0), gt=0, doc="temperature of the similarities")
    threshold: float = hp(
        0.7, linear=(0.0, 1.0), ge=-1, le=1, doc="similarity from which a pair of one class is penalised (lambda)"
    )
    scl_weight: float = hp(1.0, log=(0.01, 10.0), ge=0, doc="weight of the supervised contrastive loss")
    penalty_weight: float = hp(1.0, log=(0.01, 10.0), ge=0, doc="weight of the divergence penalty")
    levels: tuple[int, ...] | None = hp(None, doc="levels of the model in the loss, 0 the shallowest; none: all")
    clip: float | None = hp(None, gt=0, doc="largest norm of the gradient; none: no clipping")

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        if self.scl_weight or self.penalty_weight:
            loss, g = ctx.objective.value_and_grad(lambda f: self.loss(ctx, f, batch), local.w, local.b, out=local.grad)
        else:
            loss, g = super().gradient(ctx, broadcast, client, local, batch)
        return loss, g if self.clip is None else clip_(g, self.clip)

    def loss(self, ctx: Context, f: BoundModel, batch: Batch) -> Tensor:
        """Cross-entropy and the weighted terms of one batch, 0-dim, of the model `f`."""
        levels, logits = f.levels(batch.x)
        loss, s = cross_entropy(logits, batch.y, ctx.classes), cosine_matrices(self.chosen(levels))
        if self.scl_weight:
            loss = loss + self.scl_weight * relaxed_contrast(s, batch.y, self.tau, self.rcl)
        if self.penalty_weight:
            loss = loss + self.penalty_weight * divergence_penalty(s, batch.y, self.tau, self.threshold, self.rcl)
        return loss

    def chosen(self, levels: Sequence[Tensor]) -> list[Tensor]:
        """The `levels` of the model that are in the loss."""
        wanted = range(len(levels)) if self.levels is None else self.levels
        if not wanted or not all(0 <= level < len(levels) for level in wanted):
            raise ConfigError(
                f"algorithm.levels = {list(wanted)}: name at least one of the {len(levels)} levels of this model, from "
                "0 on"
            )
        return [levels[level] for level in wanted]
