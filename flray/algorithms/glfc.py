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

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.algorithms.fedavg import Carry, FedAvg, LocalStatistics
from flray.core import fields
from flray.core.classes import Classes, ClassSet
from flray.core.context import Context
from flray.core.errors import ConfigError
from flray.core.exchange import Exchange
from flray.core.hp import hp
from flray.core.inputs import Inputs
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Record, ServerState, Update
from flray.core.samples import ClientData
from flray.models.lenet import LeNet
from flray.ops.compensation import distillation_target, glfc_weights, mean_entropy, weighted_bce
from flray.ops.exemplars import herding, nearest_to_mean, quota, represented
from flray.ops.gradient_inversion import decoded, encoder_gradient, perturbed

Old = tuple[Tensor, Tensor] | None  # an old model's logits [B, C_old], and its classes' places among those seen [C_old]


class OldModel(Record):
    """A global model `(w [P], b [Q])` of task number `task`; of -1 there is none yet, and it has no numbers."""

    w: Tensor
    b: Tensor
    task: int


class GLFCState(ServerState):
    """The global model; the best ones of the task before and of this one; reconstructed images `x [m, ...]` with labels
    `y [m]`, and the accuracy of best_2 on them."""

    best_1: OldModel
    best_2: OldModel
    x: Tensor
    y: Tensor
    best: float


class GLFCDown(Broadcast):
    """The global model, and those old ones that a client may choose; what it has already is not sent again."""

    best_1: OldModel = fields.shared()
    best_2: OldModel = fields.shared()


class GLFCUpdate(Update):
    """The local model; gradients of prototypes `[classes held, P of the encoder]`, where the task is new."""

    gradients: Tensor | None = fields.each()


class GLFCClient(LocalStatistics):
    """Exemplars by class number, sample numbers `[m]` (int64), best first; the mean entropy that was found last."""

    exemplars: dict[str, Tensor]
    entropy: float


class GLFCCarry(Carry):
    """FedAvg's carry, the model to distil from, whether the task was found to be new, and the mean entropy."""

    old: OldModel
    signal: bool
    entropy: float


class Kept(Record):
    """Number of exemplars."""

    exemplars: Tensor = fields.sum()


