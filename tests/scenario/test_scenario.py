"""Who holds what: members, shares of a cohort, and the scenario on disk."""

import numpy as np
import pytest

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError
from flray.data import DataConfig, load_dataset
from flray.data.splits import Vocabulary
from flray.scenario import Partition, Scenario, Stage, TestSet, clients_at, load_partition, num_outputs, relabelled
from flray.scenario.partition import from_lists
from flray.scenario.scenario import STAGES

HELD = [[5, 6, 7], [0, 1], [], [9, 8, 2], []]


class At:
    """A moment of a task."""

    def __init__(self, task: int = 0) -> None:
        self.task, self.round, self.done = task, 0, 0


def partition(clients=HELD, **fields) -> Partition:
    return from_lists([np.array(samples, np.int32) for samples in clients])._replace(**fields)


def two_stages() -> Scenario:
    """Domains with labels of their own (0, 1 and 2, 3) and one head of two outputs; three test sets in the second."""
    first = Stage(0, "a", np.array([0, 1]), np.array([0, 1]), {"test": TestSet("test", np.array([0, 2]))})
    tests = {"test": TestSet("test"), "a": TestSet("test", np.array([0, 2])), "b": TestSet("test", np.array([1]))}
    second = Stage(1, "b", np.array([2, 3]), np.array([0, 1]), tests)
    return Scenario([first, second], [partition([[0, 1], [2], []]), partition([[], [4, 5], [3]])])


def test_members_are_those_with_a_sample():
    scenario = Scenario.ordinary(partition(), 3)
    assert scenario.population == 5 and scenario.members(0).tolist() == [0, 1, 3]
    assert Scenario.ordinary(partition([[0], [1]]), 3).members(0) == range(2)
    stages = two_stages()
    assert [stages.members(task).tolist() for task in (0, 1)] == [[0, 1], [1, 2]]
    assert [stages.total_examples(task) for task in (0, 1)] == [3, 3]


def test_clients_at_places_draws_the_same_cohort_where_nobody_is_empty():
    """`choice(N, K)` before there were members: the places among `range(N)` are the clients themselves."""
    places = rng(0, "cohort", 0, 5).choice(20, 4, replace=False)
    assert clients_at(range(20), places).tolist() == places.tolist()
    assert clients_at(np.array([3, 5, 8]), np.array([2, 0])).tolist() == [8, 3]


def test_shares_are_the_samples_of_the_cohort_in_its_order():
    shares = Scenario.ordinary(partition(), 3).shares(At(), np.array([3, 0, 1]))
    assert shares.clients.tolist() == [3, 0, 1] and shares.sizes.tolist() == [3, 3, 2] and shares.empty == 0
    found = [shares.indices[a:b].tolist() for a, b in zip(shares.offsets, shares.offsets[1:], strict=False)]
    assert found == [[9, 8, 2], [5, 6, 7], [0, 1]]
    assert shares.indices.dtype == np.int32 and shares.offsets.dtype == np.int64


def test_clients_without_a_sample_are_left_out_of_the_shares_and_counted():
    scenario = Scenario.ordinary(partition(), 3)
    shares = scenario.shares(At(), np.array([2, 3, 4, 0]))
    assert shares.clients.tolist() == [3, 0] and shares.offsets.tolist() == [0, 3, 6] and shares.empty == 2
    nobody = scenario.shares(At(), np.array([4, 2]))
    assert nobody.clients.tolist() == [] and nobody.indices.tolist() == [] and nobody.offsets.tolist() == [0]
    assert nobody.empty == 2


def test_who_is_asked_for_what_it_keeps_need_not_hold_a_sample():
    shares = Scenario.ordinary(partition(), 3).shares(At(), np.array([2, 3, 4]), everyone=True)
    assert shares.clients.tolist() == [2, 3, 4] and shares.sizes.tolist() == [0, 3, 0] and shares.empty == 0
    assert shares.indices.tolist() == [9, 8, 2]


def test_the_shares_of_a_stage_are_those_of_its_own_partition():
    shares = two_stages().shares(At(1), np.array([1, 2]))
    assert shares.indices.tolist() == [4, 5, 3] and shares.offsets.tolist() == [0, 2, 3]


def test_the_union_is_what_clients_hold_in_any_stage():
    union = two_stages().union(2)
    assert [union.client(k).tolist() for k in range(union.num_clients)] == [[0, 1], [2, 4, 5]]


def test_an_ordinary_scenario_lies_on_disk_as_its_partition(tmp_path):
    part = partition(held_out=np.array([3, 4], np.int32))
    scenario = Scenario.ordinary(part, 3)
    scenario.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "partition.json", "partition_held.npy", "partition_indices.npy", "partition_offsets.npy",
    ]  # fmt: skip
    assert scenario.fingerprint == part.hash == load_partition(tmp_path).hash
    again = Scenario.load(tmp_path, 3)
    assert again.fingerprint == part.hash and isinstance(again.partitions[0].indices.base, np.memmap)
    assert again.stages[0].tests["val"].samples.tolist() == [3, 4]


