"""The partition of a file of one's own."""

import numpy as np
import pytest

from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, load_dataset
from flray.scenario import PartitionConfig, TasksConfig, ValidationConfig, build
from flray.scenario.partition import PartitionWarning
from flray.scenario.partitioners import clients_of_csv


def test_each_client_has_the_samples_of_its_rows(tmp_path):
    dataset = load_dataset(DataConfig(source="iris"))
    n = len(dataset.train.y)
    order = np.random.default_rng(0).permutation(n)
    names = np.array(["rome", "oslo", "lima"])[order % 3]
    rows = [f"{sample},{name}" for sample, name in zip(order, names, strict=True)]
    (tmp_path / "own.csv").write_text("\n".join(["sample,client", *rows]))
    config = PartitionConfig(name="csv", file=str(tmp_path / "own.csv"))
    (partition,) = build(dataset, config, seed=0).partitions
    for client, left in enumerate((2, 1, 0)):  # lima, oslo, rome
        np.testing.assert_array_equal(np.sort(partition.client(client)), np.arange(left, n, 3))
    private = np.arange(0, n, 2)  # what a holdout left
    (partition,) = build(dataset, config, seed=0, private=private).partitions
    np.testing.assert_array_equal(np.sort(partition.indices), private)
    assert all(partition.client(0) % 3 == 2)


def test_without_sample_numbers_rows_are_in_order(tmp_path):
    (tmp_path / "own.csv").write_text("client,x\n7,a\n3,b\n7,c\n")
    assert clients_of_csv(str(tmp_path / "own.csv"), 3).tolist() == [1, 0, 1]


def test_a_sample_that_the_file_leaves_out_is_nobodys_and_said(tmp_path):
    dataset = load_dataset(DataConfig(source="iris"))
    n = len(dataset.train.y)
    (tmp_path / "own.csv").write_text("sample,client\n" + "".join(f"{i},{i % 3}\n" for i in range(0, n, 2)))
    config = PartitionConfig(name="csv", file=str(tmp_path / "own.csv"))
    kept = np.arange(0, n, 2)
    said = f"own.csv leaves out {n - len(kept)} of {n} training samples, which no client holds"
    with pytest.warns(PartitionWarning, match=said):
        (partition,) = build(dataset, config, seed=0).partitions
    for client in range(3):
        np.testing.assert_array_equal(np.sort(partition.client(client)), kept[kept % 3 == client])
    # neither a proxy holdout, nor a validation split, nor the tasks bring them back
    with pytest.warns(PartitionWarning, match=said):
        held = build(dataset, config, seed=0, validation=ValidationConfig(fraction=0.2), private=np.arange(n // 2))
    taken = np.concatenate([held.partitions[0].indices, held.partitions[0].held_out])
    np.testing.assert_array_equal(np.sort(taken), kept[kept < n // 2])
    tasks = TasksConfig(name="class_incremental", num_tasks=3, partition="once")
    with pytest.warns(PartitionWarning, match=said):
        parts = build(dataset, config, seed=0, tasks=tasks).partitions
    np.testing.assert_array_equal(np.sort(np.concatenate([part.indices for part in parts])), kept)
    (tmp_path / "own.csv").write_text("sample,client\n")
    with pytest.raises(DataError, match="has no row; write columns sample,client"):
        build(dataset, config, seed=0)


def test_integers_are_sorted_as_numbers_and_01_is_not_1(tmp_path):
    (tmp_path / "own.csv").write_text("client\n10\n9\n-1\n10\n")
    assert clients_of_csv(str(tmp_path / "own.csv"), 4).tolist() == [2, 1, 0, 2]
    (tmp_path / "own.csv").write_text("client\n01\n1\n10\n")
    assert clients_of_csv(str(tmp_path / "own.csv"), 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("client\n1\n1\n", "has 2 rows for 3 training samples; write a row for each, or a column sample"),
        ("client\n1\n1\n1\n1\n", "has 4 rows for 3 training samples"),
        ("sample,client\n0,1\n1,1\n1,2\n", "sample 1 is there 2 times"),
        ("sample,client\n0,1\n1,1\n-1,2\n", "row 3 has sample -1; numbers are 0 or more"),
        ("sample,client\n0,1\n3,1\n", "has sample 3; the training samples are 0 to 2"),
        ('client\n1\n""\n2\n', "has no client in 1 rows; fill them, or add a column sample and remove them"),
        ("sample,client\na,1\nb,1\nc,2\n", "column sample is string, not whole numbers"),
        ("client,client\n1,2\n1,2\n1,2\n", "give each a name of its own"),
        ("klient\n1\n", "has the columns klient and no column client"),
        ("sample,client\n0,1\n1,\n2,1\n", "has no client in 1 rows"),
        ("client\n1\n2,3\n", "cannot be read"),
    ],
)
def test_errors(tmp_path, text, match):
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(DataError, match=match) as raised:
        clients_of_csv(str(tmp_path / "own.csv"), 3)
    assert "\n" not in str(raised.value)


def test_the_file_is_needed_and_only_read_by_csv():
    with pytest.raises(ConfigError, match=r"partition.file: csv needs it"):
        PartitionConfig(name="csv")
    with pytest.raises(ConfigError, match=r"partition.file: iid does not read it \(read by csv\)"):
        PartitionConfig(name="iid", clients=3, file="own.csv")
    with pytest.raises(DataError, match=r"gone.csv cannot be read .*No such file"):
        clients_of_csv("gone.csv", 3)
