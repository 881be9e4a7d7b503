"""Contract 13: under a deadline with partial work the slowest client takes fewer steps, and the model stays finite."""

from __future__ import annotations

from pathlib import Path

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
    "devices": {"speed": {"name": "lognormal", "sigma": 0.5}},
    "rounds": 1,
    "resources": {"executor": "local", "server": {"threads": 1}},
}


def allowed(name: str) -> bool:
    try:
        experiment(name, **EVEN, coordination={"name": "deadline", "seconds": 1.0, "late": "partial"})
    except ConfigError as error:
        assert "\n" not in str(error)
        return False
    return True


NAMES = [name for name in TABLE if allowed(name)]


def steps(run: flray.Run) -> pd.Series:
    """Local steps of the round's training, by client."""
    rows = run.clients[run.clients["num_steps"] > 0]
    return rows.drop_duplicates("client").set_index("client")["num_steps"]


@pytest.mark.parametrize("name", by_default(KINDS, NAMES))
def test_the_slowest_client_stops_in_time(name: str, tmp_path: Path) -> None:
    """At four fifths of its time."""
    simulate(experiment(name, **EVEN), tmp_path / "whole")
    whole = flray.load(tmp_path / "whole")
    limit = 0.8 * float(whole.rounds["time/virtual_s"].iloc[0])
    deadline = {"name": "deadline", "seconds": limit, "late": "partial"}
    simulate(experiment(name, **EVEN, coordination=deadline), tmp_path / "partial")
    run = flray.load(tmp_path / "partial")
    row = run.rounds.iloc[0]
    assert row["time/virtual_s"] == limit and row["clients_partial"] + row["clients_late"] >= 1
    planned, taken = steps(whole), steps(run)
    assert (taken <= planned[taken.index]).all() and taken.sum() < planned.sum()
    assert not row["diverged"] and np.isfinite(row["train/loss"])
