"""Texts as labels, and frames of pandas. The right numbers are places in lists that are written here."""

import numpy as np
import pandas
import pytest
from torch.utils.data import Dataset, Subset

import flray
from flray.core.schema.errors import DataError
from flray.data import DataConfig, load_dataset

X = np.random.default_rng(4).normal(size=(12, 3))
TEXTS = ["fox", "cat", "dog", "fox"] * 3
TRAIN, TEST = slice(0, 8), [8, 11, 10]  # test has no cat
FRAME = pandas.DataFrame({"age": np.arange(12), "weight": X[:, 0], "smokes": [True, False] * 6, "kind": TEXTS})
NUMBERS = pandas.DataFrame(X)
YEARS = NUMBERS.set_axis([2022, 2023, 2024], axis=1)
LEVELS = NUMBERS.set_axis(pandas.MultiIndex.from_product([["a"], ["b", "c", "d"]]), axis=1)


def loaded(data):
    return load_dataset(DataConfig(**data, leak_check=False))


def of_arrays(values, **options):
    series = pandas.Series(TEXTS) if values is pandas.Series else None
    train, test = (TEXTS[TRAIN], [TEXTS[k] for k in TEST]) if series is None else (series[TRAIN], series[TEST])
    return flray.data.from_arrays((X[TRAIN], values(train)), (X[TEST], values(test)), **options)


def of_torch(values, **options):
    rows = list(zip(X, TEXTS, strict=True))
    return flray.data.from_torch(rows[TRAIN], Subset(rows, TEST), **options)


def of_files(tmp_path, monkeypatch):
    for split, rows in (("train", list(range(12))[TRAIN]), ("test", TEST)):
        np.save(tmp_path / f"{split}_x.npy", X[rows])
        np.save(tmp_path / f"{split}_y.npy", np.array(TEXTS)[rows])
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path.parent))
    return {"source": tmp_path.name}


@pytest.mark.parametrize("way", [of_arrays, of_torch])
@pytest.mark.parametrize("values", [list, np.array, pandas.Series])
@pytest.mark.parametrize("classes", [None, ["dog", "fox", "cat"], ["ant", "fox", "cat", "dog"]])
def test_texts_are_numbered_by_name_in_both_splits(way, values, classes):
    dataset = loaded(way(values, classes=classes))
    order = classes or ["cat", "dog", "fox"]
    assert list(dataset.classes) == order
    assert dataset.train.y.tolist() == [order.index(name) for name in TEXTS[TRAIN]]
    assert dataset.test.y.tolist() == [order.index(TEXTS[k]) for k in TEST]
    np.testing.assert_array_equal(dataset.test.x, X[TEST].astype(np.float32))


class WithNames(Dataset):
    """Texts as labels, of a data set that lists its classes, as those of torchvision do."""

    classes = ("fox", "ant", "dog", "cat")

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        return X[self.rows[place]], TEXTS[self.rows[place]]


def test_texts_of_a_data_set_with_classes_have_the_places_of_its_list():
    dataset = loaded(flray.data.from_torch(WithNames(list(range(8))), WithNames(TEST)))
    assert dataset.classes == WithNames.classes
    assert dataset.train.y.tolist() == [0, 3, 2, 0, 0, 3, 2, 0] and dataset.test.y.tolist() == [0, 0, 2]


def test_a_text_that_the_list_of_its_data_set_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(WithNames, "classes", ("fox", "ant", "dog"))
    with pytest.raises(DataError, match="train: the data set's classes do not have the label 'cat'"):
        flray.data.from_torch(WithNames(list(range(8))), WithNames(TEST))


def test_texts_of_any_length():
    texts = np.array(TEXTS, dtype=np.dtypes.StringDType())
    assert flray.data.from_arrays((X, texts)) == flray.data.from_arrays((X, TEXTS))


def test_texts_in_a_folder_of_arrays(tmp_path, monkeypatch):
    dataset = loaded(of_files(tmp_path, monkeypatch))
    assert dataset.classes == ("cat", "dog", "fox") and dataset.test.y.tolist() == [2, 2, 1]


def test_texts_are_the_entry_of_the_numbers_that_they_stand_for():
    numbers = [["cat", "dog", "fox"].index(name) for name in TEXTS]
    by_hand = flray.data.from_arrays((X, numbers), classes=["cat", "dog", "fox"])
    assert flray.data.from_arrays((X, TEXTS)) == by_hand


