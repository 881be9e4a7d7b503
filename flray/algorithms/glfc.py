"""GLFC (Dong et al., CVPR 2022): federated class-incremental learning with exemplars and distillation of an old model.

Client: trains on the task's samples and its exemplars of older classes, chosen by herding when a task ends (iCaRL;
section 3.2). With logits o over all classes seen, one-hot y and binary cross-entropy BCE:
    L_GC = mean_{i,c} w_i BCE(o_ic, y_ic),  w_i = g_i / (mean of g over the batch's samples of old, or of new classes),
    g_i = |sigmoid(o_i)_{y_i} - 1|
    L_RD = mean BCE(o, y with sigmoid(f_old(x)) in the places of the old classes)
    L = (L_GC + L_RD) / 2;  without f_old L = L_GC.
A client that detects a new task also sends, for each class that it holds, the gradient of an encoder at a perturbed
prototype image. Server (section 3.4): reconstructs images from these gradients, measures each global model's accuracy
on them, and stores the best model of this task, best_2, and of the last one, best_1. f_old is best_2 for a client that
detects a new task, else best_1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import TypeVar

from flray.algorithms.fedavg import FedAvg, LocalStatistics, SGDState
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Record, ServerState, Update, fields
from flray.core.network.objective import BoundModel
from flray.core.protocol.algorithm_section import ServerRule
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.models.cnn import LeNet
from flray.ops.compensation import distillation_target, glfc_weights, mean_entropy, weighted_bce
from flray.ops.exemplars import exemplars_per_class, extract_features, herding, nearest_to_mean, places_by_class
from flray.ops.gradient_inversion import encoder_gradient, invert_gradients, perturb_inputs

# an old model's logits [B, C_old], and its classes' places among those seen [C_old]
OldLogits = tuple[Tensor, Tensor] | None


class OldModel(Record):
    """A global model `(w [P], b [Q])` of task number `task`; -1: no model, with empty vectors."""

    w: Tensor
    b: Tensor
    task: int


class MonitoredState(ServerState):
    """The global model; the best models of the last task and of this one; reconstructed images `x [m, ...]` with labels
    `y [m]`; `best`: the accuracy of best_2 on them."""

    best_1: OldModel
    best_2: OldModel
    x: Tensor
    y: Tensor
    best: float


MonitoredStateT = TypeVar("MonitoredStateT", bound=MonitoredState, default=MonitoredState)


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


class GLFCClient(LocalStatistics):
    """`exemplars`: by class number the sample numbers `[m]` (int64), in the order of herding; the mean `entropy` of the
    client's last round."""

    exemplars: dict[str, Tensor]
    entropy: float


class GLFCLocalState(SGDState):
    """FedAvg's local state, the `old` model f_old, `signal`: whether the task is new, and the mean entropy."""

    old: OldModel
    signal: bool
    entropy: float


class ExemplarCount(Record):
    """The number of exemplars that clients store, summed over the cohort."""

    exemplars: Tensor = fields.sum()


