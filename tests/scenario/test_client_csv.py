"""The partition of a file of one's own."""

import json

import numpy as np
import pandas
import pytest

import flray
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


@pytest.mark.parametrize(
    ("ids", "codes"),
    [
        (("10", "9", "2", "10"), [2, 1, 0, 2]),  # sorted as numbers
        (("01", "1", "10"), [0, 1, 2]),  # 01 is not 1
        ((10**20, 10**20 - 1, 7), [2, 1, 0]),  # of more than 64 bits
    ],
)
def test_without_sample_numbers_rows_are_in_order(tmp_path, ids, codes):
    (tmp_path / "own.csv").write_text("\n".join(["client", *map(str, ids)]))
    assert clients_of_csv(str(tmp_path / "own.csv"), len(ids))[0].tolist() == codes


def test_who_is_the_first_client_is_said(tmp_path):
    (tmp_path / "own.csv").write_text("client\n7\n3\n7\n")
    with pytest.warns(PartitionWarning, match="the clients are the sorted ids, so client 0 is the one with id 3$"):
        assert clients_of_csv(str(tmp_path / "own.csv"), 3)[0].tolist() == [1, 0, 1]


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


OWNERS = [11, 2, 0, 10, 1, 3, 9, 8, 7, 6, 5, 4]


@pytest.mark.parametrize("kind", ["float64 parquet", "floats", "savetxt", "spaces", "categories", "json"])
def test_whole_numbers_are_the_same_clients_however_they_are_written(tmp_path, kind):
    path = tmp_path / "own.csv"
    if "parquet" in kind or kind == "categories":
        values = np.array(OWNERS, float) if "float" in kind else pandas.Series(OWNERS).astype("category")
        pandas.DataFrame({"client": values}).to_parquet(path := tmp_path / "own.parquet")
    elif kind == "json":
        (path := tmp_path / "own.json").write_text(json.dumps({"client": OWNERS, "sample": list(range(12))}))
    elif kind == "savetxt":
        np.savetxt(path, np.array(OWNERS, float), header="client", comments="")
    else:
        form = " {} , {} " if kind == "spaces" else "{},{}.0"
        rows = [form.format(sample, owner) for sample, owner in enumerate(OWNERS)]
        path.write_text("\n".join([" sample, client" if kind == "spaces" else "sample,client", *rows]))
    codes, count = clients_of_csv(str(path), 12)
    assert codes.tolist() == OWNERS and count == 12


@pytest.mark.parametrize("empty", [2, 4])
def test_numbers_below_partition_clients_stay_where_a_client_has_no_row(tmp_path, empty):
    dataset = load_dataset(DataConfig(source="iris"))
    owner = np.array([k for k in range(5) if k != empty])[np.arange(len(dataset.train.y)) % 4]
    pandas.DataFrame({"client": owner}).to_csv(tmp_path / "own.csv", index=False)
    config = PartitionConfig(name="csv", file=str(tmp_path / "own.csv"), clients=5)
    with pytest.warns(PartitionWarning, match=f"1 of 5 clients have no samples .the first is client {empty}"):
        (partition,) = build(dataset, config, seed=0).partitions
    for client in range(5):
        assert partition.client(client).tolist() == np.flatnonzero(owner == client).tolist()


def test_numbers_with_a_gap_need_partition_clients(tmp_path):
    file = str(tmp_path / "own.csv")
    (tmp_path / "own.csv").write_text("client\n0\n1\n3\n4\n")
    for clients in (None, 3):
        with pytest.raises(DataError, match=r"0 to 4 without client 2; set partition\.clients to 5 .*, or to 4"):
            clients_of_csv(file, 4, clients)
    codes, count = clients_of_csv(file, 4, 4)
    assert codes.tolist() == [0, 1, 2, 3] and count == 4
    (tmp_path / "own.csv").write_text("client\nb\na\nb\n")  # names are no numbers
    assert clients_of_csv(file, 3, 5)[1] == 2


@pytest.mark.parametrize("clients", [8, 20])
def test_more_clients_than_names_share_and_are_told(tmp_path, clients):
    """The number of a base file cuts the clients of another program's partition into parts."""
    dataset = load_dataset(DataConfig(source="iris"))
    owner = np.array([f"p{k}" for k in range(7)])[np.arange(len(dataset.train.y)) % 7]
    pandas.DataFrame({"client": owner}).to_csv(tmp_path / "own.csv", index=False)
    options = {"name": "csv", "file": str(tmp_path / "own.csv")}
    with pytest.warns(PartitionWarning, match=f"partition csv: {clients} clients share the samples of 7, .* to null"):
        build(dataset, PartitionConfig(**options, clients=clients), seed=0)
    for same in (None, 7):
        assert build(dataset, PartitionConfig(**options, clients=same), seed=0).partitions[0].num_clients == 7


def test_a_client_whose_samples_are_all_held_out_keeps_its_number(tmp_path):
    dataset = load_dataset(DataConfig(source="iris"))
    owner = np.arange(len(dataset.train.y)) % 5
    pandas.DataFrame({"client": owner}).to_csv(tmp_path / "own.csv", index=False)
    for config in (PartitionConfig(name="csv", file=str(tmp_path / "own.csv")), PartitionConfig(name="natural")):
        given = dataset._replace(train=dataset.train._replace(group=owner))
        with pytest.warns(PartitionWarning, match="1 of 5 clients have no samples .the first is client 1"):
            (partition,) = build(given, config, seed=0, private=np.flatnonzero(owner != 1)).partitions
        for client in (0, 2, 3, 4):
            assert partition.client(client).tolist() == np.flatnonzero(owner == client).tolist()


