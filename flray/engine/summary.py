"""From clients' rows to a round's row, and from rounds to the run's outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import AlgorithmError
from flray.metrics import fairness
from flray.metrics.names import LAST

if TYPE_CHECKING:
    import pandas

    from flray.data import Dataset
    from flray.data.cache import Array
    from flray.scenario import Stage

ENOUGH = 5  # tests of a run that can have lost what it knew
ROW_COLUMNS = (
    "client",
    "exchange",
    "position",
    "num_examples",
    "num_steps",
    "examples_read",
    "skipped",
    "time/client_s",
)


def summarise(rows: Sequence[dict[str, Any]], weights: dict[int, float]) -> dict[str, float | list[float]]:
    """The clients' metrics, averaged by aggregation weight, and the 10th percentile of their accuracy.

    A client with None or NaN for a metric, or for an element of a vector, is not part of that mean. The mean over no
    client is NaN.
    """
    delivered = [row for row in rows if not row["skipped"]]
    names = dict.fromkeys(name for row in delivered for name in row if name not in ROW_COLUMNS)
    means = {
        name: _mean(name, [(weights[row["client"]], row[name]) for row in delivered if row.get(name) is not None])
        for name in names
    }
    own = [row["client/acc_after"] for row in delivered if row.get("client/acc_after") is not None]
    if own:
        means["client/acc_p10"] = float(np.percentile(own, 10))
    return {name: value for name, value in means.items() if value is not None}


def _mean(name: str, pairs: Sequence[tuple[float, Any]]) -> float | list[float] | None:
    """The weighted mean of the values, element by element, without NaN; None: there are no values."""
    if not pairs:
        return None
    if len({np.shape(value) for _, value in pairs}) > 1:
        raise AlgorithmError(
            f"metric {name!r}: the clients report vectors of different lengths; report one number a class, NaN for none"
        )
    share = np.array([weight for weight, _ in pairs])
    values = np.array([value for _, value in pairs], dtype=np.float64)
    if values.ndim == 1 and not np.isnan(values).any():
        return float(np.dot(share / share.sum(), values))
    there = ~np.isnan(values)
    given = np.where(there, share.reshape(-1, *[1] * (values.ndim - 1)), 0.0)
    total = given.sum(axis=0)
    with np.errstate(invalid="ignore"):
        mean = (given * np.where(there, values, 0.0)).sum(axis=0) / total
    means: list[float] = mean.tolist()
    return means


def personal_columns(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The columns `personal/ftE/acc_mean`, `acc_std` (over clients, ddof 0), `acc_p10`, `acc_worst` and `gini` for
    every E, over the clients with test samples."""
    columns: dict[str, float] = {}
    for epochs in dict.fromkeys(row["finetune_epochs"] for row in rows):
        values = [row["test/acc"] for row in rows if row["finetune_epochs"] == epochs and row["num_test"]]
        if values:
            spread = fairness.spread(values)
            names = {"acc_mean": spread.mean, "acc_std": spread.std, "acc_p10": spread.p10, "acc_worst": spread.worst}
            columns |= {f"personal/ft{epochs}/{name}": value for name, value in (names | {"gini": spread.gini}).items()}
    return columns


def untrained_reason(rounds: pandas.DataFrame) -> str | None:
    """The reason if a run of `on_nonfinite: skip` diverged: every client was left out in every round. Else None."""
    if not {"clients_skipped", "cohort_size"} <= set(rounds):  # no client was left out, or the table is lost
        return None
    skipped = rounds["clients_skipped"].fillna(0)
    if not skipped.sum() or (skipped < rounds["cohort_size"]).any():
        return None
    return (
        f"diverged: all clients were left out in all {len(rounds)} rounds, because their updates were not finite; the "
        "model is the initial one; lower algorithm.lr"
    )


def final_tests(
    rounds: pandas.DataFrame, tests: pandas.DataFrame, stages: Sequence[Stage], dataset: Dataset, split: str
) -> tuple[pandas.DataFrame, Array, int]:
    """(rounds with accuracy and loss on the split, the labels of that split, the number of classes among which the
    model chooses there): the arguments of :func:`collapse_reason`.

    Of a run over tasks they are the last task's own, in the mode `task_aware` if there is one: earlier tasks may be
    forgotten down to chance level.
    """
    stage = stages[-1]
    seen = len(np.unique(np.concatenate([each.outputs for each in stages])))
    own = next((name for name, test in stage.tests.items() if test.task == stage.index), None)
    if own is None or tests.empty:
        return rounds, next(iter(stage.tests.values())).labels(dataset), seen
    labels = stage.tests[own].labels(dataset)
    rows, aware = tests_in_task(rounds, tests, stage.index, own, split)
    return rows, labels, len(stage.outputs) if aware else seen


def tests_in_task(
    rounds: pandas.DataFrame, tests: pandas.DataFrame, task: int, own: str, split: str
) -> tuple[pandas.DataFrame, bool]:
    """(tests of the set `own` in the rounds of a task, with accuracy and loss named as in a table of rounds; whether
    they are in the mode `task_aware`). The table is empty if no client took a step in the task, or the rows of the
    rounds are lost."""
    of_task = rounds[rounds["task"] == task] if {"task", "client_steps"} <= set(rounds) else rounds.iloc[:0]
    if of_task.empty or not of_task["client_steps"].sum():
        return rounds.iloc[:0], False
    rows = tests[(tests["set"] == own) & (tests["phase"] == "round") & (tests["task"] == task)]
    modes = rows["mode"].tolist()
    aware = "task_aware" in modes
    rows = rows[rows["mode"] == ("task_aware" if aware else modes[0])] if modes else rows
    return rows.rename(columns={"acc": f"{split}/acc", "loss": f"{split}/loss"}), aware


def collapse_reason(rounds: pandas.DataFrame, labels: np.ndarray, num_classes: int, split: str) -> str | None:
    """The reason if a run with finite numbers diverged, else None. `labels`: those of the split (val or test).
    The model chooses among `num_classes` classes, of which the labels may lack some.

    It diverged if the mean accuracy of its last tests is chance level (10.00 in FedSOL's Table 2), and either an
    earlier test was at least 1.5 times chance, or the loss is at least twice that of a uniform prediction: ten times
    after fewer than `ENOUGH` tests. A run whose last test is its best, and above chance, is learning.
    """
    acc, loss = f"{split}/acc", f"{split}/loss"
    tested = rounds.dropna(subset=acc) if {acc, loss, "round"} <= set(rounds) else rounds.iloc[:0]
    if not len(tested):
        return None
    counts = np.bincount(labels)
    if counts.max() == len(labels):  # all of one class: every prediction of it is right
        return None
    chance, nothing = counts.max() / len(labels), math.log(num_classes)
    last, best = tested.tail(LAST), tested.iloc[int(tested[acc].argmax())]
    accuracy, final = last[acc].mean(), last[loss].iloc[-1]
    rising = last[acc].iloc[-1] > 1.05 * chance and last[acc].iloc[-1] == best[acc]
    enough = len(tested) >= ENOUGH
    collapsed = (enough and best[acc] >= 1.5 * chance) or final >= (2 if enough else 10) * nothing
    if accuracy > 1.05 * chance or rising or not collapsed:
        return None
    return (
        f"diverged: the last {len(last)} tests have a mean accuracy of {accuracy:.2%}, chance level, and a loss of "
        f"{final:.3g} (best accuracy {best[acc]:.2%} in round {best['round']:.0f}); lower algorithm.lr"
    )
