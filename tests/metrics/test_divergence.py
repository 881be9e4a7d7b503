"""Weight divergence: pairs of points by NumPy, and the layers of a network whose weights are known."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import flray
from flray.core.network.objective import Objective
from flray.engine.replay import Replay
from flray.metrics.divergence import between
from flray.metrics.layer_distance import by_layer
from flray.models.mlp import MLP
from tests.support.iris import IRIS


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [5, 1, 2, 8]])
def test_the_distance_between_clients_follows_from_their_distances_and_the_mean(weights: list[float]) -> None:
    points, anchor = np.random.default_rng(0).standard_normal((2, 4, 7))
    anchor, p = anchor[0], np.array(weights) / sum(weights)
    moved = np.linalg.norm(p @ points - anchor)
    pairs = [(p[j] * p[k], np.sum((points[j] - points[k]) ** 2)) for j, k in itertools.permutations(range(4), 2)]
    known = np.sqrt(sum(weight * square for weight, square in pairs) / sum(weight for weight, _ in pairs))
    assert between(np.linalg.norm(points - anchor, axis=1), weights, float(moved)) == pytest.approx(known)


def test_one_client_has_nobody_to_be_away_from() -> None:
    assert math.isnan(between([1.0], [1.0], 1.0)) and math.isnan(between([], [], 0.0))
    assert between([2.0, 2.0], [1, 1], 2.0) == 0.0, "both at the same place"
    assert math.isnan(between([1.0, math.nan], [1, 1], 1.0)) and math.isnan(between([1.0, 1.0], [1, 1], math.nan))


def test_two_opposite_clients_of_a_run(tmp_path: Path) -> None:
    """Rows against the local models themselves, which a replay gives."""
    algorithm = {"name": "fedavg", "lr": 0.1, "batch_size": 8}
    config = {**IRIS, "proxy": None, "algorithm": algorithm, "diagnostics": ["divergence", "layers"]}
    run = flray.run(config, out=tmp_path / "run", progress=False)
    replay = Replay(run.folder).goto(1)
    before = replay.state.w.numpy().astype(np.float64)
    models = {client: update.w.numpy().astype(np.float64) for client, update, _ in replay.clients()}
    found = run.diagnostics["divergence"].query("done == 2")
    rows = found[found["place"] == "end"].set_index("client")
    far = {client: np.linalg.norm(w - before) for client, w in models.items()}
    assert rows["distance"].to_dict() == pytest.approx(far, rel=1e-5)
    moved = float(found.loc[found["place"] == "finish", "moved"].item())
    assert moved == pytest.approx(np.linalg.norm(np.mean(list(models.values()), axis=0) - before), rel=1e-5)
    known = np.sqrt(np.mean([np.sum((a - b) ** 2) for a, b in itertools.combinations(models.values(), 2)]))
    assert between(rows["distance"], rows["weight"], moved) == pytest.approx(known, rel=1e-5)
    layers = run.diagnostics["layers"].query("done == 2").groupby("client")
    squares = layers["distance"].agg(lambda values: float((values**2).sum()))
    assert squares.to_dict() == pytest.approx({client: value**2 for client, value in far.items()}, rel=1e-5)


def test_lambda_by_layer_is_what_numpy_says() -> None:
    """Columns of |w - w_g| have norm 1 (columnwise), the tensors do (tensor), or weight and bias together (layer)."""
    objective = Objective(MLP((3,), 2, hidden=(4,)))
    anchor, _ = objective.initial()
    generator = torch.Generator().manual_seed(1)
    w = anchor + (anchor != 0) * torch.randn(len(anchor), generator=generator)  # the gaps stay 0
    d = {name: np.abs((view - objective.views(anchor)[name]).numpy()) for name, view in objective.views(w).items()}
    names = list(dict.fromkeys(name.rpartition(".")[0] for name in d))
    for how in ("columnwise", "tensor", "layer", "none"):
        rows = by_layer(objective, w, anchor, how)
        assert [row["layer"] for row in rows] == names
        for row in rows:
            own = [part for name, part in d.items() if name.startswith(row["layer"])]
            together = np.sqrt(sum((part**2).sum() for part in own))
            scaled = {
                "columnwise": [part / np.sqrt((part**2).sum(axis=0)) for part in own],
                "tensor": [part / np.sqrt((part**2).sum()) for part in own],
                "layer": [part / together for part in own],
                "none": [np.ones_like(part) for part in own],
            }[how]
            assert row["distance"] == pytest.approx(together, rel=1e-6)
            known = np.concatenate([part.ravel() for part in scaled]).mean()
            assert row["lambda_mean"] == pytest.approx(known, rel=1e-5)
