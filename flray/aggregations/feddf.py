"""FedDF (Lin et al., NeurIPS 2020, section 3, Algorithm 1): fuse the client models by ensemble distillation on public
data.

From the mean of the client models, minimise with Adam over the public data x
T^2 KL( sigma(mean_k f_k(x) / T) || sigma(f(x) / T) ).
Weights: p_k in the mean; none in the ensemble. Statistics `b`: their mean, then the student's.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from flray.aggregations.server_distillation import Own, ServerDistillation
from flray.core.messages import HasModel, Metrics, StreamedModels, Update
from flray.core.protocol.aggregation import Aggregated, Buffers
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp
from flray.ops.distill import Ensemble, TeacherForm, distill, ensemble, proxy_logits
from flray.ops.losses import Direction, kl


class FedDF(ServerDistillation[Own], frozen=True):
    teacher: TeacherForm = hp(
        "avg_logits", doc="mean of logits, of probabilities at T = 1, or of the clients' KL terms at T"
    )
    temperature: float = hp(3.0, linear=(1.0, 5.0), gt=0, doc="distillation temperature (T)")
    squared: bool = hp(True, doc="factor T^2 on the distillation loss (Algorithm 1)")
    kl_direction: Direction = hp("forward", doc="forward: KL(teacher || student), Eq. 9; reverse: the other way round")

    def ensemble(self, ctx: Context, updates: StreamedModels) -> Ensemble:
        kind = (self.teacher, self.temperature, self.kl_direction)
        return ensemble(ctx, updates.w, updates.b, self.distill_batch_size, *kind)

    def distill(
        self,
        ctx: Context,
        before: HasModel,
        updates: StreamedModels,
        average: Update,
        teacher: Ensemble,
        buffers: Buffers,
    ) -> Aggregated:
        """The model after distillation of the ensemble into the average, and metrics."""
        proxy = ctx.require_proxy()
        w, b, loss = distill(
            ctx,
            average.w,
            average.b,
            teacher.teacher,
            proxy,
            temperature=self.temperature,
            squared=self.squared,
            direction=self.kl_direction,
            penalty=self.penalty(before, updates, average),
            **self.schedule,
        )
        b = before.b if buffers == "keep" else b
        student = proxy_logits(ctx.objective, w, b, proxy, self.distill_batch_size)
        passes = len(updates.w) + self.distill_epochs + 1
        # FedProj's memory drift (C.4): KL(this round's ensemble || new global model) at T = 1 on all proxy data
        metrics: Metrics = {
            "distill/loss": loss,
            "memory/drift": kl(ctx.seen(teacher.logits), ctx.seen(student)),
            "proxy_examples": float(passes * proxy.size),
        }
        return Aggregated(w, b, None, metrics)

    def penalty(self, before: HasModel, updates: StreamedModels, average: Update) -> Callable[[Tensor], Tensor] | None:
        """Gradient of a regulariser of the student's parameters; None in FedDF."""
        return None
