"""Before the first round: the data, the proxy data and the partition of an experiment."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import START, schedule
from flray.core.schema.errors import CheckpointError, DataError, ResourceError
from flray.data import Dataset, ProxyConfig, check_classes, load_dataset, load_proxy
from flray.engine import cohort as cohorts
from flray.files import atomic_write
from flray.rundir.recorder import write_text
from flray.scenario import Drifting, DriftWarning, Scenario, build, drift_table, partition_csv

if TYPE_CHECKING:
    import pandas


def build_data(experiment: Experiment) -> tuple[Dataset, Any, np.ndarray | None]:
    """(data set, proxy or None, training samples that stay the clients', None: all)."""
    try:
        dataset = load_dataset(experiment.data)
        check_classes(dataset)
        return dataset, *_load_proxy(experiment, dataset)
    except MemoryError as error:
        raise ResourceError(
            f"data set {experiment.data.source!r} does not fit into memory ({error}); take fewer samples"
        ) from error


def _load_proxy(experiment: Experiment, dataset: Dataset) -> tuple[Any, np.ndarray | None]:
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
    scenario = with_drift(experiment, dataset, scenario)
    _warn_of_drift(experiment, scenario)
    return scenario


def with_drift(experiment: Experiment, dataset: Dataset, scenario: Scenario) -> Scenario:
    """The scenario under the drift that the configuration asks for. Raises `ConfigError` where it does not fit."""
    if experiment.drift is None:
        return scenario
    draw = functools.partial(cohorts.sample_cohort, experiment.cohort, experiment.seed)
    world = (dataset.train.y, dataset.num_classes, scenario.population, experiment.seed)
    return scenario.drifting(Drifting(experiment.drift, *world, draw, dataset.class_groups))


def drift_effects(experiment: Experiment, scenario: Scenario) -> pandas.DataFrame:
    """What the drift leaves of the cohort of every round (`flray.scenario.drift_table`); no row without a drift."""
    clocks = schedule(START, experiment.rounds, len(scenario.stages))
    return drift_table(scenario, (clock for clock in clocks if clock.phase == "round"))


def _warn_of_drift(experiment: Experiment, scenario: Scenario) -> None:
    """Warns, in one line each, of a drift that takes nothing away, and of rounds in which nobody holds a sample."""
    if scenario.drift is None:
        return
    table, rounds = drift_effects(experiment, scenario), experiment.total_rounds
    if (table["kept"] == table["of"]).all():
        what = f"drift: no client loses a sample in rounds 1 to {rounds}; {scenario.drift.drift.about()}"
        warnings.warn(what, DriftWarning, stacklevel=3)
    left = table.groupby("round")["kept"].sum()
    empty = left[left == 0].index
    if len(empty):
        what = f"drift: in {len(empty)} of {rounds} rounds nobody of the cohort holds a sample"
        warnings.warn(f"{what} (the first is {empty[0]}); they change nothing", DriftWarning, stacklevel=3)


def stored_scenario(
    experiment: Experiment, data: tuple[Dataset, Any, np.ndarray | None], scenario: Scenario | None, where: Path
) -> Scenario:
    """The scenario as it lies in a run's folder `where`, memory-mapped; `scenario`: a new one, which is written first.

    None: reads the stored one. If it is damaged or missing, builds it again from the configuration and warns.
    `data` is what :func:`build_data` returned. With it lies what the drift does: `drift.json` and `drift.parquet`.
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
                write_text(place / "table.csv", partition_csv(partition, dataset.train.y, dataset.num_classes))
    scenario = with_drift(experiment, dataset, Scenario.load(where, dataset.num_classes, verify=False))
    if scenario.drift is not None:
        about = {"drift": experiment.dump()["drift"], "seed": experiment.seed, "hash": scenario.drift.fingerprint}
        write_text(where / "drift.json", json.dumps(about, indent=1) + "\n")
        table = drift_effects(experiment, scenario)
        try:
            with atomic_write(where / "drift.parquet") as temporary:
                table.to_parquet(temporary, index=False)
        except OSError as error:
            why = error.strerror or error
            raise CheckpointError(f"cannot write {where / 'drift.parquet'}: {why}; free some space") from error
    return scenario
