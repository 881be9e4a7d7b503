"""zeta and descent of softmax regression, whose gradients NumPy has in closed form."""

from pathlib import Path

import numpy as np
import pytest
import torch

import flray
from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.engine.replay import Replay
from flray.metrics.heterogeneity import mean_gradient
from flray.models.mlp import MLP
from tests.support.iris import IRIS
from tests.support.small_cases import context


def softmax_gradient(weight: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy: mean of (p - onehot(y)) (x, 1)^T, the weight's part first."""
    z = x @ weight.T + bias
    p = np.exp(z - z.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True) - np.eye(len(bias))[y]
    return np.concatenate([(p.T @ x / len(x)).ravel(), p.mean(0)])


def flat(objective: Objective, w: torch.Tensor) -> np.ndarray:
    return np.concatenate([view.numpy().ravel() for view in objective.views(w).values()])


def test_batches_of_any_size_give_the_mean_over_all_samples() -> None:
    objective = Objective(MLP((2,), 3, hidden=()))
    w, b = objective.initial()
    draws = np.random.default_rng(0)
    x, y = draws.standard_normal((7, 2)).astype(np.float32), draws.integers(0, 3, 7)
    batches = [Batch(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in np.split(np.arange(7), [3, 4])]
    weight, bias = (view.double().numpy() for view in objective.views(w).values())
    found = flat(objective, mean_gradient(context(objective), w, b, batches))
    assert found == pytest.approx(softmax_gradient(weight, bias, x.astype(np.float64), y), abs=1e-6)


def test_rows_of_a_run(tmp_path: Path) -> None:
    linear = {"model": {"name": "mlp", "hidden": []}, "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 8}}
    config = {**IRIS, "proxy": None, **linear, "diagnostics": [{"name": "heterogeneity", "samples": None}]}
    run = flray.run(config, out=tmp_path / "run", progress=False)
    replay = Replay(run.folder).goto(1)
    runtime = replay.runtime
    weight, bias = (view.double().numpy() for view in runtime.objective.views(replay.state.w).values())
    split = runtime.dataset.train  # F = sum_k p_k F_k: the mean over all samples
    assert sorted(runtime.summary.samples[0].tolist()) == list(range(len(split.y)))
    g = softmax_gradient(weight, bias, runtime.normalizer(np.array(split.x)).double().numpy(), split.y)
    rows = run.diagnostics["heterogeneity"].query("done == 2").set_index("client")
    assert len(rows) == 3
    for client, row in rows.iterrows():
        held = replay.scenario.shares(replay.next_round(), np.array([client])).of(0)
        x, y = runtime.normalizer(runtime.dataset.train.x[held]).double().numpy(), runtime.dataset.train.y[held]
        g_k = softmax_gradient(weight, bias, x, y)
        assert row["zeta"] == pytest.approx(np.linalg.norm(g_k - g), rel=1e-4)
        assert row["descent"] == pytest.approx(g_k @ g / (g @ g), rel=1e-3)
        assert row["local"] == pytest.approx(np.linalg.norm(g_k), rel=1e-4)
        assert row["weight"] == pytest.approx(1 / 3)
