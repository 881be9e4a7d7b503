"""Several sets as one, each of them a domain."""

import numpy as np
import pyarrow as pa
import pytest

from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, load_dataset
from tests.support.data_files import described, names, write

SMALL = {"source": "digits", "name": "small", "train_size": 100, "test_size": 40}


def union(*sets, **fields):
    return load_dataset(DataConfig(source="union", options={"sets": list(sets)}, **fields))


def test_a_union_has_the_samples_of_all_sets_and_says_which_is_from_where():
    alone = load_dataset(DataConfig(source="digits", resize=12, channels=3))
    found = union("digits", SMALL, resize=12, channels=3, leak_check=False)
    count = len(alone.train.y)
    assert found.sources == ("digits", "small") and found.classes == alone.classes
    assert found.train.source.tolist() == [0] * count + [1] * 100 and len(found.test.y) == len(alone.test.y) + 40
    assert np.array_equal(found.train.x[:count], alone.train.x) and found.train.x.shape[1:] == (12, 12, 3)
    assert np.array_equal(found.train.y[:count], alone.train.y)
    again = union("digits", SMALL, resize=12, channels=3, leak_check=False)
    assert again.fingerprint == found.fingerprint
    other = union("digits", {**SMALL, "name": "other"}, resize=12, channels=3, leak_check=False)
    assert other.fingerprint != found.fingerprint, "the names of the domains are part of the data"


@pytest.mark.parametrize(
    "sets, says",
    [
        (["digits"], "a union is of two sets or more"),
        (["digits", "digits"], "two sets are called 'digits'; give one of them a name"),
        (["digits", 3], "3 is not a set; write its source"),
        (["digits", "iris"], "digits has 10 classes without names and iris 3"),
        (["digits", {**SMALL, "resize": 12}], r"uint8 \(8, 8, 1\) and of small uint8 \(12, 12, 1\); set data.resize"),
        (
            ["digits", {**SMALL, "trian_size": 3}],
            "data.options.sets.trian_size: unknown key .did you mean 'train_size'",
        ),
        (["digits", {**SMALL, "augment": {"flip": True}}], "small: augment is no option of one set; .*data.augment"),
        (["digits", {**SMALL, "normalize": "half"}], "small: normalize is no option of one set; leave it out"),
        (["digits", {**SMALL, "shuffle": False}], "small: shuffle is no option of one set; leave it out"),
        (["digits", {**SMALL, "batch_order": "no.csv"}], "small: batch_order is no option of one set; leave it out"),
        (["iris", {"source": "wine", "group": "user"}], "wine: a union has no group column, .* or write drop: user"),
        (["iris", {"source": "wine", "domain": "site"}], "wine: a union has no domain column, .* or write drop: site"),
    ],
)
def test_sets_that_do_not_fit_are_one_line(sets, says):
    with pytest.raises((ConfigError, DataError), match=says):
        union(*sets, leak_check=False)


def both(folder, classes, ids, seed):
    """A data set whose files name these classes; gives the names of its training samples."""
    described(folder, "test", classes, ids, 2 * seed + 1)
    return described(folder, "train", classes, ids, 2 * seed)


def test_sets_number_the_same_names_differently(tmp_path):
    one = both(tmp_path / "one", ["cat", "dog", "fox"], [0, 1, 2, 2], 0)
    two = both(tmp_path / "two", ["fox", "cat", "dog"], [0, 1, 2, 0], 1)
    few = both(tmp_path / "few", ["dog", "cat"], [0, 1, 1, 0], 2)
    found = union("one", "two", "few", root=str(tmp_path))
    assert found.classes == ("cat", "dog", "fox")
    for split in (found.train, found.test):
        assert [found.classes[label] for label in split.y] == one + two + few
    assert "two: ids mapped by name from its own order, fox, cat, dog" in found.reading
    both(tmp_path / "other", ["cat", "dogs"], [0, 1, 1, 0], 3)
    with pytest.raises(DataError, match=r"other has the class 'dogs', which one does not have .*did you mean 'dog'"):
        union("one", "other", root=str(tmp_path))


def test_a_union_without_test_splits_is_tested_on_train_where_a_set_would_be(tmp_path):
    for seed, name in enumerate(("one", "two")):
        described(tmp_path / name, "train", ["cat", "dog"], [0, 1, 1, 0, 0], seed)
    found = union("one", "two", root=str(tmp_path), test_fraction=0)
    assert found.test is found.train and len(found.train.y) == 10
    assert "test split: none, so the training samples are tested on" in found.reading
    drawn = union("one", "two", root=str(tmp_path), test_fraction=0.4)
    assert (len(drawn.train.y), len(drawn.test.y)) == (6, 4)


def test_a_union_of_text_without_test_splits_is_tested_on_train(tmp_path):
    for name in ("one", "two"):
        texts = [f"{name} is good", f"{name} is bad", f"{name} is {name}"]
        write(tmp_path / name, "train", {"text": texts, "label": pa.array([0, 1, 1])}, names("good", "bad"))
    found = union("one", "two", root=str(tmp_path), test_fraction=0, tokenizer="train", max_length=8)
    assert found.test is found.train and found.train.y.tolist() == [0, 1, 1, 2, 3, 3]
