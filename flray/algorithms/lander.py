"""LANDER (Tran et al., CVPR 2024): embeddings of the class names anchor features, in training and in the server's
synthesis, which is NAYER's (Tran et al., CVPR 2024).

att = Linear(features) `[B, E]`; e_y is the embedding of label y; B(u, v) = max(0, MSE(u, v) - r). Client, first task:
CE + lambda_ltc B(att, e_y). Later, with s and t the outputs of the model and the old model on synthetic inputs, C_t
classes of the tasks so far, alpha = log2(C_t / 2 + 1), beta = sqrt(C_{t-1} / C_t): a_cur (1 + 1/alpha) / beta (CE_new +
lambda_ltc B(att, e_y)) + a_pre alpha beta (KD(t, s) + MSE(att_s, att_t)). Domains with one head count the same classes
again in every task: C_t = C t. Server: the generator reads e_y through linear layers, which are drawn anew each round,
and takes `g_steps` steps of Adam on w_bn statistics + w_oh CE + w_adv L_adv + lambda_ltc B(att, e_y). The inputs with
the lowest loss go to the pool, on which a student learns T^2 KL + lambda_ltc MSE(att)."""

from __future__ import annotations

from functools import partial
from math import ceil, log2, sqrt
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.algorithms.data_free import DataFreePool, PoolDown, PoolState
from flray.algorithms.fedavg import OwnStatistics, SGDState
from flray.core.messages import Batch, Metrics
from flray.core.messages.fields import shared
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.inputs import Inputs
from flray.core.schema.hp import hp
from flray.models.base import linear_head
from flray.models.generators import NoisyLabelGenerator
from flray.models.label_embeddings import label_embeddings
from flray.ops.generate import (
    AveragedStatistics,
    balanced_labels,
    bounding_loss,
    eight_bit,
    reinitialised,
    renew_noisy_layers_,
)
from flray.ops.losses import soft_cross_entropy
from flray.ops.synthesis import InversionWeights, Student, Teacher, invert, logits_and_embedding

ATT = "att"  # the layer that reads the features beside the head
LR_COLOUR = 0.01
COLOUR = (0.5, 0.2)  # initial mean and standard deviation of synthetic images, which are optimised too


class LanderState(PoolState):
    """TARGET's state and the label-text embeddings `lte [C, E]`."""

    lte: Tensor


class LanderDown(PoolDown):
    """TARGET's broadcast and the embeddings. A client gets them once."""

    lte: Tensor = shared()


