"""From the table `tests/` to arrays: accuracy on each task after each task, and counts by class after each round.

A test set of one task has the task's number in its name: `task-0`, `task-1`, ... (of a validation split `val-0`, ...).
The test after a task has the `phase` `task_end`; the initial model's test has `done` 0.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flray.metrics.classification import per_class

if TYPE_CHECKING:
    import pandas

TASK_SET = re.compile(r"(?:task|val)-(\d+)")


@dataclass(frozen=True)
class TaskTests:
    """The tests of single tasks in one inference mode, after each of the E tasks (of T) that have ended."""

    right: NDArray[np.int64]  # [E, T] samples of task j's test set that were predicted right after task i
    total: NDArray[np.int64]  # [E, T] samples of task j's test set; 0 where it was not tested after task i
    initial: NDArray[np.float64]  # [T] the initial model's accuracy on task j's test set, NaN where not tested
    predicted: NDArray[np.int64] | None  # [E, T, P] of these samples, those sent to each task; None: none are sent

    @property
    def matrix(self) -> NDArray[np.float64]:
        """R `[E, T]`, the accuracy on task j's test set after task i; NaN where it was not tested."""
        return per_class(self.right, self.total)


def task_tests(tests: pandas.DataFrame) -> dict[str, TaskTests]:
    """The tests of single tasks, by inference mode in the order of the table `tests` (`Run.tests`).

    Empty if no test set belongs to one task, or no task has ended.
    """
    if not len(tests):
        return {}
    rows = tests.assign(tested=[_task(name) for name in tests["set"]])
    rows = rows[rows["tested"] >= 0]
    ended = rows[rows["phase"] == "task_end"]
    if not len(ended):
        return {}
    shape = int(ended["task"].max()) + 1, int(rows["tested"].max()) + 1
    return {str(mode): _mode_tests(rows[rows["mode"] == mode], shape) for mode in ended["mode"].unique()}


def _mode_tests(rows: pandas.DataFrame, shape: tuple[int, int]) -> TaskTests:
    right, total, initial = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape[1], math.nan)
    sent: dict[tuple[int, int], Any] = {}
    for row in rows.to_dict("records"):
        if row["done"] == 0:
            initial[row["tested"]] = row["acc"]
        elif row["phase"] == "task_end":
            place = int(row["task"]), int(row["tested"])
            right[place], total[place] = row["right"], row["total"]
            if isinstance(counts := row.get("predicted_tasks"), list | np.ndarray):
                sent[place] = counts
    if not sent:
        return TaskTests(right, total, initial, None)
    predicted = np.zeros((*shape, max(map(len, sent.values()))), np.int64)
    for (after, tested), counts in sent.items():
        predicted[after, tested, : len(counts)] = counts
    return TaskTests(right, total, initial, predicted)


def _task(name: str) -> int:
    """The task of a test set; -1: it does not belong to one task."""
    match = TASK_SET.fullmatch(name)
    return int(match[1]) if match else -1


class ClassCounts(NamedTuple):
    """One test set in one inference mode after `done [N]` rounds: its samples by class and those predicted right."""

    done: NDArray[np.int64]  # [N] ascending, 0 is the initial model
    right: NDArray[np.int64]  # [N, C]
    total: NDArray[np.int64]  # [N, C]


def class_counts(tests: pandas.DataFrame, tested: str = "test", mode: str | None = None) -> ClassCounts | None:
    """The counts by class of a test set over rounds, by default in the first mode; None: it was never tested.

    After the last round of a task it takes the test at the task's end.
    """
    rows = tests[tests["set"] == tested] if len(tests) else tests
    if not len(rows):
        return None
    rows = rows[rows["mode"] == (rows["mode"].iloc[0] if mode is None else mode)]
    rows = rows.drop_duplicates("done", keep="last").sort_values("done")
    if not len(rows):
        return None
    return ClassCounts(
        rows["done"].to_numpy(np.int64),
        np.stack([np.asarray(counts, np.int64) for counts in rows["class_right"]]),
        np.stack([np.asarray(counts, np.int64) for counts in rows["class_total"]]),
    )


def counts_of_begun(tests: pandas.DataFrame, round: float, mode: str) -> ClassCounts | None:
    """The counts by class, in all tests, of the tasks that had begun in the last test before a round; None: no test set
    is of one of them."""
    begun = tests.loc[tests["done"] < round, "task"].max()
    names = [name for name in tests["set"].unique() if 0 <= _task(name) <= begun]
    found = [counts for name in names if (counts := class_counts(tests, name, mode)) is not None]
    if not found:
        return None
    done = sorted(set.intersection(*(set(counts.done.tolist()) for counts in found)))
    rows = [np.isin(counts.done, done) for counts in found]
    right = np.sum([counts.right[at] for counts, at in zip(found, rows, strict=True)], axis=0)
    total = np.sum([counts.total[at] for counts, at in zip(found, rows, strict=True)], axis=0)
    return ClassCounts(np.array(done, np.int64), right, total)
