"""Contract 12: a server that does not wait, with equal durations and size = concurrency = cohort, is synchronous.

Contract 13: under a deadline with partial work the slowest client takes fewer steps, and the model stays finite.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flray
from flray.core.schema.errors import ConfigError
from flray.running import simulate
from tests.contracts.table import TABLE, experiment
from tests.support.kinds import KINDS, by_default

EVEN = {
    "partition": {"name": "iid", "clients": 5},
    "devices": {"speed": "equal"},
    "rounds": 3,
    "resources": {"executor": "local", "server": {"threads": 1}},
}
UNEQUAL = {**EVEN, "devices": {"speed": {"name": "lognormal", "sigma": 0.5}}, "rounds": 1}
BUFFERED = {"name": "buffered", "size": 3}
PARTIAL = {"name": "deadline", "seconds": 1.0, "late": "partial"}


def allowed(name: str, coordination: dict[str, Any]) -> bool:
    try:
        experiment(name, **EVEN, coordination=coordination)
    except ConfigError as error:
        assert "\n" not in str(error)
        return False
    return True


NAMES = [name for name in TABLE if allowed(name, BUFFERED)]


def test_the_methods_of_the_design_are_allowed() -> None:
    """SCAFFOLD, FedDyn and MOON, and those whose server half is only the average; none with several exchanges."""
    assert {"fedavg", "fedprox", "fedsol", "fedntd", "fedsam", "scaffold", "feddyn", "moon", "fedadam"} <= set(NAMES)
    assert not {
        "fedproj",
        "fedet",
        "fedscr",
        "fedcurv",
        "fednova",
        "fedprotip",
        "fot",
        "fedmemo",
        "centralized",
        "local",
    } & set(NAMES)


@pytest.mark.parametrize(
    "name", by_default(("fedavg", "scaffold", "fedsol", "fedadam", "feddyn", "moon", "fedntd"), NAMES)
)
def test_with_equal_durations_nothing_changes(name: str, tmp_path: Path) -> None:
    models = []
    for kind, coordination in (("waits", {"name": "synchronous"}), ("goes on", BUFFERED)):
        simulate(experiment(name, **EVEN, coordination=coordination), tmp_path / kind)
        models.append((tmp_path / kind / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def steps(run: flray.Run) -> pd.Series:
    """Local steps of the round's training, by client."""
    rows = run.clients[run.clients["num_steps"] > 0]
    return rows.drop_duplicates("client").set_index("client")["num_steps"]


@pytest.mark.parametrize("name", by_default(KINDS, [name for name in TABLE if allowed(name, PARTIAL)]))
def test_the_slowest_client_stops_in_time(name: str, tmp_path: Path) -> None:
    """At four fifths of its time."""
    simulate(experiment(name, **UNEQUAL), tmp_path / "whole")
    whole = flray.load(tmp_path / "whole")
    limit = 0.8 * float(whole.rounds["time/virtual_s"].iloc[0])
    simulate(experiment(name, **UNEQUAL, coordination={**PARTIAL, "seconds": limit}), tmp_path / "partial")
    run = flray.load(tmp_path / "partial")
    row = run.rounds.iloc[0]
    assert row["time/virtual_s"] == limit and row["clients_partial"] + row["clients_late"] >= 1
    planned, taken = steps(whole), steps(run)
    assert (taken <= planned[taken.index]).all() and taken.sum() < planned.sum()
    assert not row["diverged"] and np.isfinite(row["train/loss"])
