"""A small run on the virtual clock."""

from typing import Any

TIMED: dict[str, Any] = {
    "seed": 2,
    "rounds": 8,
    "data": {"source": "synthetic", "options": {"num_train": 80, "num_test": 40, "shape": 6, "num_classes": 4}},
    "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.5, "min_size": 2},
    "cohort": {"size": 4},
    "model": {"name": "mlp", "hidden": [5]},
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_epochs": 2, "batch_size": 4},
    "devices": {"speed": {"name": "lognormal", "sigma": 1.0}},
    "evaluate": {"clients": False},
    "resources": {"executor": "local", "server": {"threads": 1}},
}
