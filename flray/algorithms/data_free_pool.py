"""What TARGET and LANDER share: a pool of synthetic inputs of the old classes. Not an algorithm by itself.

The server makes the pool (`flray.ops.synthesis`). In each local step a client reads a batch of the pool beside its own
batch and distils the old model on it. LODE (Liang and Li, NeurIPS 2023) is an option of both methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from flray.algorithms.data_free import DataFree, OldDown, OldState
from flray.core.messages.fields import shared
from flray.core.protocol.algorithm_section import Setting, of_tasks_alone
from flray.core.protocol.context import Context
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.data.augment import AugmentDraws, apply_resized_crop, boxes
from flray.ops.generate import crop_and_flip, pixels
from flray.ops.losses import cross_entropy, inter_task_loss
from flray.ops.synthesis import Student, Teacher, endless_batches, train_student


def resized_crops(images: Tensor, draws: np.random.Generator) -> Tensor:
    """A random crop of each image, uint8 `[B, C, H, W]`, of 8 to 100 % of its area, resized to the image's size:
    torchvision's `RandomResizedCrop`, with which FedProTIP's code reads its pool."""
    count, _, height, width = images.shape
    box = torch.from_numpy(boxes(draws, count, height, width, (0.08, 1.0))).to(images.device)
    parts = apply_resized_crop(images.permute(0, 2, 3, 1), AugmentDraws(None, None, None, box, None))
    return parts.permute(0, 3, 1, 2)


class PoolState(OldState):
    """The global and the old model, and the `pool [n, ...]` of synthetic inputs, images as uint8; `[0]` in the first
    task."""

    pool: Tensor


class PoolDown(OldDown):
    """The models and the pool. A client gets each pool once."""

    pool: Tensor = shared()


PoolStateT = TypeVar("PoolStateT", bound=PoolState, default=PoolState)
PoolDownT = TypeVar("PoolDownT", bound=PoolDown, default=PoolDown)


class DataFreePool(DataFree[PoolStateT, PoolDownT], frozen=True):
    float32_only: ClassVar[str] = "its generator"
    lr: float = hp(0.01, log=(1e-4, 1.0), gt=0, doc="local learning rate (eta)")
    momentum: float = hp(0.0, choice=(0.0, 0.5, 0.9), ge=0, lt=1, doc="momentum of SGD; Adam does not read it")
    weight_decay: float = hp(5e-4, log=(1e-6, 1e-2), ge=0, doc="weight decay, added to the gradient")
    batch_size: int = hp(64, choice=(10, 32, 50, 64, 128, 256), ge=1, doc="local batch size (B), of real samples")
    lode: float = hp(0.0, ge=0, doc="C of LODE's inter-task loss (TARGET 0.01, LANDER 0.005); 0: plain local CE")
    kd_temperature: float = hp(2.0, linear=(1.0, 5.0), gt=0, doc="temperature of the clients' distillation")
    crop_padding: int | None = hp(None, ge=0, doc="padding of the random crop of synthetic images; none: side / 8")
    pool_crop: Literal["padded", "resized"] = hp(
        "padded",
        doc="crop of images from the pool: padded, as in the synthesis, or RandomResizedCrop (official at 224 pixels)",
    )
    flip: bool = hp(True, doc="flip synthetic images at random")

    # synthesis on the server; LANDER has some other defaults
    pool_size: int = hp(
        8000, choice=(2000, 8000, 10000, 12800), ge=1, doc="largest number of synthetic inputs in the pool"
    )
    noise_dim: int = hp(256, ge=1, doc="width of the noise that the generator's first layer reads (nz)")
    warmup: int = hp(10, ge=1, doc="rounds of synthesis before the student learns")
    syn_round: int = hp(40, choice=(40, 200), ge=1, doc="rounds of synthesis after the warm-up")
    syn_batch: int = hp(256, choice=(64, 128, 256), ge=2, doc="inputs per round of synthesis")
    g_steps: int = hp(40, choice=(40, 100), ge=1, doc="optimisation steps per round of synthesis")
    lr_g: float = hp(2e-3, log=(1e-4, 1e-2), gt=0, doc="learning rate of the generator")
    bn: float = hp(10.0, log=(0.1, 10.0), ge=0, doc="weight of the batch-norm statistics (lambda_bn)")
    oh: float = hp(0.5, log=(0.1, 1.0), ge=0, doc="weight of the labels' cross-entropy (lambda_oh)")
    adv: float = hp(1.0, log=(0.1, 10.0), ge=0, doc="weight of L_adv (lambda_adv)")
    bn_mmt: float = hp(0.9, ge=0, lt=1, doc="momentum of the batch-norm statistics over rounds of synthesis; 0: none")
    kd_steps: int = hp(400, choice=(50, 400), ge=1, doc="steps of the student per round of synthesis")
    kd_batch: int = hp(256, choice=(64, 128, 256), ge=2, doc="batch size of the student")
    student_lr: float = hp(5e-3, log=(1e-3, 0.2), gt=0, doc="learning rate of the student (SGD, momentum 0.9)")
    student_weight_decay: float = hp(2e-4, log=(1e-5, 1e-3), ge=0, doc="weight decay of the student")
    student_temperature: float = hp(20.0, choice=(5.0, 20.0), gt=0, doc="temperature of the student (T)")

    def unsuited(self, setting: Setting) -> tuple[str, ...]:
        return of_tasks_alone(setting)

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> PoolStateT:
        return PoolState(w, b, w[:0], b[:0], w[:0])  # type: ignore[return-value]

    def broadcast(self, ctx: Context, state: PoolStateT) -> PoolDownT:
        return PoolDown(**state.broadcast_fields())  # type: ignore[return-value]

    def augmented(self, ctx: Context, images: Tensor, draws: np.random.Generator) -> Tensor:
        """Synthetic images on the 0..1 scale, cropped and flipped at random; features as they are."""
        padding = ctx.inputs.shape[-1] // 8 if self.crop_padding is None else self.crop_padding
        if images.dim() == 4 and padding > min(images.shape[-2:]):
            height, width = images.shape[-2:]
            raise ConfigError(
                f"algorithm.crop_padding is {padding} and images are {height} x {width}; set it to at most "
                f"{min(height, width)}"
            )
        return crop_and_flip(images, draws, padding, self.flip)

    def pool_inputs(self, ctx: Context, pool: Tensor, index: np.ndarray, draws: np.random.Generator) -> Tensor:
        """Augmented, normalised inputs `[B, ...]` of the pool at the places `index [B]`."""
        chosen = pool[torch.from_numpy(index).to(pool.device)]
        if self.pool_crop == "resized" and chosen.dim() == 4:
            return ctx.inputs.normalised(crop_and_flip(pixels(resized_crops(chosen, draws)), draws, 0, self.flip))
        return ctx.inputs.normalised(self.augmented(ctx, pixels(chosen), draws))

    @property
    def inversion(self) -> dict[str, Any]:
        """The options of :func:`flray.ops.synthesis.invert`."""
        return {"steps": self.g_steps, "lr": self.lr_g, "momentum": self.bn_mmt}

    def teach_student(
        self,
        ctx: Context,
        old: Teacher,
        student: Student,
        pool: Tensor,
        draws: np.random.Generator,
        lr: float,
        ltc: float = 0.0,
    ) -> tuple[Student, Tensor]:
        """The student after a round's steps of distillation on the pool, and the mean loss."""
        how = {"temperature": self.student_temperature, "weight_decay": self.student_weight_decay, "ltc": ltc}
        inputs = self.pool_batches(ctx, pool, self.kd_batch, draws)
        return train_student(old, student, inputs, steps=self.kd_steps, lr=lr, **how)

    @torch.no_grad()
    def student_accuracy(self, ctx: Context, old: Teacher, student: Student, pool: Tensor, labels: Tensor) -> Tensor:
        """The share of the pool's `n` inputs that the student, in eval mode, classifies as the `labels [n]` that they
        were made for, places among the old classes. At chance the generator, or the student, has learned nothing."""
        model, right = ctx.objective.at(student.w, student.b), torch.zeros((), dtype=torch.long, device=pool.device)
        for made, y in zip(pool.split(self.kd_batch), labels.split(self.kd_batch), strict=True):
            right += (old.narrow(model(ctx.inputs.normalised(pixels(made)))).argmax(1) == y).sum()
        return right / len(pool)

    def pool_batches(self, ctx: Context, pool: Tensor, batch_size: int, draws: np.random.Generator) -> Iterator[Tensor]:
        """Endless batches of the pool, for a student on the server."""
        return (self.pool_inputs(ctx, pool, index, draws) for index in endless_batches(len(pool), batch_size, draws))

    # client -----------------------------------------------------------------------------------
    def pool_batch_of_step(
        self, ctx: Context, pool: Tensor, step: int, batch_size: int, batches_per_epoch: int
    ) -> Tensor:
        """The batch of the pool for a local step; after `batches_per_epoch` of them comes another order of the pool."""
        epoch, place = divmod(step, batches_per_epoch)
        order = ctx.rng("pool", epoch).permutation(len(pool))
        index = order[place * batch_size : (place + 1) * batch_size]
        return self.pool_inputs(ctx, pool, index, ctx.rng("pool augment", step))

    def local_loss(self, ctx: Context, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy among the new classes; with LODE plus C |new| / |old| times its inter-task loss."""
        value = cross_entropy(logits, y, ctx.classes)
        if not self.lode or ctx.classes is None or not len(ctx.classes.old):
            return value
        new, old = ctx.classes.new, ctx.classes.old
        return value + self.lode * len(new) / len(old) * inter_task_loss(logits, new, old)
