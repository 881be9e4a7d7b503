"""Class names of torch's and Hugging Face's objects: a sample keeps the name of its class, whatever its id is there."""

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import ChainDataset, ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, random_split

import flray
from flray.core.schema.errors import DataError
from flray.data import DataConfig, load_dataset
from tests.support.data_files import Wrapper, in_words

N = 30
X = torch.from_numpy(np.random.default_rng(5).normal(size=(N, 4)).astype(np.float32))
TRUE = [("cat", "dog", "fox")[k % 3] for k in range(N)]
ONE, TWO = ["cat", "dog", "fox"], ["fox", "cat", "dog"]


class Pictures(Dataset):
    """As torchvision's ImageFolder: labels are places in the names of its own folders."""

    def __init__(self, classes, rows=range(N), target_transform=None):
        self.classes, self.class_to_idx = classes, {name: k for k, name in enumerate(classes)}
        self.rows, self.target_transform = rows, target_transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        label = self.class_to_idx[TRUE[self.rows[number]]]
        return X[self.rows[number]], label if self.target_transform is None else self.target_transform(label)


class Stream(IterableDataset):
    def __init__(self, classes):
        self.classes = classes

    def __iter__(self):
        return ((X[k], self.classes.index(TRUE[k])) for k in range(N))


def loaded(*sets, **options):
    return load_dataset(DataConfig(**flray.data.from_torch(*sets, **options), leak_check=False))


@pytest.mark.parametrize(
    ("train", "test", "rows"),
    [
        (Pictures(ONE), Pictures(TWO), range(N)),
        (Pictures(ONE), Pictures(["fox", "cat"], [0, 2, 3, 5]), [0, 2, 3, 5]),  # test has no dog
        (Pictures(["cat", "dog"], [0, 1, 3, 4]), Pictures(ONE), range(N)),  # train has no fox
        (Pictures(ONE), Subset(Pictures(TWO), [4, 2, 9]), [4, 2, 9]),
        (Pictures(ONE), Subset(Subset(Pictures(TWO), [4, 2, 9]), [2, 0]), [9, 4]),
        (Pictures(ONE), ConcatDataset([Pictures(TWO, [5, 6]), Pictures(ONE, [1])]), [5, 6, 1]),
        (Pictures(ONE), Subset(ConcatDataset([Pictures(TWO), Pictures(ONE)]), [0, N + 2, 1]), [0, 2, 1]),
        (Pictures(ONE), Stream(TWO), range(N)),
        (Pictures(ONE), ChainDataset([Stream(TWO)]), range(N)),
        (Pictures(ONE), TensorDataset(X, torch.arange(N) % 3), range(N)),
    ],
)
def test_a_test_sample_keeps_the_name_of_its_class(train, test, rows):
    dataset = loaded(train, test)
    assert in_words(dataset, dataset.test) == [TRUE[row] for row in rows]
    assert in_words(dataset, dataset.train) == [TRUE[row] for row in train.rows]
    np.testing.assert_array_equal(dataset.test.x, X[list(rows)])


def test_a_random_split_of_a_concatenation():
    both = ConcatDataset([Pictures(ONE), Pictures(TWO)])
    train, test = random_split(both, [40, 20], torch.Generator().manual_seed(0))
    dataset = loaded(train, test)
    assert in_words(dataset, dataset.train) == [TRUE[k % N] for k in train.indices]
    assert in_words(dataset, dataset.test) == [TRUE[k % N] for k in test.indices]


def test_several_words_for_a_class_and_ids_of_ones_own():
    """As torchvision's ImageNet; another data set numbers from 1."""
    first, second = Pictures(ONE), Pictures(ONE)
    first.class_to_idx = {"cat": 0, "tabby": 0, "dog": 1, "fox": 2}
    second.class_to_idx = {"cat": 1, "dog": 2, "fox": 3}
    assert loaded(first).classes == ("cat, tabby", "dog", "fox")
    dataset = loaded(Pictures(TWO), second)
    assert dataset.classes == tuple(TWO) and in_words(dataset, dataset.test) == TRUE


