"""Softmax regression of a run in NumPy: full batches, plain gradient steps, float64.

A model is `{"weight": W [C, d], "bias": b [C]}`; the run has `model: {name: mlp, hidden: [], dtype: float64}`,
`momentum: 0` and `batch_size: full`.
"""

from collections.abc import Callable

import numpy as np
from safetensors.numpy import load_file

import flray
from flray.data import load_dataset
from flray.engine.replay import Replay

Model = dict[str, np.ndarray]


class Regression:
    """The clients' data of a run, and what a client makes of a model."""

    def __init__(self, found: flray.Run, lr: float) -> None:
        dataset = load_dataset(found.experiment.data)
        self.x, self.y, self.lr = np.asarray(dataset.train.x, dtype=np.float64), np.asarray(dataset.train.y), lr
        indices, offsets = (
            np.load(found.folder / f"partition/partition_{name}.npy") for name in ("indices", "offsets")
        )
        self.held = np.split(indices, offsets[1:-1])

    def gradient(self, model: Model, client: int) -> Model:
        """Of the mean cross-entropy of the client's samples."""
        x, y = self.x[self.held[client]], self.y[self.held[client]]
        logits = x @ model["weight"].T + model["bias"]
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        return {"weight": p.T @ x / len(y), "bias": p.mean(0)}

    def trained(
        self, model: Model, client: int, steps: int = 1, add: Callable[[Model, str], np.ndarray] | None = None
    ) -> Model:
        """After so many steps from `model`. `add(w, name)`: what a method adds to the gradient at w."""
        w = dict(model)
        for _ in range(steps):
            g = self.gradient(w, client)
            w = {name: w[name] - self.lr * (g[name] + (add(w, name) if add else 0.0)) for name in w}
        return w


def initial(found: flray.Run) -> Model:
    """The model before round 1."""
    replay = Replay(found.folder)
    named = replay.runtime.objective.state_dict(replay.state.w, replay.state.b)
    return {name.rpartition(".")[2]: value.double().numpy().copy() for name, value in named.items()}


def final(found: flray.Run) -> Model:
    """The model after the last round."""
    stored = load_file(found.folder / "model.safetensors")
    return {name.rpartition(".")[2]: value for name, value in stored.items()}
