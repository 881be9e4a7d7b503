"""Class-incremental tasks: which classes when, who holds their samples, what is tested."""

import numpy as np
import pytest

import flray
from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, from_arrays, load_dataset
from flray.scenario import (
    PARTITIONS,
    PartitionConfig,
    PartitionWarning,
    Scenario,
    TasksConfig,
    ValidationConfig,
    build,
    make_partition,
)

IRIS = DataConfig(source="iris")
PARTS = PartitionConfig(name="dirichlet", clients=4, alpha=0.5, min_size=1)


def scenario(num_tasks=3, partition=PARTS, seed=0, **fields) -> Scenario:
    options = {name: fields.pop(name) for name in ("validation", "private") if name in fields}
    return build(load_dataset(IRIS), partition, seed=seed, tasks=TasksConfig(num_tasks=num_tasks, **fields), **options)


def labels_of(found: Scenario, task: int) -> set[int]:
    return set(load_dataset(IRIS).train.y[found.partitions[task].indices].tolist())


def test_the_first_tasks_get_one_class_more_and_the_first_of_all_may_be_larger():
    groups = TasksConfig(num_tasks=3, class_order="natural").groups(7, 0)
    assert [group.tolist() for group in groups] == [[0, 1, 2], [3, 4], [5, 6]]
    groups = TasksConfig(num_tasks=4, class_order="natural", first_task=5).groups(10, 0)
    assert [group.tolist() for group in groups] == [[0, 1, 2, 3, 4], [5, 6], [7, 8], [9]]


def test_the_class_order_is_drawn_from_the_runs_seed_or_written():
    groups = TasksConfig(num_tasks=5).groups(10, 4)
    drawn = rng(4, "class order").permutation(10)
    assert [group.tolist() for group in groups] == [sorted(drawn[a : a + 2].tolist()) for a in range(0, 10, 2)]
    assert [group.tolist() for group in TasksConfig(num_tasks=5).groups(10, 5)] != [group.tolist() for group in groups]
    assert [g.tolist() for g in TasksConfig(num_tasks=2, class_order=[2, 0, 1]).groups(3, 0)] == [[0, 2], [1]]


def test_pycils_class_order_has_a_name():
    """`np.random.seed(1993)`, `np.random.permutation(100)` in PyCIL's data manager: 68, 56, 78, 8, 23 come first."""
    groups = TasksConfig(num_tasks=10, class_order="pycil").groups(100, seed=7)
    assert groups[0].tolist() == sorted([68, 56, 78, 8, 23, 84, 90, 65, 74, 76])
    state = np.random.RandomState(1993)
    assert groups[9].tolist() == sorted(state.permutation(100)[90:].tolist())


@pytest.mark.parametrize(
    "fields, classes, says",
    [
        ({"num_tasks": 4, "first_task": 8}, 10, "8 of 10 classes leave 2 for 3 tasks"),
        ({"num_tasks": 1, "first_task": 8}, 10, "8 of 10 classes leave 2 for 0 tasks"),
        ({"num_tasks": 2, "first_task": 12}, 10, "12 of 10 classes leave 0 for 1 tasks"),
        ({"num_tasks": 4}, 3, "4 tasks for 3 classes"),
        ({"num_tasks": 2, "class_order": (1, 0)}, 3, "2 classes, but the data set has 3"),
    ],
)
def test_tasks_that_do_not_fit_the_classes_are_one_line(fields, classes, says):
    with pytest.raises(ConfigError, match=says):
        TasksConfig(**fields).groups(classes, 0)


def test_a_class_order_names_every_class_once():
    with pytest.raises(ConfigError, match="write every class number from 0 once"):
        TasksConfig(num_tasks=2, class_order=(0, 0, 2))


def test_each_task_shares_the_samples_of_its_classes_out_anew():
    data = load_dataset(IRIS)
    found = scenario(class_order="natural")
    assert [stage.classes.tolist() for stage in found.stages] == [[0], [1], [2]]
    assert [labels_of(found, task) for task in range(3)] == [{0}, {1}, {2}]
    everything = np.concatenate([part.indices for part in found.partitions])
    assert sorted(everything.tolist()) == list(range(len(data.train.y)))
    # the samples of a class are equally many and drawn by one rule: equal shares would be equal draws
    assert len({tuple(part.sizes.tolist()) for part in found.partitions}) == 3


def test_a_partition_of_all_samples_shows_a_task_those_of_its_classes():
    data = load_dataset(IRIS)
    whole = make_partition(PARTS, data.train.y, num_classes=3)
    once = build(data, PARTS, seed=0, tasks=TasksConfig(num_tasks=2, class_order=(2, 0, 1), partition="once"))
    for client in range(4):
        mine = whole.client(client).tolist()
        assert once.partitions[0].client(client).tolist() == [i for i in mine if data.train.y[i] in (0, 2)]
        assert once.partitions[1].client(client).tolist() == [i for i in mine if data.train.y[i] == 1]


@pytest.mark.parametrize("name, more", [("natural", {}), ("table", {"table": [[1, 1, 1]]})])
def test_what_is_written_for_all_classes_is_not_shared_out_anew(name, more):
    with pytest.raises(ConfigError, match=f"{name} shares all classes out at once; set tasks.partition: once"):
        scenario(partition=PartitionConfig(name=name, **more))


def test_what_is_tested_are_all_classes_seen_so_far():
    data = load_dataset(IRIS)
    found = scenario(class_order=(1, 2, 0))
    tested = [set(data.test.y[stage.tests["test"].samples].tolist()) for stage in found.stages]
    assert tested == [{1}, {1, 2}, {0, 1, 2}]
    assert len(found.stages[2].tests["test"].samples) == len(data.test.y)


