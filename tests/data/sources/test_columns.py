"""What stands in a table and cannot be trained on is named with its file, column and row; nothing becomes a class by
accident."""

import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flray.config.loader import load_config
from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, LabelWarning, load_dataset
from flray.data.sources.columns import FeatureTable
from flray.engine.prepare import build_data
from tests.support.data_files import LABEL, image_column, images, write


def columns(n=10, **other):
    return {
        "x": pa.array(np.arange(n) / 7),
        "z": pa.array(np.arange(n) ** 2),
        "label": pa.array(np.arange(n) % 2),
        **other,
    }


def load(folder, train, test=None, features=None, **options):
    write(folder / "set", "train", train, features)
    if test is not None:
        write(folder / "set", "test", test, features)
    return load_dataset(DataConfig(source="set", root=str(folder), leak_check=False, **options))


def said(folder, train, test=None, features=None, **options):
    with pytest.raises((DataError, ConfigError)) as caught:
        load(folder, train, test, features, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (-1e300, "-1e+300"), (None, "None")]
)
def test_a_number_that_is_none_is_named_with_its_place(tmp_path, value, shown):
    bad = columns(6, x=pa.array([0.0, 1.0, value, 3.0, 4.0, value]))
    assert f"column 'x', test.parquet row 2: {shown} is not a finite 32-bit number (2 such rows)" in said(
        tmp_path, columns(), bad
    )


def test_the_row_is_counted_in_its_own_file(tmp_path):
    for i in range(3):
        write(
            tmp_path / "set",
            f"train-{i:05d}-of-00003",
            columns(4, z=pa.array([1.0, 2.0, 3.0, 4.0 if i < 2 else float("nan")])),
        )
    with pytest.raises(DataError, match=r"column 'z', train-00002-of-00003.parquet row 3: nan is not a finite"):
        load_dataset(DataConfig(source="set", root=str(tmp_path)))


def test_whole_group_ids_stay_and_others_are_numbered_from_the_train_split(tmp_path):
    for folder, ids, tested, want in (
        ("gaps", [0, 3, 1, 4], [2, 0], [0, 3, 1, 4]),
        ("floats", [0.0, 3.0, 1.0, 4.0], [2.0, 0.0], [0, 3, 1, 4]),
        ("texts", ["a", "d", "b", "d"], ["c", "a"], [0, 2, 1, 2]),  # c has no sample of train
    ):
        rows, test = columns(4, user=pa.array(ids)), columns(2, user=pa.array(tested), label=pa.array([0, 1]))
        dataset = load(tmp_path / folder, rows, test, group="user")
        assert dataset.train.group.tolist() == want
        names = ["a", "b", "d"] if folder == "texts" else ["0", "1", "3", "4"]
        assert f"group: column 'user', {len(names)} clients of train: {', '.join(names)}" in dataset.reading
        assert dataset.test.group.tolist() == ([3, 0] if folder == "texts" else [2, 0])


@pytest.mark.parametrize("user", [{}, {"user": pa.array([None, None], pa.int64())}, {"user": pa.nulls(2)}])
def test_a_test_split_of_nobody_has_no_group_ids(tmp_path, user):
    test = columns(2, **user, label=pa.array([0, 1]))
    dataset = load(tmp_path, columns(4, user=pa.array([3, 0, 0, 3])), test, group="user")
    assert dataset.train.group.tolist() == [3, 0, 0, 3] and dataset.test.group is None
    text = said(tmp_path, columns(4, user=pa.nulls(4)), test, group="user")
    assert "group column 'user' has no value in train.parquet row 0" in text


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("x", [[1, 2], [3, 4], [5, None], [7, 8]], "column 'x', train.parquet row 2: [5, None] is not a finite"),
        ("label", ["a", None, "b", "a"], "label column 'label' has no value in train.parquet row 1 (1 such rows)"),
        ("label", [0, None, 1, 0], "label column 'label' has no value in train.parquet row 1 (1 such rows)"),
        ("label", [0.0, None, 1.0, 0.0], "label column 'label' has no value in train.parquet row 1 (1 such rows)"),
        ("user", ["a", "b", None, "a"], "group column 'user' has no value in train.parquet row 2"),
        ("user", ["A", "A ", "b", "b"], "'A ' in train.parquet row 1 and 'A' in train.parquet row 0 differ in spaces"),
        ("user", [0.0, float("nan"), 1.0, 2.0], "group column 'user' is NaN in train.parquet row 1"),
    ],
)
def test_values_that_are_not_clear_are_refused(tmp_path, column, values, says):
    assert says in said(tmp_path, columns(4, **{column: pa.array(values)}), group="user" if column == "user" else None)