class GLFC(FedAvg[MonitoredStateT, GLFCDown, GLFCUpdate, GLFCClient, GLFCLocalState, GLFCReceived], frozen=True):
    server_rule: ClassVar[ServerRule] = "any"
    float32_only: ClassVar[str] = "its images of clients"
    needs_new_classes: ClassVar[bool] = True
    keeps_exemplars: ClassVar[bool] = True
    keeps: ClassVar[str] = "samples of older classes on the clients; old models and images of clients on the server"

    proto_lr: float = hp(0.2, log=(0.01, 1.0), gt=0, doc="learning rate of a prototype's perturbation")
    proto_steps: int = hp(50, choice=(0, 10, 50, 100), ge=0, doc="steps of a prototype's perturbation")
    inversion_lr: float = hp(0.1, log=(0.01, 1.0), gt=0, doc="learning rate of L-BFGS in a reconstruction")
    inversion_steps: int = hp(
        250, choice=(50, 100, 250), ge=1, doc="iterations of L-BFGS, with at most 20 inner ones each"
    )
    inversion_images: int = hp(
        20, choice=(1, 10, 20), ge=1, doc="number of last iterates of a reconstruction that are used as images"
    )
    reset_best: bool = hp(True, doc="set the best accuracy to 0 when a task begins; official code: false")

    memory_size: int = hp(2000, choice=(200, 1000, 2000), ge=0, doc="exemplars of a client, over all classes (M)")
    replay: Literal["every_round", "first_round"] = hp(
        "every_round",
        choice=("every_round", "first_round"),
        doc="rounds of a task whose batches hold exemplars: all, or the first alone (FedProTIP's code)",
    )

    transition: Literal["known", "entropy"] = hp(
        "known", doc="detection of a new task: by its first round, or by the rise of the mean entropy"
    )
    entropy_rise: float = hp(1.2, linear=(0.1, 3.0), gt=0, doc="rise of the mean entropy that signals a new task (r_h)")

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        if not inputs.is_image:
            kind = "texts" if inputs.text else "feature vectors"
            name = type(self).__name__.lower()
            raise ConfigError(
                f"{name} reconstructs images from gradients, the data are {kind}; choose another algorithm"
            )
        return {"encoder": LeNet(inputs.shape, len(inputs.classes))}

    def next_exchange(self, ctx: Context, state: MonitoredStateT) -> Exchange | None:
        """When a task ends, each client with samples of it chooses exemplars by features of the new model."""
        if (ctx.clock.phase, ctx.clock.exchange) == ("task_end", 0):
            return Exchange("exemplars", self.broadcast_model, self.count_exemplars, self.choose_exemplars, who="task")
        return super().next_exchange(ctx, state)

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> MonitoredStateT:
        none, x = OldModel(w[:0], b[:0], -1), torch.zeros(0, *ctx.inputs.shape, device=w.device)
        y = torch.zeros(0, dtype=torch.int64, device=w.device)
        return MonitoredState(w, b, none, none, x, y, 0.0)  # type: ignore[return-value]

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

    def update_best_model(
        self, ctx: Context, state: MonitoredStateT, sent: Sequence[Tensor | None]
    ) -> tuple[MonitoredStateT, Metrics]:
        """The state with the best models after this round. `sent`: each client's gradients `[classes, P of the
        encoder]`; None: the client has not detected a new task."""
        pool = [gradient for mine in sent if mine is not None for gradient in mine]
        if pool:
            noise = ctx.rng("reconstruction").standard_normal((len(pool), *ctx.inputs.shape), dtype=np.float32)
            start, search = torch.from_numpy(noise).to(ctx.device), (self.inversion_lr, self.inversion_steps)
            progress = ctx.progress(f"{type(self).__name__} reconstructs images")
            x, y = invert_gradients(
                ctx.net["encoder"], torch.stack(pool), start, *search, self.inversion_images, progress
            )
            x = ctx.inputs.normalised(ctx.inputs.pixels(x).clamp(0, 1))
            state = state.replace(x=x, y=y, best_1=state.best_2, best=0.0 if self.reset_best else state.best)
        if not len(state.y):
            return state, {}
        score = self.score(ctx, state)
        if score >= state.best:
            state = state.replace(best=score, best_2=OldModel(state.w, state.b, ctx.clock.task))
        return state, {"glfc/monitor_acc": score}

    def score(self, ctx: Context, state: MonitoredStateT) -> float:
        """The accuracy of the global model on the reconstructed images, among the classes seen."""
        with torch.no_grad():
            return accuracy(ctx, ctx.objective.at(state.w, state.b)(state.x), state.y)

    def broadcast_model(self, ctx: Context, state: MonitoredStateT) -> Broadcast:
        return Broadcast(state.w, state.b)

    def count_exemplars(
        self, ctx: Context, state: MonitoredStateT, updates: ExemplarCount, cohort: Cohort
    ) -> tuple[MonitoredStateT, Metrics]:
        return state, {"exemplars/kept": updates.exemplars}

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

    def num_exemplars(self, client: GLFCClient) -> int:
        return sum(map(len, client.exemplars.values()))

    def batches(
        self, ctx: ClientContext, broadcast: GLFCDown, client: GLFCClient, local: GLFCLocalState, data: ClientData
    ) -> Iterable[Batch]:
        if client.exemplars and (self.replay == "every_round" or ctx.clock.round == 0):
            # a client without samples of the last task did not choose again: it stores more of each class
            m = exemplars_per_class(self.memory_size, len(ctx.in_use.old))
            data = data.with_samples(torch.cat([numbers[:m] for numbers in client.exemplars.values()]).cpu().numpy())
        return data.batches(self.batch_size, epochs=self.local_epochs)

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

    def prototype_gradients(self, ctx: Context, model: BoundModel, data: ClientData) -> Tensor:
        """The encoder's gradient `[classes held, P of the encoder]` at a perturbed prototype of each class."""
        seen, sent = ctx.in_use.seen, []
        z, y = extract_features(model, data.plain)
        places = places_by_class(y)
        nearest = torch.stack([mine[nearest_to_mean(z[mine])[None]] for mine in places.values()])
        for c, prototype in zip(places, nearest.cpu().numpy(), strict=True):
            label = torch.tensor([c], device=y.device)
            (batch,) = data.only(data.numbers[prototype]).plain
            target = F.one_hot(seen.local(label), len(seen)).to(z)

            def loss(x: Tensor, target: Tensor = target) -> Tensor:
                return weighted_bce(seen.narrow(model(x)), target)

            image = perturb_inputs(loss, batch.x, self.proto_lr, self.proto_steps)
            sent.append(encoder_gradient(ctx.net["encoder"], image, label))
        return torch.stack(sent)

    def choose_exemplars(
        self, ctx: Context, broadcast: Broadcast, client: GLFCClient, data: ClientData
    ) -> tuple[ExemplarCount, GLFCClient, Metrics]:
        """The client with exemplars of the task's classes that it holds, and fewer of each older class (m = M /
        classes)."""
        m = exemplars_per_class(self.memory_size, len(ctx.in_use.seen))
        chosen = {c: numbers[:m] for c, numbers in client.exemplars.items()}
        z, y = extract_features(ctx.objective.at(broadcast.w, broadcast.b), data.plain)
        numbers = torch.from_numpy(data.numbers.astype(np.int64)).to(z.device)
        for c, places in places_by_class(y).items():
            chosen[str(c)] = numbers[places][herding(z[places], m)]
        after = client.replace(exemplars=chosen)
        return ExemplarCount(torch.tensor(float(self.num_exemplars(after)))), after, {}


def accuracy(ctx: Context, logits: Tensor, y: Tensor) -> float:
    """Share of the labels `y [n]` that have the largest of the logits `[n, C]` among the classes seen."""
    return float((ctx.in_use.seen.largest(logits) == y).float().mean())
