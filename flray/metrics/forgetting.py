"""What was learned and what was forgotten: over a sequence of tasks, and through a window in which classes are missing.

An accuracy matrix `R [T, T]` has in `R[i, j]` the accuracy on task j's test set after task i was learned, both from 0,
so that the paper's a_{i,t} is `R[i - 1, t - 1]`. It is NaN where nothing was tested. Every function takes the unit that
it is given (shares in [0, 1] everywhere in flray) and returns the same unit, but for `official`. A function needs the
entries that its formula names and is NaN where one of them is: no number is made of the tests that happen to be there.
From counts R is `classification.per_class(right, total)`, and so is accuracy by round and class, `[N, C]`.
Formulas: Cha, Chen and Vikalo (FedProTIP) and their code (seohyeon-cha/FedProTIP).
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
    """R `[T, T]` of shares as FedProTIP's code has it before it makes ACC and FT: in per cent, with two decimals."""
    return np.round(100 * np.asarray(matrix, np.float64), 2)


def average_accuracy(matrix: ArrayLike) -> float:
    """ACC, the mean over all T tasks of the accuracy after the last one: `mean_j R[T - 1, j]`."""
    return float(_matrix(matrix)[-1].mean())


def pooled_accuracy(right: ArrayLike, total: ArrayLike) -> float:
    """ACC_pooled, which FedProTIP's code calls ACC: the accuracy over the test samples of all tasks after the last one.

    `right [T, T]` and `total [T, T]` are the counts of which R is made. The same as ACC where all test sets are of one
    size; NaN where a task was not tested.
    """
    rights, totals = _matrix(right), _matrix(total)
    return accuracy(rights[-1], totals[-1]) if (totals[-1] > 0).all() else math.nan


def forgetting(matrix: ArrayLike) -> float:
    """FT as FedProTIP's paper and code have it: what was lost since the best moment, T - 1 tasks divided by T.

    `1/T sum_{j < T-1} (max_{j <= i <= T-2} R[i, j] - R[T-1, j])`; 0 for one task, negative where a task got better
    than it had ever been.
    """
    R = _matrix(matrix)
    return float(_lost(R).sum() / len(R))


def forgetting_std(matrix: ArrayLike) -> float:
    """FT_std, the forgetting measure of Chaudhry et al. 2018 ("Riemannian walk"), a mean over the T - 1 earlier tasks.

    `1/(T-1) sum_{j < T-1} (max_{j <= i <= T-2} R[i, j] - R[T-1, j])`; 0 for one task.
    """
    return _mean(_lost(_matrix(matrix)))


def _lost(matrix: Matrix) -> Matrix:
    """By earlier task `[T - 1]`: its best accuracy until the last task began, less the one after the last task."""
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
    """BWT of Lopez-Paz and Ranzato 2017 ("GEM"): how later tasks changed what each earlier one had been; 0 for one
    task.

    `1/(T-1) sum_{j < T-1} (R[T-1, j] - R[j, j])`.
    """
    R = _matrix(matrix)
    return _mean(R[-1, :-1] - R.diagonal()[:-1])


def forward_transfer(matrix: ArrayLike, initial: ArrayLike) -> float:
    """FWT of Lopez-Paz and Ranzato 2017: what the tasks before a task brought for it, against the initial model.

    `1/(T-1) sum_{j >= 1} (R[j-1, j] - b[j])`, where `initial [T]` is b, the initial model's accuracy on each task's
    test set. 0 for one task.
    """
    R, start = _matrix(matrix), np.asarray(initial, np.float64)
    return _mean(R.diagonal(offset=1) - start[1 : len(R)])


def task_prediction_accuracy(predicted: ArrayLike) -> float:
    """Share of test samples for which the right task was predicted, from `predicted [T, P]`: in row j the samples of
    task j's test set by predicted task.

    Of a mode that predicts one task for a batch, every sample counts with the task of its batch, so that a last batch
    that is not full has less weight than the others. NaN without a sample.
    """
    counts = np.asarray(predicted, np.float64)
    return float(counts.trace() / counts.sum()) if counts.sum() else math.nan


def _matrix(values: ArrayLike) -> Matrix:
    """Raises `ValueError` for what is not `[T, T]` with at least one task."""
    array = np.asarray(values, np.float64)
    if array.ndim != 2 or len(array) != array.shape[-1] or not len(array):
        raise ValueError(f"an accuracy matrix is [T, T], a row and a column a task; this one is {list(array.shape)}")
    return array


def _mean(values: Matrix) -> float:
    return float(values.mean()) if len(values) else 0.0


# through a window ---------------------------------------------------------------------------------
class ThroughWindow(NamedTuple):
    """How an accuracy went through a window of rounds in which data were missing; NaN where there was no such test."""

    before: float  # the last test before the window: the level to which recovery is compared
    window_end: float  # the last test inside the window
    final: float  # the last test of all
    recovered_after: float  # rounds from the window's last one to the first that is back at the level; inf: none is
    worst_drop: float  # the level less the lowest accuracy since the window began


MARGIN = 0.01  # an accuracy within one point of the level before the window is back at it


def through_window(
    rounds: ArrayLike, values: ArrayLike, start: int, stop: float, margin: float = MARGIN
) -> ThroughWindow:
    """What a window `start <= round < stop` did to an accuracy, `values [N]` as shares after the rounds `rounds [N]`.

    The rounds ascend, count over all tasks from 1 (0 is the initial model) and need not be all there; a value that is
    NaN was not tested. `stop` is infinite for data that never return. The level is the last test before the window;
    `recovered_after` is `r - (stop - 1)` for the first tested round r >= stop with `values[r] >= level - margin`: 1
    where the first round with all data is enough, and 1 as well where nothing was lost. It is infinite where no round
    after the window is back, and NaN where there is no test before the window, or none after it.
    """
    done, accuracies = np.asarray(rounds, np.float64), np.asarray(values, np.float64)
    done, accuracies = done[~np.isnan(accuracies)], accuracies[~np.isnan(accuracies)]
    level = _last(accuracies[done < start])
    after = done >= stop
    back = done[after & (accuracies >= level - margin)]
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
