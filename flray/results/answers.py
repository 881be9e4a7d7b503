"""What a report says in sentences: which setting is best, how sure that is, at what cost, and what was forgotten."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flray.results import pictures
from flray.results.intervals import is_share
from flray.results.paired import difference, holm, missing
from flray.results.rendering import shown_value
from flray.results.tables import keys_of, over_seeds
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

COSTS = {  # columns of `rounds/`, summed over a run
    "client_steps": "local steps",
    "comm/up_bytes": "bytes up",
    "comm/down_bytes": "bytes down",
    "proxy_examples": "proxy samples",
    "time/client_s": "client time",
    "time/server_s": "server time",
}


def verdict(frame: pandas.DataFrame, metric: str) -> list[str]:
    """Which setting is best, by how much, and how sure that is."""
    label = labels(frame)
    groups = [(label(setting), values) for setting, values, *_ in over_seeds(frame, metric) if len(values)]
    if not groups:
        return [f"No run has finished with a {metric} yet."]
    groups.sort(key=lambda group: -float(group[1].mean()))
    (first, best), rest = groups[0], groups[1:]
    seeds = f"mean of {len(best)} seeds" if len(best) > 1 else "one seed"
    said = [f"{first} is best: {metric} {_value(metric, best.mean())} ({seeds})."]
    if not rest:
        return said if len(best) > 1 else [f"{first}: {metric} {_value(metric, best.mean())} (one seed)."]
    differences = [_paired(best, values, metric) for _, values in rest]
    corrected = holm(_array([found["p_t"] for found in differences]))
    for (name, values), found, p in zip(rest[:3], differences, corrected, strict=False):
        pairs = len(best.index.intersection(values.index))
        if math.isnan(found["diff_low"]):
            gap = _gap(metric, best.mean() - values.mean())
            said.append(f"{gap} above {name}, with too few shared seeds ({pairs}) to say whether that is chance.")
        else:
            span = f"{_gap(metric, found['diff_low'], '')} to {_gap(metric, found['diff_high'], '')}"
            sure = "told apart" if p < 0.05 else "not told apart"
            said.append(
                f"{_gap(metric, found['diff'])} above {name} on {pairs} shared seeds (95 % interval {span}, "
                f"Holm-corrected p {p:.2g}): {sure}."
            )
    return said


def at_what_cost(costs: pandas.DataFrame, frame: pandas.DataFrame, metric: str) -> list[str]:
    """Whether the settings cost the same, and else how much more the best one took than the second best."""
    label = labels(frame)
    groups = [(label(setting), values) for setting, values, *_ in over_seeds(frame, metric) if len(values)]
    ranked = [name for name, _ in sorted(groups, key=lambda group: -float(group[1].mean()))]
    rows = costs.set_index("setting")
    ranked = [name for name in ranked if name in rows.index]
    if len(ranked) < 2:
        return []
    unequal = []
    for column, words in COSTS.items():
        if column not in rows or column.startswith("time/"):
            continue
        ours, theirs = (rows[column].to_dict()[name] for name in ranked[:2])
        if not (ours and theirs):
            unequal += [f"{ours:,.0f} {words} against {theirs:,.0f}"] if ours or theirs else []
        elif not 1 / pictures.EQUAL < ours / theirs < pictures.EQUAL:
            unequal.append(f"{ours / theirs:.2g} times the {words}")
    if not unequal:
        return [f"{ranked[0]} and {ranked[1]} cost the same steps and bytes (within {pictures.EQUAL - 1:.0%})."]
    return [f"A comparison at unequal cost: beside {ranked[1]}, {ranked[0]} took {', '.join(unequal)}."]


def what_was_forgotten(modes: pandas.DataFrame, frame: pandas.DataFrame) -> list[str]:
    """Forgetting over tasks, or through a drift, of each setting in its first inference mode."""
    said, label = [], labels(frame)
    for row in modes.drop_duplicates(keys_of(frame)).to_dict("records") if len(modes) else []:
        name = label(row)
        if not math.isnan(row.get("FT", math.nan)):
            said.append(
                f"{name} ({row['mode']}): {_value('ACC', row['ACC'])} over all tasks at the end, "
                f"forgetting {_value('FT', row['FT'])}."
            )
        if not math.isnan(row.get("drift/acc_end", math.nan)):
            said.append(
                f"{name} ({row['mode']}): {_value('ACC', row['drift/acc_before'])} before the data vanished, "
                f"{_value('ACC', row['drift/acc_end'])} at the end of the window, "
                f"{_value('ACC', row['drift/acc_final'])} at the end."
            )
    return said


def costs_of(runs: Sequence[Run], names: Sequence[str]) -> pandas.DataFrame:
    """What a run took in all, one row a setting (the runs' `names`), mean over seeds: `COSTS`.

    They are sums over the rounds and the tasks' ends.
    """
    import pandas

    rows = []
    for run, name in zip(runs, names, strict=True):
        sums: dict[str, float] = dict.fromkeys(COSTS, 0.0)
        for found in (run.rounds, run.tasks):
            for column in COSTS:
                sums[column] += float(found[column].sum()) if column in found else 0.0
        rows.append({"setting": name, **sums})
    table = pandas.DataFrame(rows).groupby("setting", sort=False).mean().reset_index()
    return table[["setting", *(column for column in COSTS if table[column].any())]]


def labels(frame: pandas.DataFrame) -> Callable[[Mapping[Any, Any]], str]:
    """How a setting of `compare`'s table is called: the algorithm, and the keys that tell it from others.

    A key of the algorithm is said only where runs of this algorithm differ in it, as in `figures.names_of`.
    """
    keys = [key for key in keys_of(frame) if key not in ("name", "algorithm")]
    own = {
        name: {key for key in keys if rows[key].map(str).nunique() > 1} for name, rows in frame.groupby("algorithm")
    }

    def label(setting: Mapping[Any, Any]) -> str:
        name = setting["algorithm"]
        telling = [key for key in keys if key in own[name] or not key.startswith("algorithm.")]
        parts = [f"{key.rpartition('.')[2]}={setting[key]}" for key in telling if not missing(setting[key])]
        return ", ".join([str(name), *parts])

    return label


def _paired(ours: pandas.Series, theirs: pandas.Series, metric: str) -> dict[str, float]:
    seeds = ours.index.intersection(theirs.index)
    return difference(ours.loc[seeds].to_numpy(float) - theirs.loc[seeds].to_numpy(float), is_share(metric))


def _array(values: Sequence[float]) -> Any:
    import numpy as np

    return np.array(values, dtype=float)


def _value(metric: str, value: float) -> str:
    return f"{shown_value(metric, value)} %" if is_share(metric) else shown_value(metric, value)


def _gap(metric: str, value: float, unit: str = " points") -> str:
    return f"{100 * value:+.2f}{unit}" if is_share(metric) else f"{value:+.4g}"
