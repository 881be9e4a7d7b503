"""Splits by the names of folders, files and tables: every file is in the split that it names, or one line says which is
in doubt. The right numbers of samples are those that were written."""

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import flray
from flray.core.schema.errors import DataError
from flray.data import DataConfig, load_dataset
from flray.data.sources.split_names import choose_splits

rng = np.random.default_rng(3)


def frame(n):
    return pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "label": np.arange(n) % 2})


def pictures(folder, splits, count=3, classes=("cat", "dog")):
    """`count` pictures of each class in each folder."""
    for split in splits:
        for name in classes:
            (folder / split / name).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


def tables(folder, kind="csv", **rows):
    for name, count in rows.items():
        write = frame(count).to_csv if kind == "csv" else frame(count).to_parquet
        write(folder / f"{name}.{kind}", index=False)
    return folder


def load(folder, **options):
    return load_dataset(DataConfig(source=f"hf:{folder}", **options))


def counts(folder, **options):
    dataset = load(folder, **options)
    return len(dataset.train.y), len(dataset.test.y)


def said(folder, **options):
    with pytest.raises(DataError) as caught:
        load(folder, **options)
    return str(caught.value)


# pictures in folders ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train", "test"),
        ("Train", "Test"),
        ("Training", "Testing"),
        ("train", "Test"),
        ("TRAIN", "Val"),
        ("archive/Training", "archive/Testing"),
        ("train_test_split/train", "train_test_split/test"),
    ],
)
def test_folders_of_splits_in_any_case(tmp_path, train, test):
    pictures(tmp_path, [train])
    pictures(tmp_path, [test], count=2)
    dataset = load(tmp_path)
    assert (len(dataset.train.y), len(dataset.test.y)) == (6, 4)
    assert dataset.classes == ("cat", "dog") and dataset.train.y.tolist() == [0] * 3 + [1] * 3
    want = [np.asarray(Image.open(path)) for path in sorted((tmp_path / test).rglob("*.png"))]
    np.testing.assert_array_equal(dataset.test.x, want)


@pytest.mark.parametrize("test", [("Cat", "dog"), ("cat", "dog ")])
def test_folders_of_classes_that_differ_in_case_or_blanks_only(tmp_path, test):
    """As of CSV files: two spellings are one class to the user, and would be two here."""
    pictures(tmp_path, ["train"])
    pictures(tmp_path, ["validation"], classes=test)
    assert "in train differ in case, spaces or form only; write them alike" in said(tmp_path)


def test_declared_names_that_differ_in_case_only(tmp_path):
    rows = datasets.Dataset.from_pandas(frame(20)).cast_column("label", datasets.ClassLabel(names=["Cat", "cat"]))
    rows.to_parquet(str(tmp_path / "train.parquet"))
    assert "'cat' in train.parquet and 'Cat' in train.parquet differ in case, spaces or form only" in said(tmp_path)


@pytest.mark.parametrize(
    ("splits", "says"),
    [
        (["trn", "tst"], "looks like a split, and would be training samples with all others"),
        (["TrainData", "TestData"], "looks like a split"),
        (["day1", "day2"], "'day1/cat' and 'day2/cat' would be one class of training samples"),
        (["Train", "dev", "val"], "'Train/cat/0.png' and 5 more files would be in no split, unlike 'dev/cat/0.png'"),
    ],
)
def test_folders_in_doubt(tmp_path, splits, says):
    assert says in said(pictures(tmp_path, splits))


@pytest.mark.parametrize("splits", [["train"], ["train", "test"], ["Training", "Testing"], ["."]])
def test_folders_of_patients_in_folders_of_classes(tmp_path, splits):
    """The last folder would be the class. Where all classes lie in one folder, there is no doubt."""
    for split in splits:
        pictures(tmp_path / split, ["tumor"], classes=(f"a {split}", f"b {split}"))
        pictures(tmp_path / split, ["healthy"], classes=(f"c {split}",))
    text = said(tmp_path, test_fraction=0)
    folders = [f"{splits[-1]}/{name} {splits[-1]}".removeprefix("./") for name in ("healthy/c", "tumor/a")]
    assert "the last folders of {!r} and {!r} would be the classes".format(*folders) in text
    if splits == ["train"]:
        named = load(tmp_path, test_fraction=0, options={"train": "train"})
        assert named.classes == ("a train", "b train", "c train")


