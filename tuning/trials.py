"""The trials of a sweep as a table, read from its Optuna studies at any moment, and the best ones."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flray.core.schema.errors import CheckpointError, ConfigError, message_of
from flray.core.schema.plain import read
from flray.tuning.config import sqlite_file

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial

Direction = Literal["max", "min"]
# user attributes of a trial, and the dtypes of their columns
FACTS = {"round": "Int64", "seeds": "Int64", "client_steps": "Int64", "seconds": "float64", "folder": "string"}
WHERE = "bring the database back, or give the command in the directory where the sweep began"
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


class Opened(NamedTuple):
    """A sweep folder for reports: `studies` by the suffix of their names (`""`, or one for each algorithm)."""

    folder: Path
    name: str
    algorithm: str
    objectives: dict[str, Direction]
    studies: dict[str, Study]


# reading -----------------------------------------------------------------------------------------
def stored_sweep(folder: Path) -> dict[str, Any]:
    """The values of `FOLDER/sweep.yaml`, unchecked. Raises `CheckpointError` if it is missing or damaged."""
    path, advice = folder / "sweep.yaml", "put it back from a copy, or start again with another --out"
    try:
        content = read(path.read_text(encoding="utf-8"), "it")
    except FileNotFoundError:
        raise CheckpointError(f"{folder} is not a sweep folder: it has no sweep.yaml") from None
    except (OSError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{path} is damaged ({message_of(error)}); {advice}") from None
    if not isinstance(content, dict) or not {"name", "objective"} <= content.keys():
        what = "empty" if content is None else "not a complete sweep"
        raise CheckpointError(f"{path} is damaged: it is {what}; {advice}")
    return content


def open_sweep(folder: str | Path) -> Opened:
    """A sweep's studies, also while it runs, without importing the user's modules. Raises `CheckpointError` if there is
    no sweep, or its storage cannot be read."""
    import optuna

    from flray.tuning.studies import JOURNAL, open_storage, place_of

    folder = Path(folder)
    sweep = stored_sweep(folder)
    name, objective, url = str(sweep["name"]), sweep["objective"], sweep.get("study")
    if url is None and not (folder / JOURNAL).exists():  # opening it would make an empty one
        raise CheckpointError(f"{folder} has no {JOURNAL}: its sweep did not begin; start it with flray sweep")
    check_database(url, folder)
    storage = open_storage(url, folder)
    names = [study for study in optuna.get_all_study_names(storage) if study == name or study.startswith(f"{name}/")]
    if "budget_per" in sweep:  # a database may hold another sweep of this name
        names = [study for study in names if (study == name) == (sweep["budget_per"] == "sweep")]
    if not names:
        raise CheckpointError(f"{folder}: its study is not in {place_of(url, folder)}; {WHERE}")
    studies = {
        study.removeprefix(name).removeprefix("/"): optuna.load_study(study_name=study, storage=storage)
        for study in sorted(names)
    }
    algorithm = (sweep.get("experiment") or {}).get("algorithm")
    algorithm = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm
    if isinstance(of_space := (sweep.get("space") or {}).get("algorithm"), str):
        algorithm = of_space
    return Opened(
        folder, name, str(algorithm), {objective: "max"} if isinstance(objective, str) else dict(objective), studies
    )


def check_database(url: str | None, folder: Path) -> None:
    """Raises `CheckpointError` if a SQLite database is not there: opening it would make an empty one."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise CheckpointError(f"{folder}: its study, {file.absolute()}, is not there; {WHERE}")


def trials_table(folder: str | Path) -> pandas.DataFrame:
    """One row a trial, also while the sweep goes on.

    Columns: `trial`; `study` only when there are several; `algorithm`; the searched parameters by name (those that
    population-based training changes: the last values); `state`
    (finished, pruned, failed, diverged, running, waiting); `round` (the last one); the objectives: a pruned or running
    trial has its last intermediate value, or none where there are several; `seeds` (over which the value is a mean);
    `client_steps`; `seconds`; `folder` (relative to the sweep); `reused`, if any trial has the value of an earlier one
    with equal parameters: that one's number, whose steps, seconds and folder these are. A column has the same dtype
    whether it is full or empty. Raises `CheckpointError` when the folder holds no sweep.
    """
    return table_of(open_sweep(folder))