@pytest.mark.parametrize("of", ["clients", "server"])
def test_the_validation_split_of_a_task_is_of_the_classes_seen_so_far_and_nobody_trains_on_it(of):
    data = load_dataset(IRIS)
    found = scenario(class_order=(1, 2, 0), validation=ValidationConfig(fraction=0.2, of=of))
    tested = [stage.tests["val"].labels(data) for stage in found.stages]
    assert [set(labels.tolist()) for labels in tested] == [{1}, {1, 2}, {0, 1, 2}]
    held = found.stages[2].tests["val"].samples
    trained = np.concatenate([part.indices for part in found.partitions])
    assert sorted([*held, *trained]) == list(range(len(data.train.y)))


def test_what_a_proxy_took_is_in_no_task():
    private = np.arange(0, 120, 2)
    found = scenario(private=private)
    assert sorted(np.concatenate([part.indices for part in found.partitions])) == private.tolist()


def test_clients_without_samples_are_told_of_once_a_task():
    """Client 0 holds classes 0 and 2, client 1 class 1, client 2 nothing; the order of classes is 2, 0, then 1."""
    table = PartitionConfig(name="table", table=[[2, 0, 1], [0, 2, 0], [0, 0, 0]])
    with pytest.warns(PartitionWarning) as told:
        build(
            load_dataset(IRIS), table, seed=0, tasks=TasksConfig(num_tasks=2, class_order=(2, 0, 1), partition="once")
        )
    assert [str(warning.message) for warning in told] == [
        "task 0: partition table: 2 of 3 clients have no samples (the first is client 1) and take no part; "
        "if they should, give every row a sample",
        "task 1 (0 is the first): partition table: 2 of 3 clients have no samples (the first is client 0) and take no "
        "part; if they should, give every row a sample",
    ]
    with pytest.warns(
        PartitionWarning, match="^partition table: 1 of 3 clients have no samples .the first is client 2"
    ):
        build(load_dataset(IRIS), table, seed=0)


def test_empty_clients_of_shards_are_told_that_a_class_may_have_fewer_samples_than_shards():
    """60 shards are 20 of each of 3 classes, and 12 samples fill 12 of them. 60 is a multiple of 3."""
    labels = np.repeat([0, 1, 2], [40, 40, 12])
    data = load_dataset(DataConfig(**from_arrays((np.arange(92.0).reshape(-1, 1), labels)), test_fraction=0))
    shards = PartitionConfig(name="shards", clients=60, shards_per_client=1)
    with pytest.warns(PartitionWarning, match="8 of 60 clients have .* at most as many shards of a class as samples$"):
        build(data, shards, seed=0)


def test_a_task_that_nobody_has_samples_of_is_an_error():
    table = PartitionConfig(name="table", table=[[2, 0, 1], [1, 0, 2]])
    tasks = TasksConfig(num_tasks=2, class_order=(2, 0, 1), partition="once")
    with pytest.raises(DataError, match=r"task 1 \(0 is the first\): partition table: no client"):
        build(load_dataset(IRIS), table, seed=0, tasks=tasks)


def test_an_own_partition_of_other_numbers_of_clients_in_two_tasks_is_named(monkeypatch):
    """A client for each 20 samples: iris' 120 training samples are 80 of two classes and 40 of one."""

    def by_twenty(labels, num_classes, config, draws, group):
        return np.split(np.arange(len(labels)), range(20, len(labels), 20))

    monkeypatch.setattr(PARTITIONS, "_table", {**PARTITIONS._table, "by-twenty": by_twenty})
    words = r"^partition by-twenty: .*by_twenty.* returned 4 clients for task 0 and 2 for task 1 .*; set partition.c"
    with pytest.raises(DataError, match=words):
        scenario(2, PartitionConfig(name="by-twenty"))
    assert scenario(3, PartitionConfig(name="by-twenty")).population == 2
    once = TasksConfig(num_tasks=2, partition="once")
    assert build(load_dataset(IRIS), PartitionConfig(name="by-twenty"), seed=0, tasks=once).population == 6


def test_an_error_of_a_tasks_partition_names_the_task():
    with pytest.raises(DataError, match=r"^task 0: partition\.clients: 50 clients for 40 training samples"):
        scenario(3, PartitionConfig(name="iid", clients=50))


def test_one_task_is_the_ordinary_experiment_with_other_test_files():
    data = load_dataset(IRIS)
    ordinary = build(data, PARTS, seed=0)
    one = scenario(1, class_order="natural")
    assert (
        ordinary.partitions[0].hash == one.partitions[0].hash == make_partition(PARTS, data.train.y, num_classes=3).hash
    )
    assert one.stages[0].classes.tolist() == ordinary.stages[0].classes.tolist() == [0, 1, 2]


def test_a_task_whose_classes_have_no_training_sample_is_named(tmp_path, monkeypatch):
    """Four names and samples of three classes: the last of four tasks has the class without samples."""
    monkeypatch.setenv("FLRAY_CACHE", str(tmp_path))
    x, y = np.arange(120, dtype=np.float32).reshape(60, 2), np.arange(60) % 3
    data = flray.data.from_arrays((x, y), (-1 - x, y), classes=["ant", "bee", "cat", "dog"])
    dataset, parts = load_dataset(DataConfig(**data)), PartitionConfig(name="iid", clients=3)
    with pytest.raises(DataError, match=r"task 3 .*: no training sample is of its classes, dog; take fewer tasks"):
        build(dataset, parts, seed=0, tasks=TasksConfig(num_tasks=4, class_order="natural"))
    stages = build(dataset, parts, seed=0, tasks=TasksConfig(num_tasks=2, class_order="natural")).stages
    assert [stage.classes.tolist() for stage in stages] == [[0, 1], [2, 3]]