@pytest.mark.parametrize("folder", ["{}/images", "site/{}", "{}"])
def test_classes_in_one_folder_of_each_split(tmp_path, folder):
    pictures(tmp_path, [folder.format("train"), folder.format("test")])
    dataset = load(tmp_path)
    assert dataset.classes == ("cat", "dog") and counts(tmp_path) == (6, 6)


def test_the_same_classes_in_several_domains_are_read(tmp_path):
    pictures(tmp_path, ["train/photo", "train/sketch", "test/photo"])
    assert load(tmp_path).classes == ("cat", "dog") and counts(tmp_path) == (12, 6)


def test_pictures_of_patients_whose_classes_are_in_a_table(tmp_path):
    pictures(tmp_path / "train", ["a", "b"], classes=("one", "two"))
    rows = [f"{name}/{visit}/{k}.png,{k % 2}" for name in "ab" for visit in ("one", "two") for k in range(3)]
    (tmp_path / "train/metadata.csv").write_text("\n".join(["file_name,label", *rows]))
    assert load(tmp_path, test_fraction=0).train.y.tolist() == [0, 1, 0] * 4


@pytest.mark.parametrize("classes", [["a", "b"], [""]])
def test_a_table_of_metadata_above_the_splits(tmp_path, classes):
    pictures(tmp_path, ["train", "test"], classes=classes)
    rows = [str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/**/*.png")]
    pd.DataFrame({"file_name": rows, "label": "x"}).to_csv(tmp_path / "metadata.csv", index=False)
    assert "metadata.csv above the folders of the splits is not read; write its rows into train/" in said(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [("metadata.json", '{"file_name": "set.zip"}'), ("metadata.csv", "key,value\nauthor,me\n")],
)
def test_a_file_metadata_that_describes_the_data_set(tmp_path, name, text):
    """`datasets` reads no metadata.json, and of a metadata.csv the column file_name names the pictures."""
    (pictures(tmp_path, ["train", "test"]) / name).write_text(text)
    assert counts(tmp_path) == (6, 6)


def test_pictures_whose_own_names_have_the_word_of_a_split(tmp_path):
    pictures(tmp_path, ["."])
    (tmp_path / "cat/0.png").rename(tmp_path / "cat/train_0.png")
    (tmp_path / "dog/0.png").rename(tmp_path / "dog/test-0.png")
    assert "'cat/1.png' and 3 more files would be in no split, unlike 'cat/train_0.png'" in said(tmp_path)
    assert "Hugging Face finds it, options: {train: train}" in said(tmp_path)


def test_a_class_that_is_called_train(tmp_path):
    pictures(tmp_path / "all", ["."], classes=("bus", "train"))
    assert "'bus/0.png' and 2 more files would be in no split, unlike 'train/0.png'" in said(tmp_path / "all")
    pictures(tmp_path / "apart", ["."])  # without such names all are training samples
    assert counts(tmp_path / "apart", test_fraction=0) == (6, 6)


def test_pictures_that_the_metadata_leave_out(tmp_path):
    pictures(tmp_path, ["."], classes=(".",))
    rows = pd.DataFrame({"file_name": ["0.png", "1.png"], "label": ["a", "b"]})
    rows.to_csv(tmp_path / "metadata.csv", index=False)
    assert "the metadata have 2 rows for 3 pictures" in said(tmp_path, test_fraction=0)


def test_a_link_to_a_folder_is_not_left_out(tmp_path):
    tables(tmp_path, train=20)
    (tmp_path / "elsewhere").mkdir()
    tables(tmp_path / "elsewhere", rows=10)
    (tmp_path / "set").mkdir()
    (tmp_path / "train.csv").rename(tmp_path / "set/train.csv")
    (tmp_path / "set/test").symlink_to(tmp_path / "elsewhere")
    assert "'test/rows.csv' would not be read: its folder is a link" in said(tmp_path / "set")


@pytest.mark.parametrize("linked", ["train/dog", "train", "both", "train/dog/0.png", "flat"])
def test_pictures_behind_links_are_not_left_out(tmp_path, linked):
    folder = pictures(tmp_path / "set", ["train", "test"] if linked != "flat" else [""])
    for path in {"both": ["train", "test"], "flat": ["dog"]}.get(linked, [linked]):
        away = tmp_path / "away" / path
        away.parent.mkdir(parents=True, exist_ok=True)
        (folder / path).rename(away)
        (folder / path).symlink_to(tmp_path / "nowhere" if path.endswith(".png") else away)
    why = "is a link to a file that is not there" if linked.endswith(".png") else "would not be read: its folder"
    assert why in said(folder)


def test_pictures_of_a_snapshot_of_the_hub_are_links_to_its_files(tmp_path):
    """In a cache of one's own, whose files have no suffix. A link to elsewhere, or to itself, is refused."""
    made = pictures(tmp_path / "made", ["train", "test"])
    snapshot, blobs = tmp_path / "datasets--me--pets/snapshots/0a1b", tmp_path / "datasets--me--pets/blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(made.rglob("*.png"))):
        link = snapshot / file.relative_to(made)
        link.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blobs / f"{number:064x}")
        link.symlink_to(f"../../../../blobs/{number:064x}")
    found = load(snapshot)
    assert found.classes == ("cat", "dog") and found.train.y.tolist() == found.test.y.tolist() == [0] * 3 + [1] * 3
    for count, file in enumerate(sorted((snapshot / "test").rglob("*.png")), 0):
        with Image.open(file) as picture:
            assert np.array_equal(found.test.x[count], np.asarray(picture))
    last = snapshot / "test/dog/2.png"
    (blobs / f"{5:064x}").rename(tmp_path / "elsewhere.png")
    last.unlink(), last.symlink_to(tmp_path / "elsewhere.png")
    assert "which is not in the data set's folder" in said(snapshot)
    last.unlink(), last.symlink_to(last)
    assert "is a link to a file that is not there" in said(snapshot)


