"""Runs compared at the same cost (`flray compare --at`), or by what they take to reach a target (`--to`)."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flray.config.experiment import LENGTH
from flray.core.schema.errors import CheckpointError, ConfigError, unknown
from flray.results.axes import along, axis_named, rounds_of
from flray.results.continual import tested_set
from flray.results.intervals import half_width, interval, smaller_is_better
from flray.results.readable import FLAWED
from flray.results.tables import (
    MEASURED,
    compare,
    is_optional,
    keys_of,
    of_rounds,
    over_seeds,
    planned_rounds,
    settings,
)
from flray.rundir.by_task import class_counts
from flray.rundir.reader import Run
from flray.uplink import UPLINKS

if TYPE_CHECKING:
    import pandas

COSTS = ("to/rounds", "to/steps", "to/bytes", "to/virtual")
"""What a run takes to a target: rounds, local steps of all clients, bytes up and down, virtual seconds (`devices`)."""


def parsed(option: str, text: str) -> tuple[str, float]:
    """(name, number) of `NAME=NUMBER`. Raises `ConfigError` for another text."""
    name, _, number = str(text).rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name or not math.isfinite(value):
        raise ConfigError(f"{option} {text!r}: write NAME=NUMBER, such as {_EXAMPLES[option]}")
    if option == "--at" and value <= 0:
        raise ConfigError(f"{option} {text!r}: nothing is measured there; write a number above 0")
    return name, value


_EXAMPLES = {"--at": "virtual=3600", "--to": "test/acc=0.8"}


def compare_at(runs: Sequence[Run], axis: str, value: float) -> pandas.DataFrame:
    """The table of `compare` with what was measured up to `value` on an axis (`axes.AXES`), such as `virtual` = 3600.

    A number is that of the last round that ends at `value` or before. A run that ended earlier counts as unfinished,
    unless it was to end there (`until`). One that diverged counts if it had not yet diverged there. How far a run goes
    (`rounds`, `until`) makes no setting, unless it tells up to there (`_tells_length`). Raises `ConfigError` for
    another axis, or a run without it.
    """
    axis = axis_named(axis)
    frame = compare(runs)
    rows, tells = [], False
    for run, row in zip(runs, frame.to_dict("records"), strict=True):
        rounds = _rounds(run, row)
        if not len(rounds):
            rows.append(row)
            continue
        place = _place(run, rounds, axis)
        config, status = settings(run), row["status"]
        in_time = axis == "virtual" and status == "finished" and len(rounds) < planned_rounds(config)
        last = max(float(place.max()), (config.get("until.virtual_s") or 0.0) if in_time else 0.0)
        there = rounds[place <= value]
        diverged_there = status.startswith("diverged") and (
            place.iloc[-1] <= value or (status == "diverged" and _collapsed(run, there))
        )
        if last >= value and not status.startswith(FLAWED) and not diverged_there:
            status = "finished"  # its rows up to there are right, whatever came later
        elif status == "finished":
            status = f"ends at {axis}={last:g}"
        tells = tells or _tells_length(config, there)
        tasks = run.tasks
        tasks = tasks[rounds_of(tasks).isin(there["done"])] if len(tasks) else tasks
        measured: dict[str, Any] = {**dict.fromkeys((*MEASURED, "val/acc"), math.nan), **of_rounds(there, tasks)}
        rows.append(row | measured | {"status": status})
    ends = [] if tells else [name for name in map(str, frame) if name.partition(".")[0] in LENGTH]
    return _without_other_ends(frame.drop(columns=ends), rows)


def _collapsed(run: Run, there: pandas.DataFrame) -> bool:
    """Whether a run whose STATUS names no round of divergence would have diverged with the rows `there` alone; true
    where that is not known, without a test's counts by class."""
    import numpy as np

    from flray.engine.summary import collapse_reason, untrained_reason

    config = settings(run)
    split = tested_set(config)
    try:
        counts = class_counts(run.tests, split)
    except CheckpointError:
        return True
    if counts is None or untrained_reason(there) is not None:
        return True
    if int(config.get("tasks.num_tasks") or 1) > 1:
        return _collapsed_in_task(run.tests, there, split)
    total = counts.total[-1]
    return collapse_reason(there, np.repeat(np.arange(len(total)), total), len(total), split) is not None


