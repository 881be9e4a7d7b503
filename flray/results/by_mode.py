"""One row a setting over its seeds: learning and forgetting by inference mode, and the spread of accuracy over clients
and classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import CheckpointError
from flray.metrics.classification import worst_class
from flray.metrics.fairness import minority, spread
from flray.metrics.names import OF_ALARMS, OF_DRIFT, OF_EXEMPLARS, OF_TASKS
from flray.results.continual import is_column, numbers, tested_set
from flray.results.intervals import ENDS, half_width, interval, is_share, lowest
from flray.results.tables import keys_of, over_seeds, settings
from flray.rundir.by_task import class_counts
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

Numbers = Mapping[str, Mapping[str, float]]  # of a run: by mode, or by the data of a test, each metric

TRAINED = "own training data"
WORST = "class/acc_worst"
NUMBERS = (
    "client/acc_mean", "client/acc_p10", "client/acc_worst", "client/gini", "client/acc_minority", WORST,
)  # fmt: skip
NOTE = (
    "each client with the same weight; minority: the tenth of the clients whose classes are least like those of all; "
    "worst class: of the global model's last test"
)


def by_mode(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What the finished runs of `compare`'s table learned and forgot, by setting and inference mode.

    Columns: the keys that make a setting, `mode`, `n` (runs), and of each metric of `metrics.names` (`OF_TASKS`,
    `OF_EXEMPLARS`, `OF_DRIFT`, and `OF_ALARMS` by detector in the first mode) the mean over seeds, the ends
    `low` and `high` of its 95 % t-interval, and `half` of it, which is not cut off (`ACC`, `ACC_low`, `ACC_high`,
    `ACC_half`; NaN for one seed). `drift/recovered_after_never`, `1 of 3`, is there where the mean is infinite on that
    many of the seeds, and `ACC_seeds` where fewer than `n` of them have the metric. No rows where no
    finished run has any. A damaged run is left out: its status in the table says so.
    """
    opened = [Run(folder) for folder in frame["folder"]] if any(map(is_column, map(str, frame))) else []
    numbers_of = [_learned(run) for run in opened]
    every = (*OF_TASKS, *OF_EXEMPLARS, *OF_DRIFT, *OF_ALARMS)
    present = dict.fromkeys(name for run in numbers_of for of in run.values() for name in of)
    names = sorted(present, key=lambda name: every.index(name.partition("@")[0]))
    table = _over_settings(frame, numbers_of, names, "mode")
    keys = keys_of(frame) if len(frame) else []
    # the modes of a setting below each other
    return table.sort_values(keys, key=lambda column: column.map(str), kind="stable", ignore_index=True)