def test_the_card_of_a_data_set_names_its_files(tmp_path):
    tables(tmp_path, rows=20, more=10, other=5)
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: rows.csv\n"
        "  - split: test\n    path: more.csv\n---\n"
    )
    assert counts(tmp_path) == (20, 10)


# CSV files ----------------------------------------------------------------------------------------
def named(names, texts):
    """Rows whose labels are ids of `names` (none: the texts)."""
    table = datasets.Dataset.from_dict({"a": [float(i) for i in range(len(texts))], "label": texts})
    return table.cast_column("label", datasets.ClassLabel(names=names)) if names else table


CARD = "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train, path: data/train*}\n"


@pytest.mark.parametrize("kind", ["saved", "arrow", "card", "shards"])
def test_each_file_has_its_own_order_of_classes(tmp_path, kind):
    texts, others = ["cat", "dog", "owl", "dog"], ["owl", "dog", "dog"]
    train, test = named(["cat", "dog", "owl"], texts), named(["dog", "owl"], others)
    (tmp_path / "data").mkdir()
    if kind == "saved":
        datasets.DatasetDict(train=train, test=test).save_to_disk(tmp_path)
    elif kind == "arrow":
        for name, part in (("train", train), ("test", test)):
            with pa.ipc.new_file(tmp_path / f"{name}.arrow", part.data.schema) as file:
                file.write_table(part.data.table)
    else:
        second = "train-2" if kind == "shards" else "test"
        train.to_parquet(tmp_path / "data" / "train-1.parquet")
        test.to_parquet(tmp_path / "data" / f"{second}.parquet")
        of_test = "" if kind == "shards" else "  - {split: test, path: data/test*}\n"
        (tmp_path / "README.md").write_text(CARD + of_test + "---\n")
    dataset = load(tmp_path, leak_check=False, **({"test_fraction": 0.0} if kind == "shards" else {}))
    read = [[dataset.classes[i] for i in split.y] for split in (dataset.train, dataset.test)]
    assert read == ([texts + others] * 2 if kind == "shards" else [texts, others])


def test_texts_that_are_the_class_names(tmp_path):
    """A table of pyarrow keeps the description of a column whose ids it replaces by their names."""
    texts = ["cat", "dog", "cat"]
    for split in ("train", "test"):
        table = named(["dog", "cat"], texts).data.table
        pq.write_table(table.set_column(1, "label", pa.array(texts)), tmp_path / f"{split}.parquet")
    dataset = load(tmp_path, leak_check=False)
    assert dataset.classes == ("cat", "dog") and dataset.test.y.tolist() == [0, 1, 0]


def test_fractions_in_one_of_several_arrow_files(tmp_path):
    (tmp_path / "README.md").write_text(CARD.replace("data/", "") + "---\n")
    for number, value in enumerate((1, 1.5)):
        table = pa.table({"a": [value] * 2, "label": [0, 1]})
        with pa.ipc.new_stream(tmp_path / f"train{number}.arrow", table.schema) as file:
            file.write_table(table)
    assert "a column has 1.5, which is no whole number of 64 bits" in said(tmp_path)