def _collapsed_in_task(tests: pandas.DataFrame, there: pandas.DataFrame, split: str) -> bool:
    """As :func:`_collapsed`, by the tests of the last task's own classes."""
    import numpy as np

    from flray.engine.summary import collapse_reason, tests_in_task

    if not {"task", "client_steps"} <= set(there) or not len(there):
        return True
    task = int(there["task"].iloc[-1])
    names = [f"{'val' if split == 'val' else 'task'}-{number}" for number in range(task + 1)]
    begun = tests[tests["set"].isin(names)]
    own = begun[(begun["set"] == names[-1]) & (begun["task"] == task)]
    if not len(own):
        return True
    rows, aware = tests_in_task(there, own[own["done"] <= there["done"].iloc[-1]], task, names[-1], split)
    total = np.asarray(own["class_total"].iloc[0], np.int64)
    seen = sum(np.asarray(counts, np.int64) > 0 for counts in (own if aware else begun)["class_total"])
    labels = np.repeat(np.arange(len(total)), total)
    return collapse_reason(rows, labels, int(np.count_nonzero(seen)), split) is not None


def tested_later(runs: Sequence[Run], frame: pandas.DataFrame, at: str, metric: str) -> list[str]:
    """A sentence where `frame`, :func:`compare_at`'s table at `at`, ends before each finished run's first `metric`."""
    finished = frame["status"] == "finished"
    if metric not in frame or frame.loc[finished, metric].notna().any():
        return []
    axis, firsts = axis_named(parsed("--at", at)[0]), list[float]()
    for run in itertools.compress(runs, finished):
        if metric in run.rounds:
            firsts += _place(run, run.rounds, axis)[run.rounds[metric].notna()].head(1).tolist()
    first = repr(min(firsts, default=0.0)).removesuffix(".0")  # all digits: less would be too early
    return [f"At {at} there is no {metric} yet: the first one is at {axis}={first}."] if firsts else []


def _place(run: Run, rounds: pandas.DataFrame, axis: str) -> pandas.Series:
    """:func:`along`, for a run that may have diverged."""
    return along(run, rounds, axis, rounds["diverged"].ne(True) if "diverged" in rounds else None)


def _tells_length(config: Mapping[str, Any], there: pandas.DataFrame) -> bool:
    """Whether the rows `there` of a run depend on how many rounds it was to have: each task has so many, the noise for
    an `epsilon` is solved for so many, which an own transform may read too, and the last one is tested though it is no
    `evaluate.every`-th."""
    own, uplink = UPLINKS.own_paths(), config.get("uplink")
    uplink = json.loads(uplink) if isinstance(uplink, str) and uplink.startswith("[{") else []
    solved = any(transform.get("epsilon") is not None or transform["name"] not in own for transform in uplink)
    tested = there[[name for name in ("test/acc", "val/acc") if name in there]].notna().any(axis=1)
    every = int(config.get("evaluate.every", 1))
    in_turn = (there.loc[tested, "done"] % every == 0).all() if every else not tested.any()
    return int(config.get("tasks.num_tasks") or 1) > 1 or solved or not in_turn