class Lander(DataFreePool[LanderState, LanderDown], frozen=True):
    keeps: ClassVar[str] = "synthetic images and the old model on the server and the clients; no samples"

    lte: str | None = hp(
        None, doc="label embeddings: a .safetensors or .npy file, the folder of a text model, or random"
    )
    lte_dim: int = hp(512, ge=1, doc="width of the label embeddings (E)")
    lte_norm: Literal["none", "unit"] = hp(
        "none", doc="none: embeddings are not scaled, as r is absolute; unit: length 1"
    )
    lambda_ltc: float = hp(
        0.5, log=(0.1, 10.0), ge=0, doc="weight of the distance to the label's embedding (lambda_ltc)"
    )
    radius: float = hp(0.015, log=(1e-3, 0.1), ge=0, doc="mean squared distance without a penalty (r)")
    a_cur: float = hp(0.3, linear=(0.1, 1.0), ge=0, doc="weight of the new task (a_cur)")
    a_pre: float = hp(0.3, linear=(0.1, 1.0), ge=0, doc="weight of the old tasks (a_pre)")
    syn_bs: int = hp(1, choice=(1, 2), ge=1, doc="synthetic inputs beside each batch, in units of batch_size")
    pool_size: int = hp(
        10000, choice=(2000, 5000, 10000, 12800), ge=1, doc="largest number of synthetic inputs in the pool"
    )
    rows: int = hp(10, ge=1, doc="samples that share a noisy layer (nl)")
    bn: float = hp(1.0, log=(0.1, 10.0), ge=0, doc="weight of the batch-norm statistics (lambda_bn)")
    kd_steps: int = hp(50, choice=(50, 400), ge=1, doc="steps of the student per round of synthesis")

    def module(self, model: nn.Module, inputs: Inputs) -> nn.Module:
        model.add_module(ATT, nn.Linear(linear_head(model, "lander").in_features, self.lte_dim))
        return model

    # server -----------------------------------------------------------------------------------
    def generator(self, shape: tuple[int, ...]) -> nn.Module:
        return NoisyLabelGenerator(shape, self.lte_dim, self.noise_dim, self.syn_batch, self.rows)

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> LanderState:
        draws = ctx.rng("label embeddings")
        lte = label_embeddings(self.lte, ctx.inputs.classes, self.lte_dim, draws).to(w.device)
        return LanderState.of(super().init_server(ctx, w, b), lte=F.normalize(lte) if self.lte_norm == "unit" else lte)

    def broadcast(self, ctx: Context, state: LanderState) -> LanderDown:
        return LanderDown(**state.broadcast_fields())

    def synthesize(self, ctx: Context, state: LanderState, old: Teacher) -> tuple[LanderState, Metrics]:
        generator, old = ctx.net["generator"], old._replace(embedding_layer=ATT)
        g, _ = generator.initial()
        w, b = reinitialised(ctx.objective, ctx.rng("student"))
        free = [torch.full((ctx.inputs.shape[0],), value, device=g.device) for value in COLOUR if ctx.inputs.is_image]
        embeddings = state.lte if old.classes is None else state.lte[old.classes.index]
        average: AveragedStatistics = ()
        images, labels, metrics = list[Tensor](), list[Tensor](), dict[str, float | Tensor]()
        progress, last = ctx.progress("LANDER makes inputs"), self.warmup + self.syn_round
        for number in range(1, last + 1):
            progress(number, last)
            draws = ctx.rng("synthesis", number)
            renew_noisy_layers_(generator.views(g), draws)
            y = balanced_labels(self.syn_batch, len(embeddings), draws).to(g.device)
            result, average = invert(
                old,
                generator,
                g,
                free,
                partial(self.generate, ctx, draws, embeddings[y]),
                y,
                student=Student.of(w, b) if number >= self.warmup + 3 else None,
                average=average,
                weights=InversionWeights(self.bn, self.oh, self.adv, self.lambda_ltc, self.radius),
                lr_free=LR_COLOUR,
                embeddings=embeddings[y],
                **self.inversion,
            )
            g, free = result.w, list(result.free)
            if number >= self.warmup:
                images.append(eight_bit(result.best))
                labels.append(y)
                pool = torch.cat(images)[: self.pool_size]
                _, loss = self.teach_student(ctx, old, Student.of(w, b), pool, draws, self.student_lr, self.lambda_ltc)
                metrics = {"generate/loss": result.losses[-1], "generate/student_loss": loss}
        made_for = torch.cat(labels)[: len(pool)]
        metrics["generate/student_acc"] = self.student_accuracy(ctx, old, Student.of(w, b), pool, made_for)
        return state.replace(pool=pool), {**metrics, "generate/inputs": float(len(pool))}

    def generate(
        self, ctx: Context, draws: np.random.Generator, e: Tensor, model: BoundModel, *colour: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(images of the label embeddings `e [B, E]`, the same augmented and normalised by the optimised `colour`)."""
        images = model(e)
        x = self.augmented(ctx, images, draws)
        return images, (x - colour[0][:, None, None]) / colour[1][:, None, None] if colour else x

    # client -----------------------------------------------------------------------------------
    def gradient(
        self, ctx: ClientContext, broadcast: LanderDown, client: OwnStatistics, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        e = broadcast.lte[batch.y]

        def loss_on_real(model: BoundModel) -> Tensor:
            logits, att = logits_and_embedding(model, batch.x, ATT)
            return self.local_loss(ctx, logits, batch.y) + self.lambda_ltc * bounding_loss(att, e, self.radius)

        if not len(broadcast.pool) or ctx.classes is None:
            return ctx.objective.value_and_grad(loss_on_real, local.w, local.b, out=local.grad)
        old, size = ctx.classes.old, self.syn_bs * self.batch_size
        seen = sum(len(ctx.classes.task(t)) for t in range(ctx.clock.task + 1))
        alpha, beta = log2(seen / 2 + 1), sqrt((seen - len(ctx.classes.new)) / seen)
        x = self.pool_batch_of_step(ctx, broadcast.pool, local.moments.steps, size, ceil(len(broadcast.pool) / size))
        with torch.no_grad():
            old_logits, old_att = logits_and_embedding(ctx.objective.at(broadcast.old_w, broadcast.old_b), x, ATT)

        def loss(model: BoundModel) -> Tensor:
            current = loss_on_real(model)
            logits, att = logits_and_embedding(model, x, ATT)
            previous = soft_cross_entropy(old.narrow(old_logits), old.narrow(logits), self.kd_temperature)
            previous = previous + F.mse_loss(att, old_att)
            return self.a_cur * (1 + 1 / alpha) / beta * current + self.a_pre * alpha * beta * previous

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)
