"""Forgetting over a sequence of tasks, and through a window of rounds in which classes are missing.

In an accuracy matrix `R [T, T]`, `R[i, j]` is the accuracy on task j's test set after task i, both from 0, so the
paper's a_{i,t} is `R[i - 1, t - 1]`. It is NaN without a test. Results have the unit of the inputs (shares in [0, 1] in
flray), except for `official`. A result is NaN if an entry in its formula is NaN. `classification.per_class(right,
total)` gives R from counts, and accuracy by round and class, `[N, C]`. Formulas: Cha, Chen and Vikalo (FedProTIP) and
their code (seohyeon-cha/FedProTIP).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flray.metrics.classification import accuracy

Matrix = NDArray[np.float64]


# over tasks ---------------------------------------------------------------------------------------
def official(matrix: ArrayLike) -> Matrix:
    """R `[T, T]` of shares in per cent with two decimals, from which FedProTIP's code computes ACC and FT."""
    return np.round(100 * np.asarray(matrix, np.float64), 2)


def average_accuracy(matrix: ArrayLike) -> float:
    """ACC, the mean over all T tasks of the accuracy after the last one: `mean_j R[T - 1, j]`."""
    return float(_matrix(matrix)[-1].mean())


def pooled_accuracy(right: ArrayLike, total: ArrayLike) -> float:
    """ACC_pooled, which FedProTIP's code calls ACC: the accuracy over the test samples of all tasks after the last one.

    `right [T, T]` and `total [T, T]` are the counts of R. Equal to ACC if all test sets have one size; NaN if a task
    was not tested.
    """
    rights, totals = _matrix(right), _matrix(total)
    return accuracy(rights[-1], totals[-1]) if (totals[-1] > 0).all() else math.nan


def forgetting(matrix: ArrayLike) -> float:
    """FT of FedProTIP's paper and code: the loss of accuracy since the best moment, over T - 1 tasks, divided by T.

    `1/T sum_{j < T-1} (max_{j <= i <= T-2} R[i, j] - R[T-1, j])`; 0 for one task, negative if a task is better
    than ever before.
    """
    R = _matrix(matrix)
    return float(_lost(R).sum() / len(R))


def forgetting_std(matrix: ArrayLike) -> float:
    """FT_std, the forgetting measure of Chaudhry et al. 2018 ("Riemannian walk"), a mean over the T - 1 earlier tasks.

    `1/(T-1) sum_{j < T-1} (max_{j <= i <= T-2} R[i, j] - R[T-1, j])`; 0 for one task.
    """
    return _mean(_lost(_matrix(matrix)))


def _lost(matrix: Matrix) -> Matrix:
    """For each earlier task `[T - 1]`: its best accuracy before the last task, minus that after the last task."""
    last = len(matrix) - 1
    best = [matrix[task:last, task].max() for task in range(last)]
    return np.asarray(best, np.float64) - matrix[last, :last]


def accuracy_curve(matrix: ArrayLike) -> Matrix:
    """After each task the mean accuracy over the tasks seen so far, `[T]`: `mean_{j <= i} R[i, j]`."""
    R = _matrix(matrix)
    return np.array([R[task, : task + 1].mean() for task in range(len(R))])


def average_incremental_accuracy(matrix: ArrayLike) -> float:
    """AIA, the mean of `accuracy_curve` (Rebuffi et al. 2017, "iCaRL")."""
    return float(accuracy_curve(matrix).mean())


def backward_transfer(matrix: ArrayLike) -> float:
    """BWT of Lopez-Paz and Ranzato 2017 ("GEM"): the change of earlier tasks' accuracies by later ones; 0 for one task.

    `1/(T-1) sum_{j < T-1} (R[T-1, j] - R[j, j])`.
    """
    R = _matrix(matrix)
    return _mean(R[-1, :-1] - R.diagonal()[:-1])


def forward_transfer(matrix: ArrayLike, initial: ArrayLike) -> float:
    """FWT of Lopez-Paz and Ranzato 2017: the gain on a task by the tasks before it, against the initial model.

    `1/(T-1) sum_{j >= 1} (R[j-1, j] - b[j])`, where `initial [T]` is b, the initial model's accuracy on each task's
    test set. 0 for one task.
    """
    R, start = _matrix(matrix), np.asarray(initial, np.float64)
    return _mean(R.diagonal(offset=1) - start[1 : len(R)])


def task_prediction_accuracy(predicted: ArrayLike) -> float:
    """Share of test samples with the right predicted task, from `predicted [T, P]`: row j has the samples of task j's
    test set by predicted task. NaN without samples."""
    counts = np.asarray(predicted, np.float64)
    return float(counts.trace() / counts.sum()) if counts.sum() else math.nan


def _matrix(values: ArrayLike) -> Matrix:
    """Raises `ValueError` for what is not `[T, T]` with at least one task."""
    array = np.asarray(values, np.float64)
    if array.ndim != 2 or len(array) != array.shape[-1] or not len(array):
        raise ValueError(
            f"an accuracy matrix is [T, T], with a row and a column for each task; this one is {list(array.shape)}"
        )
    return array


def _mean(values: Matrix) -> float:
    return float(values.mean()) if len(values) else 0.0


# through a window ---------------------------------------------------------------------------------
class ThroughWindow(NamedTuple):
    """An accuracy before, in and after a window of rounds in which data were missing; NaN without such a test."""

    before: float  # the last test before the window, the level of recovery
    window_end: float  # the last test inside the window
    final: float  # the last test of all
    recovered_after: float  # rounds from the window's last to the first at the level; inf: none is
    worst_drop: float  # the level minus the lowest accuracy since the window began


MARGIN = 0.01  # an accuracy within one point of the level has recovered
ROUNDING = 1e-9  # 0.07 - 0.01 is 0.060000000000000005


def through_window(
    rounds: ArrayLike, values: ArrayLike, start: int, stop: float, margin: float = MARGIN
) -> ThroughWindow:
    """The effect of a window `start <= round < stop` on an accuracy, `values [N]` as shares after the rounds `rounds
    [N]`.

    The rounds ascend, count over all tasks from 1 (0: the initial model), and some may be absent. A NaN was not tested.
    `stop` is infinite if the data never return. The level is the last test before the window. `recovered_after` is
    `r - (stop - 1)` for the first tested round r >= stop with `values[r] >= level - margin`, up to rounding: 1 if the
    first round with all data is enough, or if nothing was lost. It is infinite if no round after the window recovers,
    and NaN without a test before the window or after it.
    """
    done, accuracies = np.asarray(rounds, np.float64), np.asarray(values, np.float64)
    done, accuracies = done[~np.isnan(accuracies)], accuracies[~np.isnan(accuracies)]
    level = _last(accuracies[done < start])
    after = done >= stop
    back = done[after & (accuracies >= level - margin - ROUNDING)]
    recovered = math.nan if math.isnan(level) or not after.any() else back[0] - (stop - 1) if len(back) else math.inf
    since = accuracies[done >= start]
    return ThroughWindow(
        before=level,
        window_end=_last(accuracies[(done >= start) & (done < stop)]),
        final=_last(accuracies),
        recovered_after=float(recovered),
        worst_drop=level - float(since.min()) if len(since) else math.nan,
    )


def _last(values: Any) -> float:
    return float(values[-1]) if len(values) else math.nan
