"""The columns of tables as pandas writes them: each is chosen, or one line says what to write. Right values by pandas
and NumPy."""

import datetime
import decimal
import json
import logging

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import flray
from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, load_dataset
from tests.support.data_files import described, image_column, images, in_words
from tests.support.messages import facts

N = 60
rng = np.random.default_rng(11)


def frame(**more):
    features = {"f1": rng.normal(size=N), "f2": rng.normal(size=N)}
    return pd.DataFrame({**features, **more, "label": np.arange(N) % 3})


def load(folder, train, test=None, **options):
    (folder / "set").mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("test", test)):
        if rows is not None:
            rows.to_parquet(folder / "set" / f"{name}.parquet")
    options = {"leak_check": False, "test_fraction": 0} | options if test is None else {"leak_check": False} | options
    return load_dataset(DataConfig(source="set", root=str(folder), **options))


def csv(folder, rows, name="train.csv", **options):
    """The data set of a CSV file as pandas writes it, without its index."""
    rows.to_csv(folder / name, index=False)
    fraction = {} if (folder / "test.csv").exists() else {"test_fraction": 0}
    return load_dataset(DataConfig(source=f"hf:{folder}", **fraction, **options))


def cycle(*values):
    return [values[i % len(values)] for i in range(N)]


def said(folder, *tables, **options):
    with pytest.raises((DataError, ConfigError)) as caught:
        load(folder, *tables, **options)
    return str(caught.value)


# the index that pandas writes ---------------------------------------------------------------------
@pytest.mark.parametrize(
    ("index", "name"),
    [
        (lambda rows: rows.sample(frac=1, random_state=0), "__index_level_0__"),
        (lambda rows: rows.set_index(pd.Index(rng.permutation(N) / 7, name="time")), "time"),
        (lambda rows: rows.set_index(pd.Index([f"r{k}" for k in range(N)], name="row name")), "row name"),
        (lambda rows: rows.set_index(pd.MultiIndex.from_arrays([rng.permutation(N), range(N)])), "__index_level_0__"),
        (lambda rows: rows.assign(**{"Unnamed: 0": range(5, N + 5)}), "Unnamed: 0"),
        (lambda rows: rows.assign(**{"Unnamed: 0.1": range(N)}), "Unnamed: 0.1"),
        (lambda rows: rows.assign(**{"": [f"r{k}" for k in range(N)]}), ""),
    ],
)
def test_an_index_is_no_feature(tmp_path, index, name):
    rows = index(frame())
    dataset = load(tmp_path, rows)
    np.testing.assert_array_equal(dataset.train.x, rows[["f1", "f2"]].to_numpy(np.float32))
    np.testing.assert_array_equal(dataset.train.y, rows["label"])
    unread = name or "''"
    assert f"features: f1, f2 (2 columns); not read: {unread} (pandas' index)" in dataset.reading[1]


def test_an_index_is_read_where_the_configuration_names_it(tmp_path):
    rows = frame(time=np.arange(N) / 7).set_index("time")
    dataset = load(tmp_path, rows, input=["f1", "time"])
    np.testing.assert_array_equal(dataset.train.x, rows.reset_index()[["f1", "time"]].to_numpy(np.float32))
    users = frame(user=np.arange(N) % 4).set_index("user")
    np.testing.assert_array_equal(load(tmp_path / "group", users, group="user").train.group, users.index)
    labels = frame().set_index("label")
    np.testing.assert_array_equal(load(tmp_path / "label", labels).train.y, labels.index)


def test_shards_of_which_one_has_an_index_and_another_order_of_columns(tmp_path):
    rows = frame()
    (tmp_path / "set").mkdir()
    rows[:30].to_parquet(tmp_path / "set/train-00000-of-00002.parquet")
    rows[30:][["label", "f2", "f1"]].sample(frac=1, random_state=1).to_parquet(
        tmp_path / "set/train-00001-of-00002.parquet"
    )
    dataset = load_dataset(DataConfig(source="set", root=str(tmp_path), test_fraction=0))
    want = pd.concat([rows[:30], rows[30:].sample(frac=1, random_state=1)])
    np.testing.assert_array_equal(dataset.train.x, want[["f1", "f2"]].to_numpy(np.float32))
    np.testing.assert_array_equal(dataset.train.y, want["label"])


