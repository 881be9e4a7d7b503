"""Starting weights: the model of a configuration, trained in one place on all its training samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment, algorithm_name
from flray.config.loader import load_config
from flray.config.overrides import pairs
from flray.core.schema.errors import ConfigError

# replaces what the configuration says about clients; the optimiser's hyper-parameters stay
CENTRAL: Mapping[str, Any] = {
    "algorithm": "centralized",
    "partition": {"name": "iid", "clients": 1},
    "proxy": None,
    "cohort": {},
    "evaluate.finetune_epochs": [],
}


def pretraining(
    config: str | Path | Mapping[str, Any] | Experiment, overrides: Iterable[str] = (), imports: Sequence[str] = ()
) -> Experiment:
    """The experiment that trains the weights: `rounds` x `algorithm.local_epochs` epochs over all training samples.

    It starts from random weights, unless an override names `model.weights`; the file's own are not used. Raises
    `ConfigError` in one line.
    """
    changes = pairs(overrides)
    cells = load_config(config, {**CENTRAL, **changes}, imports)
    if len(cells) != 1:
        raise ConfigError(f"pretrain trains one model, these overrides make {len(cells)}; give one value for each key")
    experiment = cells[0]
    if not experiment.algorithm.centralized:
        raise ConfigError(
            f"pretrain trains in one place, algorithm {algorithm_name(experiment.algorithm)} does not; leave algorithm "
            "out"
        )
    if experiment.model.start and "model.weights" not in changes:
        model = type(experiment.model)(name=experiment.model.name, **experiment.model.options)
        experiment = experiment.model_copy(update={"model": model})
    return experiment
