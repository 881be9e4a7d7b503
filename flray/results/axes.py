"""The axes on which a run's rounds lie: rounds, local steps, bytes, FLOPs, virtual time, seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flray.core.schema.errors import ConfigError, unknown
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas


class Axis(NamedTuple):
    """Columns of `rounds/`, and of `tasks/`, summed up to a round; or the round itself."""

    label: str
    columns: tuple[str, ...]
    units: tuple[tuple[float, str], ...] = ()  # (size, name), the largest first
    log: bool = False
    summed: bool = True  # from the first round on; False: the column says where a round ends
    of_tasks: tuple[str, ...] = ()  # columns of `tasks/` that are summed too, beside those of the same name


TASK_TIMES = ("time/task_begin_s", "time/task_end_s")
BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
HOURS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
AXES = {
    "rounds": Axis("round", ()),
    "steps": Axis("local gradient steps, all clients", ("client_steps",)),
    "bytes": Axis("sent up and down", ("comm/up_bytes", "comm/down_bytes"), BYTES),
    "up": Axis("sent up", ("comm/up_bytes",), BYTES, log=True),  # encodings differ by powers of ten
    "flops": Axis(
        "FLOPs of local steps, all clients",
        ("client_flops",),
        ((1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")),
    ),
    "virtual": Axis("virtual time", ("time/virtual_s",), HOURS, summed=False),
    "seconds": Axis("time, without start-up", ("time/round_s",), HOURS, of_tasks=TASK_TIMES),
}
_COLUMNS = {axis.columns[0]: name for name, axis in AXES.items() if len(axis.columns) == 1}
_COLUMNS |= {"done": "rounds", "comm/bytes": "bytes"}


def axis_named(name: str) -> str:
    """The key of an axis in `AXES`, by this key or by its column. Raises `ConfigError` for another name."""
    found = _COLUMNS.get(name, name)
    if found not in AXES:
        raise unknown("axis", name, AXES)
    return found


def along(run: Run, table: pandas.DataFrame, name: str, asked: pandas.Series | None = None) -> pandas.Series:
    """Where each round of `table`, which is the run's `rounds/`, ends on an axis of `AXES`.

    What a task's beginning or end cost belongs to its `rounds_of`. NaN for a round whose cost is not known, as of the
    one in which a run diverged. Raises `ConfigError` if the run has no such column, or no value in one of the rounds
    that are `asked` for (bool; None: all) or, of a sum, in one before them.
    """
    axis = AXES[name]
    if not axis.columns:
        return table["done"].astype(float)
    missing = [column for column in axis.columns if column not in table]
    if missing and (asked is None or asked.any()):
        raise ConfigError(f"{run.folder} has no column {missing[0]!r} in rounds/; take the axis rounds")
    columns = table.reindex(columns=list(axis.columns))
    unknown_cost, needed = columns.isna().any(axis=1), True if asked is None else asked
    if asked is not None and axis.summed:
        needed = table["done"] <= table.loc[asked, "done"].max()
    if (unknown_cost & needed).any():
        lacking = int(table.loc[unknown_cost & needed, "done"].iloc[0])
        raise ConfigError(f"{run.folder} has no {axis.columns[0]} in round {lacking}; take the axis rounds")
    place = columns.sum(axis=1).astype(float).mask(unknown_cost)
    if not axis.summed:
        return place
    tasks = run.tasks
    own = [column for column in (*axis.columns, *axis.of_tasks) if column in tasks]
    if own:
        at_tasks = tasks[own].sum(axis=1).groupby(rounds_of(tasks)).sum()
        place += table["done"].map(at_tasks).fillna(0.0)
    return place.cumsum()


def rounds_of(tasks: pandas.DataFrame) -> pandas.Series:
    """The round, counted over all tasks from 1, to which each row of `tasks/` belongs: an end to the task's last one, a
    beginning to the first one."""
    return tasks["done"] + (tasks["phase"] == "task_begin")
