"""FedDF (Lin et al., NeurIPS 2020, section 3, Algorithm 1): fuse the client models by ensemble distillation on public
data.

Client: FedAvg. Server: from the average of the client models, minimise with Adam over the public data x
T^2 KL( sigma(mean_k f_k(x) / T) || sigma(f(x) / T) ).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import Tensor

from flray.algorithms.fedavg import Down, FedAvg, Local, OwnStatistics, State
from flray.core.messages import Cohort, Metrics, StreamedModels, StreamedUpdate, Update
from flray.core.network.parts import ModuleMode
from flray.core.protocol.algorithm_section import Setting
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.distill import Ensemble, TeacherForm, distill, ensemble, proxy_logits
from flray.ops.losses import Direction, kl
from flray.ops.pooling import mean_of_each

FELT = 2e-4  # distance of a weight in a round; FedProj's tables have 1e-5 x 196 steps = 2e-3


class ServerDistillation(FedAvg[State, Down, StreamedUpdate, OwnStatistics, Local, StreamedModels], frozen=True):
    """FedAvg whose server trains the average on the client models' logits on the proxy data, with a new Adam each
    round."""

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

    def aggregate(self, ctx: Context, state: State, updates: StreamedModels, cohort: Cohort) -> tuple[State, Metrics]:
        mean: Update = mean_of_each(updates, cohort.weights)
        average = Update(mean.w, self.statistics(state, mean.b))
        return self.distill(ctx, state, updates, average, self.ensemble(ctx, updates))

    def end(
        self, ctx: ClientContext, broadcast: Down, client: OwnStatistics, local: Local, data: ClientData
    ) -> tuple[StreamedUpdate, OwnStatistics]:
        update, client = super().end(ctx, broadcast, client, local, data)
        return StreamedUpdate.of(update), client

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        """Adam moves a weight by at most about its rate in a step; below `FELT` in a round nothing is distilled."""
        if setting.proxy_examples is None:
            return ()
        steps = self.distill_epochs * math.ceil(setting.proxy_examples / self.distill_batch_size)
        if self.distill_lr * steps >= FELT:
            return ()
        most = f"{steps} distillation steps a round of distill_lr {self.distill_lr:g} move a weight by at most about"
        return (
            f"{most} {self.distill_lr * steps:.2g}: the server's model stays the average; raise algorithm.distill_lr, "
            "algorithm.distill_epochs or proxy.size",
        )

    @abstractmethod
    def ensemble(self, ctx: Context, updates: StreamedModels) -> Any:
        """The targets for every proxy sample, from the client models. Any: each method has its own record."""

    @abstractmethod
    def distill(
        self, ctx: Context, state: State, updates: StreamedModels, average: Update, teacher: Any
    ) -> tuple[State, Metrics]:
        """The state after training the `average` on the targets that `ensemble` returned, `teacher` (Any: as there)."""

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


class FedDF(ServerDistillation[State, Down, Local], frozen=True):
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
        self, ctx: Context, state: State, updates: StreamedModels, average: Update, teacher: Ensemble
    ) -> tuple[State, Metrics]:
        """The state after distillation of the ensemble into the average, and metrics."""
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
            penalty=self.penalty(state, updates, average),
            **self.schedule,
        )
        b = self.statistics(state, b)
        student = proxy_logits(ctx.objective, w, b, proxy, self.distill_batch_size)
        passes = len(updates.w) + self.distill_epochs + 1
        # FedProj's memory drift (C.4): KL(this round's ensemble || new global model) at T = 1 on all proxy data
        return state.replace(w=w, b=b), {
            "distill/loss": loss,
            "memory/drift": kl(ctx.seen(teacher.logits), ctx.seen(student)),
            "proxy_examples": float(passes * proxy.size),
        }

    def penalty(self, state: State, updates: StreamedModels, average: Update) -> Callable[[Tensor], Tensor] | None:
        """Gradient of a regulariser of the student's parameters; None in FedDF."""
        return None
