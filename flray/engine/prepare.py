"""Before the first round: the data, the proxy data and the partition of an experiment."""

from __future__ import annotations

from typing import Any

import numpy as np

from flray.core.errors import ResourceError
from flray.data import Dataset, ProxyConfig, check_classes, load_dataset, load_proxy
from flray.experiment import Experiment
from flray.scenario import Scenario, build


def build_data(experiment: Experiment) -> tuple[Dataset, Any, np.ndarray | None]:
    """(data set, proxy or None, training samples that stay the clients', None: all)."""
    try:
        dataset = load_dataset(experiment.data)
        check_classes(dataset)
        return dataset, *_public(experiment, dataset)
    except MemoryError as error:
        raise ResourceError(
            f"data set {experiment.data.source!r} does not fit into memory ({error}); take fewer samples"
        ) from error


def _public(experiment: Experiment, dataset: Dataset) -> tuple[Any, np.ndarray | None]:
    """(proxy or None, training samples that stay the clients')."""
    if experiment.proxy is None or not experiment.algorithm.needs_proxy:
        # a held-out part is held out for every algorithm, so that all see the same clients
        if isinstance(experiment.proxy, ProxyConfig) and experiment.proxy.source == "holdout":
            return None, load_proxy(experiment.proxy, dataset, seed=experiment.seed)[1]
        return None, None
    return load_proxy(experiment.proxy, dataset, seed=experiment.seed)


def build_scenario(experiment: Experiment, dataset: Dataset, private: np.ndarray | None) -> Scenario:
    """Who holds what of the samples `private` (None: all), when, and what is tested.

    Raises `ConfigError` and `DataError` where the data cannot give what is asked for, or a cohort is larger than the
    clients that hold samples.
    """
    scenario = build(
        dataset,
        experiment.partition,
        seed=experiment.seed,
        tasks=experiment.tasks,
        validation=experiment.evaluate.validation,
        private=private,
    )
    for stage in scenario.stages:
        experiment.cohort.count(len(scenario.members(stage.index)))
    return scenario