def fairness(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The spread of accuracy over clients and classes of the finished runs of `compare`'s table, by setting.

    Columns: the keys of a setting, `accuracy on` (as in `over_clients`: of a run with personalised tests only these;
    `test set` for a run that tested no clients), `n` (runs), and for each of `NUMBERS` the columns of :func:`by_mode`
    (`client/gini`, `client/gini_low`, `client/gini_high`, `client/gini_half`). No rows without a client's accuracy or a
    count by class. A damaged run is left out; its status in the table says so.
    """
    rows = frame.to_dict("records")
    numbers_of = [_served(Run(row["folder"])) if row["status"] == "finished" else {} for row in rows]
    return _over_settings(frame, numbers_of, NUMBERS, "accuracy on")


def _over_settings(
    frame: pandas.DataFrame, numbers_of: Sequence[Numbers], names: Sequence[str], group: str
) -> pandas.DataFrame:
    """The table of the runs' numbers over seeds: keys of a setting, `group`, `n`, and each of `names` with `ENDS`."""
    import pandas

    rows: list[dict[str, Any]] = []
    for value in dict.fromkeys(value for run in numbers_of for value in run):
        columns = {name: [run.get(value, {}).get(name, math.nan) for run in numbers_of] for name in names}
        for parts in zip(*(over_seeds(frame.assign(**columns), name) for name in names), strict=True):
            row = parts[0][0] | {group: value, "n": max(len(seeds) for _, seeds, *_ in parts)}
            for name, (_, seeds, *_) in zip(names, parts, strict=True):
                mean, std, low, high = interval(seeds, share=is_share(name), lowest=lowest(name))
                never = f"{seeds.eq(math.inf).sum()} of {len(seeds)}" if math.isinf(mean) else None
                fewer = len(seeds) if 0 < len(seeds) < row["n"] else None
                values = (mean, low, high, half_width(std, len(seeds)), never, fewer)
                row |= dict(zip((f"{name}{end}" for end in ENDS), values, strict=True))
            if row["n"]:
                rows.append(row)
    keys = keys_of(frame) if len(frame) else []
    table = pandas.DataFrame(rows, columns=[*keys, group, "n", *(f"{name}{end}" for name in names for end in ENDS)])
    rare = [f"{name}{end}" for name in names for end in ("_never", "_seeds")]
    return table.drop(columns=[column for column in rare if table[column].isna().all()])


# numbers of one run -------------------------------------------------------------------------------
def modes_of(run: Run) -> pandas.DataFrame:
    """`mode` and its metrics of one run, finished or not, without intervals."""
    import pandas

    return pandas.DataFrame([{"mode": mode, **values} for mode, values in _learned(run).items()])


def _learned(run: Run) -> Numbers:
    try:
        return numbers(run, settings(run))
    except CheckpointError:
        return {}


def _served(run: Run) -> Numbers:
    """The numbers of `fairness` for one run; {} if it is damaged."""
    try:
        counts = class_counts(run.tests, tested_set(settings(run))) if len(run.tests) else None
        worst = {} if counts is None else {WORST: worst_class(counts.right[-1], counts.total[-1])[1]}
        clients = over_clients(run)
        if len(clients) > 1:
            clients.pop(TRAINED, None)
        clients = clients or ({"test set": {}} if worst else {})
        return {what: row | worst for what, row in clients.items()}
    except CheckpointError:
        return {}


def over_clients(run: Run) -> dict[str, dict[str, float]]:
    """The spread of the clients' last accuracies, by the data of the test: their own test shares after some epochs of
    fine-tuning (`own tests, E epochs`), and their own training data, of the last tested cohort (`TRAINED`).

    Each has `client/acc_mean`, `_p10`, `_worst`, `client/gini`, `clients` (their number), `done` (rounds before the
    test) and, if some of them were tested, `client/acc_minority` over the `minority` clients
    (`metrics.fairness.minority`). Raises `CheckpointError` for a damaged table.
    """
    tested: dict[str, pandas.DataFrame] = {}
    last = run.last_personal
    for epochs in last["finetune_epochs"].unique() if len(last) else ():
        rows = last[last["finetune_epochs"] == epochs]
        tested[f"own tests, {int(epochs)} epochs"] = rows.rename(columns={"test/acc": "acc"})
    rows = run.clients
    if "client/acc_after" in rows and rows["client/acc_after"].notna().any():
        end = rows.loc[rows["client/acc_after"].notna(), "done"].max()
        tested[TRAINED] = rows[rows["done"] == end].rename(columns={"client/acc_after": "acc"})
    few = set()
    if tested and len(counts := run.partition_table):
        few = set(counts.index[minority(counts)].tolist())
    by_data = {}
    for what, table in tested.items():
        values = spread(table["acc"])
        by_data[what] = {
            "clients": float(values.clients),
            "done": float(table["done"].max()),
            "client/acc_mean": values.mean,
            "client/acc_p10": values.p10,
            "client/acc_worst": values.worst,
            "client/gini": values.gini,
        }
        of_few = table.loc[table["client"].isin(few), "acc"].dropna() if "client" in table else table["acc"].iloc[:0]
        if len(of_few):
            by_data[what] |= {"minority": float(len(of_few)), "client/acc_minority": float(of_few.mean())}
    return by_data
