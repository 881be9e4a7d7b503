"""MFCL (Babakniya et al., NeurIPS 2023): the server trains a generator on the old model's outputs; clients train on its
samples of the classes that they no longer have.

Server, before a task: Adam on the generator's loss CE(o/1000, argmax o) + w_ie entropy + w_bn statistics + w_noise
smoothness, o the old model's logits over the q learned classes (`flray.ops.generate.mfcl_loss`).
Client, on a batch of real samples (x, y) and n_syn synthetic ones with y = argmax o; h are the features of both:
CE(new classes' logits of the real, y) + w_ft CE(f(stop h), y) + w_kd mean_i mean_{c<q} (f_old(h_i)_c - o_ic)^2.

FedMemo's baseline (see the card) knows when classes vanish: with `from_round` the server trains the generator at the
beginning of that round on all classes seen so far, and clients use it until `to_round`. The first term then reads the
classes `available`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.algorithms.data_free import DataFree, OldDown, OldState
from flray.algorithms.fedavg import OwnStatistics, SGDState
from flray.core.messages import Batch, Metrics
from flray.core.messages.fields import shared
from flray.core.network.objective import BoundModel
from flray.core.protocol.algorithm_section import Setting, of_tasks_alone
from flray.core.protocol.classes import ClassSet
from flray.core.protocol.context import ClientContext, Context
from flray.core.schema.hp import hp
from flray.models.generators import MFCLGenerator
from flray.ops.generate import MFCLWeights, noise
from flray.ops.losses import cross_entropy
from flray.ops.synthesis import Teacher, fit_mfcl_generator


class MFCLState(OldState):
    """The models and the generator, one for all tasks: parameters `[G]` and statistics."""

    generator_w: Tensor
    generator_b: Tensor


class MFCLDown(OldDown):
    """The models and the generator. A client gets each generator once."""

    generator_w: Tensor = shared()
    generator_b: Tensor = shared()


class MFCL(DataFree[MFCLState, MFCLDown], frozen=True):
    float32_only: ClassVar[str] = "its generator"
    keeps: ClassVar[str] = "a generator and the old model on the server and the clients; no samples"

    lr: float = hp(
        0.1, log=(1e-3, 1.0), gt=0, doc="local learning rate; with lr_decay 0.9772 it is 0.01 after 100 rounds"
    )
    momentum: float = hp(0.0, choice=(0.0, 0.5, 0.9), ge=0, lt=1, doc="momentum of SGD; Adam does not read it")
    weight_decay: float = hp(1e-5, log=(1e-6, 1e-2), ge=0, doc="weight decay, added to the gradient")
    local_epochs: int = hp(10, choice=(1, 2, 5, 10, 20), ge=1, doc="local epochs per round (E)")
    batch_size: int = hp(32, choice=(10, 32, 50, 64, 128, 256), ge=1, doc="local batch size (B), of real samples")
    weighting: Literal["examples", "uniform"] = hp(
        "uniform", doc="aggregation weights: n_k over the cohort's sum, or equal"
    )
    syn_size: int = hp(128, choice=(32, 64, 128), ge=1, doc="synthetic samples beside each batch of real ones (n_syn)")
    w_ft: float = hp(1.0, log=(0.1, 10.0), ge=0, doc="weight of the head's cross-entropy over all classes seen")
    w_kd: float = hp(0.1, log=(0.01, 10.0), ge=0, doc="weight of the distance of the old head's logits")
    double_forward: bool = hp(
        False,
        doc="official code: the head's features come from a second pass, which updates batch-norm statistics again",
    )
    noise_dim: int = hp(1000, ge=1, doc="width of the generator's noise")
    pi: int = hp(100, choice=(50, 100, 200), ge=1, doc="steps of the generator before each task (pi)")
    generator_lr: float = hp(1e-3, log=(1e-4, 1e-2), gt=0, doc="learning rate of the generator (Adam)")
    generator_batch_size: int = hp(128, choice=(64, 128, 256), ge=2, doc="batch size of the generator")
    w_ie: float = hp(1.0, log=(0.1, 10.0), ge=0, doc="weight of the information entropy")
    w_bn: float = hp(50.0, log=(1.0, 100.0), ge=0, doc="weight of the batch-norm statistics")
    w_noise: float = hp(1e-3, log=(1e-4, 1e-1), ge=0, doc="weight of the smoothness prior")
    from_round: int | None = hp(None, ge=1, doc="known drift: first round (from 1) without some classes; none: tasks")
    to_round: int | None = hp(None, ge=1, doc="with from_round: first round with all classes again; none: never")
    available: tuple[int, ...] | None = hp(None, doc="with from_round: classes in those rounds; none: all")
    refresh: int | None = hp(
        None, ge=1, doc="with from_round: rounds between updates of the old model and the generator; none: no update"
    )

    # server -----------------------------------------------------------------------------------
    def generator(self, shape: tuple[int, ...]) -> nn.Module:
        return MFCLGenerator(shape, self.noise_dim)

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        return of_tasks_alone(setting) if self.from_round is None else ()

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> MFCLState:
        return MFCLState(w, b, w[:0], b[:0], *ctx.net["generator"].initial())

    def synthesis_due(self, ctx: Context) -> bool:
        if self.from_round is None:
            return super().synthesis_due(ctx)
        since = ctx.clock.done + 1 - self.from_round
        refresh = since == 0 or (self.refresh is not None and since % self.refresh == 0)
        return ctx.clock.phase == "round" and self.in_drop(ctx) and refresh

    def in_drop(self, ctx: Context) -> bool:
        """Whether classes are missing in this round, by `from_round` and `to_round`."""
        number = ctx.clock.done + 1
        return self.from_round is not None and self.from_round <= number < (self.to_round or number + 1)

    def learned_classes(self, ctx: Context) -> ClassSet:
        return self.class_sets(ctx)[2]

    def synthesize(self, ctx: Context, state: MFCLState, old: Teacher) -> tuple[MFCLState, Metrics]:
        w, b, losses = fit_mfcl_generator(
            ctx.net["generator"],
            state.generator_w,
            state.generator_b,
            old,
            ctx.rng("generator"),
            steps=self.pi,
            batch_size=self.generator_batch_size,
            lr=self.generator_lr,
            weights=MFCLWeights(self.w_ie, self.w_bn, self.w_noise),
            progress=ctx.progress("MFCL trains its generator"),
        )
        metrics = {"generate/loss_first": losses[0], "generate/loss_last": losses[-1]}
        return state.replace(generator_w=w, generator_b=b), metrics

    def broadcast(self, ctx: Context, state: MFCLState) -> MFCLDown:
        if self.in_drop(ctx) if self.from_round is not None else len(state.old_w):
            return MFCLDown(**state.broadcast_fields())
        none, no_b = state.w[:0], state.b[:0]
        return MFCLDown(state.w, state.b, none, no_b, none, no_b)

    # client -----------------------------------------------------------------------------------
    def class_sets(self, ctx: Context) -> tuple[ClassSet, ClassSet, ClassSet]:
        """(classes of the loss's first term, all classes seen, classes that the old model has learned)."""
        classes = ctx.in_use
        if self.from_round is None:
            return classes.new, classes.seen, classes.seen if ctx.classes is None else classes.old
        new = classes.new if self.available is None else ClassSet(self.available, classes.size, ctx.device)
        return new, classes.seen, classes.seen

    def gradient(
        self, ctx: ClientContext, broadcast: MFCLDown, client: OwnStatistics, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        if not len(broadcast.old_w):
            return super().gradient(ctx, broadcast, client, local, batch)
        new, seen, learned = self.class_sets(ctx)
        old = ctx.objective.at(broadcast.old_w, broadcast.old_b)
        with torch.no_grad():
            z = noise(ctx.rng("made", local.moments.steps), self.syn_size, self.noise_dim, device=ctx.device)
            synthetic = ctx.net["generator"].at(broadcast.generator_w, broadcast.generator_b)(z)
            x = torch.cat([batch.x, synthetic])
            old_logits = learned.narrow(old(x))
        real = len(batch.y)
        y = torch.cat([batch.y, learned.index[old_logits[real:].argmax(1)]])
        # without a window of missing classes all samples are of the task; a mask makes a GPU wait for its size
        chosen = None if self.from_round is None else new.has(batch.y).nonzero()[:, 0]

        def loss(model: BoundModel) -> Tensor:
            h = model.features(x)
            stop_h = h.detach()
            if self.double_forward:
                with torch.no_grad():
                    stop_h = model.features(x)
            value = self.w_ft * cross_entropy(model.head(stop_h), y, seen)
            if chosen is None:
                value = value + cross_entropy(model.head(h[:real]), batch.y, new)
            elif len(chosen):
                value = value + cross_entropy(model.head(h[:real][chosen]), batch.y[chosen], new)
            return value + self.w_kd * F.mse_loss(learned.narrow(old.head(h)), old_logits)

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)