def compare_to(runs: Sequence[Run], metric: str, value: float) -> pandas.DataFrame:
    """The table of `compare` with what each run takes until a column of `rounds/` first reaches `value`.

    A loss reaches it from above. Columns `COSTS`: cumulative, at the end of the first round that was tested so;
    infinite if a finished run never reaches it; virtual seconds only if all runs have devices. Raises `ConfigError` for
    a column that no run has.
    """
    frame = compare(runs)
    rows = frame.to_dict("records")
    tables = [_rounds(run, row) for run, row in zip(runs, rows, strict=True)]
    present = sorted(
        {name for table in tables for name in map(str, table) if name.startswith(("test/", "val/", "train/"))}
    )
    if metric not in present:
        raise unknown("metric", metric, present, "the runs' rounds")
    timed = all("time/virtual_s" in table for table in tables if metric in table)
    names = [name for name in COSTS if timed or name != "to/virtual"]
    for run, rounds, row in zip(runs, tables, rows, strict=True):
        if metric in rounds:
            reached = rounds[metric] <= value if smaller_is_better(metric) else rounds[metric] >= value
            never = math.inf if row["status"] == "finished" else math.nan
            first = rounds.index[reached][:1]
            for name in names:
                place = along(run, rounds, name.removeprefix("to/"), rounds[metric].notna())
                row[name] = float(place[first[0]]) if len(first) else never
    return _without_other_ends(frame, rows, names)


def _rounds(run: Run, row: Mapping[Any, Any]) -> pandas.DataFrame:
    """The run's `rounds/`; empty where the run's `row` says that a table is damaged."""
    import pandas

    return pandas.DataFrame() if row["status"].startswith("damaged") else run.rounds


def _without_other_ends(
    frame: pandas.DataFrame, rows: Sequence[dict[Any, Any]], names: Sequence[str] = ()
) -> pandas.DataFrame:
    """The rows as a table with the columns of `frame`, without the optional ones, which are of the run's end."""
    import pandas

    kept = [name for name in map(str, frame) if not is_optional(name) or (name == "val/acc" and not names)]
    return pandas.DataFrame(rows, columns=[*kept[:-1], *names, kept[-1]])


def reached(frame: pandas.DataFrame, least: int = 2) -> pandas.DataFrame:
    """The settings of `compare_to`'s table: `reached` (`4 of 5`), and of each cost the mean with `low`, `high` and
    `half`, as in `by_mode`, of at least `least` seeds. NaN where a seed never reaches the target, because a mean of the
    others is none of all."""
    import pandas

    names = [name for name in COSTS if name in frame]
    rows = []
    for parts in zip(*(over_seeds(frame, name) for name in names), strict=True):
        values = parts[0][1]
        row = parts[0][0] | {"reached": f"{int(values.lt(math.inf).sum())} of {len(values)}"}
        for name, (_, seeds, *_) in zip(names, parts, strict=True):
            mean, std, low, high = interval(seeds if seeds.lt(math.inf).all() else [])
            if len(seeds) < least:
                std = low = high = math.nan
            half = half_width(std, len(seeds))
            row |= {name: mean, f"{name}_low": low, f"{name}_high": high, f"{name}_half": half}
        rows.append(row)
    return pandas.DataFrame(rows)


def check_reference(frame: pandas.DataFrame, metric: str, reference: str | Mapping[str, Any]) -> None:
    """Raises `ConfigError` if a seed of the setting `reference` (see `paired`) never reaches the target."""
    from flray.results.paired import find

    groups = [(setting, values) for setting, values, *_ in over_seeds(frame, metric)]
    _, values = groups[find([setting for setting, _ in groups], frame, reference)]
    if never := int(values.eq(math.inf).sum()):
        raise ConfigError(
            f"--against {reference}: {never} of {len(values)} seeds never reach the target, so no difference to them "
            "can be told; take another setting, or a nearer target"
        )


def where_all_reach(frame: pandas.DataFrame, metric: str) -> tuple[pandas.DataFrame, list[str]]:
    """(the rows of the settings all of whose seeds reach the target, a sentence on the others)."""
    from flray.results.paired import describe

    never = [
        (setting, int(values.eq(math.inf).sum()), len(values))
        for setting, values, *_ in over_seeds(frame, metric)
        if values.eq(math.inf).any()
    ]
    keys, kept = keys_of(frame), frame
    for setting, *_ in never:
        kept = kept[~(kept[keys].map(str) == {key: str(value) for key, value in setting.items()}).all(axis=1)]
    words = "; ".join(f"{describe(setting)}: {count} of {of} seeds" for setting, count, of in never)
    return kept, [f"Never reached, and in no comparison: {words}."] if never else []
