"""Before the first round: the data, the proxy data and the partition of an experiment."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from flray.core.errors import DataError, ResourceError
from flray.data import Dataset, ProxyConfig, check_classes, load_dataset, load_proxy
from flray.experiment import Experiment
from flray.rundir.recorder import write_text
from flray.scenario import Scenario, build, partition_table


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


def stored_scenario(
    experiment: Experiment, data: tuple[Dataset, Any, np.ndarray | None], scenario: Scenario | None, where: Path
) -> Scenario:
    """The scenario as it lies in a run's folder `where`, memory-mapped; `scenario`: a new one, which is written first.

    None: the one that lies there; where that is damaged or gone it is made again from the configuration, aloud.
    `data` is what :func:`build_data` returned.
    """
    dataset, _, private = data
    if scenario is None:
        try:
            Scenario.load(where, dataset.num_classes)
        except DataError as error:  # it is what the configuration gives; the fingerprints tell whether it still is
            warnings.warn(f"{error}; made again from the configuration", stacklevel=2)
            scenario = build_scenario(experiment, dataset, private)
    if scenario is not None:
        scenario.save(where, experiment.partition)
        if scenario.population <= 10_000:  # a table of a million clients helps nobody
            for partition, place in zip(scenario.partitions, scenario.folders(where), strict=True):
                table = partition_table(partition, dataset.train.y, dataset.num_classes)
                write_text(place / "table.csv", table.to_csv())
    return Scenario.load(where, dataset.num_classes, verify=False)
