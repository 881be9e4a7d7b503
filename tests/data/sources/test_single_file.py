"""One file as a data set: `hf:FILE`."""

import re
import shutil

import datasets
import numpy as np
import pytest
from pydantic import ValidationError

from flray.config.loader import load_config
from flray.core.schema.errors import DataError
from flray.data import DataConfig, load_dataset
from flray.data.sources import at_hand
from flray.engine.prepare import build_data, build_scenario
from tests.support.messages import facts

LABELS = (2, 5, 9)


@pytest.fixture(scope="module")
def rows():
    draws = np.random.default_rng(0)
    y = draws.choice(LABELS, 90)
    return datasets.Dataset.from_dict({"x": draws.normal(size=90) + y, "z": draws.normal(size=90), "label": y})


@pytest.fixture(scope="module")
def files(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rows.to_csv(folder / "a.csv")
    rows.to_csv(folder / "a.tsv", sep="\t")
    rows.to_json(folder / "a.jsonl")
    rows.to_parquet(folder / "a.parquet")
    rows.to_csv(folder / "semicolons.csv", sep=";")
    return folder


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_a_file_is_the_train_split_whatever_else_the_folder_has(rows, files, name):
    d = load_dataset(DataConfig(source=f"hf:{files / name}", test_fraction=0))
    expected = np.stack([rows["x"], rows["z"]], axis=1).astype(np.float32)
    np.testing.assert_allclose(d.train.x, expected, rtol=1e-6)
    assert d.classes == ("2", "5", "9") and np.array_equal(d.train.y, np.searchsorted(LABELS, rows["label"]))
    assert len(load_dataset(DataConfig(source=f"hf:{files / name}", test_fraction=0.2)).test.y) == 18


@pytest.mark.parametrize("name", ["my [1] data.csv", "star*.csv", "UP.CSV", "p [2].parquet"])
def test_a_name_is_no_pattern(rows, files, tmp_path, name):
    """`star*.csv` is not starfish.csv as well."""
    for other in (name, "starfish.csv"):
        shutil.copy(files / ("a.parquet" if name.endswith("parquet") else "a.csv"), tmp_path / other)
    assert len(load_dataset(DataConfig(source=f"hf:{tmp_path / name}", test_fraction=0)).train.y) == len(rows)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("semicolons.csv", {}, ("semicolons.csv", "separated by ';'")),
        ("empty.csv", {}, ("empty.csv", "No columns", "check the files")),
        ("a.npz", {}, ("another kind", ".parquet", "from_arrays")),
        ("a.csv", {"config": "plain"}, ("options.config", "leave it out")),
        ("a.parquet", {"revision": "main"}, ("revision",)),
    ],
)
def test_a_file_that_cannot_be_read_so_is_refused(files, name, options, words):
    for other in ("a.npz", "empty.csv"):
        (files / other).touch()
    with pytest.raises(DataError, match=facts(*words)):
        load_dataset(DataConfig(source=f"hf:{files / name}", options=options))


def test_a_path_without_hf_says_what_to_write(files, monkeypatch):
    monkeypatch.chdir(files)
    with pytest.raises(DataError, match=facts("data=hf:a.csv")):
        load_dataset(DataConfig(source="a.csv", root=str(files)))
    with pytest.raises(ValidationError, match="hf:FILE"):
        load_dataset(DataConfig(source=str(files / "a.csv"), root=str(files)))


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"drift": {"name": "remove_classes", "classes": [2], "from_round": 1}}, "drift.classes .* 2: label 9"),
        (
            {"tasks": {"name": "class_incremental", "num_tasks": 3, "class_order": [2, 0, 1]}},
            "tasks.class_order .* 2: label 9, 0: label 2, 1: label 5",
        ),
        ({"drift": {"name": "table", "rows": [[1, None, 2, 0], [1, 0, None, 1]]}}, "drift.rows .*: 2: label 9$"),
        ({"partition": {"name": "table", "table": [[0, 1, 2], [0, 0, 3]]}}, ".table .*: 1: label 5, 2: label 9$"),
        ({}, None),
    ],
)
def test_numbers_of_classes_beside_labels_that_are_other_numbers(files, section, says, recwarn):
    """Labels 2, 5, 9 are classes 0, 1, 2: whoever writes 2 is told which label goes."""
    base = {"data": {"source": f"hf:{files / 'a.csv'}"}, "partition": {"name": "iid", "clients": 3}, "rounds": 2,
            "model": "mlp", "algorithm": "fedavg", **section}  # fmt: skip
    (experiment,) = load_config(base)
    build_scenario(experiment, build_data(experiment))
    said = [str(warning.message) for warning in recwarn if "counts the classes" in str(warning.message)]
    assert len(said) == (says is not None)
    if says:
        assert re.search(says, said[0]), said[0]


@pytest.mark.parametrize("name", ["b.csv", "nothing.jsonl", "b.PARQUET", "none/b.json"])
def test_a_file_that_does_not_exist_is_not_looked_for_on_the_hub(files, name):
    config = DataConfig(source=f"hf:{files / name}")
    assert not at_hand(config) and at_hand(DataConfig(source=f"hf:{files / 'a.csv'}"))
    assert at_hand(DataConfig(source="hf:user/name")) and at_hand(
        config.model_copy(update={"options": {"config": "x"}})
    )
    with pytest.raises(DataError, match=facts("no such file", name)):
        load_dataset(config)


@pytest.mark.parametrize(("name", "says"), [("b.csv", "no such file"), ("b", "cannot be loaded")])
def test_the_home_of_nobody_is_one_line(name, says):
    config = DataConfig(source=f"hf:~no-such-user/{name}")
    assert at_hand(config) == (name == "b")  # the hub may have it
    with pytest.raises(DataError, match=facts(says, "~no-such-user")):
        load_dataset(config)


@pytest.mark.parametrize(
    ("kind", "late"), [("csv", "1.5"), ("csv", "x"), ("csv", "no"), ("folder", "x"), ("jsonl", "1.5")]
)
def test_a_column_of_another_type_after_the_first_rows(tmp_path, kind, late):
    """Alike after 10,000 rows of CSV and 10 MB of JSON, which is all by which `datasets` types a column."""
    early = "true" if late == "no" else "1"
    values = [early] * 12_000 + [late]
    if kind == "jsonl":
        rows = [f'{{"a": {value}, "label": {i % 2}, "pad": "{"-" * 1000}"}}' for i, value in enumerate(values)]
    else:
        rows = ["a,label,pad", *(f"{value},{i % 2},-" for i, value in enumerate(values))]
    file = tmp_path / ("rows.csv" if kind == "folder" else f"rows.{kind}")
    file.write_text("\n".join(rows) + "\n")
    section = {"input": "a"} if late == "1.5" else {"label": "a", "input": "label"}
    source = tmp_path if kind == "folder" else file
    dataset = load_dataset(DataConfig(source=f"hf:{source}", drop=["pad"], test_fraction=0.0, **section))
    if late == "1.5":
        assert dataset.train.x[:, 0].tolist() == [1.0] * 12_000 + [1.5]
    else:
        assert [dataset.classes[label] for label in dataset.train.y] == values
