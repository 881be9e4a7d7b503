"""Runs side by side: one row a run, one row a setting over its seeds, on the terminal and in Markdown."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flray.core.errors import CheckpointError, ConfigError
from flray.metrics.names import LAST
from flray.results.intervals import interval, interval_words, is_share
from flray.rundir.reader import Run

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

    from flray.experiment import Experiment

MEASURED = ("done", "status", "test/acc", "test/acc_best", "test/acc_mean10", "comm/bytes", "time/s")  # columns of `compare`
OWN = ("name", "algorithm", "seed", "folder")
SUMMARY = ("n", "diverged", "unfinished", "mean", "std", "low", "high")  # columns of `summary`
OPTIONAL = ("personal/", "val/")  # columns that only some runs have: the personalised test, the validation split
# keys that do not change what a run finds
_ASIDE = ("name", "seed", "algorithm.name", "resources", "address", "storage", "checkpoint", "imports")
_SHARES = ("test/acc", "test/acc_best", "test/acc_mean10")
_STATISTICS = ("mean", "std", "low", "high", "diff", "diff_low", "diff_high")  # of the metric that a table is about
_HEADS = {
    "test/acc": "test acc %", "test/acc_best": "best %", "test/acc_mean10": f"last {LAST} %", "comm/bytes": "sent", "time/s": "time",
    "val/acc": "val acc %", "low": "95 % from", "high": "to", "diff": "diff.", "diff_low": "95 % from", "diff_high": "to",
    "holm_t": "p (t)", "holm_wilcoxon": "p (W)",
}  # fmt: skip


# tables ------------------------------------------------------------------------------------------
def compare(runs: Iterable[str | Path | Run]) -> pandas.DataFrame:
    """One row a run, also while it goes on or after it failed.

    Columns: `name`, `algorithm`, every configuration key whose value is not the same in all runs, `seed`, `done` (rounds), `status`,
    `test/acc` of the last tested round, `test/acc_best`, `test/acc_mean10` (mean over the last ten tested rounds), `comm/bytes` (up and
    down, all clients), `time/s` (sum over rounds, start-up not counted), `folder`, `personal/ftE/acc_mean` where clients were tested on
    their own shares, and `val/acc` of the last round where the run held out a validation split. Accuracies are in [0, 1], NaN where nothing
    was tested.
    A run whose tables are damaged or have lost rows, or whose config.yaml was edited, has that as its status and is not finished.
    Raises `CheckpointError` for a folder that is no run.
    """
    found = [run if isinstance(run, Run) else Run(run) for run in runs]
    return _table([settings(run) for run in found], [run.place for run in found], [_measured(run) for run in found])


def planned(experiments: Sequence[Experiment], folders: Sequence[Path], optional: Sequence[str] = ()) -> pandas.DataFrame:
    """What `compare` will give of these experiments, before they run: nothing is measured yet. For checks of what is asked of it.

    `optional`: the columns that only some runs have (`val/acc`, `personal/...`).
    """
    configs = [_flat(yaml.safe_load(experiment.yaml())) for experiment in experiments]
    measured = _nothing("planned") | dict.fromkeys(optional, math.nan)
    return _table(configs, [str(folder) for folder in folders], [measured] * len(configs))


def _table(configs: Sequence[Mapping[str, Any]], folders: Sequence[str], measured: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    import pandas

    keys = differing(configs)
    rows = []
    for config, folder, found in zip(configs, folders, measured, strict=True):
        row = {"name": config.get("name", folder.rpartition("/")[2]), "algorithm": config.get("algorithm.name")}
        row.update({key: config.get(key) for key in keys}, seed=config.get("seed"), **found, folder=folder)
        rows.append(row)
    optional = sorted({key for row in rows for key in row if key.startswith(OPTIONAL)}, key=lambda key: (len(key), key))
    return pandas.DataFrame(rows, columns=["name", "algorithm", *keys, "seed", *MEASURED, *optional, "folder"])


def summary(frame: pandas.DataFrame, metric: str = "test/acc") -> pandas.DataFrame:
    """`compare`'s table over seeds: `n` finished runs, `mean`, `std` (ddof=1), `low` and `high`, the 95 % t-interval of the mean.

    The interval is mean +- t(0.975, n - 1) std / sqrt(n), of a share cut off at 0 and 1; NaN for n = 1. Runs that diverged, and those
    that did not finish or have no value, are counted in `diverged` and `unfinished` and left out. Several runs of one setting with the
    same seed are the same experiment: the last counts.
    """
    import pandas

    rows = [
        [*setting.values(), len(values), diverged, unfinished, *interval(values, share=is_share(metric))]
        for setting, values, diverged, unfinished in over_seeds(frame, metric)
    ]
    return about(pandas.DataFrame(rows, columns=[*keys_of(frame), *SUMMARY]), metric)


def over_seeds(frame: pandas.DataFrame, metric: str) -> Iterator[tuple[dict[str, Any], pandas.Series, int, int]]:
    """Per setting of `compare`'s table: its keys, `metric` of the finished runs by seed, how many seeds diverged, how many are unfinished.

    Raises `ConfigError` when the table has no such metric.
    """
    if metric not in frame.columns:
        known = [*MEASURED[2:], *(column for column in frame.columns if column.startswith(OPTIONAL))]
        raise ConfigError(f"no column {metric!r}; choose one of {', '.join(known)}")
    keys = keys_of(frame)
    for values, group in frame.groupby(keys, sort=False, dropna=False):
        done = group[(group["status"] == "finished") & group[metric].notna()].drop_duplicates("seed", keep="last")
        rest = group[~group["seed"].isin(done["seed"])]
        diverged = rest[rest["status"].str.startswith("diverged")]["seed"].nunique()
        yield dict(zip(keys, values, strict=True)), done.set_index("seed")[metric], diverged, rest["seed"].nunique() - diverged


def keys_of(frame: pandas.DataFrame) -> list[str]:
    """The columns of `compare`'s table that make a setting: all but the seed and what was measured."""
    return [column for column in frame.columns if column not in (*MEASURED, "seed", "folder") and not column.startswith(OPTIONAL)]


