"""Runs side by side: one row a run, one row a setting over its seeds."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.config.declared import declared_only
from flray.config.experiment import Experiment, completed
from flray.config.read import read_yaml
from flray.core.schema.errors import CheckpointError, ConfigError, nearest
from flray.core.schema.plain import written
from flray.metrics.names import LAST
from flray.results import continual
from flray.results.axes import AXES
from flray.results.intervals import interval, is_share, lowest
from flray.rundir.provenance import FINGERPRINTS
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas

# columns of `compare`
MEASURED = ("done", "status", "test/acc", "test/acc_best", "test/acc_mean10", "comm/bytes", "time/s")
OWN = ("name", "algorithm", "seed", "folder")
SUMMARY = ("n", "diverged", "unfinished", "mean", "std", "low", "high")  # columns of `summary`
# columns that only some tables have: personalised test, validation split, accuracy of clients and classes, costs
_OPTIONAL = ("personal/", "val/", "client/", "class/", "to/")
# keys that do not change the result of a run
_IGNORED = (
    "name", "seed", "algorithm.name", "resources", "address", "storage", "checkpoint", "imports", "diagnostics",
    "track", "profile",
)  # fmt: skip


# tables ------------------------------------------------------------------------------------------
def compare(runs: Iterable[str | Path | Run]) -> pandas.DataFrame:
    """A table of runs, one row each, also of runs that are going on or failed.

    Columns: `name`, `algorithm`, every configuration key whose value differs between the runs, `seed`, `done` (rounds),
    `status`, `test/acc` of the last tested round, `test/acc_best`, `test/acc_mean10` (mean over the last ten tested
    rounds), `comm/bytes` (up and down, all clients) and `time/s` (without start-up) as sums over rounds and tasks,
    `folder`. Also `personal/ftE/acc_mean` of a personalised test, `val/acc` of a validation split, and with tasks or a
    drift `ACC`, `FT`, `drift/acc_end` and others (`flray.metrics.names`). Accuracies are in [0, 1], NaN if nothing was
    tested.

    A run with damaged tables, lost rows, or rounds of another configuration says so in its status and does not count as
    finished. Raises `CheckpointError` for a folder that is not a run.
    """
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    return _table(side_by_side(opened), [run.place for run in opened], [_measured(run) for run in opened])


def planned(
    experiments: Sequence[Experiment], folders: Sequence[Path], optional: Sequence[str] = ()
) -> pandas.DataFrame:
    """The table of `compare` for experiments that have not run yet, to check requests on it. `optional`: the columns
    that only some runs have (`val/acc`, `personal/...`)."""
    configs = [flat(experiment.dump()) for experiment in experiments]
    measured = _nothing("planned") | dict.fromkeys(optional, math.nan)
    return _table(configs, [str(folder) for folder in folders], [measured] * len(configs))


def configured(runs: Sequence[Run]) -> pandas.DataFrame:
    """The table of `compare` without measured values, of which no table of a run is read."""
    return _table(side_by_side(runs), [run.place for run in runs], [_nothing("")] * len(runs))


def _table(
    configs: Sequence[Mapping[str, Any]], folders: Sequence[str], measured: Sequence[Mapping[str, Any]]
) -> pandas.DataFrame:
    import pandas

    keys = differing(configs)
    rows = []
    for config, folder, values in zip(configs, folders, measured, strict=True):
        row = {"name": config.get("name", folder.rpartition("/")[2]), "algorithm": config.get("algorithm.name")}
        row.update({key: short_list(config.get(key)) for key in keys}, seed=config.get("seed"), **values, folder=folder)
        rows.append(row)
    optional = sorted(
        {key for row in rows for key in row if key.startswith(_OPTIONAL)}, key=lambda key: (len(key), key)
    )
    optional += dict.fromkeys(key for row in rows for key in row if continual.is_column(key))
    return pandas.DataFrame(rows, columns=["name", "algorithm", *keys, "seed", *MEASURED, *optional, "folder"])


def summary(frame: pandas.DataFrame, metric: str = "test/acc") -> pandas.DataFrame:
    """`compare`'s table over seeds, one row a setting: `n` finished runs, `mean`, `std` (ddof=1), and the 95 %
    t-interval of the mean (`intervals.interval`), `low` to `high`.

    Runs that diverged or did not finish are counted in `diverged` and `unfinished` and left out, as is a run without a
    value. Of several runs with one setting and seed the last counts. Raises `ConfigError` for an unknown metric.
    """
    import pandas

    rows = [
        [
            *setting.values(),
            len(values),
            diverged,
            unfinished,
            *interval(values, share=is_share(metric), lowest=lowest(metric)),
        ]
        for setting, values, diverged, unfinished in over_seeds(frame, metric)
    ]
    return about(pandas.DataFrame(rows, columns=[*keys_of(frame), *SUMMARY]), metric)


def over_seeds(frame: pandas.DataFrame, metric: str) -> Iterator[tuple[dict[str, Any], pandas.Series, int, int]]:
    """For each setting of `compare`'s table its keys, `metric` of its finished runs by seed, the number of diverged
    seeds, and that of unfinished ones. A finished run without a value is none of them. Raises `ConfigError` if the
    table has no such metric."""
    if not isinstance(metric, str):
        raise ConfigError(f"metric: {metric!r} is not one column; write its name, such as test/acc")
    if metric not in frame.columns or not (metric in MEASURED[2:] or is_optional(metric)):
        known = [*MEASURED[2:], *filter(is_optional, frame.columns)]
        raise ConfigError(f"no column {metric!r}; choose one of {', '.join(known)}")
    keys = keys_of(frame)
    for values, group in frame.groupby(keys, sort=False, dropna=False):
        done = group[(group["status"] == "finished") & group[metric].notna()].drop_duplicates("seed", keep="last")
        rest = group[(group["status"] != "finished") & ~group["seed"].isin(done["seed"])]
        diverged = rest[rest["status"].str.startswith("diverged")]["seed"].nunique()
        yield (
            dict(zip(keys, values, strict=True)),
            done.set_index("seed")[metric],
            diverged,
            rest["seed"].nunique() - diverged,
        )


def keys_of(frame: pandas.DataFrame) -> list[str]:
    """The columns of `compare`'s table that define a setting: all except the seed and measured columns."""
    return [
        column for column in frame.columns if column not in (*MEASURED, "seed", "folder") and not is_optional(column)
    ]


