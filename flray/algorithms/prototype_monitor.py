"""GLFC's proxy server (Dong et al., CVPR 2022, section 3.4): selects a task's best global model by its accuracy on
images reconstructed from gradients. A base of GLFC and LGA, not an algorithm by itself.

Client: sends, for each class that it holds, the gradient of an encoder at a perturbed prototype image. Server:
reconstructs images from these gradients, measures each global model's accuracy on them, and stores the best model of
this task, best_2, and of the last one, best_1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import TypeVar

from flray.algorithms.fedavg import Down, FedAvg, Local, Stored
from flray.core.messages import Metrics, Record, ServerState
from flray.core.network.objective import BoundModel
from flray.core.protocol.algorithm import Received, Sent
from flray.core.protocol.context import Context
from flray.core.protocol.inputs import Inputs
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.models.cnn import LeNet
from flray.ops.compensation import weighted_bce
from flray.ops.exemplars import extract_features, nearest_to_mean, places_by_class
from flray.ops.gradient_inversion import encoder_gradient, invert_gradients, perturb_inputs


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


class PrototypeMonitor(FedAvg[MonitoredStateT, Down, Sent, Stored, Local, Received], frozen=True):
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

    def networks(self, model: nn.Module, inputs: Inputs) -> Mapping[str, nn.Module]:
        if not inputs.is_image:
            kind = "texts" if inputs.text else "feature vectors"
            name = type(self).__name__.lower()
            raise ConfigError(
                f"{name} reconstructs images from gradients, the data are {kind}; choose another algorithm"
            )
        return {"encoder": LeNet(inputs.shape, len(inputs.classes))}

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> MonitoredStateT:
        none, x = OldModel(w[:0], b[:0], -1), torch.zeros(0, *ctx.inputs.shape, device=w.device)
        y = torch.zeros(0, dtype=torch.int64, device=w.device)
        return MonitoredState(w, b, none, none, x, y, 0.0)  # type: ignore[return-value]

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

    # client -----------------------------------------------------------------------------------
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


def accuracy(ctx: Context, logits: Tensor, y: Tensor) -> float:
    """Share of the labels `y [n]` that have the largest of the logits `[n, C]` among the classes seen."""
    return float((ctx.in_use.seen.largest(logits) == y).float().mean())
