"""What TARGET and LANDER share: a pool of made inputs stands in for the data of the old classes.

Not an algorithm by itself. The server makes the pool (`flray.ops.synthesis`), clients hold its batches beside their
own, and distil the old model on them; LODE (Liang and Li, NeurIPS 2023) is an option of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from flray.algorithms.data_free import DataFree, OldDown, OldState
from flray.core.messages.fields import shared
from flray.core.protocol.context import Context
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.data.augment import AugmentDraws, apply_resized_crop, boxes
from flray.ops.generate import crop_and_flip, pixels
from flray.ops.losses import cross_entropy, inter_task_loss
from flray.ops.synthesis import Student, Teacher, endless_batches, train_student


def resized_crops(images: Tensor, draws: np.random.Generator) -> Tensor:
    """Of each image, uint8 `[B, C, H, W]`, a random part that is stretched to its size: torchvision's
    `RandomResizedCrop` of 8 to 100 % of the area, as FedProTIP's code reads its pool."""
    count, _, height, width = images.shape
    box = torch.from_numpy(boxes(draws, count, height, width, (0.08, 1.0))).to(images.device)
    parts = apply_resized_crop(images.permute(0, 2, 3, 1), AugmentDraws(None, None, None, box, None))
    return parts.permute(0, 3, 1, 2)


class PoolState(OldState):
    """`pool [n, ...]`: inputs that stand in for the old classes' data, images as uint8; `[0]` where there are none."""

    pool: Tensor


class PoolDown(OldDown):
    pool: Tensor = shared()


PoolStateT = TypeVar("PoolStateT", bound=PoolState, default=PoolState)
PoolDownT = TypeVar("PoolDownT", bound=PoolDown, default=PoolDown)