def test_names_of_users_may_differ_in_case(tmp_path):
    rows = columns(4, user=pa.array(["Ann", "ann", "b", "b"]))
    assert load(tmp_path, rows, group="user", test_fraction=0).train.group.tolist() == [0, 1, 2, 2]


def test_unsigned_and_signed_labels_are_the_same_classes(tmp_path):
    test = columns(8, label=pa.array(np.arange(8) % 2, pa.uint64()))
    dataset = load(tmp_path, columns(), test)
    assert dataset.classes == ("0", "1")
    assert dataset.test.y.tolist() == [0, 1] * 4
    large = columns(4, label=pa.array([2**64 - 1, 0, 1, 1], pa.uint64()))
    assert load(tmp_path / "large", columns(), large).classes == ("0", "1", str(2**64 - 1))


@pytest.mark.parametrize(
    ("test_labels", "says"),
    [
        (pa.array(["0", "1"] * 2), "holds integers in train.parquet and text in test.parquet; write them alike"),
        (pa.array([True, False] * 2), "holds integers in train.parquet and bool in test.parquet; write them alike"),
        (pa.array([[0], [1]] * 2), "holds list<element: int64>, not a label for each sample"),
        (pa.array([0.5, 1.5] * 2), "holds real numbers: regression is not supported"),
    ],
)
def test_labels_of_another_kind(tmp_path, test_labels, says):
    assert says in said(tmp_path, columns(), columns(4, label=test_labels))


def test_minus_one_beside_other_classes_is_told_of(tmp_path):
    with pytest.warns(
        LabelWarning,
        match=r"label column 'label': -1 is a class of its own \(2 rows, the first is train.parquet row 1\)",
    ):
        load(tmp_path, columns(6, label=pa.array([0, -1, 1, 2, -1, 0])))
    with warnings.catch_warnings(action="error", category=LabelWarning):  # the two classes of a margin
        assert load(tmp_path / "svm", columns(6, label=pa.array([1, -1] * 3))).classes == ("-1", "1")


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ({"x": pa.array([0.5]), "z": pa.array([1])}, "test has no column 'label', which train has (it has x, z)"),
        ({"label": pa.array([0]), "z": pa.array([1])}, "test has no column 'x'"),
        (columns(0), "test has no rows"),
        (columns(4, x=pa.array(["a"] * 4)), "column 'x' holds string, not equally many numbers"),
        (
            columns(4, x=pa.array([0] * 4, pa.timestamp("us"))),
            "column 'x' holds timestamp[us], not equally many numbers",
        ),
    ],
)
def test_a_test_split_unlike_the_train_split(tmp_path, test, says):
    assert says in said(tmp_path, columns(), test)


@pytest.mark.parametrize(
    ("note", "says"),
    [
        *((note, r"train.parquet: the description of its columns .* is damaged")
          for note in ("{", "[1]", '{"info": {"features": []}}')),
        (
            '{"info": {"features": {"label": {"_type": "ClassLabel", "names": "ab"}}}}',
            "the class names of 'label' are 'ab', not a list of words",
        ),
    ],
)  # fmt: skip
def test_a_damaged_description(tmp_path, note, says):
    (tmp_path / "set").mkdir()
    pq.write_table(pa.table(columns()).replace_schema_metadata({"huggingface": note}), tmp_path / "set/train.parquet")
    with pytest.raises(DataError, match=says):
        load_dataset(DataConfig(source="set", root=str(tmp_path)))


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_parquet_name_that_is_no_file(tmp_path, kind):
    write(tmp_path / "set", "train", columns())
    path = tmp_path / "set/test.parquet"
    path.mkdir() if kind == "folder" else path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"test.parquet is not a readable file"):
        load_dataset(DataConfig(source="set", root=str(tmp_path)))


# images that are named ----------------------------------------------------------------------------
def named(paths):
    return pa.array(
        [{"bytes": None, "path": path} for path in paths], pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    )


