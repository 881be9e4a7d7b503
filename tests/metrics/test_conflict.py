"""Conflict: opposite gradients, and a run's cosines of a model whose gradients are known."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import flray
from flray.core.schema.errors import ConfigError
from flray.metrics.conflict import cosine
from flray.results import diagnoses
from tests.support.iris import IRIS, LOCAL

TWO = {**IRIS, "partition": {"name": "iid", "clients": 2}, "algorithm": {"name": "fedavg", **LOCAL}}


def test_cosines_of_known_angles() -> None:
    g = torch.tensor([3.0, 4.0])
    assert cosine(g, -2 * g) == pytest.approx(-1) and cosine(g, torch.tensor([4.0, -3.0])) == pytest.approx(0)
    assert cosine(1e-10 * g, torch.tensor([1e-10, 0.0])) == pytest.approx(0.6) and math.isnan(cosine(g, torch.zeros(2)))


def test_the_second_step_moves_against_the_pull_back_to_the_received_model(tmp_path: Path) -> None:
    """On one batch of two clients with all their data the first step leads to w_g - eta g; near w_g the KL's gradient
    is -eta F g + O(eta^2) with the Fisher matrix F of the batch, which is positive semidefinite: cosine <= 0."""
    algorithm = {"name": "fedavg", "lr": 1e-3, "local_epochs": 2, "batch_size": 200, "momentum": 0.0}
    config = {**TWO, "rounds": 1, "algorithm": algorithm}
    kinds = {"name": "conflict", "every": 1, "against": ["proximal", "memory", "global"]}
    rows = flray.run({**config, "diagnostics": [kinds]}, out=tmp_path / "run", progress=False).diagnostics["conflict"]
    assert rows["step"].tolist() == [2, 2] and (rows["cos_proximal"] < 0).all() and (rows["cos_memory"] < 0).all()
    assert (rows["cos_global"] > 0).all(), "i.i.d. clients pull where the test set does"
    assert (rows["loss_proximal"] >= 0).all() and (rows["loss_proximal"] < 1e-4).all()
    for kind in ("proximal", "memory", "global"):  # plain SGD takes a step along the local gradient
        assert rows[f"move_{kind}"].to_numpy() == pytest.approx(rows[f"cos_{kind}"].to_numpy(), abs=1e-3)
    assert (rows["descent"] > 0.5).all() and (rows["zeta"] > 0).all()
    assert (rows["descent_projected"] < rows["descent"]).all(), "the pull back takes something of a common descent"
    # the pull back to the received model is against the global gradient: the paper's assumption fails in every look
    assert (rows["kappa"] < 0).all()
    found = diagnoses.conflict(flray.load(tmp_path / "run")).iloc[0]
    assert "not above 0 in 100.0 % of the looks" in diagnoses.in_words(flray.load(tmp_path / "run"))["conflict"]
    assert found["kappa_fails"] == 1 and found["kappa_least"] == rows["kappa"].min() and found["looks"] == 2


def test_fedprojs_memory_is_what_its_broadcast_brings(tmp_path: Path) -> None:
    """In the second round the broadcast has the first's ensemble: KL of its answers is above 0 at once, while that of
    the received model's own answers is O(lr^2), 1e-8 here."""
    sgd = {"lr": 1e-4, "local_epochs": 2, "batch_size": 200, "momentum": 0.0}
    algorithm = {"name": "fedproj", **sgd, "distill_lr": 0.1}
    kinds = {"name": "conflict", "every": 1, "against": ["memory", "global"]}
    config = {**TWO, "algorithm": algorithm, "diagnostics": [kinds]}
    rows = flray.run(config, out=tmp_path / "run", progress=False).diagnostics["conflict"]
    first, second = (rows[rows["done"] == done] for done in (1, 2))
    assert (first["loss_memory"] < 1e-6).all() and (second["loss_memory"] > 1e-6).all()
    assert second["kappa"].between(-1, 1).all()


def test_a_move_is_the_update_direction_under_plain_sgd_alone(tmp_path: Path) -> None:
    """FedAvg's g_u is the local gradient g. Without momentum a move is lr g, and the cosines are equal; with momentum
    0.9 it is lr (g_t + 0.9 g_{t-1} + ...), and on other batches before they are not."""
    differences = {}
    for momentum in (0.0, 0.9):
        config = {**TWO, "rounds": 1, "algorithm": {**TWO["algorithm"], "lr": 0.01, "momentum": momentum}}
        kinds = {"name": "conflict", "every": 1, "against": ["global"]}
        run = flray.run({**config, "diagnostics": [kinds]}, out=tmp_path / f"{momentum}", progress=False)
        rows = run.diagnostics["conflict"]
        differences[momentum] = float((rows["move_global"] - rows["cos_global"]).abs().max())
    assert differences[0.0] < 1e-3 < 0.05 < differences[0.9]


def test_every_so_many_steps_of_every_so_many_rounds(tmp_path: Path) -> None:
    probe = {"name": "conflict", "every": 3, "rounds": 2}
    run = flray.run({**TWO, "rounds": 3, "diagnostics": [probe]}, out=tmp_path / "run", progress=False)
    rows, steps = run.diagnostics["conflict"], int(run.clients["num_steps"].max())
    assert set(rows["done"]) == {1, 3} and set(rows["step"]) == set(np.arange(2, steps + 1, 3))


def test_public_data_that_are_not_there_are_one_clear_line() -> None:
    config = {key: value for key, value in TWO.items() if key != "proxy"}
    with pytest.raises(ConfigError, match="diagnostics conflict needs public data: add a `proxy` section"):
        flray.run({**config, "diagnostics": [{"name": "conflict", "against": ["memory"]}]}, progress=False)
