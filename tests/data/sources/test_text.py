"""Text as token ids: tokenizers, columns, rows without labels, public text, the way to a model; every error a user can
meet."""

import json
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pytest
import torch

from flray.config.loader import load_config
from flray.contracts.played import Local
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ConfigError, DataError
from flray.data import (
    SOURCES,
    Batches,
    DataConfig,
    LabelWarning,
    Normalizer,
    ProxyConfig,
    Split,
    Splits,
    Vocabulary,
    load_dataset,
    load_proxy,
)
from flray.data.sources.text import trained
from tests.support.data_files import names, tokens, write
from tests.support.messages import facts, mistakes, with_options

GOOD, BAD, REST = (
    ["great", "lovely", "superb", "touching"],
    ["dull", "awful", "tedious", "stale"],
    ["film", "plot", "cast", "the", "a"],
)


def sentences(n, seed):
    """Texts of 3 to 8 words, alternately bad (0) and good (1)."""
    draw = np.random.default_rng(seed)
    words = [[*draw.choice(REST, 3), *draw.choice((BAD, GOOD)[i % 2], draw.integers(1, 6))] for i in range(n)]
    return [" ".join(draw.permutation(w)).capitalize() + "." for w in words]


def load(source, **kw):
    return load_dataset(
        DataConfig(source=source, **{"tokenizer": "train", "max_length": 12, "leak_check": False, **kw})
    )


@pytest.fixture
def root(root):
    """`films`: 60 train and 20 test sentences; `pairs`: premise and hypothesis with rows without a label; `tweets`:
    bare labels."""
    for split, n, seed in (("train", 60, 0), ("validation", 20, 1)):
        y = pa.array(np.arange(n) % 2)
        write(
            root / "films",
            split,
            {"sentence": sentences(n, seed), "label": y, "idx": pa.array(range(n))},
            names("bad", "good"),
        )
    for split, n in (("train", 24), ("test", 8)):
        two = {"premise": sentences(n, 2), "hypothesis": sentences(n, 3), "genre": ["x"] * n}
        write(root / "pairs", split, {**two, "label": pa.array(np.arange(n) % 4 - 1)}, names("yes", "maybe", "no"))
    for split, marks in (("train", [0, 4] * 8), ("test", [0, 2, 4, 2])):
        columns = {"text": sentences(len(marks), 5), "user": ["u"] * len(marks), "sentiment": pa.array(marks)}
        write(root / "sentiment140", split, columns)
    return root


@pytest.fixture
def bert(tmp_path):
    """A BERT tokenizer of 27 tokens, saved by transformers itself."""
    from transformers import BertTokenizer

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GOOD, *BAD, *REST, ".", "##s", "##er", "!", "?"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    folder = tmp_path / "bert"
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(folder)
    return folder


# ids ------------------------------------------------------------------------------------------
def test_ids_are_those_of_the_tokenizer_itself(root, bert):
    """Transformers' own call with padding and truncation, for sentences and for pairs (8 tokens: the longer text is cut
    first)."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(bert)
    d = load("films", tokenizer=str(bert))
    expected = theirs(sentences(60, 0), padding="max_length", truncation=True, max_length=12)["input_ids"]
    assert d.train.x.dtype == np.int32 and d.train.x.tolist() == expected
    assert d.vocabulary[:3] == (len(theirs), theirs.pad_token_id, theirs.sep_token_id) and d.input_shape == (12,)
    assert d.train.y.tolist() == [0, 1] * 30 and d.classes == ("bad", "good") and not d.is_image and d.mean == ()
    assert (
        d.test.x.tolist() == theirs(sentences(20, 1), padding="max_length", truncation=True, max_length=12)["input_ids"]
    )
    labelled = [i for i in range(24) if i % 4]
    first, second = ([texts[i] for i in labelled] for texts in (sentences(24, 2), sentences(24, 3)))
    with pytest.warns(LabelWarning):
        pairs = load("pairs", tokenizer=str(bert), max_length=8)
    assert (
        pairs.train.x.tolist()
        == theirs(first, second, padding="max_length", truncation=True, max_length=8)["input_ids"]
    )


def test_ids_of_a_tokenizer_may_have_gaps(root, tmp_path):
    """A model needs a row for the largest id, 40, though there are five tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, GOOD[0]: 7, BAD[0]: 12, REST[0]: 40}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.save_pretrained(tmp_path / "gaps")
    dataset = load("films", tokenizer=str(tmp_path / "gaps"))
    assert dataset.vocabulary.size == 41 and set(np.unique(dataset.train.x)) <= {0, 1, 7, 12, 40}