def test_a_wrapper_hides_names_and_is_taken_only_where_the_order_is_one():
    dataset = loaded(Pictures(ONE), Wrapper(Pictures(ONE)))
    assert in_words(dataset, dataset.test) == TRUE
    with pytest.raises(DataError, match="test wraps a data set whose classes are fox, cat, dog, and others are"):
        loaded(Pictures(ONE), Wrapper(Pictures(TWO)))
    with pytest.raises(DataError, match="give the wrapper the attribute `classes`"):
        loaded(Subset(Wrapper(Pictures(TWO)), range(9)), Subset(Wrapper(Pictures(ONE)), range(9)))
    named = Wrapper(Pictures(TWO))
    named.classes = TWO
    dataset = loaded(Pictures(ONE), named)
    assert in_words(dataset, dataset.test) == TRUE


def test_a_data_set_that_changes_its_labels_has_no_names():
    dataset = loaded(Pictures(ONE, target_transform=lambda label: int(label == 0)))
    assert dataset.classes == ("0", "1")
    assert np.array_equal(np.sort(np.r_[dataset.train.y, dataset.test.y]), [0] * 20 + [1] * 10)


def test_names_that_are_given_rename_and_never_reorder():
    dataset = loaded(Pictures(ONE), Pictures(TWO), classes=["C", "D", "F"])
    assert in_words(dataset, dataset.test) == [{"cat": "C", "dog": "D", "fox": "F"}[name] for name in TRUE]
    with pytest.raises(DataError, match="classes are fox, cat, dog, and the data set numbers them cat, dog"):
        loaded(Pictures(ONE), classes=TWO)
    with pytest.raises(DataError, match="classes has 2 names, and the data set 3 classes"):
        loaded(Pictures(ONE), classes=["a", "b"])


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ((Pictures(ONE), Pictures(["ant", "cat", "dog", "fox"], [0, 1, 2])), None),  # names alone are no samples
        ((Pictures(["cat", "dog"], [0, 1]), Pictures(["cat", "fox"], [0, 2])), "test has the class 'fox', which train"),
        ((ChainDataset([Stream(ONE), Stream(TWO)]),), "train is a chain of data sets with other classes"),
        ((Pictures(ONE), TensorDataset(X, torch.arange(N) % 4)), "label 3 in test sample 3 is none of the 3 classes"),
    ],
)
def test_other_names(sets, says):
    if says is None:
        assert "no test sample: 1 of 4 classes (ant)" in loaded(*sets).reading
    else:
        with pytest.raises(DataError, match=says):
            loaded(*sets)


def scans(names, rows=range(N)):
    kinds = datasets.Features(
        {"scan": datasets.Array3D((1, 2, 2), "float32"), "kind": datasets.ClassLabel(names=names)}
    )
    values = {"scan": [X[k].reshape(1, 2, 2).tolist() for k in rows], "kind": [names.index(TRUE[k]) for k in rows]}
    return datasets.Dataset.from_dict(values, features=kinds)


@pytest.mark.parametrize("way", [lambda d: d, lambda d: d.to_iterable_dataset()])
def test_arrays_and_tables_of_hugging_face(way):
    dataset = load_dataset(
        DataConfig(**flray.data.from_hf(way(scans(ONE)), way(scans(TWO)), channels="first"), leak_check=False)
    )
    assert in_words(dataset, dataset.test) == in_words(dataset, dataset.train) == TRUE
    one, two = (scans(names).remove_columns("scan").add_column("f", np.arange(N) / 7.0) for names in (ONE, TWO))
    splits = datasets.DatasetDict(train=one, validation=two)
    dataset = load_dataset(DataConfig(**flray.data.from_hf(splits), leak_check=False))
    assert in_words(dataset, dataset.test) == in_words(dataset, dataset.train) == TRUE


