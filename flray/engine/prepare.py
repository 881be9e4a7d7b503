"""The data, the proxy data and the scenario of an experiment, before its first round."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import START, schedule, task_name
from flray.core.schema.errors import ConfigError, DataError, ResourceError, warn
from flray.data import Dataset, ProxyConfig, ProxyData, check_classes, load_dataset, load_proxy, note_scales
from flray.data.proxy import check_validation
from flray.data.splits import in_line, listed
from flray.engine import cohort as cohorts
from flray.engine.blame import unchanged
from flray.files import atomic_write, write_text, writing
from flray.scenario import Devices, Drifting, DriftWarning, Scenario, build, drift_table, partition_csv
from flray.scenario.build import client_ids
from flray.scenario.drift import DriftTable, known_classes
from flray.scenario.tables import BatchOrders, ListedCohorts

if TYPE_CHECKING:
    import pandas


class Data(NamedTuple):
    """The data of an experiment. `private`: the numbers of the training samples that remain the clients'; None: all."""

    dataset: Dataset
    proxy: ProxyData | None
    private: np.ndarray | None


def build_data(experiment: Experiment) -> Data:
    try:
        dataset = load_dataset(experiment.data)
        check_classes(dataset)
        if not dataset.is_image and dataset.vocabulary is None and dataset.projection is None:
            note_scales(dataset.train.x, dataset.features, dataset.name)
        return Data(dataset, *_load_proxy(experiment, dataset))
    except MemoryError as error:
        raise ResourceError(
            f"data set {experiment.data.source!r} does not fit into memory ({error}); take fewer samples"
        ) from error


def _load_proxy(experiment: Experiment, dataset: Dataset) -> tuple[ProxyData | None, np.ndarray | None]:
    if experiment.proxy is None or not experiment.needs_proxy:
        # a held-out part is held out for every algorithm, so that all see the same clients
        if isinstance(experiment.proxy, ProxyConfig) and experiment.proxy.source == "holdout":
            return None, load_proxy(experiment.proxy, dataset, seed=experiment.seed)[1]
        return None, None
    return load_proxy(experiment.proxy, dataset, seed=experiment.seed)


def build_scenario(experiment: Experiment, data: Data) -> Scenario:
    """The scenario of an experiment over the training samples that remain the clients'.

    Raises `ConfigError` and `DataError` if the data do not fit the configuration, or a cohort is larger than the number
    of clients with samples.
    """
    dataset, _, private = data
    _warn_of_numbers(experiment, dataset.classes)
    scenario = build(
        dataset,
        experiment.partition,
        seed=experiment.seed,
        tasks=experiment.tasks,
        validation=experiment.evaluate.validation,
        private=private,
    )
    _check_public(experiment, data, scenario)
    scenario = with_files(experiment, scenario)
    if experiment.partition.slow_classes is not None:
        scenario = _with_slow_classes(experiment.partition.slow_classes, dataset, scenario)
    if scenario.cohorts is None:
        for stage in scenario.stages:
            try:
                _check_drawn(experiment, len(scenario.members(stage.index)))
            except ConfigError as error:
                where = f"{task_name(stage.index)}: " if len(scenario.stages) > 1 else ""
                raise ConfigError(f"{where}{error}") from error
    scenario = with_drift(experiment, dataset, scenario)
    _warn_of_drift(experiment, scenario)
    return scenario


def _check_public(experiment: Experiment, data: Data, scenario: Scenario) -> None:
    """Raises `DataError` for public data with validation samples."""
    held_out = [part.held_out for part in scenario.partitions if part.held_out is not None]
    if held_out and data.proxy is not None:
        assert isinstance(experiment.proxy, ProxyConfig)
        samples = np.unique(np.concatenate(held_out))
        check_validation(experiment.proxy, data.proxy, data.dataset, samples, data.private)