def test_a_trained_vocabulary_has_whole_words(root):
    d = load("films")
    text = sentences(60, 0)[7].lower().rstrip(".").split()
    assert tokens(d.vocabulary, d.train.x[7]).split() == ["[CLS]", *text, ".", "[SEP]"]
    assert d.vocabulary[:3] == (d.vocabulary.size, 0, 3) and d.train.x.max() < d.vocabulary.size
    description = json.loads(d.vocabulary.tokenizer.tobytes())
    assert [token["content"] for token in description["added_tokens"]] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_text_in_arrows_views_is_text(root):
    """`string_view`, which polars and newer writers of Parquet use, also of labels."""
    for name, kind in (("views", pa.string_view()), ("plain", pa.string())):
        for split, n in (("train", 12), ("test", 6)):
            labels = pa.array(["bad", "good"] * (n // 2)).cast(kind)
            write(root / name, split, {"text": pa.array(sentences(n, n)).cast(kind), "label": labels})
    views, plain = load("views"), load("plain")
    assert views.train.x.tolist() == plain.train.x.tolist() and views.classes == plain.classes == ("bad", "good")


def test_words_of_a_csv_file_that_mean_no_text_are_named(tmp_path):
    rows = [f"{text},{k % 2}" for k, text in enumerate(sentences(20, 1))]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows[:7], "None,1", *rows[7:], "n/a,0"]))
    with pytest.raises(
        DataError, match=r"'text' has no text in train row 7 \(2 such rows\); .* file has 'None', which"
    ):
        load(f"hf:{tmp_path}/a.csv", test_fraction=0)


def test_texts_that_the_cut_made_equal_are_no_leak_of_the_files(tmp_path):
    """20 train and 10 test texts that differ in their last word, which 6 tokens do not hold."""
    for split, n in (("train", 20), ("test", 10)):
        texts = [f"a film so good and {split} number {k % 2} of {k}" for k in range(n)]
        write(tmp_path / "set", split, {"text": texts, "label": pa.array(np.arange(n) % 2)})
    cut = {"source": "set", "root": str(tmp_path), "tokenizer": "train", "max_length": 6}
    with pytest.raises(DataError, match=r"10 of 10 .* split as data.max_length 6 leaves them, .*set max_length other"):
        load_dataset(DataConfig(**cut))
    load_dataset(DataConfig(**{**cut, "max_length": 30}))


def test_a_vocabulary_is_trained_on_train_alone(root):
    """A word that only the test split has is spelled from pieces, as is one that occurs once."""
    odd = ["film xylophone", "xylophone film", "xylophone plot"]
    label = {"label": pa.array([0, 1, 1])}
    write(root / "odd", "train", {"text": ["film jukebox", "plot film", "a film"], **label}, names("a", "b"))
    write(root / "odd", "test", {"text": odd, **label}, names("a", "b"))
    d = load("odd", max_length=20)
    assert tokens(d.vocabulary, d.train.x[0]).startswith("[CLS] film j ")
    assert tokens(d.vocabulary, d.train.x[1]).endswith(" film [SEP]")
    assert tokens(d.vocabulary, d.test.x[0]).split()[1:3] == ["film", "[UNK]"]  # no x in train


