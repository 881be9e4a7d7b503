"""What a sweep says of its trials, against the rounds that their runs wrote down."""

import json
from pathlib import Path
from typing import Any

import optuna
import pandas
import yaml

from flray.tuning.studies import NEVER, open_storage

SUMS = {
    "comm/bytes": ["comm/up_bytes", "comm/down_bytes"],
    "client_steps": ["client_steps"],
    "time/s": ["time/round_s"],
}


def read_rounds(run: Path) -> pandas.DataFrame:
    """All rows of a run, by round, whatever flray makes of them. The end of its task is in the last one's time."""
    rows = pandas.concat([pandas.read_parquet(part) for part in sorted((run / "rounds").glob("*.parquet"))])
    assert rows["round"].is_unique
    rows = rows.set_index("round").sort_index()
    for part in (run / "tasks").glob("*.parquet"):
        rows.loc[rows.index[-1], "time/round_s"] += pandas.read_parquet(part)["time/task_end_s"].sum()
    return rows


def value_at(rows: pandas.DataFrame, objective: str, round: int) -> float:
    if objective == "val/acc_mean10":
        values = rows.sort_index().loc[:round, "val/acc"].dropna().tolist()[-10:]
        return float(sum(values) / len(values))
    if objective not in SUMS:
        return float(rows.loc[round, objective])
    return float(rows.loc[:round, SUMS[objective]].to_numpy().sum())


def assert_true(folder: Path, seeds_at: dict[int, int] | None = None) -> int:
    """Every value of the studies, every rung and every row of `sweep.parquet` is what the rounds of the trials' runs
    say.

    `seeds_at`: the rounds in which several seeds were judged, and how many; their mean counts. Times may differ in the
    last bit, which depends on the order of a sum; nothing else may. Returns how many intermediate values were compared.
    """
    sweep, seeds_at, count = yaml.safe_load((folder / "sweep.yaml").read_text()), seeds_at or {}, 0
    objectives = dict(sweep["objective"])
    storage = open_storage(sweep["study"], folder)
    studies = {
        name: optuna.load_study(study_name=name, storage=storage) for name in optuna.get_all_study_names(storage)
    }
    given_out = (t for study in studies.values() for t in study.get_trials() if t.user_attrs.get("status") != NEVER)
    every = list(given_out)
    trials = {trial.user_attrs["folder"]: trial for trial in every if "reused" not in trial.user_attrs}
    for trial in every:
        if "reused" in trial.user_attrs:  # it has another's values and no run
            source = trials[trial.user_attrs["folder"]]
            assert (source.number, source.values, source.params) == (
                trial.user_attrs["reused"],
                trial.values,
                trial.params,
            )

    def same(said: float, trial: Any, objective: str, round: int) -> None:
        runs = [
            folder / f"{trial.user_attrs['folder']}{f'-seed{seed}' if seed else ''}"
            for seed in range(seeds_at.get(round, 1))
        ]
        true = sum(value_at(read_rounds(run), objective, round) for run in runs) / len(runs)
        close = abs(said - true) <= 1e-12 * abs(true) if objective == "time/s" else said == true
        assert close, f"{trial.user_attrs['folder']} in round {round}: {objective} {said}, its rounds say {true}"

    for trial in trials.values():
        for round, value in trial.intermediate_values.items():
            same(value, trial, next(iter(objectives)), round)
            count += 1
        for objective, value in zip(objectives, trial.values or (), strict=False):
            same(value, trial, objective, trial.user_attrs["round"])
    if (folder / "rungs.json").exists():
        sign = 1 if next(iter(objectives.values())) == "max" else -1
        for round, values in json.loads((folder / "rungs.json").read_text())["rungs"]:
            for key, value in values.items():
                same(sign * value, trials[f"trials/{key.replace('/', '-')}"], next(iter(objectives)), round)
    table = pandas.read_parquet(folder / "sweep.parquet").set_index("folder")
    assert sorted(table.index) == sorted(trial.user_attrs["folder"] for trial in every)
    for name, row in table.iterrows():
        last = int(row["round"])
        runs = [folder / name, *sorted((folder / "trials").glob(f"{Path(name).name}-seed*"))]
        rows = [read_rounds(run) for run in runs]
        assert row["client_steps"] == sum(value_at(one, "client_steps", last) for one in rows), name
        seconds = sum(value_at(one, "time/s", last) for one in rows)
        assert abs(row["seconds"] - seconds) <= 1e-12 * seconds, name
        for objective in objectives:
            if objective != "client_steps":  # of which the table has one column, over all seeds
                same(row[objective], trials[name], objective, last)
    return count
