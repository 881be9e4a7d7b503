"""Small experiments on iris."""

IRIS = {
    "rounds": 2,
    "data": {"source": "iris"},
    "proxy": {"source": "holdout", "size": 20, "labelled": False},
    "partition": {"name": "shards", "clients": 3, "shards_per_client": 1},
    "model": {"name": "mlp", "hidden": [4]},
    "resources": {"executor": "local"},
    "checkpoint": {"every": 1, "keep": 0},
}

LOCAL = {"lr": 0.1, "local_epochs": 2, "batch_size": 8}

FOUR_CLIENTS = {
    "seed": 3,
    "data": {"source": "iris", "standardize": True},
    "partition": {"name": "iid", "clients": 4},
    "cohort": {"size": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "resources": {"executor": "local", "server": {"threads": 1}},
}

UNEQUAL = {  # five clients of other sizes and classes, and public samples
    "seed": 3,
    "data": {"source": "iris", "standardize": True},
    "proxy": {"source": "holdout", "size": 24, "labelled": False},
    "partition": {"name": "dirichlet", "clients": 5, "alpha": 1.0, "variant": "plain", "min_size": 6},
    "checkpoint": {"every": 2, "keep": 0},
}

TOY = {  # one round of three clients
    "name": "toy",
    "data": {"source": "iris"},
    "partition": {"name": "iid", "clients": 3},
    "cohort": {"size": 2},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": {"name": "fedavg", "lr": 0.1, "local_epochs": 1},
    "rounds": 1,
}