def test_the_same_text_gives_the_same_vocabulary(root):
    """The library's trainer numbers pieces in the order of a hash map, another one at every call: left alone, it fails
    this test."""
    texts = [sentences(60, 0)]
    first = trained(texts)
    assert all(trained(texts).fingerprint == first.fingerprint for _ in range(8))
    other = trained([sentences(60, 9)])
    assert other.fingerprint != first.fingerprint


def test_tokenised_once_for_each_tokenizer_and_length(root, bert, monkeypatch):
    first, other, longer = load("films"), load("films", tokenizer=str(bert)), load("films", max_length=20)
    assert len({d.fingerprint for d in (first, other, longer)}) == 3 and longer.input_shape == (20,)
    assert isinstance(first.train.x.base, np.memmap) and not first.train.x.flags.writeable
    from flray.data.sources import text

    monkeypatch.setattr(text, "encode", None)
    assert (
        load("films").fingerprint == first.fingerprint
        and load("films", tokenizer=str(bert)).fingerprint == other.fingerprint
    )
    (bert / "tokenizer.json").write_text((bert / "tokenizer.json").read_text().replace('"superb"', '"sublime"'))
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):  # another tokenizer under the same name
        load("films", tokenizer=str(bert))


# columns and rows --------------------------------------------------------------------------------
def test_columns(root):
    label = {"label": pa.array([0, 1])}
    write(
        root / "both",
        "train",
        {"title": ["a plot", "a cast"], "content": ["the film", "dull"], **label},
        names("a", "b"),
    )
    write(root / "large", "train", {"text": pa.array(["a plot", "dull"], pa.large_string()), **label}, names("a", "b"))
    one, two = load("both", text="content", test_fraction=0), load("both", text=["title", "content"], test_fraction=0)
    assert (one.train.x == 3).sum(axis=1).tolist() == [1, 1] and (two.train.x == 3).sum(axis=1).tolist() == [2, 2]
    assert load("large", test_fraction=0).train.x.shape == (2, 12)
    question = {"question": ["who", "why"], "sentence": ["a film", "the cast"], **label}
    write(root / "questions", "train", question, names("a", "b"))
    assert (load("questions", test_fraction=0).train.x == 3).sum() == 4


def test_rows_without_a_label_are_left_out_with_a_note(root):
    with pytest.warns(LabelWarning) as caught:
        d = load("pairs")
    assert [str(w.message).split("pairs: ")[1] for w in caught if w.category is LabelWarning] == [
        "6 of 24 rows of train without a label are left out", "2 of 8 rows of test without a label are left out",
    ]  # fmt: skip
    assert d.train.y.tolist() == [0, 1, 2] * 6 and d.classes == ("yes", "maybe", "no") and len(d.test.y) == 6
    with pytest.warns(LabelWarning):  # from the cache as well
        load("pairs")


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        ([-1, 0, 1], [0, 1, -1], r"label is -1 in train.parquet row 0 \(8 rows below 0\): a class, or no label\?"),
        ([2, 1, -2, 0], [0, 1], "is -2 in train.parquet row 2 .6 rows below 0"),
        ([0, 1], [0, -1], "is -1 in test.parquet row 1 .3 rows below 0"),
        # GLUE's hidden labels
        ([0, 1], [-1], r"no row of test has a label; name a labelled split with options: \{test: NAME\}"),
        ([-1, 1], [1, -1], None),  # the two classes of a margin, as of numbers
    ],
)
def test_bare_labels_below_0_are_no_missing_labels_in_silence(root, train, test, says):
    """As many rows as are written, or one line."""
    for split, n, marks in (("train", 24, train), ("test", 6, test)):
        write(root / "bare", split, {"text": sentences(n, 7), "label": pa.array(np.resize(marks, n))})
    if says is None:
        dataset = load("bare")
        assert dataset.classes == ("-1", "1") and dataset.train.y.tolist() == [0, 1] * 12
        return
    with pytest.raises(DataError, match=says.replace("label is", "label column 'label' is")):
        load("bare")


