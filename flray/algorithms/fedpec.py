"""Fed+PEC: classification by prediction errors (Zajac et al., ICLR 2024), federated as in FedProTIP's Table 4.

Every class c has a small student g_c, trained on samples of c alone to imitate one wide, random, fixed teacher h:
minimise mean |g_c(x) - h(x)|^2 / o. Prediction: argmin_c |g_c(x) - h(x)|^2.
Server: g_c <- sum_k n_kc g_kc / sum_k n_kc over the sampled clients with samples of c. Students of older
tasks' classes do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Record, ServerState
from flray.core.messages.fields import sum
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.models.pec import Students
from flray.ops.exemplars import places_by_class
from flray.ops.optim import Moments, adam_direction_, sgd_direction_


class PECUpdate(Record):
    """For the task's C_t classes: n_kc g_kc, `weighted [C_t, P / C]`, and n_kc, `counts [C_t]`."""

    weighted: Tensor = sum()
    counts: Tensor = sum()


class PECLocalState(SGDState):
    """FedAvg's local state; by class the number of its student's `steps [C]` and of samples `read [C]`."""

    steps: Tensor
    read: Tensor


class FedPEC(FedAvg[ServerState, Broadcast, PECUpdate, OwnStatistics, PECLocalState], frozen=True):
    server_reason: ClassVar[str] = "it averages the students of each class"
    capturable: ClassVar[bool] = False  # a count of steps for each class
    buffers: ClassVar[Literal["average", "keep", "local"]] = "average"  # type: ignore[misc]  # no batch norm

    lr: float = hp(1e-3, log=(1e-4, 1e-1), gt=0, doc="local learning rate (eta)")
    schedule: Literal["linear", "constant"] = hp(
        "linear", doc="learning rate over a client's local steps: linear to 0, or constant"
    )
    optimizer: Literal["sgd", "adam"] = hp("adam", choice=("sgd", "adam"), doc="of every student, new every round")
    batch_size: int = hp(64, choice=(1, 16, 32, 64, 128), ge=1, doc="local batch size (B), of all classes together")
    width: int = hp(40, choice=(10, 20, 40), ge=1, doc="kernels, or hidden units, of a student")
    outputs: int = hp(172, choice=(32, 99, 172), ge=1, doc="outputs of students and teacher (o)")
    teacher_factor: int = hp(100, choice=(10, 100, 500), ge=1, doc="width of the teacher over that of a student")

    def module(self, model: nn.Module, inputs: Inputs) -> nn.Module:
        if inputs.text:
            raise ConfigError(
                "fedpec's students read images or feature vectors, the data are texts; choose another algorithm"
            )
        return Students(inputs, self.width, self.outputs, self.teacher_factor)

    # server -----------------------------------------------------------------------------------
    def aggregate(
        self, ctx: Context, state: ServerState, updates: PECUpdate, cohort: Cohort
    ) -> tuple[ServerState, Metrics]:
        counts, students = updates.counts[:, None], state.w.view(len(ctx.inputs.classes), -1)
        classes = ctx.in_use.index
        mean = torch.where(counts > 0, updates.weighted / counts.clamp_min(1e-9), students[classes])
        return state.replace(w=students.index_copy(0, classes, mean).flatten()), {}

    # client -----------------------------------------------------------------------------------
    def local_state(self, ctx: Context, w: Tensor, b: Tensor) -> PECLocalState:
        classes = len(ctx.inputs.classes)
        base = super().local_state(ctx, w, b)
        return PECLocalState.of(base, steps=torch.zeros(classes, dtype=torch.int64), read=torch.zeros(classes))

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: PECLocalState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        return self.gradient_by_class(ctx, local, batch, places_by_class(batch.y))

    def gradient_by_class(
        self, ctx: ClientContext, local: PECLocalState, batch: Batch, by_class: Mapping[int, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The gradient of the sum of the classes' mean errors; the loss is the mean error over all samples.

        `by_class`: the places of each class's samples in the batch.
        """
        value = torch.zeros_like(local.loss)

        def errors(f: BoundModel) -> Tensor:
            target = f.run("target", batch.x)
            means = [f.run("error", c, batch.x[places], target[places]).mean() for c, places in by_class.items()]
            for places, mean in zip(by_class.values(), means, strict=True):
                value.add_(mean.detach() * len(places) / len(batch.y))
            return torch.stack(means).sum()

        _, g = ctx.objective.value_and_grad(errors, local.w, local.b, out=local.grad)
        return value, g

    def step(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: PECLocalState, batch: Batch
    ) -> PECLocalState:
        """One step of each student whose class is in the batch."""
        by_class = places_by_class(batch.y)  # the one copy to the host: which students take a step
        loss, g = self.gradient_by_class(ctx, local, batch, by_class)
        local.loss.add_(loss)
        parts = (local.w, g, local.moments.first, local.moments.second)
        tables = [part.view(len(local.steps), len(part) // len(local.steps)) for part in parts]  # SGD has no second one
        rate = self.learning_rate(ctx)
        if self.schedule == "linear":
            rate *= 1 - local.moments.steps / ctx.num_steps
        for c, places in by_class.items():
            w, slope, first, second = (table[c] for table in tables)
            moments = Moments(first, second, int(local.steps[c]))
            if self.optimizer == "adam":
                v = adam_direction_(w, slope, moments, self.weight_decay)
            else:
                v = sgd_direction_(w, slope, moments, self.momentum, self.weight_decay)
            w.add_(v, alpha=-rate)
            local.steps[c] += 1
            local.read[c] += len(places)
        return local.replace(moments=local.moments.replace(steps=local.moments.steps + 1))

    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: PECLocalState, data: ClientData
    ) -> tuple[PECUpdate, OwnStatistics]:
        counts = (local.read > 0).float() if self.weighting == "uniform" else local.read / self.local_epochs
        classes = ctx.in_use.index
        students, counts = local.w.view(len(counts), -1)[classes], counts.to(ctx.device)[classes]
        return PECUpdate(students * counts[:, None], counts), client

    def finetune(self, ctx: ClientContext, w: Tensor, b: Tensor, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        return self.continued(ctx, w, b, batches)