class GLFC(FedAvg, frozen=True):
    keeps_exemplars: ClassVar[bool] = True
    needs_new_classes: ClassVar[bool] = True
    keeps: ClassVar[str] = "samples of older classes on the clients; old models and images of clients on the server"

    memory_size: int = hp(2000, choice=(200, 1000, 2000), ge=0, doc="exemplars of a client, over all classes (M)")
    transition: Literal["known", "entropy"] = hp("known", doc="a task is new in its first round, or by mean entropy")
    entropy_rise: float = hp(1.2, linear=(0.1, 3.0), gt=0, doc="rise of the entropy that tells a new task (r_h)")
    proto_lr: float = hp(0.2, log=(0.01, 1.0), gt=0, doc="rate of the perturbation of a prototype")
    proto_steps: int = hp(50, choice=(0, 10, 50, 100), ge=0, doc="its steps")
    inversion_lr: float = hp(0.1, log=(0.01, 1.0), gt=0, doc="rate of L-BFGS in a reconstruction")
    inversion_steps: int = hp(250, choice=(50, 100, 250), ge=1, doc="its iterations, of at most 20 inner ones each")
    inversion_images: int = hp(20, choice=(1, 10, 20), ge=1, doc="of its last iterates so many are kept as images")
    reset_best: bool = hp(True, doc="a task's models are not compared with those of the one before; official: false")

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        if not inputs.is_image:
            kind = "texts" if inputs.text else "feature vectors"
            name = type(self).__name__.lower()
            raise ConfigError(f"{name} makes images of gradients, the data are {kind}; choose another algorithm")
        return {"encoder": LeNet(inputs.shape, len(inputs.classes))}

    def next_exchange(self, ctx: Context, state: GLFCState) -> Exchange | None:
        """When a task ends every client with samples of it chooses exemplars, by features of the new model."""
        if (ctx.clock.phase, ctx.clock.exchange) == ("task_end", 0):
            return Exchange("exemplars", self.model_alone, self.kept, self.keep, who="task")
        return super().next_exchange(ctx, state)

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        none, x = OldModel(w[:0], b[:0], -1), torch.zeros(0, *ctx.inputs.shape, device=w.device)
        return GLFCState(w, b, none, none, x, torch.zeros(0, dtype=torch.int64, device=w.device), 0.0)

    def broadcast(self, ctx: Context, state: GLFCState) -> Record:
        none, is_first = OldModel(state.w[:0], state.b[:0], -1), ctx.clock.round == 0
        first, second = state.best_1, state.best_2
        if self.transition == "known":  # which of them is read is known as well
            first, second = (none, second) if is_first else (first, none)
        return GLFCDown(state.w, state.b, first, second)

    def model_alone(self, ctx: Context, state: GLFCState) -> Record:
        return Broadcast(state.w, state.b)

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        pool = [gradient for sent in updates.gradients if sent is not None for gradient in sent]
        if pool:
            noise = ctx.rng("reconstruction").standard_normal((len(pool), *ctx.inputs.shape), dtype=np.float32)
            start, search = torch.from_numpy(noise).to(ctx.device), (self.inversion_lr, self.inversion_steps)
            x, y = decoded(ctx.net["encoder"], torch.stack(pool), start, *search, self.inversion_images)
            x = ctx.inputs.normalised(ctx.inputs.pixels(x).clamp(0, 1))
            state = state.replace(x=x, y=y, best_1=state.best_2, best=0.0 if self.reset_best else state.best)
        if len(state.y):
            score = self.score(ctx, state)
            metrics = {**metrics, "glfc/monitor_acc": score}
            if score >= state.best:
                state = state.replace(best=score, best_2=OldModel(state.w, state.b, ctx.clock.task))
        return state, metrics

    def score(self, ctx: Context, state: Any) -> float:
        """The accuracy of the global model on the reconstructed images, among the classes seen."""
        with torch.no_grad():
            return accuracy(ctx, ctx.objective.at(state.w, state.b)(state.x), state.y)

    def kept(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        return state, {"exemplars/kept": updates.exemplars}

    # client -----------------------------------------------------------------------------------
    def step_cost(self) -> float:
        return 1 + 1 / 3

    def init_client(self, ctx: Context) -> GLFCClient:
        return GLFCClient.of(self.own_statistics(ctx.objective.initial()[1]), exemplars={}, entropy=0.0)

    def num_exemplars(self, client: GLFCClient) -> int:
        return sum(map(len, client.exemplars.values()))

    def begin(self, ctx: Context, down: GLFCDown, client: GLFCClient, data: ClientData) -> GLFCCarry:
        base, entropy, signal = super().begin(ctx, down, client, data), client.entropy, ctx.clock.round == 0
        if self.transition == "entropy":
            model = ctx.objective.at(base.w, base.b)
            with torch.no_grad():
                logits = torch.cat([in_use(ctx).seen.narrow(model(batch.x)) for batch in data.plain])
            entropy = float(mean_entropy(logits))
            signal = entropy - client.entropy > self.entropy_rise
        return GLFCCarry.of(base, old=down.best_2 if signal else down.best_1, signal=signal, entropy=entropy)

    def batches(
        self, ctx: Context, down: GLFCDown, client: GLFCClient, carry: GLFCCarry, data: ClientData
    ) -> Iterable[Batch]:
        # a client without samples of the last task had no reason to choose again, and still keeps more of each class
        most = quota(self.memory_size, len(in_use(ctx).old))
        kept = [numbers[:most].cpu().numpy() for numbers in client.exemplars.values()]
        mixed = data.with_samples(np.concatenate(kept)) if kept else data
        return mixed.batches(self.batch_size, epochs=self.local_epochs)

    def gradient(self, ctx: Context, down: Any, client: Any, carry: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        seen, old = in_use(ctx).seen, None
        y = seen.local(batch.y)
        if carry.old.task >= 0:
            learned = until(ctx, carry.old.task)
            with torch.no_grad():
                old = learned.narrow(ctx.objective.at(carry.old.w, carry.old.b)(batch.x)), seen.local(learned.index)
        return ctx.objective.value_and_grad(
            lambda f: self.loss(ctx, seen.narrow(f(batch.x)), y, old), carry.w, carry.b, out=carry.grad
        )

    def loss(self, ctx: Context, logits: Tensor, y: Tensor, old: Old) -> Tensor:
        """L of logits `[B, C]` and places `y [B]` among the classes seen."""
        w, target = self.compensation(ctx, logits, y), F.one_hot(y, logits.shape[1]).to(logits)
        current = weighted_bce(logits, target, w)
        return current if old is None else 0.5 * (current + weighted_bce(logits, distillation_target(target, *old)))

    def compensation(self, ctx: Context, logits: Tensor, y: Tensor) -> Tensor:
        """w `[B]`."""
        classes = in_use(ctx)
        return glfc_weights(logits, y, classes.old.has(classes.seen.index))

    def end(
        self, ctx: Context, down: Any, client: GLFCClient, carry: GLFCCarry, data: ClientData
    ) -> tuple[GLFCUpdate, GLFCClient]:
        gradients = self.prototype_gradients(ctx, carry, data) if carry.signal else None
        after = client.replace(b=self.own_statistics(carry.b).b, entropy=carry.entropy)
        return GLFCUpdate(carry.w, carry.b, gradients), after

    def prototype_gradients(self, ctx: Context, carry: GLFCCarry, data: ClientData) -> Tensor:
        """The encoder's gradient `[classes held, P of the encoder]` at a perturbed prototype of each class."""
        model, seen, sent = ctx.objective.at(carry.w, carry.b), in_use(ctx).seen, []
        z, y = represented(model, data.plain)
        for c in torch.unique(y):
            mine, label = (y == c).cpu().numpy(), c[None]
            (batch,) = data.only(data.numbers[mine][[nearest_to_mean(z[y == c])]]).plain
            target = F.one_hot(seen.local(label), len(seen)).to(z)

            def loss(x: Tensor, target: Tensor = target) -> Tensor:
                return weighted_bce(seen.narrow(model(x)), target)

            image = perturbed(loss, batch.x, self.proto_lr, self.proto_steps)
            sent.append(encoder_gradient(ctx.net["encoder"], image, label))
        return torch.stack(sent)

    def keep(self, ctx: Context, down: Broadcast, client: GLFCClient, data: ClientData) -> tuple[Any, Any, Metrics]:
        """The client with exemplars of the classes that it holds, and of the older ones what fits beside them."""
        most = quota(self.memory_size, len(in_use(ctx).seen))
        chosen = {c: numbers[:most] for c, numbers in client.exemplars.items()}
        z, y = represented(ctx.objective.at(down.w, down.b), data.plain)
        numbers = torch.from_numpy(data.numbers.astype(np.int64)).to(z.device)
        for c in torch.unique(y):
            chosen[str(int(c))] = numbers[y == c][herding(z[y == c], most)]
        total = torch.tensor(float(sum(map(len, chosen.values()))))
        return Kept(total), client.replace(exemplars=chosen), {}


def in_use(ctx: Context) -> Classes:
    """The classes of the tasks so far; of one task without any, all."""
    return ctx.classes or Classes([range(len(ctx.inputs.classes))], len(ctx.inputs.classes), ctx.device)


def until(ctx: Context, task: int) -> ClassSet:
    """The classes of all tasks up to number `task`."""
    classes = in_use(ctx)
    return ClassSet(
        chain.from_iterable(classes.task(t).index.tolist() for t in range(task + 1)), classes.size, ctx.device
    )


def accuracy(ctx: Context, logits: Tensor, y: Tensor) -> float:
    """Share of the labels `y [n]` that have the largest of the logits `[n, C]` among the classes seen."""
    seen = in_use(ctx).seen
    return float((seen.index[seen.narrow(logits).argmax(dim=1)] == y).float().mean())