def test_a_row_names_a_file_of_its_own_folder_only(tmp_path):
    from PIL import Image

    (tmp_path / "set/sub").mkdir(parents=True)
    x = images(4, (4, 4))
    for i in range(4):
        Image.fromarray(x[i]).save(tmp_path / f"set/sub/{i}.png")
    (tmp_path / "secret.png").write_bytes((tmp_path / "set/sub/0.png").read_bytes())
    (tmp_path / "set/link.png").symlink_to(tmp_path / "secret.png")
    y = pa.array([0, 1, 0, 1])
    inside = ["sub/0.png", "sub/1.png", str(tmp_path / "set/sub/2.png"), "sub/../sub/3.png"]
    dataset = load(tmp_path, {"image": named(inside), "label": y}, features=LABEL, test_fraction=0)
    assert np.array_equal(dataset.train.x[..., 0], x)
    for outside in ("/etc/passwd", "../secret.png", str(tmp_path / "secret.png"), "link.png", "sub/../../secret.png"):
        text = said(tmp_path, {"image": named([*inside[:3], outside]), "label": y}, features=LABEL)
        assert f"train.parquet row 3 names the file {outside!r}, which is not in the data set's folder" in text


def test_pictures_beside_the_same_parquet_file_are_those_of_their_folder(tmp_path):
    """Two folders with equal Parquet files and other pictures; pictures that are written again; one that is lost."""
    from PIL import Image

    table, found = {"image": named([f"{i}.png" for i in range(4)]), "label": pa.array([0, 1, 0, 1])}, {}
    for name, level in (("raw", 10), ("clean", 100), ("raw", 200)):
        write(tmp_path / name, "train", table, LABEL)
        for i in range(4):
            Image.fromarray(np.full((4, 4), level + i, np.uint8)).save(tmp_path / name / f"{i}.png")
        for _ in range(2):  # the second time from the cache
            dataset = load_dataset(DataConfig(source=name, root=str(tmp_path), test_fraction=0))
            assert dataset.train.x[:, 0, 0, 0].tolist() == [level + i for i in range(4)]
        found[level] = dataset.fingerprint
    assert len(set(found.values())) == 3
    (tmp_path / "clean/2.png").unlink()
    with pytest.raises(DataError, match=r"train.parquet row 2 \('2.png'\) is not a readable image"):
        load_dataset(DataConfig(source="clean", root=str(tmp_path), test_fraction=0))


def test_a_bomb_is_one_line(tmp_path):
    bytes_ = image_column(images(2, (4, 4)))[0].as_py()["bytes"]
    bomb = bytes_[:16] + (60_000).to_bytes(4, "big") * 2 + bytes_[24:]
    text = said(tmp_path, {"image": pa.array([bomb, bomb]), "label": pa.array([0, 1])}, features=LABEL)
    assert "train.parquet row 0 is not a readable image" in text


# one class ----------------------------------------------------------------------------------------
def built(folder, train, test):
    write(folder / "set", "train", train)
    write(folder / "set", "test", test)
    model = {"name": "mlp", "hidden": [2]}
    values = {"rounds": 1, "data": {"source": "set", "root": str(folder)}, "model": model, "algorithm": "fedavg"}
    return build_data(load_config({**values, "partition": {"name": "iid", "clients": 1}})[0])


def test_one_class_is_no_task(tmp_path):
    same = columns(4, label=pa.array([1] * 4), x=pa.array([-1.0, -2.0, -3.0, -4.0]))
    with pytest.raises(
        DataError, match="data set 'set': all 4 training samples are of class '1'; a task needs two classes"
    ):
        built(tmp_path / "all", same, columns())
    with pytest.raises(DataError, match="the only training sample is of class '0'"):
        built(tmp_path / "one", columns(1), columns(8, x=pa.array(np.arange(8) + 100.5)))
    with pytest.warns(
        LabelWarning, match="all 4 test samples are of class '1': its accuracy says nothing of the other classes"
    ):
        built(tmp_path / "test", columns(), same)


# what is said -------------------------------------------------------------------------------------
def test_what_was_read_is_said_and_kept_in_the_cache(tmp_path):
    rows = columns(idx=pa.array(np.arange(10)), image=image_column(images(10, (4, 4))))
    first = load(tmp_path, rows)
    again = load_dataset(DataConfig(source="set", root=str(tmp_path), leak_check=False))
    want = ("label: column 'label', 2 classes: 0, 1", "images: image; not read: x, z, idx")
    assert first.reading == again.reading and first.reading[:2] == want


def test_a_row_keeps_the_number_that_it_has_in_its_file():
    table = FeatureTable(pa.table({"x": range(6)}), {}, "", (("a", 4), ("b", 2)))
    kept = table.selected(np.array([False, True, False, True, False, True]))
    assert [kept.place(row) for row in range(3)] == ["a row 1", "a row 3", "b row 1"]
    assert kept.selected(np.array([False, True, True])).place(1) == "b row 1"
