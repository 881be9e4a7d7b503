"""What the data-free continual methods TARGET, LANDER and MFCL share: an old model, and a server that synthesizes data
from it. Not an algorithm by itself.

Before every task but the first, w_old <- w_g, and `synthesize` trains a generator on the old model's outputs. Clients
learn the new classes and distil the old model on synthetic inputs. Without tasks it is FedAvg. The papers synthesize at
the end of a task that is not the last; the model is the same.
TARGET and LANDER have a pool of synthetic inputs of the old classes, which the server makes (`flray.ops.synthesis`). In
each local step a client reads a batch of the pool beside its own batch and distils the old model on it. LODE (Liang and
Li, NeurIPS 2023) is an option of both.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from flray.algorithms.fedavg import Down, FedAvg
from flray.core.messages import Broadcast, Metrics, ServerState
from flray.core.messages.fields import shared
from flray.core.protocol.algorithm_section import of_tasks_alone
from flray.core.protocol.classes import ClassSet
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.inputs import Inputs
from flray.core.schema.errors import ConfigError
from flray.core.schema.hp import hp
from flray.data.augment import AugmentDraws, apply_resized_crop, boxes
from flray.ops.generate import crop_and_flip, pixels
from flray.ops.losses import cross_entropy, inter_task_loss
from flray.ops.synthesis import Student, Teacher, endless_batches, train_student


class OldState(ServerState):
    """The global model and the old one, `old_w [P]` and `old_b [Q]`; `[0]` in the first task."""

    old_w: Tensor
    old_b: Tensor


class OldDown(Broadcast):
    """The global and the old model. A client gets each old model once."""

    old_w: Tensor = shared()
    old_b: Tensor = shared()


OldStateT = TypeVar("OldStateT", bound=OldState, default=OldState)


class DataFree(FedAvg[OldStateT, Down], frozen=True):
    def networks(self, model: nn.Module, inputs: Inputs) -> dict[str, nn.Module]:
        inputs.require_numbers(f"the generator of {type(self).__name__}")
        return {"generator": self.generator(inputs.shape)}

    @abstractmethod
    def generator(self, shape: tuple[int, ...]) -> nn.Module:
        """The generator for inputs of this shape."""

    def synthesis_due(self, ctx: Context) -> bool:
        """Whether the server synthesizes at this moment."""
        return ctx.clock.phase == "task_begin" and ctx.clock.task > 0

    @abstractmethod
    def synthesize(self, ctx: Context, state: OldStateT, old: Teacher) -> tuple[OldStateT, Metrics]:
        """The state with synthetic data, or their generator, of the classes of the old model, which `state` holds
        already."""

    def next_exchange(self, ctx: Context, state: OldStateT) -> Exchange | None:
        exchanges: list[Exchange[OldStateT]] = (
            [Exchange.on_server("remember", self.take_old_model)] if self.synthesis_due(ctx) else []
        )
        if ctx.clock.phase == "round":
            exchanges.append(self.training)
            if (more := self.exchange_of_rule(ctx, state)) is not None:
                exchanges.append(more)
        return exchanges[ctx.clock.exchange] if ctx.clock.exchange < len(exchanges) else None

    def take_old_model(self, ctx: Context, state: OldStateT) -> tuple[OldStateT, Metrics]:
        old = Teacher(ctx.objective, state.w, state.b, self.learned_classes(ctx))
        return self.synthesize(ctx, state.replace(old_w=state.w, old_b=state.b), old)

    def learned_classes(self, ctx: Context) -> ClassSet | None:
        """The classes that the old model has learned; None: all."""
        return None if ctx.classes is None else ctx.classes.old


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
    cautions = (of_tasks_alone,)
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
        batches = endless_batches(len(pool), self.kd_batch, draws)
        inputs = (self.pool_inputs(ctx, pool, index, draws) for index in batches)
        return train_student(old, student, inputs, steps=self.kd_steps, lr=lr, **how)

    @torch.no_grad()
    def student_accuracy(self, ctx: Context, old: Teacher, student: Student, pool: Tensor, labels: Tensor) -> Tensor:
        """The share of the pool's `n` inputs that the student, in eval mode, classifies as the `labels [n]` that they
        were made for, places among the old classes. At chance the generator, or the student, has learned nothing."""
        model, right = ctx.objective.at(student.w, student.b), torch.zeros((), dtype=torch.long, device=pool.device)
        for made, y in zip(pool.split(self.kd_batch), labels.split(self.kd_batch), strict=True):
            right += (old.narrow(model(ctx.inputs.normalised(pixels(made)))).argmax(1) == y).sum()
        return right / len(pool)

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


def resized_crops(images: Tensor, draws: np.random.Generator) -> Tensor:
    """A random crop of each image, uint8 `[B, C, H, W]`, of 8 to 100 % of its area, resized to the image's size:
    torchvision's `RandomResizedCrop`, with which FedProTIP's code reads its pool."""
    count, _, height, width = images.shape
    box = torch.from_numpy(boxes(draws, count, height, width, (0.08, 1.0))).to(images.device)
    parts = apply_resized_crop(images.permute(0, 2, 3, 1), AugmentDraws(None, None, None, box, None))
    return parts.permute(0, 3, 1, 2)
