"""Builds a scenario from a configuration and a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from flray.core.protocol.clock import task_name
from flray.core.schema.errors import ConfigError, DataError, named, warn
from flray.data.cache import Array
from flray.data.dataset import Dataset
from flray.data.draws import first_copies
from flray.data.splits import in_line
from flray.scenario import held_out
from flray.scenario.held_out import ValidationConfig
from flray.scenario.partition import Partition, PartitionWarning, make_partition
from flray.scenario.partition_config import OF_SOURCES, PARTITIONS, PartitionConfig
from flray.scenario.partitioners import GROUPS, clients_of_csv, numbered, owners_of_csv
from flray.scenario.scenario import Scenario
from flray.scenario.tasks import Stage, TasksConfig, TaskSpec, TestSet, domains_of, together

OF_ALL_CLASSES = ("natural", "csv", "table")  # partitions of the whole data set only

# by split: the name of the test set of all tasks, and the prefix of the test set of each task
NAMES = {"test": ("test", "task"), "train": ("val", "val")}

HINTS = {
    "dirichlet": "set partition.min_size to 1 or more, or a larger alpha",
    "table": "give every row a sample",
    "shards": "make clients x shards_per_client a multiple of the number of classes, with at most as many shards of a "
    "class as samples",
}


def build(
    dataset: Dataset,
    config: PartitionConfig,
    *,
    seed: int,
    tasks: TasksConfig | None = None,
    validation: ValidationConfig | None = None,
    private: Array | None = None,
) -> Scenario:
    """The stages with their partitions of the training samples `private` (None: all) and their test sets.

    `seed` is the run's. Without `tasks` there is one stage of all classes. Raises `ConfigError` and `DataError` if the
    data do not allow it.
    """
    ids, count = _client_ids(dataset, config)
    if config.name == "csv":
        private = _without_nobodys(ids, private, str(config.file))
    server_samples = None
    first = None if validation is None else first_copies(dataset.train.x)
    if validation is not None and validation.of == "server":
        server_samples, private = held_out.of_server(dataset.train.y, private, validation.fraction, seed, first)
    every = np.arange(dataset.num_classes)
    sequence = [TaskSpec("all classes", every, every)] if tasks is None else tasks.specs(dataset, seed)
    parts = _parts(dataset, config, seed, tasks, sequence, private, ids, count)
    for task, part in enumerate(parts):
        if validation is not None and validation.of == "clients":
            parts[task] = held_out.of_clients(part, validation.fraction, seed, task, first)
        elif server_samples is not None:
            mine = server_samples[sequence[task].has(dataset.train)[server_samples]]
            parts[task] = part._replace(held_out=mine.astype(part.indices.dtype))
    _note_empty(parts, config, tasks)
    if tasks is None and not dataset.source_of:
        return Scenario.ordinary(parts[0], dataset.num_classes)
    if tasks is None:
        return Scenario([Stage(0, sequence[0].name, every, every, by_source(dataset, parts[0]))], parts)
    tests = _tests(dataset, sequence, parts)
    stages = [
        Stage(task, of.name, of.classes, of.outputs, seen(tests, task), of.source) for task, of in enumerate(sequence)
    ]
    return Scenario(stages, parts)


def _client_ids(dataset: Dataset, config: PartitionConfig) -> tuple[Array | None, int | None]:
    """(what the partition reads of each training sample: its source, its group, or its client in a file, -1 for nobody;
    the number of groups or clients, None where `make_partition` does not ask for it)."""
    if config.name == "csv":
        return clients_of_csv(str(config.file), len(dataset.train.y), config.clients)
    group = dataset.train.group
    if config.name == "natural" and group is not None:
        return numbered(GROUPS, group, config.clients, texts=dataset.groups)
    return dataset.train.source if config.name in OF_SOURCES else group, None


def client_ids(dataset: Dataset, config: PartitionConfig, partitions: Sequence[Partition]) -> list[Array]:
    """The id, as text `[N]`, of each client of each partition by ids (of a column, of a file), "" for one without a
    sample; none for other partitions. Raises `DataError` for a file that cannot be read."""
    group = dataset.train.group
    if config.name == "csv":
        ids, samples = owners_of_csv(str(config.file), len(dataset.train.y))
        written = np.full(len(dataset.train.y), "", object)
        written[samples] = ids
    elif config.name == "natural" and group is not None:
        written = group if dataset.groups is None else dataset.groups[group]
    else:
        return []
    found = []
    for partition in partitions:
        of_client, there = np.full(partition.num_clients, "", object), partition.sizes > 0
        of_client[there] = written[partition.indices[partition.offsets[:-1][there]]].astype(str)
        found.append(of_client)
    return found


def _without_nobodys(ids: Array | None, private: Array | None, file: str) -> Array | None:
    """The samples of `private` (None: all) that the partition's file gives to a client. Warns of the others."""
    assert ids is not None
    nobodys = int((ids < 0).sum())
    if not nobodys:
        return private
    warn(
        f"partition.file: {file} leaves out {nobodys:,} of {len(ids):,} training samples, which no client holds",
        PartitionWarning,
    )
    held = np.flatnonzero(ids >= 0)
    return held if private is None else np.intersect1d(private, held)


