"""An experiment of `centralized`, with a model that can kill its worker."""

from flray.config.loader import load_config


def config(workers=1, rounds=4, model=None, **sections):
    options = {"name": "centralized", "lr": 0.05, "local_epochs": 2, "batch_size": 8, **sections.pop("algorithm", {})}
    base = {
        "seed": 3,
        "rounds": rounds,
        "data": {"source": "iris", "standardize": True},
        "proxy": {"source": "holdout", "size": 24, "labelled": False},
        "partition": {"name": "dirichlet", "clients": 5, "alpha": 1.0, "variant": "plain", "min_size": 6},
        "model": {"name": "tests.engine.ray.train.mortal:Mortal", **(model or {})},
        "algorithm": options,
        "checkpoint": {"every": 2, "keep": 0},
        "resources": {"client_actors": workers, "server": {"threads": 1}},
    }
    return load_config({**base, **sections})[0]