def test_class_names_in_one_split_and_texts_in_the_other(tmp_path):
    texts = ["cat", "dog"]
    datasets.DatasetDict(train=named(None, texts), test=named(["dog", "cat"], texts)).save_to_disk(tmp_path)
    assert "label column 'label' holds string, but names the classes 0..1; write integers" in said(tmp_path)


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        ({"Train": 20, "Test": 10}, (20, 10)),
        ({"Train_0": 20, "Train_1": 6, "Test_0": 10}, (26, 10)),
        ({"train": 20, "val": 10}, (20, 10)),
        ({"contest": 20}, (20, 20)),
        ({"site_a": 20, "site_b": 6}, (26, 26)),
    ],
)
def test_csv_files_by_name(tmp_path, rows, want):
    options = {} if want[0] != want[1] else {"test_fraction": 0}
    assert counts(tables(tmp_path, **rows), **options) == want


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"site_a_train": 20, "site_b": 10}, "'site_b.csv' would be in no split, unlike 'site_a_train.csv'"),
        ({"TrainRows": 20, "TestRows": 10}, "'TestRows' looks like a split"),
        ({"train_test": 20}, "'train_test.csv' could be in several splits"),
    ],
)
def test_csv_files_in_doubt(tmp_path, rows, says):
    assert says in said(tables(tmp_path, **rows))


def test_files_beside_a_named_train_and_test_split_are_left_out_and_listed(tmp_path):
    tables(tmp_path, train=20, test=10, sample_submission=10)
    dataset = load(tmp_path)
    assert (len(dataset.train.y), len(dataset.test.y)) == (20, 10)
    assert "splits and files that are not read: sample_submission.csv" in dataset.reading
    pictures(tmp_path / "images", ["train/cat", "train/dog", "test/cat", "test/dog", "to predict"])
    assert counts(tmp_path / "images") == (12, 12)


def test_who_names_the_split_reads_what_hugging_face_finds(tmp_path):
    pictures(tmp_path, ["photo/cat", "photo/dog", "art/cat", "art/dog"])
    assert "would be one class of training samples" in said(tmp_path)
    assert counts(tmp_path, options={"train": "train"}, test_fraction=0) == (24, 24)


def test_a_file_whose_name_has_the_word_twice_is_read_once(tmp_path):
    """`datasets` alone reads it once for each pattern that fits."""
    tables(tmp_path, **{"train-train": 20, "test": 10})
    assert counts(tmp_path) == (20, 10)
    pictures(tmp_path / "images", ["train-a/train", "test-a/test"])
    assert counts(tmp_path / "images") == (6, 6)


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        (frame(20), frame(10).drop(columns="label"), "test.csv has no column 'label', which train.csv has; write the"),
        (frame(20).assign(id=1), frame(10), "test.csv has no column 'id', which train.csv has"),
        (frame(20), frame(10).assign(id=1), "train.csv has no column 'id', which test.csv has"),
        (frame(20).assign(b=1), frame(10), "test.csv: column 'b' has fractions, and whole numbers in train.csv; write"),
        (frame(20).assign(a="x"), frame(10).assign(a="x", label="x"), "test.csv: column 'label' has 'x', and another"),
        (frame(20).assign(label=True), frame(10).assign(label="x"), "test.csv: column 'label' has 'x', and another"),
        (frame(20), frame(10).assign(label=2**63), f"test.csv: column 'label' has '{2**63}', and another file has"),
        (frame(20).assign(label=2**64), frame(10), f"train.csv: column 'label' has {2**64}, a whole number that 64"),
        (frame(20), frame(10).assign(label=str(-(2**63) - 1)), f"test.csv: column 'label' has {-(2**63) - 1}, a wh"),
    ],
)
def test_csv_files_that_do_not_go_together_are_named_with_the_column(tmp_path, train, test, says):
    train.to_csv(tmp_path / "train.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    assert says in said(tmp_path)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("1,2,3,4,5", "Expected 3 fields in line 3, saw 5"),
        ('1,2,"x', "EOF inside string"),
        ("1,3.5,x", "test.csv: column 'b' has fractions, and whole numbers in train.csv; write"),
        ("1,two,x", "test.csv: column 'b' has 'two', and another file has values of another type there; write"),
    ],
)
def test_a_csv_file_that_cannot_be_read_says_why_beside_a_column_that_is_read(tmp_path, row, says):
    """Column a has fractions in train, and whole numbers in test: they are read as fractions."""
    (tmp_path / "train.csv").write_text("a,b,label\n1.5,2,x\n2.5,3,y\n")
    (tmp_path / "test.csv").write_text(f"a,b,label\n1,2,x\n{row}\n")
    assert says in said(tmp_path)