def _parts(
    dataset: Dataset,
    config: PartitionConfig,
    seed: int,
    tasks: TasksConfig | None,
    sequence: list[TaskSpec],
    private: Array | None,
    ids: Array | None,
    count: int | None,
) -> list[Partition]:
    """The partition of each stage, without a validation split. `ids`, `count`: see :func:`_client_ids`."""
    labels = dataset.train.y
    if tasks is None or tasks.partition == "once":
        partition = make_partition(
            config, labels, seed=seed, num_classes=dataset.num_classes, group=ids, count=count, subset=private
        )
        return [partition] if tasks is None else [partition.only(of.has(dataset.train)) for of in sequence]
    if config.name in OF_ALL_CLASSES:
        raise ConfigError(f"tasks.partition: {config.name} shares all classes out at once; set tasks.partition: once")
    if config.min_size:  # counts over the whole run; a task has a T-th of its samples
        config = config.model_copy(update={"min_size": -(-config.min_size // len(sequence))})
    parts = []
    for task, of in enumerate(sequence):
        place = np.full(dataset.num_classes, -1)
        place[of.classes] = np.arange(len(of.classes))
        of_task = place[labels]  # the task's classes, renumbered from 0
        mine = np.flatnonzero(of.has(dataset.train))
        rows = mine if private is None else np.intersect1d(mine, private)
        if not len(rows):
            names = in_line([dataset.classes[number] for number in of.classes])
            raise DataError(f"{task_name(task)}: no training sample is of its classes, {names}; take fewer tasks")
        try:
            parts.append(
                make_partition(
                    config, of_task, seed=seed, num_classes=len(of.classes), group=ids, subset=rows, task=task
                )
            )
        except DataError as error:
            raise DataError(f"{task_name(task)}: {error}") from error
        first, other = parts[0].num_clients, parts[task].num_clients
        if other != first:  # a function of the user's own
            raise DataError(
                f"partition {config.name}: {named(PARTITIONS.get(config.name))} returned {first} clients for "
                f"{task_name(0)} and {other} for {task_name(task)}; set partition.clients and "
                "return [] for the others, or set tasks.partition: once"
            )
    return parts


def _note_empty(parts: list[Partition], config: PartitionConfig, tasks: TasksConfig | None) -> None:
    """Warns, once for each task, of clients without samples. Raises `DataError` if a task has no other clients."""
    for task, part in enumerate(parts):
        empty = np.flatnonzero(part.sizes == 0)
        where = f"partition {config.name}" if tasks is None else f"{task_name(task)}: partition {config.name}"
        if len(empty) == part.num_clients:
            raise DataError(f"{where}: no client has a sample of the task; take fewer tasks")
        if len(empty):
            way = HINTS.get(config.name, "use fewer clients")
            warn(
                f"{where}: {len(empty)} of {part.num_clients} clients have no samples (the first is client {empty[0]}) "
                f"and take no part; if they should, {way}",
                PartitionWarning,
            )


def _tests(dataset: Dataset, sequence: list[TaskSpec], parts: list[Partition]) -> list[TestSet]:
    """The test set of each task, or its validation split. Raises `DataError` for one without a sample."""
    sets = []
    for task, (of, part) in enumerate(zip(sequence, parts, strict=True)):
        if part.held_out is not None:
            tested = TestSet("train", np.asarray(part.held_out, np.int64), task)
        else:
            tested = TestSet("test", np.flatnonzero(of.has(dataset.test)), task)
        if tested.samples is None or not len(tested.samples):
            name = NAMES[tested.split][0]
            raise DataError(f"{task_name(task)}: the {name} set has no sample of it; take fewer tasks or more samples")
        sets.append(tested)
    return sets


def by_source(dataset: Dataset, part: Partition) -> dict[str, TestSet]:
    """The test sets of a data set whose sources have classes of their own: one of all sources, and one of each source
    under its name (`val-NAME` for the validation split). Raises `DataError` for one without a sample."""
    split: Literal["train", "test"] = "test" if part.held_out is None else "train"
    source = domains_of(getattr(dataset, split))
    rows = np.arange(len(source)) if part.held_out is None else np.asarray(part.held_out, np.int64)
    sets = {}
    for number, name in enumerate(dataset.sources):
        mine = rows[source[rows] == number]
        if not len(mine):
            raise DataError(f"the {NAMES[split][0]} set has no sample of {name!r}; take more samples")
        sets[name if split == "test" else f"val-{name}"] = TestSet(split, mine)
    return {NAMES[split][0]: together(split, sets), **sets}


def seen(tests: list[TestSet], task: int) -> dict[str, TestSet]:
    """The test sets of a stage: one of all tasks up to its own, and one of each task, later ones included."""
    total, single = NAMES[tests[0].split]
    named = {f"{single}-{number}": tested for number, tested in enumerate(tests)}
    begun = {name: tested for name, tested in named.items() if tested.task <= task}
    return {total: together(tests[0].split, begun), **named}
