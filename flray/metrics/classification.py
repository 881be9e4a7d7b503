"""Counts of a classifier's test, and the metrics from them: accuracy, accuracy by class, their mean, the worst, loss.

Counts are added before the division, so no metric depends on how a test set was divided among processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def is_right(predicted: Any, y: Any, meanings: Any = None) -> Any:
    """Whether predicted classes `[B]` (-1: none) are right for the labels `y [B]`, bool `[B]`: arrays, or tensors.

    `meanings [C]`: the class that each output stands for, if several outputs stand for one class (heads of several
    domains); a prediction of any of them is right. None: only the label itself is right.
    """
    same = predicted == y
    return same if meanings is None else same | ((predicted >= 0) & (meanings[predicted] == meanings[y]))


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one model on (a part of) one test set in one inference mode.

    Counts of parts are added in the order of the parts. Losses stay separate by block and are summed at the end from
    the first on, so the loss has the same bits for any assignment of blocks to processes.
    """

    right: NDArray[np.int64]  # [C] samples of each class that were predicted right
    total: NDArray[np.int64]  # [C] samples of each class
    losses: NDArray[np.float64]  # [blocks] summed cross-entropy of each block's samples that have one
    covered: int  # samples with a cross-entropy: the mode has logits, and the label is among them
    tasks: NDArray[np.int64] | None = None  # [T] samples by predicted task; None: the mode predicts none

    @classmethod
    def nothing(cls, num_classes: int) -> Counts:
        """Counts of no samples."""
        return cls(np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64), np.zeros(0), 0)

    def __add__(self, later: Counts) -> Counts:
        """Counts of this part and the next one."""
        known = [tasks for tasks in (self.tasks, later.tasks) if tasks is not None]
        width = max(map(len, known), default=0)
        tasks = np.sum([np.pad(each, (0, width - len(each))) for each in known], axis=0) if known else None
        losses = np.concatenate([self.losses, later.losses])
        return Counts(self.right + later.right, self.total + later.total, losses, self.covered + later.covered, tasks)

    @property
    def examples(self) -> int:
        """Number of samples."""
        return int(self.total.sum())

    @property
    def accuracy(self) -> float:
        """Share of right predictions; NaN without samples."""
        return accuracy(self.right, self.total)

    @property
    def loss_sum(self) -> float:
        """Summed cross-entropy of the `covered` samples, in nats."""
        return float(np.add.accumulate(self.losses)[-1]) if len(self.losses) else 0.0

    @property
    def loss(self) -> float:
        """Mean cross-entropy over the `covered` samples, in nats; NaN without any."""
        return self.loss_sum / self.covered if self.covered else math.nan


def accuracy(right: ArrayLike, total: ArrayLike) -> float:
    """Right predictions over samples, both summed over the classes; NaN without samples."""
    samples = int(np.sum(total))
    return int(np.sum(right)) / samples if samples else math.nan


def per_class(right: ArrayLike, total: ArrayLike) -> NDArray[np.float64]:
    """Accuracy of each class from right predictions and samples, `[..., C]` each; NaN for a class without samples."""
    samples = np.asarray(total, np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(right, np.float64) / np.where(samples > 0, samples, np.nan)


def macro_accuracy(right: ArrayLike, total: ArrayLike) -> float:
    """Mean accuracy over the classes with samples, each with the same weight; NaN without any."""
    accuracies = per_class(right, total)
    accuracies = accuracies[~np.isnan(accuracies)]
    return float(accuracies.mean()) if len(accuracies) else math.nan


def worst_class(right: ArrayLike, total: ArrayLike) -> tuple[int, float]:
    """(class, accuracy) of the worst class, the first of equal ones; (-1, NaN) without samples."""
    accuracies = per_class(right, total)
    if np.isnan(accuracies).all():
        return -1, math.nan
    number = int(np.nanargmin(accuracies))
    return number, float(accuracies[number])