def settings_of(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The settings of `compare`'s table, a row each."""
    return frame[keys_of(frame)].map(str).drop_duplicates() if len(frame) else frame


def is_optional(column: str) -> bool:
    """Whether this is a measured column that only some runs have."""
    return column.startswith(_OPTIONAL) or continual.is_column(column)


def about(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """The table, marked as statistics of `metric`, whose unit is then used for display."""
    frame.attrs["metric"] = metric
    return frame


def settings(run: Run) -> dict[str, Any]:
    """A run's configuration as dotted keys and plain values (lists as JSON); {} before it is written. None of the
    user's modules is imported. Raises `CheckpointError` for a folder that is no run, or one that cannot be read."""
    return _read(run)[1]


def _read(run: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """(a run's configuration as its file has it, its `settings`)."""
    path = run.folder / "config.yaml"
    if not path.exists():
        if (run.folder / "STATUS").exists():  # it is just starting, or failed before it began
            return {}, {}
        raise CheckpointError(f"{run.folder} is not a run folder: {_instead(run.folder)}")
    try:
        content = read_yaml(path)
    except ConfigError as error:
        why = str(error).removeprefix(str(path)).lstrip(",: ")
        raise CheckpointError(f"{path} is not valid YAML: {why}") from error
    config = flat(content)
    if "algorithm.name" not in config:
        raise CheckpointError(f"{path} is not a run's of flray: it names no algorithm; leave the folder out")
    return content, config


def side_by_side(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The `settings` of runs that are compared. A key that an older flray did not write has its default, if another
    run with a section of the same kind has the key."""
    read = [_read(run) for run in runs]
    configs = [config for _, config in read]
    known: dict[tuple[str, Any], set[str]] = {}
    for config in configs:
        for key in config:
            known.setdefault((key.split(".")[0], _kind(key, config)), set()).add(key)
    # its entries have keys of their own
    unlike = len({config["uplink"] for config in configs if "uplink" in config}) > 1
    with declared_only():  # once: each entry imports the modules of the sections anew
        for place, (content, config) in enumerate(read):
            keys = set().union(*(own for (section, kind), own in known.items() if kind == _kind(section, config)))
            if config and (unlike or _unwritten(keys, config)):
                known_here = {key: value for key, value in flat(completed(content)).items() if key in keys}
                configs[place] = known_here | {key: value for key, value in config.items() if key not in known_here}
    return configs


def _unwritten(keys: set[str], config: Mapping[str, Any]) -> set[str]:
    """Those of the keys that a configuration lacks. A section that is null lacks none, and one with keys is no null."""
    nulls = tuple(f"{key}." for key, value in config.items() if value is None)
    lacking = {key for key in keys - config.keys() if not key.startswith(nulls)}
    return {key for key in lacking if not any(own.startswith(f"{key}.") for own in config)}


def _kind(key: str, config: Mapping[str, Any]) -> Any:
    """The kind of a key's section: its name or its source."""
    section = key.split(".")[0]
    return config.get(f"{section}.name", config.get(f"{section}.source"))


def _instead(folder: Path) -> str:
    """A note on what lies in the place of a run."""
    if not folder.exists():
        return (
            f"there is none{nearest(folder.name, [path.parent.name for path in folder.parent.glob('*/config.yaml')])}"
        )
    if not folder.is_dir():
        return "it is a file; name the folder"
    return "it has neither config.yaml nor STATUS" if any(folder.iterdir()) else "it is empty"


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys, in the order of the file, whose values differ between the configurations that have them: one that only
    some sections have (`alpha` of one algorithm) is none for that reason."""
    configs = [config for config in configs if config]
    names = [key for key in dict.fromkeys(key for config in configs for key in config) if not ignored(key)]
    # where one leaves a section out (`proxy: null`), its keys tell
    sections = {key.rpartition(".")[0] for key in names}
    names = [key for key in names if key not in sections]
    return [key for key in names if _differs(key, configs)]


def _differs(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    if all(config.get(key) is None for config in configs):  # a section that an older flray did not know
        return False
    section = key.split(".")[0]
    if key in (f"{section}.name", f"{section}.source"):
        return len({config.get(key) for config in configs}) > 1
    said: dict[Any, set[Any]] = {}  # the section's kind -> the values of the key in its configurations
    for config in configs:
        value = config.get(key, "no such key")
        # True == 1
        said.setdefault(_kind(key, config), set()).add(("bool", value) if isinstance(value, bool) else value)
    values = set().union(*said.values()) - {None, "no such key"}
    return len(values) > 1 or any(len(own) > 1 for own in said.values())


def ignored(key: str) -> bool:
    """Whether a key is no part of a setting."""
    return key in _IGNORED or key.split(".")[0] in _IGNORED


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration as dotted keys and plain values (lists as JSON)."""
    dotted: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            dotted.update(flat(value, f"{prefix}{key}."))
        else:
            dotted[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list | dict) else value
    return dotted


def short_list(value: Any) -> Any:
    """A list of `flat` as a command line takes it, `[{name: topk}]`; any other value as it is."""
    if isinstance(value, str) and value.startswith("["):
        with contextlib.suppress(ValueError):
            return written(json.loads(value))
    return value


def planned_rounds(config: Mapping[str, Any]) -> int:
    """Rounds over all tasks that a configuration (`settings`) asks for; 0 if it does not say."""
    return int(config.get("rounds") or 0) * int(config.get("tasks.num_tasks") or 1)


def _nothing(status: str) -> dict[str, Any]:
    return dict.fromkeys(MEASURED, math.nan) | {"done": 0, "status": status}


def _measured(run: Run) -> dict[str, Any]:
    status = run.standing.partition(":" if run.status.startswith("diverged") else ";")[0]
    nothing = _nothing(status)
    try:
        rounds, tasks = run.rounds, run.tasks
        learned = continual.by_column(continual.numbers(run, settings(run)))
    except CheckpointError as error:
        return nothing | {"status": f"damaged: {error}"}
    lost_rows = run.missing("rounds") or run.missing("tasks")
    if lost_rows:  # sums and best values of the remaining rows are not the run's
        nothing["status"] = f"incomplete: {lost_rows} lost"
    elif len(rounds) and not (run.folder / "config.yaml").exists():
        nothing["status"] = "incomplete: config.yaml is missing"
    elif why := edited(run):
        nothing["status"] = f"edited: {why}"
    if rounds.empty:
        return nothing
    measured = nothing | of_rounds(rounds, tasks)
    if len(tasks):
        end = tasks.iloc[-1]
        ours = [name for name in map(str, tasks) if name.startswith(_OPTIONAL) and name.endswith("acc_mean")]
        measured |= {name: float(end[name]) for name in ours}
    return measured | learned


def edited(run: Run) -> str:
    """The first key of config.yaml of which not all rounds of the run had the value, in words; "": none."""
    accepted = (
        f"{key} was {was!r} until a resume and is {now!r} since"
        for key, (was, now) in run.accepted.items()
        if key.partition(".")[0] in Experiment.model_fields
        and key not in FINGERPRINTS  # of the whole section, such as `data`
        and (not ignored(key) or key in ("seed", "algorithm.name"))
    )
    return run.changed or next(accepted, "")


def of_rounds(rounds: pandas.DataFrame, tasks: pandas.DataFrame) -> dict[str, float]:
    """The measured columns of `compare` that rows of `rounds/` and of `tasks/` give; costs are sums over both."""
    tested = rounds["test/acc"].dropna() if "test/acc" in rounds else rounds.iloc[:0, 0]
    measured: dict[str, float] = {"done": len(rounds)}
    for name, axis in (("comm/bytes", AXES["bytes"]), ("time/s", AXES["seconds"])):
        every = [float(rounds[column].sum()) if column in rounds else math.nan for column in axis.columns]
        every += [float(tasks[column].sum()) for column in (*axis.columns, *axis.of_tasks) if column in tasks]
        measured[name] = sum(every)
    if len(tested):
        measured |= {
            "test/acc": float(tested.iloc[-1]),
            "test/acc_best": float(tested.max()),
            "test/acc_mean10": float(tested.tail(LAST).mean()),
        }
    held_out = rounds["val/acc"].dropna() if "val/acc" in rounds else rounds.iloc[:0, 0]
    if len(held_out):
        measured["val/acc"] = float(held_out.iloc[-1])
    return measured
