"""Data sets in LEAF's layout, written here as its scripts write them."""

import json

import numpy as np
import pytest

from flray.core.schema.errors import ConfigError, DataError
from flray.data import DataConfig, ProxyConfig, load_dataset, load_proxy
from flray.data.sources.leaf import LETTERS
from flray.scenario import PartitionConfig, build

rng = np.random.default_rng(3)


def write(folder, users):
    """`users`: by name (x, y), in two files."""
    folder.mkdir(parents=True)
    for number in range(2):
        part = dict(list(users.items())[number::2])
        note = {
            "users": list(part),
            "num_samples": [len(y) for _, y in part.values()],
            "user_data": {name: {"x": x, "y": y} for name, (x, y) in part.items()},
        }
        (folder / f"all_data_{number}.json").write_text(json.dumps(note))


def pixels(n):
    return rng.integers(0, 256, (n, 784))


def test_femnist_is_images_of_writers(root):
    images = {f"f{writer}": pixels(3 + writer) for writer in range(4)}
    for split in ("train", "test"):
        own = {name: (x / 255).tolist() for name, x in images.items()}
        if split == "test":
            own = {name: (pixels(2) / 255).tolist() for name in images}
        write(root / "femnist" / "data" / split, {name: (x, [61] + [5] * (len(x) - 1)) for name, x in own.items()})
    dataset = load_dataset(DataConfig(source="femnist"))
    assert dataset.train.x.dtype == np.uint8 and dataset.num_classes == 62 and dataset.input_shape == (1, 28, 28)
    (partition,) = build(dataset, PartitionConfig(name="natural"), seed=0).partitions
    for writer in range(4):
        rows = partition.client(writer)
        np.testing.assert_array_equal(dataset.train.x[rows].reshape(-1, 784), images[f"f{writer}"])
        assert dataset.train.y[rows].tolist() == [61] + [5] * (2 + writer)


def test_a_user_who_is_listed_twice_has_each_sample_once(root):
    for split in ("train", "test"):
        write(root / "femnist" / split, {"ann": ((pixels(3) / 255).tolist(), [0, 1, 2])})
        for path in (root / "femnist" / split).glob("*_0.json"):
            path.write_text(path.read_text().replace('"users": ["ann"]', '"users": ["ann", "ann"]'))
    dataset = load_dataset(DataConfig(source="femnist"))
    assert dataset.train.y.tolist() == dataset.test.y.tolist() == [0, 1, 2]


def test_femnist_has_leafs_62_classes_whichever_characters_occur(root):
    """LEAF's `relabel_class`: digits are 0 to 9, A to Z 10 to 35, a to z 36 to 61."""
    labels = {"5": 5, "A": 10, "z": 61}
    for split in ("train", "test"):
        write(root / "femnist" / split, {"ann": ((pixels(3) / 255).tolist(), list(labels.values()))})
    dataset = load_dataset(DataConfig(source="femnist"))
    assert dataset.num_classes == 62 and [dataset.classes[label] for label in dataset.train.y] == list(labels)
    assert "no training sample: 59 of 62 classes (0, 1, 2, 3, 4, 6, 7, 8, 9, B, C, D, ...)" in dataset.reading


def test_shakespeare_predicts_the_next_letter(root):
    play = 'Romeo!\nWherefore art thou "Romeo" & (not) [4:2]?' * 4
    users = {f"role{r}": ([play[i : i + 80] for i in range(r, r + 5)], [play[i + 80] for i in range(r, r + 5)])
             for r in range(0, 30, 10)}  # fmt: skip
    write(root / "shakespeare" / "train", users)
    write(root / "shakespeare" / "test", {"role0": ([play[41:121]], [play[121]])})
    dataset = load_dataset(DataConfig(source="shakespeare", leak_check=False))
    assert dataset.input_shape == (80,) and dataset.num_classes == 80 and dataset.vocabulary.size == 82
    first = dataset.train.group == 1  # role10
    assert ["".join(LETTERS[i] for i in row) for row in dataset.train.x[first]] == users["role10"][0]
    assert [LETTERS[i] for i in dataset.train.y[first]] == users["role10"][1]


def test_stack_overflow_is_texts_with_tags(root):
    users = {"ann": (["how to sort a list", "sort a map"], ["python", "java"]), "bob": ([["why", "sort"]], ["java"])}
    write(root / "stack_overflow" / "train", users)
    write(root / "stack_overflow" / "test", {"eve": (["sort why"], ["python"])})
    dataset = load_dataset(DataConfig(source="stack_overflow", tokenizer="train", max_length=16))
    assert dataset.classes == ("java", "python") and dataset.train.x.shape == (3, 16)
    by_user = {group: dataset.train.y[dataset.train.group == group].tolist() for group in (0, 1)}
    assert by_user == {0: [1, 0], 1: [0]}
    with pytest.raises(DataError, match=r"samples are texts; set data.tokenizer to `train`"):
        load_dataset(DataConfig(source="stack_overflow"))


