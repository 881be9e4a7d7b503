"""Distillation on the server: what `feddf`, and the algorithms FedProj and Fed-ET, share; not a rule by itself.

From the mean of the client models, Adam trains a student on public data, to the targets that the client models give.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal

from typing_extensions import TypeVar

from flray.core.messages import Cohort, HasModel, StreamedModels, Update
from flray.core.network.parts import ModuleMode
from flray.core.protocol.aggregation import Aggregated, Aggregation, Buffers
from flray.core.protocol.aggregation_section import Pooled
from flray.core.protocol.algorithm_section import Setting
from flray.core.protocol.context import Context
from flray.core.schema.hp import hp
from flray.ops.pooling import mean_of_each

FELT = 2e-4  # distance of a weight in a round; FedProj's tables have 1e-5 x 196 steps = 2e-3
Own = TypeVar("Own", default=None)


class ServerDistillation(Aggregation[Own, StreamedModels], frozen=True):
    """The mean, trained on the client models' logits on the proxy data, with a new Adam each round."""

    pooled: ClassVar[Pooled] = "streamed"
    needs_proxy: ClassVar[bool] = True

    distill_lr: float = hp(1e-5, log=(1e-6, 1e-2), gt=0, doc="server learning rate (Adam)")
    distill_schedule: Literal["constant", "cosine"] = hp(
        "constant", doc="server learning rate over the distillation steps"
    )
    distill_epochs: int = hp(1, choice=(1, 3, 5), ge=1, doc="epochs on the proxy data per round (E_d)")
    distill_batch_size: int = hp(256, choice=(64, 128, 256), ge=1, doc="batch size on the proxy data")
    distill_clip: float | None = hp(None, gt=0, doc="largest norm of the server's gradient; none: no clipping")
    distill_weight_decay: float = hp(
        0.0, log=(1e-6, 1e-2), ge=0, doc="weight decay on the server, added to the gradient"
    )
    student_bn: ModuleMode = hp("train", doc="batch norm of the student: batch statistics (kept out of b or not), or b")

    def combine(
        self, ctx: Context, own: Own, before: HasModel, updates: StreamedModels, cohort: Cohort, buffers: Buffers
    ) -> Aggregated:
        mean: Update = mean_of_each(updates, cohort.weights)
        average = mean.replace(b=before.b) if buffers == "keep" else mean
        return self.distill(ctx, before, updates, average, self.ensemble(ctx, updates), buffers)

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        """Adam moves a weight by at most about its rate in a step; below `FELT` in a round nothing is distilled."""
        if setting.proxy_examples is None:
            return ()
        steps = self.distill_epochs * math.ceil(setting.proxy_examples / self.distill_batch_size)
        if self.distill_lr * steps >= FELT:
            return ()
        most = f"{steps} distillation steps a round of distill_lr {self.distill_lr:g} move a weight by at most about"
        return (
            f"{most} {self.distill_lr * steps:.2g}: the server's model stays the average; raise {self.key}.distill_lr, "
            f"{self.key}.distill_epochs or proxy.size",
        )

    @abstractmethod
    def ensemble(self, ctx: Context, updates: StreamedModels) -> Any:
        """The targets for every proxy sample, from the client models. Any: each method has its own record."""

    @abstractmethod
    def distill(
        self,
        ctx: Context,
        before: HasModel,
        updates: StreamedModels,
        average: Update,
        teacher: Any,
        buffers: Buffers,
    ) -> Aggregated:
        """The model after training the `average` on the targets that `ensemble` returned, `teacher` (Any: as there)."""

    @property
    def schedule(self) -> dict[str, Any]:
        """The options of :func:`flray.ops.distill.fit`."""
        return {
            "lr": self.distill_lr,
            "epochs": self.distill_epochs,
            "batch_size": self.distill_batch_size,
            "weight_decay": self.distill_weight_decay,
            "mode": self.student_bn,
            "cosine": self.distill_schedule == "cosine",
            "clip": self.distill_clip,
        }