def test_labels_of_arrays_from_one_or_with_gaps_are_numbered():
    """As numpy.unique numbers them, over both splits."""
    x = X.numpy()
    for values in (np.arange(N) % 6 + 1, np.arange(N) % 3 * 5, np.arange(N) % 2 * 2 - 1):
        names, want = np.unique(values, return_inverse=True)
        data = flray.data.from_arrays((x[:20], values[:20]), (x[20:], values[20:]))
        dataset = load_dataset(DataConfig(**data, leak_check=False))
        assert dataset.classes == tuple(map(str, names))
        assert np.array_equal(np.r_[dataset.train.y, dataset.test.y], want)
        assert dataset.reading[1].startswith(f"classes: the ids {names[0]}, ")


@pytest.mark.parametrize(
    ("x", "y", "options", "says"),
    [
        (
            X.numpy(),
            np.arange(N) % 3 + 1,
            {"classes": ONE},
            "labels are 1 to 3 and there are 3 classes; number",
        ),
        (
            X.numpy(),
            np.eye(3, dtype=int)[np.arange(N) % 3],
            {},
            r"make it \[30\].* of one-hot rows, y.argmax",
        ),
        (X.numpy(), (np.arange(N) % 3)[:, None], {}, r"make it \[30\], one for a sample: y.reshape\(-1\)"),
        (X.numpy(), np.arange(N) % 3 * 1.0, {}, r"they are whole, so write y.astype\('int64'\)"),
        (X.numpy(), [*TRUE[:-1], 3], {}, "labels are texts, and that of sample 29 is 3; give texts only, or integers"),
        (X.numpy(), np.arange(N) % 3 - 1, {}, "label -1 is not a class"),
        (np.arange(2 * N).reshape(N, 2) + 17 * 10**11, np.arange(N) % 2, {}, "feature 0 holds integers that 32-bit"),
        (np.arange(2.0 * N).reshape(N, 2) + 1.7e9, np.arange(N) % 2, {}, "feature 1 holds numbers that 32-bit floats"),
    ],
)
def test_arrays_that_are_not_clear(x, y, options, says):
    with pytest.raises(DataError, match=says):
        flray.data.from_arrays((x, y), **options)


def test_the_columns_of_a_table_of_the_script_are_refused_in_its_words():
    table = datasets.Dataset.from_dict({"a": [0.5, 1.5], "y": [0, 1]})
    with pytest.raises(DataError, match=r"^from_hf: the label column is not clear; set data.label to one of a, y"):
        load_dataset(DataConfig(**flray.data.from_hf(table)))


def with_scans(**columns):
    """A column of arrays beside integers, which are described as classes in the columns site and kind."""
    described = datasets.ClassLabel(names=["Oslo", "Bern", "Rome", "Riga"])
    kinds = {name: described if name in ("site", "kind") else datasets.Value("int64") for name in columns}
    kinds["scan"] = datasets.Array3D((1, 4, 4), "uint8")
    values = np.random.default_rng(3).integers(0, 200, (N, 1, 4, 4))
    return datasets.Dataset.from_dict({"scan": values.tolist(), **columns}, features=datasets.Features(kinds))


@pytest.mark.parametrize(
    ("name", "group"),
    [("label", None), ("label", "site"), ("fine_label", None), ("fine_label", "site"), ("kind", "site")],
)
def test_the_label_beside_a_column_of_arrays_is_that_of_a_table(name, group):
    """The names of the sites describe no class: by its name the column of bare integers is the label. The column of
    clients is none, so that one of any name is left."""
    labels, sites = [k * k % 3 for k in range(N)], [k % 4 for k in range(N)]
    data = flray.data.from_hf(with_scans(**{name: labels}, site=sites), group=group, channels="first")
    train = load_dataset(DataConfig(**data, leak_check=False, test_fraction=0.0)).train
    assert train.y.tolist() == labels
    assert group is None or train.group.tolist() == sites


