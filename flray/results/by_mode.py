"""Runs over tasks or through a drift, by inference mode: one row a setting and mode over its seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from flray.core.schema.errors import CheckpointError
from flray.metrics.names import OF_ALARMS, OF_DRIFT, OF_EXEMPLARS, OF_TASKS
from flray.results.continual import is_column, numbers
from flray.results.intervals import interval, is_share, lowest
from flray.results.tables import keys_of, over_seeds, settings
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas


def by_mode(frame: pandas.DataFrame) -> pandas.DataFrame:
    """What the finished runs of `compare`'s table learned and forgot, by setting and inference mode.

    Columns: the keys that make a setting, `mode`, `n` (runs), and of each metric of `metrics.names` (`OF_TASKS`,
    `OF_EXEMPLARS`, `OF_DRIFT`, and `OF_ALARMS` by detector in the first mode) the mean over seeds, and `low`
    and `high` of its 95 % t-interval (`ACC`, `ACC_low`, `ACC_high`; NaN for one seed). No rows where no finished run
    has any. A damaged run is left out: its status in the table says so.
    """
    import pandas

    opened = [Run(folder) for folder in frame["folder"]] if any(map(is_column, map(str, frame))) else []
    numbers_of = [_numbers(run) for run in opened]
    modes = dict.fromkeys(mode for run in numbers_of for mode in run)
    every = (*OF_TASKS, *OF_EXEMPLARS, *OF_DRIFT, *OF_ALARMS)
    present = dict.fromkeys(name for run in numbers_of for of in run.values() for name in of)
    names = sorted(present, key=lambda name: every.index(name.partition("@")[0]))
    rows: list[dict[str, Any]] = []
    for mode in modes:
        values = {name: [run.get(mode, {}).get(name, math.nan) for run in numbers_of] for name in names}
        for group in zip(*(over_seeds(frame.assign(**values), name) for name in names), strict=True):
            row = group[0][0] | {"mode": mode, "n": max(len(seeds) for _, seeds, *_ in group)}
            for name, (_, seeds, *_) in zip(names, group, strict=True):
                mean, _, low, high = interval(seeds, share=is_share(name), lowest=lowest(name))
                row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
            if row["n"]:
                rows.append(row)
    keys = keys_of(frame) if len(frame) else []
    rows.sort(key=lambda row: [str(row[key]) for key in keys])  # the modes of a setting below each other
    return pandas.DataFrame(
        rows, columns=[*keys, "mode", "n", *(f"{name}{end}" for name in names for end in ("", "_low", "_high"))]
    )


def modes_of(run: Run) -> pandas.DataFrame:
    """`mode` and its metrics of one run, finished or not, without intervals."""
    import pandas

    return pandas.DataFrame([{"mode": mode, **values} for mode, values in _numbers(run).items()])


def _numbers(run: Run) -> dict[str, dict[str, float]]:
    try:
        return numbers(run, settings(run))
    except CheckpointError:
        return {}