@pytest.mark.parametrize(
    ("x", "y", "match"),
    [
        ([[0.5] * 784], [1, 2], "user ann has 1 samples and 2 labels"),
        ([[0.5] * 784], [0.5], "label column .y. holds real numbers"),
        ([[0.5] * 784, [0.5] * 783], [0, 1], "samples are not equally many numbers"),
        ([[float("nan")] * 784], [0], "row 0: .*nan.* is not a finite 32-bit number"),
        ([], [], "no user has a sample"),
        ([[0.5] * 784] * 2, [0, 10**9], "value 1000000000 in all_data_0.json row 1 is not a class, 0..61"),
        ({"0": [0.5]}, [1], "x and y of user ann are not lists"),
        ([[], []], [0, 1], "a sample has no number"),
        ([[10**400] * 784], [0], "samples are not equally many numbers"),
    ],
)
def test_errors(root, x, y, match):
    write(root / "femnist" / "train", {"ann": (x, y)})
    with pytest.raises(DataError, match=match):
        load_dataset(DataConfig(source="femnist"))


def test_a_missing_folder_and_a_damaged_file(root):
    with pytest.raises(DataError, match=r"looked for LEAF's files .*femnist/\{train,test\}/\*.json; run LEAF's"):
        load_dataset(DataConfig(source="femnist"))
    (root / "femnist" / "train").mkdir(parents=True)
    (root / "femnist" / "train" / "all.json").write_text('{"users": ["a"]')
    with pytest.raises(DataError, match=r"all.json is not a file of LEAF with users and user_data \(JSONDecodeError"):
        load_dataset(DataConfig(source="femnist"))


def test_shakespeare_takes_no_tokenizer_and_no_empty_texts(root):
    write(root / "shakespeare" / "train", {"role": (["", ""], ["a", "b"])})
    with pytest.raises(DataError, match="all samples are empty texts"):
        load_dataset(DataConfig(source="shakespeare", test_fraction=0))
    with pytest.raises(ConfigError, match="tokenizer is not for shakespeare"):
        load_dataset(DataConfig(source="shakespeare", tokenizer="train"))


QUESTIONS = ["how to sort a list", "sort a map", "why sort"]
TAGS = ["python", "java", "java"]


def questions(root):
    for split in ("train", "test"):
        write(root / "stack_overflow" / split, {"ann": ([f"{split} {text}" for text in QUESTIONS], TAGS)})
    return {"source": "stack_overflow", "tokenizer": "train", "max_length": 8}


@pytest.mark.parametrize(
    ("option", "value"), [("prompt", "q: {x}"), ("text", ["nonsense"]), ("words", {"java": "tea"})]
)
@pytest.mark.parametrize("known", [False, True])
def test_options_of_text_are_refused_whatever_is_in_the_cache(root, own_cache, option, value, known):
    section = questions(root)
    if known:
        load_dataset(DataConfig(**section))
    with pytest.raises(ConfigError, match=rf"data.{option}: the texts of stack_overflow are read as they are"):
        load_dataset(DataConfig(**section, **{option: value}))


def test_shakespeare_has_the_length_of_its_texts(root):
    write(root / "shakespeare" / "train", {"role": (["to be", "or not"], ["a", "b"])})
    with pytest.raises(ConfigError, match="max_length is not for shakespeare"):
        load_dataset(DataConfig(source="shakespeare", test_fraction=0, max_length=20))
    private = load_dataset(DataConfig(source="shakespeare", test_fraction=0))
    public, _ = load_proxy(ProxyConfig(source="shakespeare", test_fraction=0), private)
    assert np.array_equal(public.x, private.train.x)
    with pytest.raises(DataError, match="letters as tokens, unlike the private text"):
        load_proxy(ProxyConfig(source="shakespeare", test_fraction=0), load_dataset(DataConfig(**questions(root))))


def test_texts_of_leaf_are_public_text_and_a_task_of_a_union(root, tmp_path):
    """Ids are the places in the vocabulary file, between [CLS] 1 and [SEP] 2."""
    from transformers import BertTokenizer

    tokens = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "train", "how", "to", "sort", "a", "list", "map", "why"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    section = questions(root) | {"tokenizer": str(tmp_path / "bert")}
    ids = [[1, 5, 6, 7, 8, 9, 10, 2], [1, 5, 8, 9, 11, 2, 0, 0], [1, 5, 12, 8, 2, 0, 0, 0]]
    private = load_dataset(DataConfig(**section))
    public, _ = load_proxy(ProxyConfig(source="stack_overflow"), private)
    assert private.train.x.tolist() == public.x.tolist() == ids
    sets = [{"source": "stack_overflow", "name": name} for name in ("one", "two")]
    union = section | {"source": "union", "options": {"sets": sets}}
    both = load_dataset(DataConfig(**union))
    assert both.classes == ("one:java", "one:python", "two:java", "two:python") and both.train.x.tolist() == 2 * ids
    with pytest.raises(DataError, match=rf"Parquet files in {root}/stack_overflow; .*LEAF's if data.tokenizer"):
        load_dataset(DataConfig(**union | {"tokenizer": "train"}))