@pytest.mark.parametrize("names", [("label", "target"), ("site", "kind")])
def test_of_several_labels_beside_arrays_none_is_guessed(names):
    data = with_scans(**{name: [k % 2 for k in range(N)] for name in names})
    with pytest.raises(DataError, match=f"label column is not clear; name one of {', '.join(names)} with label"):
        flray.data.from_hf(data, channels="first")


class Unified(ConcatDataset):
    """Labels of all parts are places in the names of its own."""

    classes = ONE

    def __getitem__(self, number):
        x, label = super().__getitem__(number)
        return x, ONE.index(self.datasets[number // N].classes[label])


class UnifiedStream(ChainDataset):
    classes = ONE

    def __iter__(self):
        return ((x, ONE.index(part.classes[label])) for part in self.datasets for x, label in part)


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (Unified([Pictures(ONE), Pictures(TWO)]), [*range(N), *range(N)]),
        (Subset(Unified([Pictures(TWO), Pictures(ONE)]), [0, N + 1, 2]), [0, 1, 2]),
        (ConcatDataset([Pictures(TWO), Unified([Pictures(TWO)])]), [*range(N), *range(N)]),
        (UnifiedStream([Stream(TWO), Stream(ONE)]), [*range(N), *range(N)]),
    ],
)
def test_a_concatenation_of_ones_own_gives_its_own_labels(data, rows):
    found = loaded(data, Pictures(ONE))
    assert [found.classes[label] for label in found.train.y] == [TRUE[row] for row in rows]


class Doubled(ConcatDataset):
    """Changes x alone."""

    def __getitem__(self, number):
        x, label = super().__getitem__(number)
        return 2 * x, torch.tensor(label)


class Part(Subset):
    def __getitem__(self, number):
        x, label = self.dataset[self.indices[number]]
        return 2 * x, label

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


class Turned(ConcatDataset):
    """Gives other labels for one sample of the last part."""

    def __getitem__(self, number):
        x, label = super().__getitem__(number)
        return x, 2 - label if number == len(self) - 2 else label


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (Doubled([Pictures(TWO), Pictures(TWO, [4, 2])]), [*range(N), 4, 2]),
        (Doubled([Pictures(TWO, [0, 1, 2]), Pictures(ONE, [4, 2])]), [0, 1, 2, 4, 2]),
        (Part(Pictures(TWO), [4, 0, 2]), [4, 0, 2]),
        (Subset(Part(Doubled([Pictures(TWO)]), range(9)), [4, 0, 2]), [4, 0, 2]),
    ],
)
def test_a_subclass_that_gives_the_labels_of_its_parts_keeps_their_names(data, rows):
    found = loaded(data, Pictures(ONE))
    assert in_words(found, found.train) == [TRUE[row] for row in rows]


def test_a_subclass_that_gives_another_label_has_no_names():
    """Of its last but one sample, a dog, which both orders of classes number otherwise."""
    assert loaded(Doubled([Pictures(TWO), Pictures(TWO)])).classes == tuple(TWO)
    assert loaded(Turned([Pictures(TWO), Pictures(TWO)])).classes == ("0", "1", "2")


class Reused(Dataset):
    """Fills the same memory for every sample."""

    x, label = torch.zeros(2), torch.zeros(1, dtype=torch.int64)

    def __len__(self):
        return 4

    def __getitem__(self, number):
        self.x[0], self.label[0] = number, number % 2
        return self.x, self.label


class ReusedStream(IterableDataset):
    def __iter__(self):
        x = np.zeros(2, np.float32)
        for number in range(4):
            x[0] = number
            yield x, number % 2


@pytest.mark.parametrize("data", [Reused(), ReusedStream()])
def test_samples_in_memory_that_is_filled_anew(data):
    found = loaded(data, data)
    assert found.train.x[:, 0].tolist() == [0, 1, 2, 3] and found.train.y.tolist() == [0, 1, 0, 1]
