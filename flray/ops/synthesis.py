"""Training of generators, and of students, without data: on the outputs of a frozen classifier.

Every loop starts a new optimiser and draws from the random generator that it is given: equal calls give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flray.core.network.objective import BoundModel, Objective
from flray.core.protocol.classes import ClassSet
from flray.core.protocol.progress import StepProgress, no_step_progress
from flray.ops.distill import index_batches
from flray.ops.generate import (
    PUBLISHED,
    AveragedStatistics,
    MFCLWeights,
    NormStatistics,
    adversarial_loss,
    average_statistics,
    batch_norms,
    bounding_loss,
    mfcl_loss,
    noise,
    statistics_distance,
)
from flray.ops.losses import cross_entropy, kl
from flray.ops.optim import Moments, adam_direction_, sgd_direction_

BETAS = (0.5, 0.999)  # of Adam in the codes of TARGET and NAYER


class TeacherOutput(NamedTuple):
    """A classifier's output on a batch: `logits [B, q]` of the classes that it has learned, LANDER's `embedding [B, E]`
    (None: the network has no such layer), and the `statistics` of what entered its batch norms."""

    logits: Tensor
    embedding: Tensor | None
    statistics: list[NormStatistics]


class Teacher(NamedTuple):
    """A frozen classifier `(w [P], b [Q])` in eval mode, and the classes that it has learned; None: all.

    `embedding_layer` names a layer that reads the features beside the head.
    """

    objective: Objective
    w: Tensor
    b: Tensor
    classes: ClassSet | None = None
    embedding_layer: str | None = None

    def narrow(self, logits: Tensor) -> Tensor:
        """The learned classes' logits `[B, q]` of all `[B, C]`."""
        return logits if self.classes is None else self.classes.narrow(logits)

    def output(self, x: Tensor, with_statistics: bool = True) -> TeacherOutput:
        """The output on inputs `x [B, ...]`, differentiable in `x`; without statistics their list is empty."""
        with batch_norms(self.objective.module if with_statistics else nn.Identity()) as statistics:
            model, embedding = self.objective.at(self.w, self.b), None
            if self.embedding_layer is None:
                logits = model(x)
            else:
                logits, embedding = logits_and_embedding(model, x, self.embedding_layer)
        return TeacherOutput(self.narrow(logits), embedding, statistics)


def logits_and_embedding(model: BoundModel, x: Tensor, layer: str) -> tuple[Tensor, Tensor]:
    """(logits `[B, C]` of all classes, output `[B, E]` of `layer` on the features), from one forward pass."""
    z = model.features(x)
    return model.head(z), model.run(layer, z)


def fit_mfcl_generator(
    generator: Objective,
    w: Tensor,
    b: Tensor,
    teacher: Teacher,
    draws: np.random.Generator,
    *,
    steps: int = 100,
    batch_size: int = 128,
    lr: float = 1e-3,
    weights: MFCLWeights = PUBLISHED,
    progress: StepProgress = no_step_progress,
) -> tuple[Tensor, Tensor, Tensor]:
    """MFCL's generator after `steps` steps of Adam from `(w, b)`: (w, b, losses `[steps]`).

    Each step generates `batch_size` inputs from new noise, of the width `noise` of the generator, and takes the
    gradient of :func:`flray.ops.generate.mfcl_loss`. Arguments are not changed."""
    w, b = w.clone(), b.clone()
    moments = Moments(torch.zeros_like(w), torch.zeros_like(w), 0)
    gradient, losses = torch.zeros_like(w), []
    for step in range(steps):
        progress(step, steps)
        z = noise(draws, batch_size, generator.module.noise, device=w.device)  # type: ignore[arg-type]

        def loss(model: BoundModel, z: Tensor = z) -> Tensor:
            x = model(z)
            output = teacher.output(x)
            return mfcl_loss(x, output.logits, output.statistics, weights)

        value, g = generator.value_and_grad(loss, w, b, "train", gradient)
        w.add_(adam_direction_(w, g, moments.replace(steps=step), 0.0), alpha=-lr)
        losses.append(value)
    return w, b, torch.stack(losses) if losses else torch.zeros(0)


# model inversion ----------------------------------------------------------
class InversionWeights(NamedTuple):
    """Weights of the terms of :func:`inversion_loss`; `ltc` and its `radius` are LANDER's. Defaults: TARGET's."""

    bn: float = 10.0
    oh: float = 0.5
    adv: float = 1.0
    ltc: float = 0.0
    radius: float = 0.0


def inversion_loss(
    output: TeacherOutput,
    y: Tensor,
    student: Tensor | None,
    weights: InversionWeights,
    average: AveragedStatistics = (),
    momentum: float = 0.9,
    embeddings: Tensor | None = None,
) -> Tensor:
    """bn statistics + oh CE(teacher, y) + adv L_adv (+ ltc B(attached, e_y)), 0-dim: what TARGET and NAYER minimise.

    `y [B]` are places among the learned classes, `student [B, q]` its logits; None: without L_adv, as in the warm-up.
    `average` and `momentum` mix the statistics of earlier batches in; `embeddings [B, E]` are those of the labels.
    """
    value = weights.bn * statistics_distance(output.statistics, average, momentum) + weights.oh * cross_entropy(
        output.logits, y
    )
    if student is not None:
        value = value + weights.adv * adversarial_loss(output.logits, student)
    if output.embedding is not None and embeddings is not None:
        value = value + weights.ltc * bounding_loss(output.embedding, embeddings, weights.radius)
    return value


class InversionResult(NamedTuple):
    """The generator's `w [G]` and the `free` tensors after the last step, the inputs `best [B, ...]` of the step with
    the lowest loss, the sum of the generator's gradients `[G]`, and the `losses [steps]`."""

    w: Tensor
    free: tuple[Tensor, ...]
    best: Tensor
    gradient: Tensor
    losses: Tensor