@pytest.mark.parametrize("ids", [["A", "A ", "b"], [" A", "A", "b"]])
def test_names_that_differ_in_spaces_only_are_refused(tmp_path, ids):
    pandas.DataFrame({"client": ids}).to_parquet(tmp_path / "own.parquet")
    with pytest.raises(DataError, match=r"in row \d and .* in row \d differ in spaces or form only; write them alike"):
        clients_of_csv(str(tmp_path / "own.parquet"), 3)


def test_the_index_of_pandas_is_not_taken_for_sample_numbers(tmp_path):
    frame = pandas.DataFrame({"client": [1, 0, 1]}, index=[2, 0, 1])
    frame.to_csv(tmp_path / "own.csv")
    frame.to_parquet(tmp_path / "own.parquet")
    for name, column in (("own.csv", "''"), ("own.parquet", "'__index_level_0__'")):
        with pytest.raises(DataError, match=f"column {column} is not read .valid: sample"):
            clients_of_csv(str(tmp_path / name), 3)


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
        ("sample_id,client\n2,1\n1,1\n0,2\n", "column 'sample_id' is not read .did you mean 'sample'"),
        ("Sample,client\n2,1\n1,1\n0,2\n", "column 'Sample' is not read .did you mean 'sample'"),
        ("idx,client\n2,1\n1,1\n0,2\n", "column 'idx' is not read .valid: sample"),
        ("client\n-1\n0\n1\n", "has client -1; number clients from 0, and leave out the rows of nobody's samples"),
        ("client\n0.5\n0.0\n1.0\n", "has client 0.5; write a whole number or a name"),
        ("client\n10.0\nnan\n2.0\n", "has the client 'nan' beside numbers; fill such rows, or add a column sample"),
        ("client\n1\n \n2\n", "has no client in 1 rows"),
    ],
)
def test_errors(tmp_path, text, match):
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(DataError, match=match):
        clients_of_csv(str(tmp_path / "own.csv"), 3)


def test_the_file_is_needed_and_only_read_by_csv():
    with pytest.raises(ConfigError, match=r"partition.file: csv needs it"):
        PartitionConfig(name="csv")
    with pytest.raises(ConfigError, match=r"partition.file: iid does not read it \(read by csv\)"):
        PartitionConfig(name="iid", clients=3, file="own.csv")
    for file in ("gone.csv", "~no-such-user/gone.csv"):
        with pytest.raises(DataError, match=r"gone.csv cannot be read .*No such file"):
            clients_of_csv(file, 3)


def test_columns_beside_those_that_are_read_are_left_out(tmp_path):
    """As other programs write them; without `sample` a column may be meant for it, unless it counts the rows."""
    frame = pandas.DataFrame({"sample": [2, 0, 1], "client": [1, 0, 1], "split": "train", "weight": 1.0})
    frame.to_csv(tmp_path / "all.csv")
    frame[["client"]].to_csv(tmp_path / "rows.csv")
    frame[["client"]].to_parquet(tmp_path / "rows.parquet")
    assert clients_of_csv(str(tmp_path / "all.csv"), 3)[0].tolist() == [0, 1, 1]
    for name in ("rows.csv", "rows.parquet"):
        assert clients_of_csv(str(tmp_path / name), 3)[0].tolist() == [1, 0, 1]
    frame[["client", "split"]].to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(DataError, match="column 'split' is not read"):
        clients_of_csv(str(tmp_path / "other.csv"), 3)


def test_a_run_folder_has_the_ids_of_its_clients(tmp_path):
    """By a column of the data and by a file; the ids of each client's samples, in the order of the clients."""
    users = ["b, c", "a", "b, c", "d"] * 10
    rows = pandas.DataFrame({"x": np.random.default_rng(0).normal(size=40), "user": users, "label": [0, 1] * 20})
    rows.to_parquet(tmp_path / "train.parquet")
    pandas.DataFrame({"client": users}).to_csv(tmp_path / "own.csv", index=False)
    base = {"seed": 0, "rounds": 1, "model": {"name": "mlp", "hidden": [2]}, "resources": {"executor": "local"}}
    base["algorithm"] = {"name": "fedavg", "lr": 0.1, "local_epochs": 1, "batch_size": 8}
    data = {"source": f"hf:{tmp_path}", "test_fraction": 0}
    for name, section, partition in (
        ("natural", {"group": "user"}, {"name": "natural"}),
        ("csv", {"drop": "user"}, {"name": "csv", "file": str(tmp_path / "own.csv")}),
    ):
        asked = {**base, "data": {**data, **section}, "partition": partition}
        flray.run(asked, out=tmp_path / name, progress=False)
        table = pandas.read_csv(tmp_path / name / "partition/clients.csv")
        assert table.to_dict("list") == {"client": [0, 1, 2], "id": ["a", "b, c", "d"]}
        (found,) = flray.load(tmp_path / name).folder.glob("partition/partition_offsets.npy")
        assert np.diff(np.load(found)).tolist() == [10, 20, 10]