def test_a_csv_file_of_pandas_has_no_index(tmp_path):
    rows = frame().sample(frac=1, random_state=2)
    dataset = csv(tmp_path, rows.reset_index(names=""))
    np.testing.assert_allclose(dataset.train.x, rows[["f1", "f2"]].to_numpy(), rtol=1e-6)


CODES = [f"{9 * i:05d}" for i in range(N)]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"date": pd.date_range("2024-01-01", periods=N)},
            r"'date' holds text, such as '2024-01-.*'; write data.drop: \[date\], or name",
        ),
        ({"post": CODES}, r"'post' holds text, such as '00000'; write data.drop: \[post\], or name"),
        (
            {"label": cycle("True", "TRUE", "False")},
            r"'True' in .* and 'TRUE' in .* differ in case, spaces or form only",
        ),
        ({"label": cycle("NA", "b", "c")}, r"no value in train row 0 \(20 such rows\).*the CSV file has 'NA'"),
    ],
)
def test_what_a_csv_file_does_not_say_for_certain_is_refused(tmp_path, columns, says):
    with pytest.raises(DataError, match=says):
        csv(tmp_path, frame().assign(**columns))


@pytest.mark.parametrize("names", [("1", "01", "2"), ("007", "7", "+7"), ("+7", "7", "8")])
def test_class_names_of_a_csv_file_keep_their_zeros(tmp_path, names):
    train = cycle(*names)
    frame().assign(label=names[0]).to_csv(tmp_path / "test.csv", index=False)  # has no name with a zero for "1"
    dataset = csv(tmp_path, frame().assign(label=train), leak_check=False)
    assert dataset.classes == tuple(sorted(names))
    assert [dataset.classes[y] for y in dataset.train.y] == train
    assert {dataset.classes[y] for y in dataset.test.y} == {names[0]}


@pytest.mark.parametrize("names", [("1.1", "1.10", "1.2", "1.20"), ("12e4", "120000", "7", "8")])
@pytest.mark.parametrize("column", ["group", "domain"])
def test_ids_of_a_csv_file_that_are_one_number_stay_apart(tmp_path, names, column):
    frame(site=cycle(*names)).to_csv(tmp_path / "test.csv", index=False)
    dataset = csv(tmp_path, frame(site=cycle(*names)), leak_check=False, **{column: "site"})
    found, known = (
        (dataset.train.group, dataset.groups) if column == "group" else (dataset.train.source, dataset.sources)
    )
    assert [known[number] for number in found] == cycle(*names)


def test_real_numbers_of_a_csv_file_are_ids_and_no_names_of_domains(tmp_path):
    numbers = cycle("1.5", "2.0", "3")  # 2 as a program writes it, whose column has a fraction or a missing value
    dataset = csv(tmp_path, frame(site=numbers), group="site")
    assert [dataset.groups[number] for number in dataset.train.group] == cycle("1.5", "2", "3")
    (tmp_path / "train.csv").unlink()
    with pytest.raises(DataError, match=facts("domain column 'site'", "real numbers", "write names")):
        csv(tmp_path, frame(site=numbers), domain="site")


def test_a_whole_number_with_a_point_in_another_file_is_that_number(tmp_path):
    """pandas writes 1 as 1.0 if the column has had a missing value."""
    other = frame(count=cycle("0.0", "5.0", "7.0")).assign(label=cycle("1.0", "2.0"))
    other.to_csv(tmp_path / "test.csv", index=False)
    dataset = csv(tmp_path, frame(count=cycle("0", "5", "7")).assign(label=cycle("1", "2")), leak_check=False)
    assert dataset.classes == ("1", "2") and np.array_equal(dataset.test.y, dataset.train.y)
    assert dataset.features[-1] == "count" and np.array_equal(dataset.test.x[:3, -1], [0, 5, 7])


@pytest.mark.parametrize("column", ["group", "domain"])
def test_an_id_with_and_without_a_point_is_one_beside_ids_that_are_written_apart(tmp_path, column):
    """4.5 and 4.50 are two, and 1.0 and 2.00 the 1 and 2 of the other file and of the same one."""
    frame(site=cycle("1", "2", "2.0")).to_csv(tmp_path / "test.csv", index=False)
    names = cycle("1.0", "1", "2.00", "4.5", "4.50")
    dataset = csv(tmp_path, frame(site=names), leak_check=False, **{column: "site"})
    want = cycle("1", "1", "2", "4.5", "4.50")
    if column == "group":
        assert [dataset.groups[number] for number in dataset.train.group] == want
    else:
        assert dataset.sources == ("1", "2", "4.5", "4.50")
        assert [dataset.sources[number] for number in dataset.train.source] == want
        assert [dataset.sources[number] for number in dataset.test.source] == cycle("1", "2", "2")


