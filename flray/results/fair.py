"""The spread of accuracy over clients and classes: one row a setting over its seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import CheckpointError
from flray.metrics.classification import worst_class
from flray.metrics.fairness import minority, spread
from flray.results.continual import tested_set
from flray.results.intervals import interval, is_share
from flray.results.tables import keys_of, over_seeds, settings
from flray.rundir.by_task import class_counts
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

TRAINED = "own training data"
WORST = "class/acc_worst"
NUMBERS = (
    "client/acc_mean", "client/acc_p10", "client/acc_worst", "client/gini", "client/acc_minority", WORST,
)  # fmt: skip
NOTE = (
    "each client with the same weight; minority: the tenth of the clients whose classes are least like those of all; "
    "worst class: of the global model's last test"
)


def over_clients(run: Run) -> dict[str, dict[str, float]]:
    """The spread of the clients' last accuracies, by the data of the test.

    These data are their own test shares after some epochs of fine-tuning (`own tests, E epochs`), and their own
    training data after local training, over the last tested cohort (`TRAINED`). Each has `client/acc_mean`, `_p10`,
    `_worst`, `client/gini`, `clients` (their number) and `done` (rounds before the test). `client/acc_minority` is the
    mean over the `minority` clients (`metrics.fairness.minority`), if the run recorded its partition and some of them
    were tested. `{}` if no client was tested. Raises `CheckpointError` for a damaged table.
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
    numbers = {}
    for what, table in tested.items():
        values = spread(table["acc"])
        numbers[what] = {
            "clients": float(values.clients),
            "done": float(table["done"].max()),
            "client/acc_mean": values.mean,
            "client/acc_p10": values.p10,
            "client/acc_worst": values.worst,
            "client/gini": values.gini,
        }
        of_few = table.loc[table["client"].isin(few), "acc"].dropna() if "client" in table else table["acc"].iloc[:0]
        if len(of_few):
            numbers[what] |= {"minority": float(len(of_few)), "client/acc_minority": float(of_few.mean())}
    return numbers


def fairness(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The spread of accuracy over clients and classes of the finished runs of `compare`'s table, by setting.

    Columns: the keys of a setting, `accuracy on` (as in `over_clients`: of a run with personalised tests only these;
    `test set` for a run that tested no clients), `n` (runs), and for each of `NUMBERS` the mean over seeds and the ends
    `low` and `high` of its 95 % t-interval (`client/gini`, `client/gini_low`, `client/gini_high`). No rows without a
    client's accuracy or a count by class. A damaged run is left out; its status in the table says so.
    """
    import pandas

    numbers = [_numbers(Run(row["folder"])) if row["status"] == "finished" else {} for row in frame.to_dict("records")]
    rows: list[dict[str, Any]] = []
    for what in dict.fromkeys(what for run in numbers for what in run):
        values = {name: [run.get(what, {}).get(name, math.nan) for run in numbers] for name in NUMBERS}
        of_names = (over_seeds(frame.assign(**values), name) for name in NUMBERS)
        for group in zip(*of_names, strict=True):
            row = group[0][0] | {"accuracy on": what, "n": max(len(seeds) for _, seeds, *_ in group)}
            for name, (_, seeds, *_) in zip(NUMBERS, group, strict=True):
                mean, _, low, high = interval(seeds, share=is_share(name))
                row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
            if row["n"]:
                rows.append(row)
    keys = keys_of(frame) if len(frame) else []
    columns = [f"{name}{end}" for name in NUMBERS for end in ("", "_low", "_high")]
    return pandas.DataFrame(rows, columns=[*keys, "accuracy on", "n", *columns])


def _numbers(run: Run) -> dict[str, Mapping[str, float]]:
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