def test_stages_come_back_from_disk(tmp_path):
    scenario = two_stages()
    scenario.save(tmp_path)
    assert [folder.name for folder in scenario.folders(tmp_path)] == ["task-0000", "task-0001"]
    again = Scenario.load(tmp_path, 4)
    assert again.fingerprint == scenario.fingerprint
    for stage, before in zip(again.stages, scenario.stages, strict=True):
        assert (stage.index, stage.name, list(stage.tests)) == (before.index, before.name, list(before.tests))
        assert stage.classes.tolist() == before.classes.tolist() and stage.outputs.tolist() == before.outputs.tolist()
    samples = {
        name: test.samples if test.samples is None else test.samples.tolist()
        for name, test in again.stages[1].tests.items()
    }
    assert samples == {"test": None, "a": [0, 2], "b": [1]}
    assert [part.indices.tolist() for part in again.partitions] == [[0, 1, 2], [4, 5, 3]]


def test_the_fingerprint_says_who_holds_what_and_what_is_tested():
    def variant(**changes):
        scenario = two_stages()
        stage = Stage(**{**vars(scenario.stages[1]), **changes})
        return Scenario([scenario.stages[0], stage], scenario.partitions).fingerprint

    known = two_stages().fingerprint
    assert variant() == known
    others = {
        variant(name="c"),
        variant(outputs=np.array([2, 3])),
        variant(tests={"test": TestSet("test")}),
        variant(tests={**two_stages().stages[1].tests, "b": TestSet("test", np.array([2]))}),
        Scenario(two_stages().stages, [partition([[0, 1], [2], []]), partition([[4], [5], [3]])]).fingerprint,
        known,
    }
    assert len(others) == 6


@pytest.mark.parametrize("harm", ["test_*.npy", "scenario.json", "task-0001/partition_indices.npy"])
def test_what_was_changed_on_disk_is_one_line(tmp_path, harm):
    two_stages().save(tmp_path)
    path = next(tmp_path.glob(harm))
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="resume the run"):
        Scenario.load(tmp_path, 4)


@pytest.mark.parametrize("place", ["scenario.json", "partition_indices.npy"])
def test_a_place_that_cannot_be_written_is_one_line(tmp_path, place):
    """A folder has the name of the file."""
    (tmp_path / place if place == STAGES else tmp_path / "task-0001" / place).mkdir(parents=True)
    with pytest.raises(DataError, match=r"cannot write .*; remove it, or choose another --out"):
        two_stages().save(tmp_path)


def test_stages_and_partitions_that_do_not_fit_are_an_error():
    stage = two_stages().stages[0]
    with pytest.raises(ValueError, match="one partition a stage"):
        Scenario([stage], [])
    with pytest.raises(ValueError, match="over the same clients"):
        Scenario([stage, stage], [partition(), partition([[0]])])


# heads ----------------------------------------------------------------------------------------------
def iris():
    return load_dataset(DataConfig(source="iris"))


def test_an_ordinary_head_has_an_output_for_every_class_and_labels_stay():
    data = iris()
    scenario = Scenario.ordinary(partition(), data.num_classes)
    assert num_outputs(scenario.stages) == 3 and relabelled(data, scenario.stages) is data


def test_domains_share_a_head_by_a_label_map():
    """Two domains, (setosa, versicolor) and (virginica): one head of two outputs, virginica where setosa is."""
    data = iris()
    first = Stage(0, "a", np.array([0, 1]), np.array([0, 1]), {})
    second = Stage(1, "b", np.array([2]), np.array([0]), {})
    shared = relabelled(data, [first, second])
    assert num_outputs([first, second]) == shared.num_classes == 2
    assert shared.train.y.tolist() == [{0: 0, 1: 1, 2: 0}[y] for y in data.train.y.tolist()]
    assert shared.test.y.tolist() == [{0: 0, 1: 1, 2: 0}[y] for y in data.test.y.tolist()]
    assert shared.classes == data.classes[:2] and shared.train.x is data.train.x


def test_the_words_of_the_classes_go_with_them():
    """Outputs 0 and 1 are classes 2 and 0; what nobody has is any word."""
    words = Vocabulary(9, 0, 1, labels=(5, 6, 7), task_of=(0, 0, 1), tasks=(3, 4))
    data = iris()._replace(vocabulary=words)
    stages = [Stage(0, "a", np.array([2, 0]), np.array([0, 1]), {}), Stage(1, "b", np.array([1]), np.array([3]), {})]
    found = relabelled(data, stages).vocabulary
    assert [found.labels[i] for i in (0, 1, 3)] == [7, 5, 6] and [found.task_of[i] for i in (0, 1, 3)] == [1, 0, 0]
    assert len(found.labels) == 4 and found.tasks == (3, 4)


def test_a_head_for_each_domain_is_larger_than_the_data_sets_classes():
    """Each stage has labels of its own, and outputs that no other stage has; what lies between them is nobody's."""
    data = iris()
    stages = [Stage(0, "a", np.array([0, 2]), np.array([0, 1]), {}), Stage(1, "b", np.array([1]), np.array([4]), {})]
    assert num_outputs(stages) == 5
    wide = relabelled(data, stages)
    assert wide.num_classes == 5 and wide.classes == ("setosa", "virginica", "", "", "versicolor")
    assert set(wide.train.y.tolist()) == {0, 1, 4}