def _check_drawn(experiment: Experiment, clients: int) -> None:
    """Raises `ConfigError` for a cohort that so many clients do not fill, and for one of all of them to which
    `over_selected` can add none. Warns where it adds fewer than asked."""
    size, share = experiment.cohort.count(clients), experiment.coordination.share
    if share is None:
        return
    if size == clients:
        raise ConfigError(
            f"coordination: over_selected has none to add to a cohort of all {clients} clients; lower cohort.size"
        )
    if (asked := experiment.coordination.asked(size)) > clients:
        warn(f"coordination: over_selected draws all {clients} clients, not {asked}; lower cohort.size or share")


def _warn_of_numbers(experiment: Experiment, names: Sequence[str]) -> None:
    """Warn where a configuration numbers classes whose names are other whole numbers: labels 2, 5, 9 are classes 0, 1,
    2."""
    drift, tasks, partition = experiment.drift, experiment.tasks, experiment.partition
    written: dict[str, Sequence[int] | None] = {
        "drift.classes": getattr(drift, "classes", None),
        "partition.table": np.flatnonzero(np.any(partition.table or [[]], axis=0)).tolist(),
        "partition.slow_classes": partition.slow_classes,
        "tasks.class_order": None if tasks is None or isinstance(tasks.class_order, str) else tasks.class_order,
    }
    if isinstance(drift, DriftTable):
        written[f"drift.{'file' if drift.file else 'rows'}"] = sorted({*drift.table.label.tolist()} - {-1})
    if not all(name.removeprefix("-").isdigit() for name in names) or [*names] == [*map(str, range(len(names)))]:
        return
    for key, numbers in written.items():
        if numbers:
            of = in_line([f"{number}: label {names[number]}" for number in numbers if number < len(names)])
            shortened = listed(names[:9]) + (", ..." if len(names) > 9 else "")
            what = f"{key} counts the classes from 0 in the order of their labels ({shortened})"
            warn(f"{what}: {of or 'none of them is there'}", UserWarning)


def with_files(experiment: Experiment, scenario: Scenario) -> Scenario:
    """The scenario with the cohorts and batches of `cohort.from` and `data.batch_order`, and with `devices`.

    Raises `DataError` for a file that cannot be read, for cohorts that lack a round or name other clients, and for a
    trace that lacks a client.
    """
    file, orders = experiment.cohort.file, experiment.data.batch_order
    cohorts = None if file is None else ListedCohorts(file)
    if cohorts is not None:
        members = [scenario.members(stage.index) for stage in scenario.stages]
        cohorts.check(members, experiment.rounds)
    devices = None if experiment.devices is None else Devices(experiment.devices, experiment.seed)
    if devices is not None:
        devices.check(scenario.population)
    return scenario.following(cohorts, None if orders is None else BatchOrders(orders), devices)


def _with_slow_classes(classes: Sequence[int], dataset: Dataset, scenario: Scenario) -> Scenario:
    """The scenario whose slowest devices have the shares with the largest part of these classes.

    Of two shares with as much the one of the smaller number comes first. Raises `ConfigError` for a class that the data
    do not have.
    """
    known_classes("partition.slow_classes", classes, dataset.num_classes)
    (partition,), devices = scenario.partitions, scenario.devices
    assert devices is not None  # the configuration was checked
    of_them = np.isin(dataset.train.y, classes)
    parts = np.array([of_them[partition.client(k)].mean() if size else 0.0 for k, size in enumerate(partition.sizes)])
    shares, slowest = np.argsort(-parts, kind="stable"), devices.speeds(np.arange(scenario.population))
    clients = np.empty(scenario.population, dtype=np.int64)
    clients[shares] = np.argsort(slowest, kind="stable")
    dealt = Scenario(scenario.stages, [partition.dealt_to(clients)])
    return dealt.following(scenario.cohorts, scenario.batch_orders, devices)