def adam_search(
    generator: Objective,
    w: Tensor,
    b: Tensor,
    free: Sequence[Tensor],
    loss: Callable[..., tuple[Tensor, Tensor]],
    *,
    steps: int,
    lr: float,
    lr_free: float,
) -> InversionResult:
    """`steps` steps of a new Adam with betas 0.5 and 0.999 on a generator and on `free` tensors beside it.

    `loss(model, *free)` returns (a scalar, the generated inputs), with the generator in train mode and its running
    statistics fixed. The learning rate of the `free` tensors is `lr_free`. Arguments are not changed.
    """
    w = w.clone()
    free = tuple(part.clone() for part in free)
    moments = [Moments(torch.zeros_like(part), torch.zeros_like(part), 0) for part in (w, *free)]
    gradient, total, losses = torch.zeros_like(w), torch.zeros_like(w), list[Tensor]()
    views = list(generator.views(gradient).values())
    best, lowest = w[:0], float("inf")
    for step in range(steps):
        model = generator.at(w, b, "train_frozen", grad=True)
        leaves = [part.detach().requires_grad_() for part in free]
        value, inputs = loss(model, *leaves)
        losses.append(value.detach())
        if len(losses) == 1 or float(losses[-1]) < lowest:
            best, lowest = inputs.detach(), float(losses[-1])
        parts = torch.autograd.grad(value, [*model.leaves, *leaves], materialize_grads=True)
        for view, part in zip(views, parts, strict=False):
            view.copy_(part)
        total.add_(gradient)
        both, rates = (gradient, *parts[len(views) :]), (lr, *[lr_free] * len(free))
        for target, g, moment, rate in zip((w, *free), both, moments, rates, strict=True):
            v = adam_direction_(target, g.clone(), moment.replace(steps=step), 0.0, betas=BETAS)
            target.add_(v, alpha=-rate)
    return InversionResult(w, free, best, total, torch.stack(losses))


def invert(
    old: Teacher,
    generator: Objective,
    g: Tensor,
    free: Sequence[Tensor],
    make: Callable[..., tuple[Tensor, Tensor]],
    y: Tensor,
    *,
    student: Student | None,
    average: AveragedStatistics,
    weights: InversionWeights,
    steps: int,
    lr: float,
    lr_free: float,
    momentum: float = 0.9,
    embeddings: Tensor | None = None,
) -> tuple[InversionResult, AveragedStatistics]:
    """One round of synthesis: inputs that the old model classifies as `y [B]`, and the next `average` of statistics.

    `make(model, *free)` returns (inputs as they are stored, the same as the classifier reads them). `student` is that
    of L_adv; None: no L_adv. The average takes the last step's statistics; with momentum 0 there is no average."""
    statistics: list[NormStatistics] = []

    def loss(model: BoundModel, *parts: Tensor) -> tuple[Tensor, Tensor]:
        made, x = make(model, *parts)
        output = old.output(x)
        statistics[:] = output.statistics
        student_logits = None if student is None else old.narrow(old.objective.at(student.w, student.b)(x))
        return inversion_loss(output, y, student_logits, weights, average, momentum, embeddings), made

    result = adam_search(generator, g, generator.initial()[1], free, loss, steps=steps, lr=lr, lr_free=lr_free)
    return result, average_statistics(statistics, average, momentum) if momentum else ()


def endless_batches(size: int, batch_size: int, draws: np.random.Generator) -> Iterator[np.ndarray]:
    """Endless batches of the numbers of `size` samples, in another order every epoch; an epoch's last batch may be
    shorter."""
    while True:
        yield from index_batches(draws.permutation(size), batch_size)


class Student(NamedTuple):
    """A classifier that learns from synthetic inputs: parameters `w [P]` and statistics `b [Q]`, updated in place, and
    the state of its SGD."""

    w: Tensor
    b: Tensor
    moments: Moments

    @classmethod
    def of(cls, w: Tensor, b: Tensor) -> Student:
        return cls(w, b, Moments(torch.zeros_like(w), w[:0], 0))


def train_student(
    old: Teacher,
    student: Student,
    inputs: Iterator[Tensor],
    *,
    steps: int,
    lr: float,
    temperature: float,
    ltc: float = 0.0,
    momentum: float = 0.9,
    weight_decay: float = 2e-4,
) -> tuple[Student, Tensor]:
    """`steps` steps of SGD of a student, in train mode, on T^2 KL(old || student) + ltc MSE of the embeddings.

    `inputs` yields a batch for each step. Returns (the student, the mean loss, 0-dim).
    """
    objective, moments = old.objective, student.moments
    objective.reached()
    gradient, total = torch.zeros_like(student.w), torch.zeros((), device=student.w.device)

    def loss(x: Tensor, model: BoundModel) -> Tensor:
        with torch.no_grad():
            target = old.output(x, with_statistics=False)
        if target.embedding is None or old.embedding_layer is None:
            return temperature**2 * kl(target.logits, old.narrow(model(x)), temperature)
        logits, embedding = logits_and_embedding(model, x, old.embedding_layer)
        distillation = temperature**2 * kl(target.logits, old.narrow(logits), temperature)
        return distillation + ltc * F.mse_loss(embedding, target.embedding)

    for _, x in zip(range(steps), inputs, strict=False):
        value, g = objective.value_and_grad(partial(loss, x), student.w, student.b, "train", gradient)
        student.w.add_(sgd_direction_(student.w, g, moments, momentum, weight_decay, objective.reached()), alpha=-lr)
        moments = moments.replace(steps=moments.steps + 1)
        total.add_(value)
    return student._replace(moments=moments), total / max(steps, 1)
