"""A run is replayed from wherever one stands; its relative paths are those of the folder in which it began."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import flray
from flray.core.network.threads import threads
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
    table = flray.load("run").clients.query("done == 2")
    losses, rows = table.set_index("client")["train/loss"].to_dict(), {k: row for k, _, row in replay.clients()}
    assert {client: row["train/loss"] for client, row in rows.items()} == losses and len(losses) == 4
    assert all(set(row) <= set(table.columns) for row in rows.values())


@pytest.mark.parametrize("store", ["memory", "files"])
def test_clients_states_go_back_with_the_server(store: str, tmp_path: Path) -> None:
    """SCAFFOLD without a checkpoint to go back to: its clients' control variates are those of the earlier round."""
    scaffold = {"algorithm": {"name": "scaffold", "local_epochs": 1}, "checkpoint": {"every": 0}, "rounds": 3}
    local = {"executor": "local", "store": store}
    run = flray.run({**CONFIG, **scaffold, "resources": local}, out=tmp_path / "run", progress=False)
    replay = Replay(run.folder).goto(2).goto(1)
    rows = run.clients.query("done == 2").set_index("client")["train/loss"].to_dict()
    assert {client: row["train/loss"] for client, _, row in replay.clients()} == rows and len(rows) == 4
    assert not (run.folder / "checkpoints" / "round-000001").exists()


def test_a_replays_clients_leave_the_generators_and_the_threads_of_their_reader_alone(tmp_path: Path) -> None:
    run = flray.run(CONFIG, out=tmp_path / "run", progress=False)
    losses = run.clients.query("done == 2").set_index("client")["train/loss"].to_dict()
    with threads(2):  # a run's client has one
        before = torch.get_rng_state()
        torch.set_default_dtype(torch.float64)
        try:
            for client, _, row in Replay(run.folder).goto(1).clients():
                assert torch.get_num_threads() == 2 and torch.equal(torch.get_rng_state(), before)
                assert row["train/loss"] == losses.pop(client)
        finally:
            torch.set_default_dtype(torch.float32)
    assert not losses