def test_a_text_that_only_test_has_is_a_class_as_in_files(tmp_path):
    """The same reading as of CSV files."""
    test = (X[:2], ["cow", "dog"])
    given = loaded(flray.data.from_arrays((X, TEXTS), test))
    for name, (x, y) in {"train": (X, TEXTS), "test": test}.items():
        table = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "label": y})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    files = loaded({"source": f"hf:{tmp_path}"})
    assert given.classes == files.classes == ("cat", "cow", "dog", "fox")
    assert given.test.y.tolist() == files.test.y.tolist() == [1, 2]
    said = [line for line in given.reading if line.startswith("no training sample")]
    assert said == [line for line in files.reading if line.startswith("no training sample")] != []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: flray.data.from_arrays((X, TEXTS), classes=["fox", "dog"]), "train sample 1 has the class 'cat', wh"),
        (lambda: flray.data.from_arrays((X, TEXTS), (X[:2], [0, 1])), "test holds ids and train names; write them"),
        (lambda: flray.data.from_arrays((X, [*TEXTS[:-1], "Fox"])), "'fox' in train sample 0 .* differ in case"),
        (lambda: flray.data.from_arrays((X, [*TEXTS[:-1], " "])), "train: label is an empty text in sample 11"),
        (lambda: flray.data.from_arrays((X, [*TEXTS[:-1], np.nan])), "labels are texts, and that of sample 11 is nan"),
        (lambda: flray.data.from_arrays((X, [*TEXTS[:-1], None])), "labels are texts, and that of sample 11 is None"),
        (
            lambda: flray.data.from_arrays((X, pandas.Series([*TEXTS[:-1], None]))),
            "that of sample 11 is (nan|None), not",
        ),
        (lambda: flray.data.from_arrays((X, np.arange(12) % 2, TEXTS)), "clients are <U3, not integers .*; number th"),
        (lambda: flray.data.from_torch([(X[0], "a"), (X[1], 1)]), "train sample 1 has the label 1, unlike those bef"),
        (lambda: flray.data.from_torch([(X[0], "a", "b")]), "train sample 0: the client 'b' is not an integer"),
        (lambda: flray.data.from_torch([(X[0], "a")] * 1024 + [(X[1], 1)]), "train sample 1024 has the label 1, unl"),
        (lambda: flray.data.from_arrays((FRAME, TEXTS)), r"column 'kind' is \w+, not numbers; leave it out: x.drop"),
        (lambda: flray.data.from_arrays(FRAME), "train is 'DataFrame'; give .*; of a frame: x = frame.drop"),
        (
            lambda: flray.data.from_arrays((FRAME[["age"]].astype("Int64").where(FRAME.age != 5), TEXTS)),
            r"train: column 'age' has no value in row 5 \(1 such rows\)",
        ),
        (
            lambda: flray.data.from_arrays((FRAME[["age"]], FRAME["kind"][::-1])),
            r"row 0 of x has the index 0 and that of y 11; give both in one order, y.loc\[x.index\]",
        ),
        (
            lambda: flray.data.from_arrays((NUMBERS, FRAME["kind"], FRAME["age"][::-1])),
            r"row 0 of x has the index 0 and that of client 11; give both in one order, client.loc\[x.index\]",
        ),
        (
            lambda: flray.data.from_arrays((NUMBERS.to_numpy(), FRAME["kind"], FRAME["age"][::-1])),
            "row 0 of y has the index 0 and that of client 11",
        ),
        (lambda: flray.data.from_arrays((NUMBERS, TEXTS), (NUMBERS[[2, 1, 0]], TEXTS)), "0, 1, 2 and test 2, 1, 0"),
        (lambda: flray.data.from_arrays((YEARS, TEXTS), (YEARS.iloc[:, ::-1], TEXTS)), "test 2024, 2023, 2022; feat"),
        (lambda: flray.data.from_arrays((LEVELS, TEXTS), (LEVELS.iloc[:, ::-1], TEXTS)), "test .*'d'.*'c'.*'b'.* by p"),
    ],
)
def test_what_is_not_clear_is_one_line(call, says):
    with pytest.raises(DataError, match=says):
        call()


@pytest.mark.parametrize("test", [lambda x: x, lambda x: x.to_numpy(), lambda x: x.set_axis([0, 1, 2], axis=1)])
@pytest.mark.parametrize("names", [["a", "b", "c"], [2022, 2023, 2024], [0, 1, 2]])
def test_columns_without_names_are_matched_by_place(names, test):
    """An array has none, and a frame of it the numbers of the places."""
    frame = NUMBERS.set_axis(names, axis=1)
    dataset = load_dataset(DataConfig(**flray.data.from_arrays((frame, TEXTS), (test(frame), TEXTS)), leak_check=False))
    np.testing.assert_array_equal(dataset.train.x, X.astype(np.float32))
    np.testing.assert_array_equal(dataset.test.x, X.astype(np.float32))


def test_a_frame_is_its_numbers_and_its_rows_may_have_any_names():
    drawn = FRAME.sample(frac=1, random_state=3)
    data = flray.data.from_arrays((drawn.drop(columns=["kind"]), drawn["kind"]))
    dataset = load_dataset(DataConfig(**data, test_fraction=0))
    want = [[k, np.float32(X[k, 0]), k % 2 == 0] for k in drawn.index]
    np.testing.assert_array_equal(dataset.train.x, np.array(want, np.float32))
    assert [dataset.classes[k] for k in dataset.train.y] == [TEXTS[k] for k in drawn.index]