def about(frame: pandas.DataFrame, metric: str) -> pandas.DataFrame:
    """The table, which remembers that its statistics are those of `metric`: they are shown in its unit."""
    frame.attrs["metric"] = metric
    return frame


def settings(run: Run) -> dict[str, Any]:
    """A run's configuration as dotted keys and plain values (lists as JSON), without importing the user's modules; {} before it is written.

    Raises `CheckpointError` for a folder that is no run, or a configuration that cannot be read.
    """
    path = run.folder / "config.yaml"
    if not path.exists():
        if (run.folder / "STATUS").exists():  # it is just starting, or failed before it began
            return {}
        raise CheckpointError(f"{run.folder} is not a run folder: it has neither config.yaml nor STATUS")
    try:
        found = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise CheckpointError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no configuration; run it again with --overwrite")
    return _flat(found)


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys, in the order of the file, whose value is not the same in all configurations that say which they are.

    A key that only some sections know (`alpha` of one algorithm, `hidden` of one model) is listed only when those that know it differ.
    """
    configs = [config for config in configs if config]
    names = [key for key in dict.fromkeys(key for config in configs for key in config) if not _aside(key)]
    sections = {key.rpartition(".")[0] for key in names}  # where one leaves a section out (`proxy: null`), its keys tell
    names = [key for key in names if key not in sections]
    return [key for key in names if _differs(key, configs)]


def _differs(key: str, configs: Sequence[Mapping[str, Any]]) -> bool:
    section = key.split(".")[0]
    if key in (f"{section}.name", f"{section}.source"):
        return len({config.get(key) for config in configs}) > 1
    if len({_exact(config[key]) for config in configs if key in config}) > 1:
        return True
    holders: dict[Any, set[bool]] = {}  # the section's kind -> whether its configurations have the key
    for config in configs:
        kind = config.get(f"{section}.name", config.get(f"{section}.source"))
        holders.setdefault(kind, set()).add(key in config)
    return any(len(kinds) > 1 for kinds in holders.values())


def _exact(value: Any) -> Any:
    return (type(value).__name__, value) if isinstance(value, bool) else value  # True == 1


def _aside(key: str) -> bool:
    return key in _ASIDE or key.split(".")[0] in _ASIDE


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = json.dumps(value) if isinstance(value, list | dict) else value
    return found


def _nothing(status: str) -> dict[str, Any]:
    return dict.fromkeys(MEASURED, math.nan) | {"done": 0, "status": status}


def _measured(run: Run) -> dict[str, Any]:
    status = run.status.partition(":" if run.status.startswith("diverged") else ";")[0]
    nothing = _nothing(status)
    try:
        rounds, tasks = run.rounds, run.tasks
    except CheckpointError as error:
        return nothing | {"status": f"damaged: {error}"}
    lost = run.missing("rounds")
    if lost:  # sums and bests are those of the rows that are left, and no result of the run
        nothing["status"] = f"incomplete: {lost} lost"
    elif len(rounds) and not (run.folder / "config.yaml").exists():
        nothing["status"] = "incomplete: config.yaml is missing"
    elif run.changed:
        nothing["status"] = f"edited: {run.changed}"
    if rounds.empty:
        return nothing
    tested = rounds["test/acc"].dropna() if "test/acc" in rounds else rounds.iloc[:0, 0]
    sums = {name: float(rounds[name].sum()) for name in ("comm/up_bytes", "comm/down_bytes", "time/round_s") if name in rounds}
    measured = nothing | {
        "done": len(rounds),
        "comm/bytes": sums.get("comm/up_bytes", math.nan) + sums.get("comm/down_bytes", math.nan),
        "time/s": sums.get("time/round_s", math.nan),
    }
    if len(tested):
        measured |= {
            "test/acc": float(tested.iloc[-1]),
            "test/acc_best": float(tested.max()),
            "test/acc_mean10": float(tested.tail(LAST).mean()),
        }
    held_out = rounds["val/acc"].dropna() if "val/acc" in rounds else rounds.iloc[:0, 0]
    if len(held_out):
        measured["val/acc"] = float(held_out.iloc[-1])
    if len(tasks):
        end = tasks.iloc[-1]
        measured |= {name: float(end[name]) for name in tasks if name.startswith(OPTIONAL) and name.endswith("acc_mean")}
    return measured


# showing -----------------------------------------------------------------------------------------
def render(frame: pandas.DataFrame, title: str = "") -> Table:
    """A table of `compare` or `summary` for the terminal: accuracies in per cent, bytes and seconds in units."""
    from rich.markup import escape
    from rich.table import Table

    heads, rows = _cells(frame)
    table = Table(title=escape(title or _common_name(frame)), caption=_caption(frame), caption_justify="left")
    for head, column in zip(heads, _shown(frame), strict=True):
        table.add_column(head, justify="right" if is_number(frame, column) else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def to_markdown(frame: pandas.DataFrame) -> str:
    """The same as a Markdown table, columns aligned; ends with a newline."""
    heads, rows = _cells(frame)
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (heads, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(heads))]
    right = [is_number(frame, column) for column in _shown(frame)]
    lines = ["| " + " | ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)) + " |" for row in cells]
    rule = "| " + " | ".join("-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)) + " |"
    note = _caption(frame)
    return "\n".join([lines[0], rule, *lines[1:], *(["", note] if note else [])]) + "\n"


def _caption(frame: pandas.DataFrame) -> str | None:
    """How the intervals of a table were made, where it has some."""
    if "low" not in frame or not frame["low"].notna().any():
        return None
    metric = frame.attrs.get("metric", "test/acc")
    words = interval_words(metric)
    return f"{words} (of a difference: at -100 and 100)" if "diff" in frame and is_share(metric) else words


def _common_name(frame: pandas.DataFrame) -> str:
    """The experiment's name where all rows share it: the table's title, and no column of its own."""
    names = set(frame["name"]) if "name" in frame else set()
    return str(names.pop()) if len(names) == 1 else ""


def _shown(frame: pandas.DataFrame) -> list[str]:
    hidden = {"folder", "p_t", "p_wilcoxon"} | ({"name"} if _common_name(frame) else set())
    hidden |= {column for column in ("diverged", "unfinished") if column in frame and not frame[column].any()}
    # where every run was tested once the best and the mean of the last are that test again
    hidden |= {c for c in ("test/acc_best", "test/acc_mean10") if c in frame and frame[c].equals(frame["test/acc"])}
    if "status" in frame and (frame["status"] == "finished").all():
        hidden.add("status")
    if "pairs" in frame and (frame["pairs"] == frame["n"]).all():
        hidden.add("pairs")
    return [column for column in frame.columns if column not in hidden]


def _cells(frame: pandas.DataFrame) -> tuple[list[str], list[list[str]]]:
    columns, metric = _shown(frame), frame.attrs.get("metric", "test/acc")
    last = Counter(column.rpartition(".")[2] for column in columns)
    short = {column: name for column in columns if last[name := column.rpartition(".")[2]] == 1}  # `rho` for `algorithm.rho`
    heads = [_HEADS.get(name, short.get(name, name)) for name in (metric if column == "mean" else column for column in columns)]
    units = [metric if column in _STATISTICS else column for column in columns]
    rows = []
    for row in frame[columns].itertuples(index=False):
        cells = zip(columns, units, row, strict=True)
        rows.append([_signed(unit, value) if column.startswith("diff") else _text(unit, value) for column, unit, value in cells])
    return heads, rows


def is_number(frame: pandas.DataFrame, column: str) -> bool:
    """Whether a column holds numbers, or nothing."""
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in frame[column].tolist())


def _text(column: str, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if column in _SHARES or column.startswith(OPTIONAL):
        return f"{100 * value:.2f}"
    if column == "comm/bytes":
        return _bytes(value)
    if column == "time/s":
        return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"
    if column.startswith("holm_"):
        return f"{value:.2g}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _signed(column: str, value: float) -> str:
    return ("+" if value > 0 else "-" if value < 0 else "") + _text(column, abs(value))


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.3g} TB"
