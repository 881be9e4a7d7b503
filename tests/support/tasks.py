"""A run of two tasks on iris, and what does not depend on how often it was stopped."""

from safetensors.numpy import load_file

import flray
from flray.config.loader import load_config

BASE = {
    "seed": 1,
    "rounds": 3,
    "data": {"source": "iris", "standardize": True},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_epochs": 1, "batch_size": 8},
    "resources": {"executor": "local", "server": {"threads": 1}},
    "checkpoint": {"every": 1, "keep": 0},
}

TASKS = {"num_tasks": 2, "class_order": [2, 0, 1]}  # first classes 0 and 2, then 1


def experiment(**sections):
    return load_config({**BASE, **sections})[0]


def contents(folder):
    """What does not depend on how often a run was stopped."""
    run = flray.load(folder)
    table = run.rounds[[name for name in run.rounds if not name.startswith("time/")]]
    return {name: a.tobytes() for name, a in load_file(folder / "model.safetensors").items()}, table.to_dict("records")
