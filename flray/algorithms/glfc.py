"""GLFC (Dong et al., CVPR 2022): federated class-incremental learning with exemplars, and an old model to distil from.

Client: trains on the task's samples and its exemplars of older classes, chosen by herding when a task ends. With logits
o over all classes seen, one-hot y and binary cross-entropy BCE:
    L_GC = mean_{i,c} w_i BCE(o_ic, y_ic),  w_i = g_i / (mean g over the batch's samples of old, or of new classes),
    g_i = |sigmoid(o_i)_{y_i} - 1|;   L_RD = mean BCE(o, y with sigmoid(f_old(x)) in the places of the old classes);
    L = (L_GC + L_RD) / 2, and L_GC alone without f_old.
When it finds the task to be new it also sends, of each class that it holds, the gradient of an encoder at a perturbed
prototype image. Server: makes images of these gradients again, measures the global model's accuracy on them, and keeps
the best model of this task, best_2, and of the one before, best_1. f_old is best_2 for a client that finds the task to
be new, else best_1.
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
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.compensation import distillation_target, glfc_weights, mean_entropy, weighted_bce

OldLogits = (
    tuple[Tensor, Tensor] | None
)  # an old model's logits [B, C_old], and its classes' places among those seen [C_old]


class GLFCDown(Broadcast):
    """The global model, and those old ones that a client may choose; what it has already is not sent again."""

    best_1: OldModel = fields.shared()
    best_2: OldModel = fields.shared()


class GLFCUpdate(Update):
    """The local model; gradients of prototypes `[classes held, P of the encoder]`, where the task is new."""

    gradients: Tensor | None = fields.each()


class GLFCReceived(Record):
    """How a type checker sees a `GLFCUpdate` at the server: the mean model, and each client's gradients."""

    w: Tensor
    b: Tensor
    gradients: tuple[Tensor | None, ...]


class GLFCClient(ExemplarClient):
    """The exemplars, and the mean entropy that was found last."""

    entropy: float


class GLFCLocalState(SGDState):
    """FedAvg's local state, the model to distil from, whether the task was found to be new, and the mean entropy."""

    old: OldModel
    signal: bool
    entropy: float


class GLFC(
    HerdedExemplars[MonitoredStateT, GLFCDown, GLFCUpdate, GLFCClient, GLFCLocalState, GLFCReceived],
    PrototypeMonitor[MonitoredStateT, GLFCDown, GLFCUpdate, GLFCClient, GLFCLocalState, GLFCReceived],
    frozen=True,
):
    needs_new_classes: ClassVar[bool] = True
    keeps: ClassVar[str] = "samples of older classes on the clients; old models and images of clients on the server"

    transition: Literal["known", "entropy"] = hp("known", doc="a task is new in its first round, or by mean entropy")
    entropy_rise: float = hp(1.2, linear=(0.1, 3.0), gt=0, doc="rise of the entropy that tells a new task (r_h)")

    # server -----------------------------------------------------------------------------------
    def broadcast(self, ctx: Context, state: MonitoredStateT) -> GLFCDown:
        none, is_first = OldModel(state.w[:0], state.b[:0], -1), ctx.clock.round == 0
        first, second = state.best_1, state.best_2
        if self.transition == "known":  # which of them is read is known as well
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
        """L of logits `[B, C]` and places `y [B]` among the classes seen."""
        w, target = self.compensation(ctx, logits, y), F.one_hot(y, logits.shape[1]).to(logits)
        current = weighted_bce(logits, target, w)
        return current if old is None else 0.5 * (current + weighted_bce(logits, distillation_target(target, *old)))

    def compensation(self, ctx: Context, logits: Tensor, y: Tensor) -> Tensor:
        """w `[B]`."""
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
