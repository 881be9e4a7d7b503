"""GLFC (Dong et al., CVPR 2022): federated class-incremental learning with exemplars and distillation of an old model.

Client: trains on the task's samples and its exemplars of older classes. With logits o over all classes seen, one-hot y
and binary cross-entropy BCE:
    L_GC = mean_{i,c} w_i BCE(o_ic, y_ic),  w_i = g_i / (mean of g over the batch's samples of old, or of new classes),
    g_i = |sigmoid(o_i)_{y_i} - 1|
    L_RD = mean BCE(o, y with sigmoid(f_old(x)) in the places of the old classes)
    L = (L_GC + L_RD) / 2;  without f_old L = L_GC.
A client that detects a new task also sends, for each class that it holds, the gradient of an encoder at a perturbed
prototype image. Server: reconstructs images from these gradients, measures each global model's accuracy on them, and
stores the best model of this task, best_2, and of the last one, best_1. f_old is best_2 for a client that detects a new
task, else best_1.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flray.algorithms.fedavg import SGDState
from flray.algorithms.herded_exemplars import ExemplarClient, HerdedExemplars
from flray.algorithms.prototype_monitor import MonitoredStateT, OldModel, PrototypeMonitor
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Record, Update, fields
from flray.core.protocol.algorithm_section import ServerRule
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.compensation import distillation_target, glfc_weights, mean_entropy, weighted_bce

OldLogits = (
    tuple[Tensor, Tensor] | None
)  # an old model's logits [B, C_old], and its classes' places among those seen [C_old]


class GLFCDown(Broadcast):
    """The global model and the two best ones. A client gets each of those once."""

    best_1: OldModel = fields.shared()
    best_2: OldModel = fields.shared()


class GLFCUpdate(Update):
    """The local model; if the task is new, the encoder's gradients at prototypes `[classes held, P of the encoder]`."""

    gradients: Tensor | None = fields.each()


class GLFCReceived(Record):
    """The type of a `GLFCUpdate` at the server: the mean model, and each client's gradients."""

    w: Tensor
    b: Tensor
    gradients: tuple[Tensor | None, ...]


class GLFCClient(ExemplarClient):
    """The exemplars, and the mean entropy of the client's last round."""

    entropy: float


class GLFCLocalState(SGDState):
    """FedAvg's local state, the `old` model f_old, `signal`: whether the task is new, and the mean entropy."""

    old: OldModel
    signal: bool
    entropy: float


class GLFC(
    HerdedExemplars[MonitoredStateT, GLFCDown, GLFCUpdate, GLFCClient, GLFCLocalState, GLFCReceived],
    PrototypeMonitor[MonitoredStateT, GLFCDown, GLFCUpdate, GLFCClient, GLFCLocalState, GLFCReceived],
    frozen=True,
):
    server_rule: ClassVar[ServerRule] = "any"
    float32_only: ClassVar[str] = "its images of clients"
    needs_new_classes: ClassVar[bool] = True
    keeps: ClassVar[str] = "samples of older classes on the clients; old models and images of clients on the server"

    transition: Literal["known", "entropy"] = hp(
        "known", doc="detection of a new task: by its first round, or by the rise of the mean entropy"
    )
    entropy_rise: float = hp(1.2, linear=(0.1, 3.0), gt=0, doc="rise of the mean entropy that signals a new task (r_h)")

    # server -----------------------------------------------------------------------------------
    def broadcast(self, ctx: Context, state: MonitoredStateT) -> GLFCDown:
        none, is_first = OldModel(state.w[:0], state.b[:0], -1), ctx.clock.round == 0
        first, second = state.best_1, state.best_2
        if self.transition == "known":  # clients read only one of them
            first, second = (none, second) if is_first else (first, none)
        return GLFCDown(state.w, state.b, first, second)

    def aggregate(
        self, ctx: Context, state: MonitoredStateT, updates: GLFCReceived, cohort: Cohort
    ) -> tuple[MonitoredStateT, Metrics]:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        state, monitor_metrics = self.update_best_model(ctx, state, updates.gradients)
        return state, {**metrics, **monitor_metrics}

    # client -----------------------------------------------------------------------------------
    def step_cost(self) -> float:
        return 1 + 1 / 3

    def init_client(self, ctx: Context) -> GLFCClient:
        return GLFCClient.of(self.own_statistics(ctx.objective.initial()[1]), exemplars={}, entropy=0.0)

    def begin(self, ctx: ClientContext, broadcast: GLFCDown, client: GLFCClient, data: ClientData) -> GLFCLocalState:
        base, entropy, signal = super().begin(ctx, broadcast, client, data), client.entropy, ctx.clock.round == 0
        if self.transition == "entropy":
            model = ctx.objective.at(base.w, base.b)
            with torch.no_grad():
                logits = torch.cat([ctx.in_use.seen.narrow(model(batch.x)) for batch in data.plain])
            entropy = float(mean_entropy(logits))
            signal = entropy - client.entropy > self.entropy_rise
        return GLFCLocalState.of(
            base, old=broadcast.best_2 if signal else broadcast.best_1, signal=signal, entropy=entropy
        )

    def gradient(
        self, ctx: ClientContext, broadcast: GLFCDown, client: GLFCClient, local: GLFCLocalState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        seen, old = ctx.in_use.seen, None
        y = seen.local(batch.y)
        if local.old.task >= 0:
            learned = ctx.in_use.until(local.old.task)
            with torch.no_grad():
                old = learned.narrow(ctx.objective.at(local.old.w, local.old.b)(batch.x)), seen.local(learned.index)
        return ctx.objective.value_and_grad(
            lambda f: self.loss(ctx, seen.narrow(f(batch.x)), y, old), local.w, local.b, out=local.grad
        )

    def loss(self, ctx: Context, logits: Tensor, y: Tensor, old: OldLogits) -> Tensor:
        """L (0-dim) of logits `[B, C]` and labels `y [B]`, as places among the classes seen."""
        w, target = self.compensation(ctx, logits, y), F.one_hot(y, logits.shape[1]).to(logits)
        current = weighted_bce(logits, target, w)
        return current if old is None else 0.5 * (current + weighted_bce(logits, distillation_target(target, *old)))

    def compensation(self, ctx: Context, logits: Tensor, y: Tensor) -> Tensor:
        """The weights w `[B]`."""
        classes = ctx.in_use
        return glfc_weights(logits, y, classes.old.has(classes.seen.index))

    def end(
        self, ctx: ClientContext, broadcast: GLFCDown, client: GLFCClient, local: GLFCLocalState, data: ClientData
    ) -> tuple[GLFCUpdate, GLFCClient]:
        gradients = None
        if local.signal:
            gradients = self.prototype_gradients(ctx, ctx.objective.at(local.w, local.b), data)
        after = client.replace(b=self.own_statistics(local.b).b, entropy=local.entropy)
        return GLFCUpdate(local.w, local.b, gradients), after