def test_columns_whose_texts_are_as_many_as_their_numbers_are_not_rewritten(tmp_path, monkeypatch):
    """The time of a start with a wide file is that of reading it."""
    calls = []
    monkeypatch.setattr("pyarrow.compute.replace_substring_regex", lambda *args: calls.append(args))
    assert csv(tmp_path, frame(count=cycle("0", "5"), site=cycle("1.5", "2")), group="site").features
    assert calls == []


def test_truth_values_and_codes_of_a_csv_file_are_read_where_they_are_clear(tmp_path):
    assert csv(tmp_path, frame().assign(label=cycle("True", "False"))).classes == ("False", "True")
    asked = csv(tmp_path, frame(post=CODES), input=("post",))
    np.testing.assert_array_equal(asked.train.x[:, 0], 9 * np.arange(N))


def test_numbers_of_a_csv_file_with_spaces_and_a_zero_before_the_point_are_numbers(tmp_path):
    dataset = of_csv(tmp_path, ["label,a,b"], [f"{i % 3}, {i / 100}, -{i / 100}" for i in range(N)])
    want = np.arange(N) / 100
    np.testing.assert_array_equal(dataset.train.x, np.stack([want, -want], axis=1).astype(np.float32))


def test_names_in_a_csv_file_of_pictures_keep_their_zeros(tmp_path):
    names = ["1", "01"] * 4
    for i in range(8):
        Image.fromarray(np.full((4, 4), 9 * i, np.uint8)).save(tmp_path / f"{i}.png")
    dataset = csv(tmp_path, pd.DataFrame({"file_name": [f"{i}.png" for i in range(8)], "label": names}), "metadata.csv")
    by_level = dict(zip(dataset.train.x[:, 0, 0, 0] // 9, dataset.train.y, strict=True))
    assert dataset.classes == ("01", "1") and [dataset.classes[by_level[i]] for i in range(8)] == names


@pytest.mark.parametrize("quiet", [True, False])
def test_a_quiet_command_has_no_bars_of_datasets(tmp_path, monkeypatch, quiet):
    hidden, load = set(), datasets.load_dataset
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *a, **k: (hidden.add(datasets.are_progress_bars_disabled()), load(*a, **k))[1]
    )
    before, logger = datasets.are_progress_bars_disabled(), logging.getLogger("flray")
    level = logger.level
    datasets.enable_progress_bars()
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        csv(tmp_path, frame())
        assert hidden == {quiet} and not datasets.are_progress_bars_disabled()
    finally:
        logger.setLevel(level)
        if before:
            datasets.disable_progress_bars()


def test_pictures_without_a_class_are_refused_with_the_layout(tmp_path):
    for name in ("a.png", "b.png"):
        Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / name)
    with pytest.raises(DataError, match=r"there are pictures and no label; of a folder write train/CLASS/picture.png"):
        load_dataset(DataConfig(source=f"hf:{tmp_path}", test_fraction=0))


def test_a_column_name_with_a_space_is_in_quotes(tmp_path):
    rows = frame().rename(columns={"label": "label "})
    assert "set data.label to one of f1, f2, 'label '" in said(tmp_path, rows)


