"""Memory drift against the ensemble, from repeated rounds: what the server itself measured where it sees the models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import flray
from flray.core.schema.errors import ConfigError
from flray.results.ensemble_drift import ensemble_drift
from tests.support.iris import IRIS, LOCAL


def test_it_is_what_fedproj_s_server_measured(tmp_path: Path) -> None:
    """Also before any checkpoint; of FedAvg, whose server has a sum alone, it is there as well."""
    sections = {**IRIS, "checkpoint": {"every": 2}}
    run = flray.run({**sections, "algorithm": {"name": "fedproj", **LOCAL}}, out=tmp_path / "a", progress=False)
    found = ensemble_drift(run.folder)
    assert found["done"].tolist() == [1, 2]
    assert found["ensemble_drift"].to_numpy() == pytest.approx(run.rounds["memory/drift"].to_numpy(), rel=1e-4)
    plain = flray.run({**sections, "algorithm": {"name": "fedavg", **LOCAL}}, out=tmp_path / "b", progress=False)
    (value,) = ensemble_drift(plain.folder, rounds=[2], samples=5)["ensemble_drift"]
    assert 0 < value < math.inf


def test_a_run_without_public_data_is_one_line(tmp_path: Path) -> None:
    sections = {key: value for key, value in IRIS.items() if key != "proxy"}
    run = flray.run({**sections, "rounds": 1, "algorithm": {"name": "fedavg", **LOCAL}}, out=tmp_path / "a")
    with pytest.raises(ConfigError, match="no `proxy` section"):
        ensemble_drift(run.folder)