class DataFreePool(DataFree[PoolStateT, PoolDownT], frozen=True):
    """What TARGET and LANDER share: a pool of made inputs, which the clients of the next task hold beside their own."""

    lr: float = hp(0.01, log=(1e-4, 1.0), gt=0, doc="local learning rate (eta)")
    momentum: float = hp(0.0, choice=(0.0, 0.5, 0.9), ge=0, lt=1, doc="momentum of SGD; Adam does not read it")
    weight_decay: float = hp(5e-4, log=(1e-6, 1e-2), ge=0, doc="weight decay, added to the gradient")
    batch_size: int = hp(64, choice=(10, 32, 50, 64, 128, 256), ge=1, doc="local batch size (B), of real samples")
    lode: float = hp(0.0, ge=0, doc="C of LODE's inter-task loss (TARGET 0.01, LANDER 0.005); 0: plain local CE")
    kd_temperature: float = hp(2.0, linear=(1.0, 5.0), gt=0, doc="temperature of the clients' distillation")
    crop_padding: int | None = hp(None, ge=0, doc="padding of the random crop of made images; none: side / 8")
    pool_crop: Literal["padded", "resized"] = hp(
        "padded",
        doc="images from the pool: cropped as in the search, or a random part stretched (official at 224 pixels)",
    )
    flip: bool = hp(True, doc="made images are mirrored at random")

    # synthesis on the server; LANDER has some other defaults
    pool_size: int = hp(8000, choice=(2000, 8000, 10000, 12800), ge=1, doc="made inputs that are sent, at most")
    noise_dim: int = hp(256, ge=1, doc="width of the noise that the generator's first layer reads (nz)")
    warmup: int = hp(10, ge=1, doc="rounds of synthesis before the student learns")
    syn_round: int = hp(40, choice=(40, 200), ge=1, doc="rounds of synthesis after the warm-up")
    syn_batch: int = hp(256, choice=(64, 128, 256), ge=2, doc="inputs made in a round")
    g_steps: int = hp(40, choice=(40, 100), ge=1, doc="steps of the search in a round")
    lr_g: float = hp(2e-3, log=(1e-4, 1e-2), gt=0, doc="learning rate of the generator")
    bn: float = hp(10.0, log=(0.1, 10.0), ge=0, doc="weight of the batch-norm statistics (lambda_bn)")
    oh: float = hp(0.5, log=(0.1, 1.0), ge=0, doc="weight of the labels' cross-entropy (lambda_oh)")
    adv: float = hp(1.0, log=(0.1, 10.0), ge=0, doc="weight of L_adv (lambda_adv)")
    bn_mmt: float = hp(0.9, ge=0, lt=1, doc="share of earlier rounds in the batch-norm statistics; 0: none")
    kd_steps: int = hp(400, choice=(50, 400), ge=1, doc="steps of the student in a round")
    kd_batch: int = hp(256, choice=(64, 128, 256), ge=2, doc="batch size of the student")
    student_lr: float = hp(5e-3, log=(1e-3, 0.2), gt=0, doc="learning rate of the student (SGD, momentum 0.9)")
    student_weight_decay: float = hp(2e-4, log=(1e-5, 1e-3), ge=0, doc="weight decay of the student")
    student_temperature: float = hp(20.0, choice=(5.0, 20.0), gt=0, doc="temperature of the student (T)")

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> PoolStateT:
        return PoolState(w, b, w[:0], b[:0], w[:0])  # type: ignore[return-value]

    def broadcast(self, ctx: Context, state: PoolStateT) -> PoolDownT:
        return PoolDown(**vars(state))  # type: ignore[return-value]

    def augmented(self, ctx: Context, images: Tensor, draws: np.random.Generator) -> Tensor:
        """Made images on the 0..1 scale, cropped and mirrored at random; features as they are."""
        padding = ctx.inputs.shape[-1] // 8 if self.crop_padding is None else self.crop_padding
        if images.dim() == 4 and padding > min(images.shape[-2:]):
            height, width = images.shape[-2:]
            raise ConfigError(
                f"algorithm.crop_padding is {padding} and images are {height} x {width}; a crop has room for "
                f"{min(height, width)} at most"
            )
        return crop_and_flip(images, draws, padding, self.flip)

    def pool_inputs(self, ctx: Context, pool: Tensor, index: np.ndarray, draws: np.random.Generator) -> Tensor:
        """Inputs of the pool as the network reads them, `[B, ...]`."""
        chosen = pool[torch.from_numpy(index).to(pool.device)]
        if self.pool_crop == "resized" and chosen.dim() == 4:
            return ctx.inputs.normalised(crop_and_flip(pixels(resized_crops(chosen, draws)), draws, 0, self.flip))
        return ctx.inputs.normalised(self.augmented(ctx, pixels(chosen), draws))

    @property
    def inversion(self) -> dict[str, Any]:
        """The options of a round of the search."""
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
        """A student after its steps of a round on the pool, and the mean loss."""
        how = {"temperature": self.student_temperature, "weight_decay": self.student_weight_decay, "ltc": ltc}
        inputs = self.pool_batches(ctx, pool, self.kd_batch, draws)
        return train_student(old, student, inputs, steps=self.kd_steps, lr=lr, **how)

    def pool_batches(self, ctx: Context, pool: Tensor, batch_size: int, draws: np.random.Generator) -> Iterator[Tensor]:
        """Batches of the pool without end, for a student on the server."""
        return (self.pool_inputs(ctx, pool, index, draws) for index in endless_batches(len(pool), batch_size, draws))

    # client -----------------------------------------------------------------------------------
    def pool_batch_of_step(
        self, ctx: Context, pool: Tensor, step: int, batch_size: int, batches_per_epoch: int
    ) -> Tensor:
        """The pool's batch that goes with a local step: `an_epoch` of them, then in another order."""
        epoch, place = divmod(step, batches_per_epoch)
        order = ctx.rng("pool", epoch).permutation(len(pool))
        index = order[place * batch_size : (place + 1) * batch_size]
        return self.pool_inputs(ctx, pool, index, ctx.rng("pool augment", step))

    def local_loss(self, ctx: Context, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy among the new classes, and what LODE adds: C |new| / |old| of the loss of new against old."""
        value = cross_entropy(logits, y, ctx.classes)
        if not self.lode or ctx.classes is None or not len(ctx.classes.old):
            return value
        new, old = ctx.classes.new, ctx.classes.old
        return value + self.lode * len(new) / len(old) * inter_task_loss(logits, new, old)
