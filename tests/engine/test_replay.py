"""A run is replayed from wherever one stands; its relative paths are those of the folder in which it began."""

from __future__ import annotations

from pathlib import Path

import pytest

import flray
from flray.engine.replay import Replay

CONFIG = {
    "data": {"source": "iris"},
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 1.0},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": {"name": "fedavg", "local_epochs": 1},
    "resources": {"executor": "local"},
    "rounds": 2,
}


def test_a_relative_folder_is_found_from_another_place_than_where_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, elsewhere = tmp_path / "began", tmp_path / "elsewhere"
    began.mkdir(), elsewhere.mkdir()
    monkeypatch.chdir(began)
    flray.run(CONFIG, out=elsewhere / "run", progress=False)
    monkeypatch.chdir(elsewhere)
    replay = Replay("run").goto(1)
    rows = flray.load("run").clients.query("done == 2").set_index("client")["train/loss"].to_dict()
    assert {client: row["train/loss"] for client, _, row in replay.clients()} == rows and len(rows) == 4