# columns that are no features without doubt -------------------------------------------------------
@pytest.mark.parametrize(
    ("column", "values", "why"),
    [
        ("d", pd.date_range("2020", periods=N), "holds dates or times"),
        ("d", [datetime.date(2020, 1, 1)] * N, "holds dates or times"),
        ("d", pd.to_timedelta(np.arange(N), unit="s"), "holds dates or times"),
        ("s", ["blue"] * N, "holds text, such as 'blue'"),
        ("s", pd.Categorical(["blue"] * N), "holds text, such as 'blue'"),
        ("k", pd.Categorical(np.arange(N) % 4), "holds categories"),
        ("price", [decimal.Decimal("1.25")] * N, "holds decimals"),
        ("t", 1_700_000_000_000 + 1000 * np.arange(N), "integers that 32-bit floats do not have, such as 17000000000"),
        ("t", 1_700_000_000.0 + 1.5 * np.arange(N), "holds numbers that 32-bit floats do not tell apart"),
        ("n", [2**24 + 1] + [0] * (N - 1), "such as 16777217 in train.parquet row 0"),
        ("n", [-(2**63)] * (N - 1) + [2**63 - 1], f"such as {2**63 - 1} in train.parquet row {N - 1}"),
        ("v", [[0, 2**24 + 1]] * N, "such as 16777217 in train.parquet row 0"),
        ("user_id", np.arange(N) % 5, "has the name of an id"),
        ("PassengerId", np.arange(N) * 9, "has the name of an id"),
        ("row", rng.permutation(N) + 100, "numbers the rows"),
        ("row", rng.permutation(2 * N)[:N], "numbers the rows"),
        ("Unnamed: 3", np.arange(N) / 7, "has no name"),
        ("target", np.arange(N) / 7, "has the name of a label"),
        ("input_ids", [[101, 7, 102]] * N, "holds the tokens of a text (give the text and data.tokenizer)"),
        ("attention_mask", [[1, 1, 0]] * N, "holds the tokens of a text"),
    ],
)
def test_a_column_in_doubt_is_declared_or_left_out(tmp_path, column, values, why):
    rows = frame(**{column: values})
    label = {"label": "label"} if column == "target" else {}
    text = said(tmp_path, rows, **label)
    assert f"{column!r}" in text and why in text
    assert f"write data.drop: [{column}], or name the features, data.input: [f1, f2]" in text
    for number, options in enumerate(({"drop": column}, {"input": ["f1", "f2"]})):
        dataset = load(tmp_path / str(number), rows, **options, **label)
        np.testing.assert_array_equal(dataset.train.x, rows[["f1", "f2"]].to_numpy(np.float32))
        assert f"not read: {column}" in dataset.reading[1]


