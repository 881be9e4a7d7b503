"""TARGET (Zhang et al., ICCV 2023): before a new task the server synthesizes images from the old model, and clients
distil the old model on them.

Server: a generator G, new for each task, and a student, drawn anew. In each round, noise z and a copy G' take `g_steps`
steps of Adam on w_bn statistics + w_oh CE(old, y) + w_adv L_adv of augmented G'(z), for random labels y
(`flray.ops.synthesis.inversion_loss`). The images with the lowest loss go to the pool as 8 bits. G takes one Adam step
along the sum of the gradients (MAML) or 67 (G - G') (Reptile). The student learns T^2 KL(old || student) on the pool.
Client, on real samples (x, y) and a batch of the pool, with logits s of the model and t of the old model on the pool:
CE_new(x, y) - lambda_kd mean sum_c softmax(t / 2)_c log softmax(s / 2)_c over the old classes c.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import ceil, cos, pi
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from flray.algorithms.data_free import DataFreePool, PoolDown, PoolState
from flray.algorithms.fedavg import OwnStatistics, SGDState
from flray.core.messages import Batch, Metrics
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.models.generators import TargetGenerator
from flray.ops.generate import AveragedStatistics, eight_bit, noise, reinitialised
from flray.ops.losses import soft_cross_entropy
from flray.ops.optim import Moments, adam_direction_
from flray.ops.synthesis import BETAS, InversionWeights, Student, Teacher, invert

REPTILE = 67.0
ETA_MIN, PERIOD = 2e-4, 200  # of the student's cosine schedule, in rounds


def pool_indices(rounds: int, batch: int, size: int, official: bool) -> Tensor:
    """The places `[n]`, n <= `size`, of the pool's inputs among `rounds * batch` synthetic ones: the first; official:
    the first when sorted as text by their file names ROUND-NUMBER.png."""
    if not official:
        return torch.arange(min(rounds * batch, size))
    names = sorted((f"{i}-{j}.png", i * batch + j) for i in range(rounds) for j in range(batch))
    return torch.tensor([number for _, number in names[:size]])


class Target(DataFreePool, frozen=True):
    keeps: ClassVar[str] = "synthetic images and the old model on the server and the clients; no samples"

    lambda_kd: float = hp(25.0, log=(1.0, 100.0), ge=0, doc="weight of the clients' distillation (lambda_kd)")
    syn_bs: int = hp(256, choice=(64, 128, 256), ge=1, doc="synthetic inputs beside each batch of real samples")
    official_pool: bool = hp(
        False, doc="official code: the pool has images of the warm-up too, and the first by file name"
    )
    lr_z: float = hp(0.01, log=(1e-3, 0.1), gt=0, doc="learning rate of the noise")
    official_adv: bool = hp(False, doc="official code: L_adv starts in the last round of the warm-up")
    is_maml: bool = hp(True, doc="G follows the sum of the gradients; false: Reptile")
    reset_round: int | None = hp(120, ge=1, doc="round after the warm-up at which G's first layers are drawn anew")

    # server -----------------------------------------------------------------------------------
    def generator(self, shape: tuple[int, ...]) -> nn.Module:
        return TargetGenerator(shape, self.noise_dim)

    def synthesize(self, ctx: Context, state: PoolState, old: Teacher) -> tuple[PoolState, Metrics]:
        generator, classes = ctx.net["generator"], len(ctx.inputs.classes) if old.classes is None else len(old.classes)
        g, _ = generator.initial()
        meta = Moments(torch.zeros_like(g), torch.zeros_like(g), 0)
        student = Student.of(*reinitialised(ctx.objective, ctx.rng("student")))
        average: AveragedStatistics = ()
        images, labels, pool, metrics = list[Tensor](), list[Tensor](), state.pool[:0], dict[str, float | Tensor]()
        progress, last = ctx.progress("TARGET makes inputs"), self.warmup + self.syn_round
        for number in range(1, last + 1):
            progress(number, last)
            draws, after_warmup = ctx.rng("synthesis", number), number - self.warmup
            if after_warmup == self.reset_round:
                self.reset_first_layers(ctx, g, draws)
            z = noise(draws, self.syn_batch, self.noise_dim, device=g.device)
            y = torch.from_numpy(draws.integers(0, classes, self.syn_batch)).to(g.device)
            adversarial = after_warmup > 0 or (self.official_adv and after_warmup == 0)
            result, average = invert(
                old,
                generator,
                g,
                [z],
                partial(self.generate, ctx, draws),
                y,
                student=student if adversarial else None,
                average=average,
                weights=InversionWeights(self.bn, self.oh, self.adv),
                lr_free=self.lr_z,
                **self.inversion,
            )
            gradient = result.gradient if self.is_maml else REPTILE * (g - result.w)
            direction = adam_direction_(g, gradient, meta.replace(steps=number - 1), 0.0, betas=BETAS)
            g = g.sub(direction, alpha=self.lr_g * self.g_steps)
            if after_warmup > 0 or self.official_pool:
                images.append(eight_bit(result.best))
                labels.append(y)
            if after_warmup > 0:
                index = pool_indices(len(images), self.syn_batch, self.pool_size, self.official_pool).to(g.device)
                pool = torch.cat(images)[index]
                rate = ETA_MIN + (self.student_lr - ETA_MIN) * (1 + cos(pi * (after_warmup - 1) / PERIOD)) / 2
                student, loss = self.teach_student(ctx, old, student, pool, draws, rate)
                metrics = {"generate/loss": result.losses[-1], "generate/student_loss": loss}
        metrics["generate/student_acc"] = self.student_accuracy(ctx, old, student, pool, torch.cat(labels)[index])
        return state.replace(pool=pool), {**metrics, "generate/inputs": float(len(pool))}

    def generate(self, ctx: Context, draws: np.random.Generator, model: BoundModel, z: Tensor) -> tuple[Tensor, Tensor]:
        """(G(z), the same augmented and normalised)."""
        images = model(z)
        return images, ctx.inputs.normalised(self.augmented(ctx, images, draws))

    def reset_first_layers(self, ctx: Context, g: Tensor, draws: np.random.Generator) -> None:
        """Draws the generator's first linear layer and norm anew, in place: weights N(0, 0.02), biases 0."""
        views = ctx.net["generator"].views(g)
        for name in ("first", "blocks.0"):
            weight = views[f"{name}.weight"]
            weight.copy_(0.02 * noise(draws, *weight.shape, device=g.device))
            views[f"{name}.bias"].zero_()

    # client -----------------------------------------------------------------------------------
    def batches_per_epoch(self, ctx: ClientContext, pool: Tensor) -> int:
        """Steps of a local epoch: batches of the client's samples, or of the pool if that has fewer."""
        own = int(self.epoch_batches(np.array([ctx.num_examples]))[0])
        return min(own, ceil(len(pool) / self.syn_bs))

    def batches(
        self, ctx: ClientContext, broadcast: PoolDown, client: OwnStatistics, local: SGDState, data: ClientData
    ) -> Iterable[Batch]:
        batches = super().batches(ctx, broadcast, client, local, data)
        if not len(broadcast.pool):
            return batches
        own = int(self.epoch_batches(np.array([ctx.num_examples]))[0])
        used = self.batches_per_epoch(ctx, broadcast.pool)
        return (batch for i, batch in enumerate(batches) if i % own < used)

    def gradient(
        self, ctx: ClientContext, broadcast: PoolDown, client: OwnStatistics, local: SGDState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        if not len(broadcast.pool) or ctx.classes is None:
            return super().gradient(ctx, broadcast, client, local, batch)
        if not self.lambda_kd:
            return ctx.objective.value_and_grad(
                lambda f: self.local_loss(ctx, f(batch.x), batch.y), local.w, local.b, out=local.grad
            )
        old = ctx.classes.old
        x = self.pool_batch_of_step(
            ctx, broadcast.pool, local.moments.steps, self.syn_bs, self.batches_per_epoch(ctx, broadcast.pool)
        )
        with torch.no_grad():
            target = old.narrow(ctx.objective.at(broadcast.old_w, broadcast.old_b)(x))

        def loss(model: BoundModel) -> Tensor:
            value = self.local_loss(ctx, model(batch.x), batch.y)
            return value + self.lambda_kd * soft_cross_entropy(target, old.narrow(model(x)), self.kd_temperature)

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)
