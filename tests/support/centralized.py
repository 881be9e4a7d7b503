"""An experiment of `centralized`, with a model that can kill its worker."""

from flray.config.loader import load_config
from tests.support.iris import UNEQUAL


def config(workers=1, rounds=4, model=None, **sections):
    options = {"name": "centralized", "lr": 0.05, "local_epochs": 2, "batch_size": 8, **sections.pop("algorithm", {})}
    base = {
        **UNEQUAL,
        "rounds": rounds,
        "model": {"name": "tests.engine.ray.train.mortal:Mortal", **(model or {})},
        "algorithm": options,
        "resources": {"client_actors": workers, "server": {"threads": 1}},
    }
    return load_config({**base, **sections})[0]