@pytest.mark.parametrize(
    ("values", "want"),
    [
        (np.arange(N) * 10**6, np.arange(N) * 1e6),
        ([decimal.Decimal("1.25"), decimal.Decimal("-3.5")] * (N // 2), [1.25, -3.5] * (N // 2)),
        (np.arange(N), np.arange(N)),
    ],
)
def test_a_declared_column_is_read(tmp_path, values, want):
    dataset = load(tmp_path, frame(z=values), input=["z", "f1"])
    np.testing.assert_array_equal(dataset.train.x[:, 0], np.asarray(want, np.float32))
    assert "features: z, f1 (2 columns)" in dataset.reading[1]


@pytest.fixture(params=["registered", "new process", "new process, datasets"])
def month_set(tmp_path, request):
    """The section of a Parquet file whose column `month` has periods of pandas. Their type is one that Arrow knows only
    in a process that has written some. Files in a folder of a folder are read through `datasets`."""
    lone = request.param != "new process, datasets"
    file = tmp_path / "set" / ("train.parquet" if lone else "data/train-00000-of-00001.parquet")
    file.parent.mkdir(parents=True)
    frame(month=pd.PeriodIndex(cycle("1969-12", "1970-01", "2024-05"), freq="M")).to_parquet(file)
    kind = pq.read_schema(file).field("month").type
    known = request.param == "registered"
    if not known:
        pa.unregister_extension_type(kind.extension_name)
    section = {"source": "set", "root": str(tmp_path)} if lone else {"source": f"hf:{tmp_path / 'set'}"}
    yield section | {"leak_check": False, "test_fraction": 0}
    if not known:
        pa.register_extension_type(kind)


def test_periods_of_pandas_are_texts_as_in_a_csv_file(month_set):
    """In the file January 1970 is the number 0, and December 1969 is -1."""
    with pytest.raises(DataError, match="'month' holds text, such as '1969-12'; write data"):
        load_dataset(DataConfig(**month_set))
    dataset = load_dataset(DataConfig(**month_set, label="month", drop="label"))
    assert dataset.classes == ("1969-12", "1970-01", "2024-05")
    assert dataset.train.y.tolist() == cycle(0, 1, 2) and dataset.train.x.shape == (N, 2)


@pytest.mark.parametrize("note", [b"", b"{}", b'{"freq": "moons"}'])
def test_periods_of_an_unknown_length_are_one_line(tmp_path, note):
    """That of pandas itself, where Arrow knows the type."""
    described = {"ARROW:extension:name": "pandas.period", "ARROW:extension:metadata": note}
    kind = pa.field("month", pa.int64(), metadata=described)
    table = pa.table([np.arange(N), np.arange(N) % 2], schema=pa.schema([kind, pa.field("label", pa.int64())]))
    (tmp_path / "set").mkdir()
    pq.write_table(table, tmp_path / "set" / "train.parquet")
    with pytest.raises(DataError, match=r"train.parquet(: the description of the periods in column 'mon| is not)"):
        load_dataset(DataConfig(source="set", root=str(tmp_path), test_fraction=0))


def test_truth_values_are_0_and_1_and_said(tmp_path):
    dataset = load(tmp_path, frame(b=np.arange(N) % 2 == 0))
    np.testing.assert_array_equal(dataset.train.x[:, 2], 1 - np.arange(N) % 2)
    assert "false is 0 and true 1: b" in dataset.reading[1]


@pytest.mark.parametrize(
    ("values", "options", "says"),
    [
        (
            1_700_000_000_000 + np.arange(N),
            {"input": ["f1", "z"]},
            "column 'z' holds numbers that 32-bit floats do not",
        ),
        (pd.date_range("2020", periods=N), {"input": ["z"]}, "column 'z' holds timestamp"),
        (["a"] * N, {"input": ["f1", "z"]}, r"text (columns z) needs a tokenizer"),
        ([[1, 2]] * (N - 1) + [[1]], {}, f"(2 in train.parquet row 0, 1 in train.parquet row {N - 1})"),
        (np.ones(N), {"drop": "zz"}, "no column 'zz' for data.drop (did you mean 'z'?)"),
        (np.ones(N), {"drop": "label", "label": "label"}, "data.drop leaves 'label' out, which another key names"),
        (np.ones(N), {"input": ["z", "z"]}, "data.input names 'z' twice"),
        (np.ones(N), {"input": ["z", "label"], "label": "label"}, "data.input and data.label both name 'label'"),
        (np.ones(N), {"drop": ["z", "f1", "f2"]}, "no input column beside 'label'"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, values, options, says):
    assert says in said(tmp_path, frame(z=values), **options)


def test_of_several_images_none_is_guessed(tmp_path):
    left, right = images(8, (4, 4)), images(8, (4, 4), seed=1)
    (tmp_path / "set").mkdir()
    columns = {"left": image_column(left), "right": image_column(right), "label": pa.array([0, 1] * 4)}
    pq.write_table(pa.table(columns), tmp_path / "set/train.parquet")
    with pytest.raises(DataError, match=r"several columns could be the image, left, right; set data.input to one"):
        load_dataset(DataConfig(source="set", root=str(tmp_path)))
    for options in ({"input": "right"}, {"drop": ["left"]}):
        dataset = load_dataset(DataConfig(source="set", root=str(tmp_path), test_fraction=0, **options))
        np.testing.assert_array_equal(dataset.train.x[..., 0], right)


def test_of_several_texts_none_is_guessed(tmp_path):
    rows = pd.DataFrame({"text": ["a b c d", "e f g h"] * 5, "title": ["the one title", "the other title"] * 5})
    rows = rows.assign(lang="en", label=[0, 1] * 5)
    options = {"tokenizer": "train", "max_length": 16}
    text = said(tmp_path, rows, **options)
    assert "several columns are text, text, title; set data.text to one of them, or to two for pairs" in text
    both = load(tmp_path / "pair", rows, text=["title", "text"], **options)
    one = load(tmp_path / "one", rows, drop="title", **options)
    assert both.reading[1] == "text: title, text; not read: lang"
    assert one.reading[1] == "text: text; not read: title (data.drop), lang"


def test_of_several_labels_none_is_guessed(tmp_path):
    rows = frame(Target=np.arange(N) % 2)
    assert "several columns could be the label, label, Target; set data.label" in said(tmp_path, rows)
    assert load(tmp_path, rows, label="Target", drop="label").num_classes == 2


# a label that is a feature as well ---------------------------------------------------------------
@pytest.mark.parametrize(
    "copy",
    [
        lambda y: 2 - y,
        lambda y: y / 7,
        lambda y: y * 100 + 3,
        lambda y: np.eye(3)[y].tolist(),
    ],
)
def test_a_copy_of_the_label_is_no_feature_without_doubt(tmp_path, copy):
    rows = frame(target_class=copy(np.arange(N) % 3))
    assert (
        "'target_class' has one value for each class of 'label'; write data.drop: [target_class], or name the "
        "features, data.input: [f1, f2]"
    ) in said(tmp_path, rows)
    assert load(tmp_path, rows, drop="target_class").train.x.shape == (N, 2)
    named = load(tmp_path, rows, input=["f1", "target_class"])
    np.testing.assert_array_equal(named.train.x[:, 1:].squeeze(), np.array(rows["target_class"].tolist(), np.float32))


def test_a_feature_that_may_fit_the_label_by_chance_is_one(tmp_path):
    """The label of 12 rows, six of each class: one of 462 orders is the copy. Of 60 rows with one of class 1: one of
    60. A column that is the label but for one row is none."""
    few = frame()[:12].assign(label=[0, 1] * 6, sex=[1, 0] * 6)
    rare = frame(flag=np.arange(N) == 7).assign(label=(np.arange(N) == 7).astype(int))
    near = frame(near=np.where(np.arange(N) == 7, 0, np.arange(N) % 3))
    for number, (rows, name) in enumerate(((few, "sex"), (rare, "flag"), (near, "near"))):
        assert f"features: f1, f2, {name} (3 columns)" in load(tmp_path / str(number), rows).reading[1]


def test_categories_of_hugging_face_are_no_features_without_doubt():
    rows = datasets.Dataset.from_pandas(frame(sex=["m", "f"] * (N // 2))).class_encode_column("sex")
    section = flray.data.from_hf(rows)
    with pytest.raises(DataError, match=r"'sex' holds categories; write data.drop: \[sex\], or name the features"):
        load_dataset(DataConfig(**section, test_fraction=0))
    dataset = load_dataset(DataConfig(**section, test_fraction=0, input=("sex",)))
    assert dataset.train.x[:4, 0].tolist() == [1, 0, 1, 0]  # f, m: in the order of the alphabet


# the first line of a CSV file ----------------------------------------------------------------------
def of_csv(folder, first, rows, **options):
    (folder / "train.csv").write_text("".join(f"{line}\n" for line in (*first, *rows)), encoding="utf-8")
    return load_dataset(DataConfig(source=f"hf:{folder}", test_fraction=0, **options))


THREE = [f"{i * i},{i / 7:.3f},c{i % 2}" for i in range(30)]


@pytest.mark.parametrize(
    ("first", "rows", "says"),
    [
        ([], THREE, r"names of columns are numbers, 0, 0.000, as if the first line were a row of data"),
        (["2019,2020,label"], THREE, "names of columns are numbers, 2019, 2020"),
        (["0,1,label"], THREE, "names of columns are numbers, 0, 1, as if"),  # the first row 0,1,c0 looks so
        (["a,label"], THREE, "train.csv: the rows have more fields than the first line has names"),
        (["label"], THREE, "the rows have more fields than the first line has names"),
        (["a,label"], [f"{i},{7 * i % 10},{i % 2}" for i in range(30)], "the rows have more fields"),  # 3,1 for 3.1
        (["a,b,label"], [f"{row}," for row in THREE], "the rows have more fields than the first line has names"),
        (["a,a,label"], THREE, "train.csv has several columns 'a'; rename them"),
        (["a,label,label"], [f"{i / 7},{i % 2},{i % 2}" for i in range(30)], "has several columns 'label'; rename"),
    ],
)
def test_a_csv_file_whose_first_line_does_not_name_its_fields_is_refused(tmp_path, first, rows, says):
    with pytest.raises(DataError, match=says):
        of_csv(tmp_path, first, rows, label="c0" if not first else None)


@pytest.mark.parametrize(
    ("first", "names"),
    [
        ("x,x.1,label", "x, x.1"),  # as R writes them
        ("\ufeffx,y,label", "x, y"),
        ("1st,2.b,label", "1st, 2.b"),
    ],
)
def test_names_that_a_csv_file_has_itself_are_read(tmp_path, first, names):
    dataset = of_csv(tmp_path, [first], THREE)
    assert f"features: {names} (2 columns)" in dataset.reading[1]
    np.testing.assert_allclose(dataset.train.x[:, 0], np.arange(30) ** 2)


def test_columns_that_pandas_numbers_are_named(tmp_path):
    dataset = csv(tmp_path, pd.DataFrame(rng.normal(size=(N, 5))).assign(label=np.arange(N) % 3))
    assert "features: 0, 1, 2, 3, 4 (5 columns)" in dataset.reading[1]
    assert len(dataset.train.y) == N


# labels -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.arange(N) % 3 * 1.0, "label column 'label' holds whole numbers as double; write them as integers"),
        (["a", "", "b"] * (N // 3), "is an empty text in train.parquet row 1 (20 such rows)"),
        ([np.eye(3)[k % 3].tolist() for k in range(N)], "not a label for each sample"),
        ([decimal.Decimal(k % 3) for k in range(N)], "holds decimal128(1, 0); write labels as integers or text"),
        (pd.date_range("2020", periods=N), "write labels as integers or text"),
    ],
)
def test_labels_that_are_none(tmp_path, values, says):
    assert says in said(tmp_path, frame().assign(label=values))


def test_categories_and_texts_are_classes_by_name(tmp_path):
    """train: categories cow < ant < bee; test: the plain texts, in another order of appearance."""
    train, test = ["cow", "ant", "bee"] * 20, ["bee", "ant"] * 10
    rows = frame().assign(label=pd.Categorical(train, categories=["cow", "ant", "bee"]))
    tests = frame()[:20].assign(label=test)
    dataset = load(tmp_path, rows, tests)
    assert dataset.classes == ("ant", "bee", "cow")
    assert in_words(dataset, dataset.train) == train and in_words(dataset, dataset.test) == test
    assert "no test sample: 1 of 3 classes (cow)" in dataset.reading


def test_shards_and_splits_number_the_same_names_differently(tmp_path):
    folder = tmp_path / "set"
    said = described(folder, "train-00000-of-00002", ["cat", "dog", "fox"], [0, 1, 2, 0])
    said += described(folder, "train-00001-of-00002", ["fox", "dog", "cat"], [0, 1, 2, 0])
    test = described(folder, "test", ["fox", "cat"], [0, 1, 1])
    dataset = load_dataset(DataConfig(source="set", root=str(tmp_path), leak_check=False))
    assert dataset.classes == ("cat", "dog", "fox")
    assert in_words(dataset, dataset.train) == said and in_words(dataset, dataset.test) == test
    assert "train-00001-of-00002.parquet: ids mapped by name from its own order, fox, dog, cat" in dataset.reading
    described(folder, "test", ["fox", "cats"], [0, 1, 1])
    with pytest.raises(DataError, match=r"test.parquet has the class 'cats', which .*did you mean 'cat'"):
        load_dataset(DataConfig(source="set", root=str(tmp_path)))


def test_domains_of_several_files_are_numbered_by_name(tmp_path):
    folder = tmp_path / "set"
    for name, names in (("train", ["photo", "art"]), ("test", ["art", "sketch", "photo"])):
        table = pa.table({"f": rng.normal(size=6), "site": pa.array([0, 1] * 3), "label": pa.array([0, 1, 2] * 2)})
        features = {"info": {"features": {"site": {"_type": "ClassLabel", "names": names}}}}
        folder.mkdir(exist_ok=True)
        pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), folder / f"{name}.parquet")
    dataset = load_dataset(DataConfig(source="set", root=str(tmp_path), domain="site", leak_check=False))
    assert dataset.sources == ("photo", "art", "sketch") and dataset.train.source.tolist() == [0, 1] * 3
    assert [dataset.sources[k] for k in dataset.test.source] == ["art", "sketch"] * 3
    assert "domain: column 'site', 3 domains: photo, art, sketch" in dataset.reading
    grouped = load_dataset(DataConfig(source="set", root=str(tmp_path), group="site", leak_check=False))
    assert "group: column 'site', 2 clients of train: photo, art" in grouped.reading
    assert grouped.train.group[0] != grouped.test.group[0] and grouped.train.group[1] == grouped.test.group[0]


def test_a_folder_without_parquet_files_names_the_source_that_reads_it(tmp_path):
    (tmp_path / "set").mkdir()
    frame().to_csv(tmp_path / "set/train.csv", index=False)
    with pytest.raises(
        DataError, match=r"looked for Parquet files in .*; pictures .* are read as data=hf:(.*)"
    ) as caught:
        load_dataset(DataConfig(source="set", root=str(tmp_path)))
    named = str(caught.value).rpartition("data=")[2]
    assert len(load_dataset(DataConfig(source=named, test_fraction=0)).train.y) == N