def table_of(sweep: Opened) -> pandas.DataFrame:
    import pandas

    from flray.tuning.studies import NEVER

    every = [(name, trial) for name, study in sweep.studies.items() for trial in study.get_trials(deepcopy=False)]
    ended = [(name, trial) for name, trial in every if trial.user_attrs.get("status") != NEVER]
    kinds: dict[str, str] = {}
    for _, trial in ended:
        for parameter, distribution in trial.distributions.items():
            kind = _kind(distribution)
            kinds[parameter] = kind if kinds.get(parameter, kind) == kind else "string"
    columns: dict[str, tuple[str, list[Any]]] = {"trial": ("int64", [trial.number for _, trial in ended])}
    if len(sweep.studies) > 1:
        columns["study"] = ("string", [name for name, _ in ended])
    columns["algorithm"] = ("string", [trial.params.get("algorithm", name or sweep.algorithm) for name, trial in ended])
    for parameter, kind in kinds.items():
        if parameter != "algorithm":
            columns[parameter] = (kind, [_cell(trial, parameter, kind) for _, trial in ended])
    columns["state"] = ("string", [state(trial) for _, trial in ended])
    attributes = [{"round": max(trial.intermediate_values, default=None), **trial.user_attrs} for _, trial in ended]
    facts = {name: (kind, [values.get(name) for values in attributes]) for name, kind in FACTS.items()}
    if any("reused" in values for values in attributes):
        facts["reused"] = ("Int64", [values.get("reused") for values in attributes])
    columns["round"] = facts.pop("round")
    for place, objective in enumerate(sweep.objectives):
        columns[objective] = ("float64", [_value(trial, place) for _, trial in ended])
    columns |= {name: values for name, values in facts.items() if name not in sweep.objectives}
    return pandas.DataFrame({name: pandas.Series(values, dtype=kind) for name, (kind, values) in columns.items()})


def parameters(frame: pandas.DataFrame) -> list[str]:
    """The searched parameters of a table of trials, without the algorithm."""
    columns = list(frame.columns)
    return columns[columns.index("algorithm") + 1 : columns.index("state")]


def describe_parameters(frame: pandas.DataFrame, index: Any) -> str:
    """A trial's parameters in short: `rho=0.512, perturb=head`."""
    row = frame.loc[index, parameters(frame)].dropna()
    texts = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in row.items()}
    return ", ".join(f"{name.rpartition('.')[2]}={text}" for name, text in texts.items())


def state(trial: FrozenTrial) -> str:
    """finished, pruned, failed, diverged, running or waiting."""
    if str(trial.user_attrs.get("status", "")).startswith("diverged"):
        return "diverged"
    return STATES[trial.state.name]


def _value(trial: FrozenTrial, place: int) -> float:
    if trial.values is not None:
        return float(trial.values[place])
    known = trial.intermediate_values
    return float(known[max(known)]) if known and place == 0 else math.nan


def _kind(distribution: BaseDistribution) -> str:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if not isinstance(distribution, CategoricalDistribution):
        return "Int64" if isinstance(distribution, IntDistribution) else "float64"
    types = {type(choice) for choice in distribution.choices} - {type(None)}
    if types == {bool}:
        return "boolean"
    return "Int64" if types == {int} else "float64" if types <= {int, float} else "string"


def _cell(trial: FrozenTrial, parameter: str, kind: str) -> Any:
    """A parameter's value as its column stores it, of population-based training the last one; None if the trial does
    not have the parameter."""
    if parameter not in trial.params:
        return None
    last = trial.user_attrs.get("values", {})  # by key: of `fedprox.mu` it is algorithm.mu
    value = last.get(parameter, last.get(f"algorithm.{parameter.partition('.')[2]}", trial.params[parameter]))
    return json.dumps(value) if kind == "string" and not isinstance(value, str) else value


# the best ------------------------------------------------------------------------------------------
def pareto(frame: pandas.DataFrame, objectives: Mapping[str, Direction]) -> pandas.Series:
    """Whether no other trial dominates a trial, that is, is at least as good in every objective and better in one. Only
    finished trials with a value for every objective count. Boolean, with the frame's index."""
    import numpy as np
    import pandas

    values = frame[list(objectives)].to_numpy(float) * [
        1 if direction == "min" else -1 for direction in objectives.values()
    ]
    counts = ~np.isnan(values).any(axis=1)
    if "state" in frame:
        counts &= (frame["state"] == "finished").to_numpy(bool)
    front = pandas.Series(counts, index=frame.index, dtype=bool)
    front[counts] = _undominated(values[counts])
    return front


def _undominated(values: np.ndarray) -> np.ndarray:
    """Rows of `[n, k]`, smaller is better, that no other row dominates; one row at a time, so memory stays O(n k)."""
    import numpy as np

    return np.array(
        [not ((values <= row).all(axis=1) & (values < row).any(axis=1)).any() for row in values], dtype=bool
    )


def front(frame: pandas.DataFrame, objectives: Mapping[str, Direction]) -> pandas.DataFrame:
    """The rows of the Pareto front, the best in the first objective first, those with equal parameters once."""
    on_front = frame[pareto(frame, objectives)]
    return _sorted(on_front[on_front["reused"].isna()] if "reused" in frame else on_front, objectives)


def best(frame: pandas.DataFrame, objectives: Mapping[str, Direction], top: int) -> pandas.DataFrame:
    """The `top` finished trials by the first objective, those with equal parameters once."""
    first = next(iter(objectives))
    if "reused" in frame:
        frame = frame[frame["reused"].isna()]
    return _sorted(frame[(frame["state"] == "finished") & frame[first].notna()], objectives).head(top)


def _sorted(frame: pandas.DataFrame, objectives: Mapping[str, Direction]) -> pandas.DataFrame:
    ascending = [direction == "min" for direction in objectives.values()]
    return frame.sort_values(list(objectives), ascending=ascending, kind="stable")
