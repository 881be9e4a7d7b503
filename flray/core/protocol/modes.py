"""Inference modes: how a trained model is asked for predictions, and what it may look at for each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor

from flray.core.protocol.classes import ClassSet


class Reading(NamedTuple):
    """What a prediction may look at: its sample, the `size` samples of its batch, or its own and the `size - 1` before.

    The samples are those of one test set. For batches and windows they come in a random order, which the run's seed and
    the name of the test set fix: a file may be sorted by class. A batch is `size` consecutive samples of it, counted
    from the first, and the last one what is left; at the beginning of a test set a window holds what is there.
    """

    kind: Literal["sample", "batch", "window"]
    size: int


SAMPLE = Reading("sample", 1)


def batch(size: int) -> Reading:
    """Predictions for `size` samples at a time: one task for all of them, or batch norm by their own statistics."""
    return _reading("batch", size)


def window(size: int) -> Reading:
    """Each prediction from its sample and the `size - 1` before it.

    The mode gets consecutive samples, among them the `size - 1` that precede the first one it is asked for, and answers
    for all of them; answers whose window is cut off are not read.
    """
    return _reading("window", size)


def _reading(kind: Literal["batch", "window"], size: int) -> Reading:
    if size < 1:
        raise ValueError(f"a {kind} of {size} samples: give 1 or more")
    return Reading(kind, size)


class Prediction(NamedTuple):
    """What a mode says about samples `[B]`; a mode that has only logits of all classes may return them as they are.

    `logits [B, H]` over the classes of `classes`, `[H]` or, where each sample has its own head, `[B, H]`; None: the
    classes 0 to H - 1.
    A sample has a loss where its label is among its classes; a logit of -inf takes its class out.
    `label [B]` is the predicted class, where that is not the one of the largest logit or there are none; -1: no class.
    `task [B]` is the predicted task.
    """

    logits: Tensor | None = None
    classes: Tensor | None = None
    label: Tensor | None = None
    task: Tensor | None = None

    def behind(self, count: int) -> Prediction:
        """The same without what it says about the first `count` samples."""

        def rest(part: Tensor | None) -> Tensor | None:
            return None if part is None else part[count:]

        classes = self.classes if self.classes is None or self.classes.dim() == 1 else self.classes[count:]
        return Prediction(rest(self.logits), classes, rest(self.label), rest(self.task))


def among(classes: ClassSet, logits: Tensor) -> Prediction:
    """The prediction among some classes, out of the whole head's logits `[B, C]`."""
    return Prediction(classes.narrow(logits), classes.index)


class Mode(NamedTuple):
    """One way to predict with a trained model, for testing: what it reads, and how it answers.

    `answer(ctx, published, x)` gives the logits `[B, C]` of all classes, or a `Prediction`, for inputs `x [B, ...]`.
    With `forward`, `answer(ctx, published, z)` gets `z = forward(ctx, published, x)` instead: the modes of one reading
    that name the same `forward` share it, and modes that read samples join those that read batches or windows. Both are
    bound methods of the algorithm; `ctx.tested` is the task that the test set belongs to.
    """

    answer: Callable[..., Tensor | Prediction]
    reads: Reading = SAMPLE
    forward: Callable[..., Any] | None = None