@pytest.mark.parametrize("kind", ["json", "jsonl"])
@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        (frame(20), frame(10).assign(id=1), "(column 'id' is not in each file); write the same columns"),
        (frame(20).assign(b=1), frame(10), "(a column has "),
    ],
)
def test_json_files_that_do_not_go_together_are_refused_in_words(tmp_path, kind, train, test, says):
    """The message was "Couldn't cast", or "Float value ... was truncated"."""
    for split, rows in {"train": train, "test": test}.items():
        rows.to_json(tmp_path / f"{split}.{kind}", orient="records", lines=kind == "jsonl")
    assert f"hf:{tmp_path} cannot be loaded {says}" in said(tmp_path)


def test_a_csv_file_that_is_not_read_may_have_other_columns(tmp_path):
    """As the test.csv of a contest, which has no labels."""
    frame(20).to_csv(tmp_path / "train.csv", index=False)
    frame(10).to_csv(tmp_path / "validation.csv", index=False)
    frame(10).drop(columns="label").to_csv(tmp_path / "test.csv", index=False)
    dataset = load(tmp_path, options={"test": "validation"})
    assert (len(dataset.train.y), len(dataset.test.y)) == (20, 10)
    assert "splits and files that are not read: test" in dataset.reading
    assert "has no split 'tst'" in said(tmp_path, options={"test": "tst"})


# Parquet files and dictionaries -------------------------------------------------------------------
@pytest.mark.parametrize("name", ["val", "dev", "valid", "Test", "testing", "eval"])
def test_a_parquet_split_is_read_as_a_csv_file_of_that_name(tmp_path, name):
    assert counts(tables(tmp_path, "parquet", train=20, **{name: 10})) == (20, 10)
    given = datasets.DatasetDict({"train": datasets.Dataset.from_pandas(frame(20))})
    given[name] = datasets.Dataset.from_pandas(frame(10))
    dataset = load_dataset(DataConfig(**flray.data.from_hf(given)))
    assert (len(dataset.train.y), len(dataset.test.y)) == (20, 10)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["train", "extra"], "'extra' would not be read; write options: {test: extra}, or options: {train: train} to"),
        (["train", "train2", "test"], "'train2' would not be read; write options: {train: train} to leave it out"),
        (["train", "val", "dev"], "the splits dev, val, which mean the same; choose one with options: {test: dev}"),
        (["train", "Train", "test"], "the splits Train, train, which mean the same"),
    ],
)
def test_no_split_is_left_out_in_silence(tmp_path, names, says):
    tables(tmp_path, "parquet", **dict.fromkeys(names, 20))
    assert says in said(tmp_path)


def test_what_the_options_leave_out_is_said(tmp_path):
    tables(tmp_path, "parquet", train=20, extra=10)
    dataset = load(tmp_path, options={"train": "train"}, test_fraction=0)
    assert len(dataset.train.y) == 20 and "splits and files that are not read: extra" in dataset.reading
    assert counts(tmp_path, options={"test": "extra"}) == (20, 10)
    assert counts(tmp_path, options={"train": "extra", "test": "train"}) == (10, 20)
    tables(tmp_path, "parquet", test=4, validation=6)
    assert "splits and files that are not read: extra, validation" in load(tmp_path).reading


def test_a_table_beside_parquet_files(tmp_path):
    tables(tmp_path, "parquet", train=20)
    tables(tmp_path, test=10)
    assert "has Parquet files, and test.csv beside them would not be read; write test.parquet" in said(tmp_path)


def test_a_dictionary_says_how_a_split_is_given():
    splits = datasets.DatasetDict({name: datasets.Dataset.from_pandas(frame(20)) for name in ("train", "b")})
    with pytest.raises(DataError, match=r"'b' would not be read; write test=splits\['b'\], or train=splits\['train'\]"):
        flray.data.from_hf(splits)
    dataset = load_dataset(DataConfig(**flray.data.from_hf(splits, splits["b"]), leak_check=False))
    np.testing.assert_array_equal(dataset.test.x[:, 0], np.array(splits["b"]["a"], np.float32))


def test_the_matched_split_of_mnli_is_its_test_split():
    names = ["train", "validation_matched", "validation_mismatched", "test_matched"]
    assert choose_splits(names, None, None, "mnli").test == "validation_matched"