def test_sentiment140_has_two_classes(root):
    (root / "other").mkdir(exist_ok=True)
    shutil.copytree(root / "sentiment140", root / "other/sentiment140")
    for place in (root / "sentiment140", root / "other/sentiment140"):  # the same contents, which are read once
        text = f"^{place}: 2 of 4 rows of test with other labels than 0, 4 are left out"
        with pytest.warns(LabelWarning, match=text):
            d = load(f"hf:{place}", group="user")
    assert d.classes == ("negative", "positive") and d.train.y.tolist() == [0, 1] * 8 and d.test.y.tolist() == [0, 1]
    assert (
        tokens(d.vocabulary, d.test.x[1]).split()[1:3] == sentences(4, 5)[2].lower().split()[:2]
        and d.train.group.tolist() == [0] * 16
    )


@pytest.mark.parametrize(
    "named", [None, names("1 star", "2 star", "3 stars", "4 stars", "5 stars")], ids=["bare labels", "class names"]
)
def test_marc_and_yelp_have_one_label_space(root, named):
    """MARC's stars are bare numbers 0 to 4 on the hub, Yelp's have names; FedProj's Table 2 needs them to be the same
    classes."""
    stars = pa.array(np.arange(10) % 5)
    for split in ("train", "test"):
        columns = {"id": ["x"] * 10, "text": sentences(10, len(split)), "label": stars, "label_text": ["0"] * 10}
        write(root / "amazon_reviews_multi", split, columns, named)
    write(
        root / "yelp",
        "train",
        {"text": sentences(10, 8), "label": stars},
        names("1 star", "2 star", "3 stars", "4 stars", "5 stars"),
    )
    marc = load("amazon_reviews_multi")
    assert (
        marc.classes == ("1 star", "2 star", "3 stars", "4 stars", "5 stars")
        and marc.train.y.tolist() == [0, 1, 2, 3, 4] * 2
    )
    assert load_proxy(ProxyConfig(source="yelp", same_labels=True, test_fraction=0), marc)[0].same_labels


# public text ---------------------------------------------------------------------------------------
def test_public_text_has_the_ids_of_the_private_vocabulary(root):
    d = load("films")
    public = ProxyConfig(source="sentiment140", options={"train": "train"}, splits="all")
    with pytest.warns(LabelWarning):
        proxy, private = load_proxy(public, d)
    assert proxy.x.shape == (18, 12) and proxy.x.dtype == np.int32 and len(private) == 60 and not proxy.same_labels
    text = sentences(16, 5)[3].lower().rstrip(".").split()
    assert tokens(d.vocabulary, proxy.x[3]).split() == ["[CLS]", *text, ".", "[SEP]"]
    other = load("films", max_length=20)
    with pytest.warns(LabelWarning):
        longer, _ = load_proxy(public, other)
    assert longer.x.shape == (18, 20) and longer.fingerprint != proxy.fingerprint


def test_public_labels_are_numbers_of_the_tasks_classes_by_name(root):
    """0 is `good` in one set and `bad` in the other, so the labels 0, 1, 1 of good, bad, bad are 1, 0, 0."""
    d = load("films")
    label = {"label": pa.array([0, 1, 1])}
    write(root / "agree", "train", {"text": sentences(3, 8), **label}, names("bad", "good"))
    write(root / "swapped", "train", {"text": sentences(3, 8), **label}, names("good", "bad"))
    same, _ = load_proxy(ProxyConfig(source="agree", same_labels=True, test_fraction=0), d)
    assert same.same_labels and same.y.tolist() == [0, 1, 1]
    swapped, _ = load_proxy(ProxyConfig(source="swapped", same_labels=True, test_fraction=0), d)
    assert swapped.same_labels and swapped.y.tolist() == [1, 0, 0]
    write(root / "other", "train", {"text": sentences(3, 8), **label}, names("bad", "fine"))
    with pytest.raises(DataError, match=r"proxy 'other' has the class 'fine', which films does not have \(bad, good\)"):
        load_proxy(ProxyConfig(source="other", same_labels=True, test_fraction=0), d)
    assert not load_proxy(ProxyConfig(source="swapped", test_fraction=0), d)[0].same_labels


