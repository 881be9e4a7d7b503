"""The table `tests/`: the counts of every test. A row is one test set in one inference mode.

| column | |
|---|---|
| `done`, `task`, `round`, `phase` | when: `round` from 1, and 0 for the initial model, which has `done` 0 |
| `set` | the test set: `test`, or `val` of held-out training data; over tasks also `task-0`, ...; of text `cola`, ... |
| `mode` | the inference mode, by its name in `Algorithm.modes`: `global`, `task_aware`, `tip_batch`, ... |
| `total`, `right` | samples, and those that were predicted right |
| `covered`, `loss_sum` | samples whose label is in the head of the answer, and the sum of their cross-entropy in nats |
| `class_total`, `class_right` | samples by class, and those predicted right by class: lists of C numbers |
| `predicted_tasks` | samples by the task that was predicted for them, where the mode predicts one |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.metrics.classification import Counts, macro_accuracy, worst_class

if TYPE_CHECKING:
    import pandas


def rows_of_test(counts: Mapping[tuple[str, str], Counts], when: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of one test; `when` has its `done`, `task`, `round` and `phase`."""
    return [{**when, "set": tested, "mode": mode, **_columns(count)} for (tested, mode), count in counts.items()]


def _columns(counts: Counts) -> dict[str, Any]:
    columns = {
        "total": counts.examples,
        "right": int(counts.right.sum()),
        "covered": counts.covered,
        "loss_sum": counts.loss_sum,
        "class_total": counts.total.tolist(),
        "class_right": counts.right.tolist(),
    }
    return columns if counts.tasks is None else {**columns, "predicted_tasks": counts.tasks.tolist()}


def with_accuracies(table: pandas.DataFrame) -> pandas.DataFrame:
    """The table with columns from its counts: `acc`, `loss` (mean over `covered`), `acc_macro`, `acc_worst`.

    `acc_macro`: the mean accuracy of the classes that have samples. `acc_worst`: the lowest of them. NaN for 0 / 0.
    """
    if not len(table):
        return table
    by_class = list(zip(table["class_right"], table["class_total"], strict=True))
    return table.assign(
        acc=table["right"] / table["total"].replace(0, np.nan),
        loss=table["loss_sum"] / table["covered"].replace(0, np.nan),
        acc_macro=[macro_accuracy(right, total) for right, total in by_class],
        acc_worst=[worst_class(right, total)[1] for right, total in by_class],
    )