def with_drift(experiment: Experiment, dataset: Dataset, scenario: Scenario) -> Scenario:
    """The scenario with the configured drift. Raises `ConfigError` if the drift does not fit."""
    if experiment.drift is None:
        return scenario
    draw = functools.partial(
        cohorts.sample_cohort,
        experiment.cohort,
        experiment.seed,
        listed=scenario.cohorts,
        coordination=experiment.coordination,
    )
    world = (dataset.train.y, dataset.num_classes, scenario.population, experiment.seed)
    chosen_by = "coordination buffered" if experiment.coordination.size is not None else ""
    if scenario.devices is not None and scenario.devices.presence is not None:
        chosen_by = "devices.availability"
    return scenario.drifting(Drifting(experiment.drift, *world, draw, dataset.class_groups, chosen_by, unchanged))


def drift_effects(experiment: Experiment, scenario: Scenario) -> pandas.DataFrame:
    """The samples that every round's cohort keeps under the drift (`flray.scenario.drift_table`); empty: no drift."""
    clocks = schedule(START, experiment.rounds, len(scenario.stages))
    return drift_table(scenario, (clock for clock in clocks if clock.phase == "round"))


def _warn_of_drift(experiment: Experiment, scenario: Scenario) -> None:
    """Warn of a drift that removes no sample, and of rounds in which no client of the cohort has one."""
    if scenario.drift is None:
        return
    table, rounds = drift_effects(experiment, scenario), experiment.total_rounds
    if len(table) and scenario.drift.chosen_by:
        return  # its clients are an example
    if (table["kept"] == table["of"]).all():
        what = f"drift: no client loses a sample in rounds 1 to {rounds}; {scenario.drift.drift.about()}"
        warn(what, DriftWarning)
    left = table.groupby("round")["kept"].sum()
    empty = left[left == 0].index
    if len(empty):
        what = f"drift: in {len(empty)} of {rounds} rounds nobody of the cohort holds a sample"
        warn(f"{what} (the first is {empty[0]}); they change nothing", DriftWarning)


def _write_ids(experiment: Experiment, dataset: Dataset, scenario: Scenario, where: Path) -> None:
    """`clients.csv` beside each partition by ids: the id that each client has in the data or in `partition.file`."""
    ids_of = client_ids(dataset, experiment.partition, scenario.partitions)
    for ids, place in zip(ids_of, scenario.folders(where), strict=False):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([("client", "id"), *enumerate(ids.tolist())])
        write_text(place / "clients.csv", text.getvalue())


def stored_scenario(experiment: Experiment, data: Data, scenario: Scenario | None, where: Path) -> Scenario:
    """The scenario of a run's folder `where`, memory-mapped.

    Writes the new `scenario` first, with `clients.csv`, `drift.json` and `drift.parquet`. None: reads the stored one;
    if that is damaged or missing, builds it again from the configuration and warns.
    """
    dataset = data.dataset
    if scenario is None:
        try:
            stored = Scenario.load(where, dataset.num_classes)
        except DataError as error:  # `Origin.compare` compares the fingerprint of the new one
            warn(f"{error}; made again from the configuration")
            scenario = build_scenario(experiment, data)
        else:  # a resume may have accepted other public data
            _check_public(experiment, data, stored)
    if scenario is not None:
        scenario.save(where, experiment.partition)
        _write_ids(experiment, dataset, scenario, where)
        if scenario.population <= 10_000:  # nobody reads a table of a million clients
            for partition, place in zip(scenario.partitions, scenario.folders(where), strict=True):
                write_text(place / "table.csv", partition_csv(partition, dataset.train.y, dataset.num_classes))
    scenario = with_files(experiment, Scenario.load(where, dataset.num_classes, verify=False))
    scenario = with_drift(experiment, dataset, scenario)
    if scenario.drift is not None:
        about = {"drift": experiment.dump()["drift"], "seed": experiment.seed, "hash": scenario.drift.fingerprint}
        write_text(where / "drift.json", json.dumps(about, indent=1) + "\n")
        table = drift_effects(experiment, scenario)
        with writing(where / "drift.parquet"), atomic_write(where / "drift.parquet") as temporary:
            table.to_parquet(temporary, index=False)
    return scenario