# the way to a model ----------------------------------------------------------------------------------
def test_a_model_gets_int64_ids(root):
    d = load("films")
    normalizer = Normalizer(d.mean, d.std)
    batches = Batches(
        d.train.x, d.train.y, np.arange(5), batch_size=4, epochs=1, rng=None, normalizer=normalizer, augment=d.augment
    )
    got = list(batches)
    assert all(batch.x.dtype == torch.int64 and batch.y.dtype == torch.int64 for batch in got)
    assert torch.cat([batch.x for batch in got]).tolist() == d.train.x[:5].tolist()
    shape = d.input_shape
    assert shape == (12,) and shape.vocabulary is d.vocabulary


def test_own_source_of_token_ids(root):
    x = np.arange(24, dtype=np.int32).reshape(4, 6)

    def splits(vocabulary):
        return Splits(Split(x, np.array([0, 1, 0, 1])), None, ("a", "b"), vocabulary=vocabulary)

    SOURCES.add("ids", lambda config: splits(Vocabulary(24, 0, 3)))
    SOURCES.add("bare ids", lambda config: splits(None))
    d = load_dataset(DataConfig(source="ids", test_fraction=0))
    assert d.input_shape.vocabulary.size == 24 and np.array_equal(d.train.x, x)
    with pytest.raises(DataError, match="return int32 token ids with a vocabulary"):
        load_dataset(DataConfig(source="bare ids"))
    with pytest.raises(DataError, match="the private data have no tokenizer"):
        load_proxy(ProxyConfig(source="films"), d)


def test_fedproj_learns_which_words_are_good(root, tmp_path):
    """The engine's server and clients in this process: BERT, public text of the same classes, personalised and global
    test."""
    y = pa.array(np.arange(40) % 2)
    write(root / "reviews", "train", {"text": sentences(40, 7), "label": y}, names("bad", "good"))
    experiment = load_config(
        {
            "rounds": 4,
            "data": {"source": "films", "tokenizer": "train", "max_length": 12, "leak_check": False},
            "proxy": {"source": "reviews", "same_labels": True, "test_fraction": 0},
            "partition": {"name": "label_skew", "clients": 4, "classes_per_client": 1},
            "model": {"name": "bert", "hidden": 16, "intermediate": 32, "layers": 1},
            "algorithm": {
                "name": "fedproj",
                "optimizer": "adam",
                "lr": 0.01,
                "local_epochs": 3,
                "batch_size": 10,
                "distill_lr": 0.003,
            },
        }
    )[0]
    assert load_config(experiment.dump())[0] == experiment
    local = Local(experiment, tmp_path)
    state, runtime = local.play(4), local.server.runtime
    ctx = runtime.context(Clock(0, 4, done=4))
    (counts,) = runtime.evaluate(runtime.algorithm.published(ctx, state), ctx).values()
    assert counts.examples == 20 and counts.right.sum() >= 18
    assert len(state.rule.logits) == 40 and local.rows[0]["proxy_examples"] == 6 * 40


