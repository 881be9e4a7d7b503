"""Inference modes: how a trained model predicts, and which samples it may read for a prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from torch import Tensor

from flray.core.protocol.classes import ClassSet


class Reading(NamedTuple):
    """What a prediction may read: its sample, the `size` samples of its batch, or a window of its sample and the
    `size - 1` before it.

    Batches and windows are cut from one test set in a random order, which depends on the run's seed and the test set's
    name, because a file may be sorted by class. The last batch and the first windows may be shorter.
    """

    kind: Literal["sample", "batch", "window"]
    size: int


SAMPLE = Reading("sample", 1)


def batch(size: int) -> Reading:
    """Predictions for `size` samples at a time: one task for all of them, or batch norm by their own statistics."""
    return _reading("batch", size)


def window(size: int) -> Reading:
    """Each prediction from its sample and the `size - 1` before it.

    The mode gets consecutive samples, including the `size - 1` before the first one of interest, and answers for all of
    them. Answers for incomplete windows are not read, except at the beginning of a test set.
    """
    return _reading("window", size)


def _reading(kind: Literal["batch", "window"], size: int) -> Reading:
    if size < 1:
        raise ValueError(f"a {kind} of {size} samples: give 1 or more")
    return Reading(kind, size)


class Prediction(NamedTuple):
    """A mode's answer for samples `[B]`. A mode may return logits of all classes in its place.

    `logits [B, H]` over the classes of `classes`, `[H]` or, where each sample has its own head, `[B, H]`; None: the
    classes 0 to H - 1.
    A sample has a loss if its label is among its classes; a logit of -inf excludes its class.
    `label [B]` is the predicted class, if there are no logits or it is not that of the largest one; -1: no class.
    `task [B]` is the predicted task.
    """

    logits: Tensor | None = None
    classes: Tensor | None = None
    label: Tensor | None = None
    task: Tensor | None = None

    def behind(self, count: int) -> Prediction:
        """The prediction without the first `count` samples."""

        def rest(part: Tensor | None) -> Tensor | None:
            return None if part is None else part[count:]

        classes = self.classes if self.classes is None or self.classes.dim() == 1 else self.classes[count:]
        return Prediction(rest(self.logits), classes, rest(self.label), rest(self.task))


def among(classes: ClassSet, logits: Tensor) -> Prediction:
    """The prediction among some classes, out of the whole head's logits `[B, C]`."""
    return Prediction(classes.narrow(logits), classes.index)


class Mode(NamedTuple):
    """One way to predict with a trained model in a test.

    `answer(ctx, published, x)` gives the logits `[B, C]` of all classes, or a `Prediction`, for inputs `x [B, ...]`.
    With `forward`, `answer(ctx, published, z)` gets `z = forward(ctx, published, x)` instead. Modes with the same
    `reads` and the same `forward` share it; modes that read single samples join those that read batches or windows.
    Both are bound methods of the algorithm. `ctx.tested` is the task of the test set.
    """

    answer: Callable[..., Tensor | Prediction]
    reads: Reading = SAMPLE
    forward: Callable[..., Any] | None = None
