"""A run of five clients on digits with client states, two exchanges a round and one at the end of the task."""

from typing import Any

from flray.config.experiment import Experiment
from flray.config.loader import load_config


def own_on_digits(rounds: int, resources: dict[str, Any], name: str = "own", **sections: Any) -> Experiment:
    """`algorithm` has more options of `name`, which is `own` or inherits from it; a checkpoint after every second
    round."""
    own = {"name": name, "lr": 0.05, "local_epochs": 1, "batch_size": 16, **sections.pop("algorithm", {})}
    values = {
        "seed": 5,
        "rounds": rounds,
        "imports": ["tests.contracts.own"],
        "data": {"source": "digits"},
        "partition": {"name": "dirichlet", "clients": 5, "alpha": 1.0, "min_size": 30},
        "model": {"name": "mlp", "hidden": [8]},
        "cohort": {"size": 4},
        "algorithm": own,
        "evaluate": {"finetune_epochs": [0, 1]},
        "checkpoint": {"every": 2, "keep": 0},
        "resources": {"client_actors": 2, "server": {"threads": 1}, **resources},
    }
    return load_config({**values, **sections})[0]