@pytest.mark.parametrize(
    ("given", "says"),
    mistakes("""
films {tokenizer: null} | films: text (columns sentence) needs a tokenizer; set data.tokenizer to `train`
films {text: sentense} | no text column 'sentense' for data.text (did you mean 'sentence'?)
films {text: [sentence, sentence]} | data.text names 'sentence' twice
films {text: idx} | no text column 'idx' for data.text (valid: sentence)
films {input: sentence} | data.input is not for text
films {tokenizer: nobody/no-such} | 'nobody/no-such' cannot be loaded
     | folder that holds it, set `download: true`, or `tok
films {tokenizer: '{root}'} | cannot be loaded | give a folder
films {pca: 2} | data.pca: not an option for text, which source 'films' has
films {normalize: half} | data.normalize: not an option for text
films {options: {trian: train}} | films does not read 'trian' (did you mean 'train'
films {options: {test: dev}} | has no dev split (it has train, validation); choose one with options: {test: NAME}
many | the text column is not clear; set data.text to one of word, sentence1, sentence2, or to two
gaps | column 'text' has no text in train.parquet row 1 (1 such rows); fill or remove them
numbers | no text column for data.tokenizer; leave it out
alone | no test split, so | train on test samples; set it to | folder, or data.test_fraction to 0
synthetic {max_length: 128} | data.tokenizer: not an option for images, which source 'synthetic' has
nopad {tokenizer: '{root}/nopad-tokenizer'} | has no padding token; choose another
odd {test_fraction: 0} | value -2 in train.parquet row 3 is not a class, 0..1
"""),
)
def test_errors(root, given, says):
    source, kw = with_options(given)
    label = {"label": pa.array([0, 1])}
    two = {"sentence1": ["a", "b"], "sentence2": ["a", "b"]}
    write(root / "many", "train", {"word": ["a", "b"], **two, **label}, names("a", "b"))
    write(root / "odd", "train", {"text": sentences(4, 7), "label": pa.array([0, 1, -1, -2])}, names("a", "b"))
    write(root / "gaps", "train", {"text": ["a", None], **label}, names("a", "b"))
    write(root / "numbers", "train", {"x": pa.array([1.0, 2.0]), **label}, names("a", "b"))
    write(root / "alone", "train", {"text": ["a", "b"], **label}, names("a", "b"))
    if source == "nopad":
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        write(root / "nopad", "train", {"text": ["a", "b"], **label}, names("a", "b"))
        model = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
        PreTrainedTokenizerFast(tokenizer_object=model).save_pretrained(root / "nopad-tokenizer")
    kw = {name: value.format(root=root) if isinstance(value, str) else value for name, value in kw.items()}
    with pytest.raises((DataError, ConfigError), match=facts(*says)):
        load(source, **kw)


def test_proxy_errors(root):
    d = load("films")
    for option in ({"tokenizer": "train"}, {"max_length": 20}):
        with pytest.raises(ConfigError, match=f"proxy.{next(iter(option))}: public text uses the private text's"):
            ProxyConfig(source="pairs", **option)
    with pytest.raises(DataError, match="uniform_box needs tabular features and 'films' has text"):
        load_proxy(ProxyConfig(source="uniform_box"), d)
    write(root / "numbers", "train", {"x": pa.array([1.0, 2.0]), "label": pa.array([0, 1])}, names("a", "b"))
    with pytest.raises(DataError, match="no text column for data"):
        load_proxy(ProxyConfig(source="numbers"), d)


# real data -------------------------------------------------------------------------------------------
def test_real_text_sets(real_root):
    """Rows and class names as in the data's own README; the label orders of private and public set agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelWarning)
        mnli = load_dataset(DataConfig(source="mnli", tokenizer="train", max_length=32))
        assert (len(mnli.train.y), len(mnli.test.y)) == (3000, 7469) and mnli.classes == (
            "entailment",
            "neutral",
            "contradiction",
        )
        snli, _ = load_proxy(
            ProxyConfig(source="snli", options={"train": "validation"}, splits="all", same_labels=True), mnli
        )
        assert snli.x.shape == (9842 + 9824, 32) and snli.same_labels
        tweets = load_dataset(DataConfig(source="sentiment140", tokenizer="train", max_length=32))
        assert np.bincount(tweets.train.y).tolist() == [5005, 4996] and np.bincount(tweets.test.y).tolist() == [
            177,
            182,
        ]
