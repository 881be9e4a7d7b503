"""Prompts and words of text to text, for one data set and for a union of several: ids, words, every error."""

import numpy as np
import pyarrow as pa
import pytest
import yaml

from flray.core.schema.errors import ConfigError, DataError
from flray.data import CutWarning, DataConfig, ProxyConfig, load_dataset, load_proxy
from flray.data.published import ONE_TOKEN, TEXT_TO_TEXT
from flray.data.sources.text import fields, trained, with_words
from tests.support.data_files import names, tokens, write


def load(source, **kw):
    return load_dataset(
        DataConfig(source=source, **{"tokenizer": "train", "max_length": 24, "leak_check": False, **kw})
    )


@pytest.fixture
def root(root):
    """`sst2`, `rte` and `mnli` with their own columns and classes; `films` is known to nobody."""
    films = [f"{word} film number {row % 5}" for row, word in enumerate(["dull", "great"] * 10)]
    for split, n in (("train", 20), ("validation", 6)):
        y = pa.array(np.arange(n) % 2)
        two = {"sentence1": [f"{t} one" for t in films[:n]], "sentence2": [f"{t} two" for t in films[:n]]}
        write(root / "sst2", split, {"sentence": films[:n], "label": y}, names("negative", "positive"))
        write(root / "films", split, {"review": films[:n], "label": y}, names("bad", "good"))
        write(root / "rte", split, {**two, "label": y}, names("entailment", "not_entailment"))
        three = {"premise": films[:n], "hypothesis": films[:n], "label": pa.array(np.arange(n) % 3)}
        write(root / "mnli", split, three, names("entailment", "neutral", "contradiction"))
    return root


@pytest.fixture
def t5(root):
    """A tokenizer like T5's: SentencePiece's unigram model with sentinels, </s> at the end, no separator."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = "▁sst 2 ▁sentence : ▁rte ▁dull ▁great ▁film ▁number ▁not _ ▁en tail ment ▁negative ▁positive 1"
    pieces = ["<pad>", "</s>", "<unk>", *words.split(), *"▁abcdefghijklmnopqrstuvwxyz", "0", "3", "4"]
    made = Tokenizer(models.Unigram([(piece, -float(len(pieces) - n)) for n, piece in enumerate(pieces)], unk_id=2))
    made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    made.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>"])
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder = root / "t5"
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>").save_pretrained(folder)
    return folder


def test_a_known_set_has_its_prompt_and_its_words(root):
    d = load("sst2", words=True)
    assert tokens(d.vocabulary, d.train.x[1]) == "[CLS] sst2 sentence : great film number 1 [SEP]"
    assert tokens(d.vocabulary, d.vocabulary.labels) == "negative positive"
    assert (d.vocabulary.task_of, d.vocabulary.tasks, d.classes) == ((0, 0), (), ("negative", "positive"))
    pair = load("rte", words=True)
    assert tokens(pair.vocabulary, pair.train.x[0]) == (
        "[CLS] rte sentence1 : dull film number 0 one sentence2 : dull film number 0 two [SEP]"
    )


def test_without_words_nothing_is_another(root):
    """The same cache entry and fingerprint as the text alone; a prompt or words make another one each."""
    plain, prompt, words = load("sst2"), load("sst2", prompt=TEXT_TO_TEXT["sst2"][0]), load("sst2", words=True)
    assert tokens(plain.vocabulary, plain.train.x[1]) == "[CLS] great film number 1 [SEP]"
    assert plain.vocabulary.labels == () and prompt.vocabulary.labels == ()
    assert tokens(prompt.vocabulary, prompt.train.x[1]) == tokens(words.vocabulary, words.train.x[1])
    other = load("sst2", words={"negative": "bad", "positive": "good"})
    assert len({d.fingerprint for d in (plain, prompt, words, other)}) == 4
    assert tokens(other.vocabulary, other.vocabulary.labels) == "bad good"
    assert load("sst2", words=True).fingerprint == words.fingerprint


def test_words_and_prompt_of_ones_own(root):
    d = load("films", prompt="{review} It was", words={"good": "Xylophonic", "bad": "terrible"})
    assert tokens(d.vocabulary, d.train.x[0]) == "[CLS] dull film number 0 it was [SEP]"
    assert tokens(d.vocabulary, d.vocabulary.labels) == "terrible xylophonic", "in the order of the classes"


def test_known_words_are_told_apart_by_their_first_tokens():
    """Of a trained tokenizer, also where the text has none of their letters: `not_entailment` is `not _ entailment`."""
    columns = ["sentence", "sentence1", "sentence2", "question", "question1", "question2", "premise", "hypothesis"]
    columns += ["passage", "word", "text", "title", "content"]
    for source, (prompt, words) in TEXT_TO_TEXT.items():
        for own in (words, ONE_TOKEN[source]):
            made = trained([["ab ab"]], list(own.values()))
            found = with_words(made, list(own), list(own.values()), "here")
            firsts = [word.partition("_")[0].lower() for word in own.values()]
            assert tokens(made, found.labels) == " ".join(firsts) and len(set(firsts)) == len(words)
        assert fields(DataConfig(source="x"), prompt, columns, "here")


@pytest.mark.parametrize(
    "source, prompt, words",
    [
        ("cola", "cola sentence: {sentence}", "unacceptable acceptable"),
        ("sst2", "sst2 sentence: {sentence}", "negative positive"),
        ("mrpc", "mrpc sentence1: {sentence1} sentence2: {sentence2}", "not_equivalent equivalent"),
        ("qqp", "qqp question1: {question1} question2: {question2}", "not_duplicate duplicate"),
        ("mnli", "mnli hypothesis: {hypothesis} premise: {premise}", "entailment neutral contradiction"),
        ("qnli", "qnli question: {question} sentence: {sentence}", "entailment not_entailment"),
        ("rte", "rte sentence1: {sentence1} sentence2: {sentence2}", "entailment not_entailment"),
        ("cb", "cb hypothesis: {hypothesis} premise: {premise}", "entailment neutral contradiction"),
        ("boolq", "boolq passage: {passage} question: {question}", "False True"),
        ("wic", "wic sentence1: {sentence1} sentence2: {sentence2} word: {word}", "False True"),
    ],
)
def test_prompts_and_words_of_glue_are_those_of_t5(source, prompt, words):
    """Raffel et al. 2020, appendix D: the task's name, `column: text` in alphabetical order, the class's name."""
    assert TEXT_TO_TEXT[source] == (prompt, {word: word for word in words.split()})


def test_the_words_of_one_token_are_an_option(root):
    """The prompt is the same; `entailment` is then `yes`."""
    own, other = load("rte", words=True), load("rte", words="one_token")
    assert tokens(own.vocabulary, own.vocabulary.labels) == "entailment not"
    assert tokens(other.vocabulary, other.vocabulary.labels) == "yes no" and other.fingerprint != own.fingerprint
    assert tokens(own.vocabulary, own.train.x[3]) == tokens(other.vocabulary, other.train.x[3])
    both = load("union", words="one_token", options={"sets": ["sst2", "mnli"]})
    assert tokens(both.vocabulary, both.vocabulary.labels) == "negative positive yes maybe no"
    with pytest.raises(ConfigError, match=r"data.words: 'one_tokens' is not allowed; write true, one_token or"):
        DataConfig(source="rte", words="one_tokens")


def test_sentencepiece_words_and_sentinels(root, t5):
    d = load("sst2", tokenizer=str(t5), words=True)
    assert tokens(d.vocabulary, d.train.x[1]) == "▁sst 2 ▁sentence : ▁great ▁film ▁number ▁ 1 </s>"
    assert tokens(d.vocabulary, d.vocabulary.labels) == "▁negative ▁positive" and d.vocabulary.separator == -1
    both = load("union", tokenizer=str(t5), words=True, options={"sets": ["sst2", "rte"]})
    assert tokens(both.vocabulary, both.vocabulary.labels) == "▁negative ▁positive ▁en ▁not"
    assert tokens(both.vocabulary, both.vocabulary.tasks) == "<extra_id_0> <extra_id_1>"
    assert tokens(both.vocabulary, both.train.x[1]) == f"<extra_id_0> {tokens(d.vocabulary, d.train.x[1])}"
    with pytest.raises(
        DataError, match=r"texts of 3 tasks begin with .*, and the tokenizer has neither <extra_id_0> to"
    ):
        load("union", tokenizer=str(t5), words=True, options={"sets": ["sst2", "rte", {"source": "sst2", "name": "b"}]})


def test_texts_that_are_cut_off_are_counted(root):
    with pytest.warns(CutWarning) as caught:
        d = load("rte", max_length=10)
        load("union", max_length=10, words=True, options={"sets": ["rte", {"source": "sst2", "train_size": 4}]})
    assert [str(w.message) for w in caught] == [
        "data set 'rte': 20 of 20 texts of train and 6 of 6 texts of test are longer than data.max_length 10 and "
        "cut off",
        "data set 'union': 20 of 40 texts of train and 6 of 12 texts of test are longer than data.max_length 10 and "
        "cut off",
    ]
    assert d.train.x.shape == (20, 10)


def test_a_union_of_text_has_one_tokenizer_and_classes_of_each_set(root):
    sets = ["sst2", {"source": "mnli", "train_size": 9}, "rte"]
    d = load("union", words=True, options={"sets": sets})
    assert d.sources == ("sst2", "mnli", "rte") and d.train.source.tolist() == [0] * 20 + [1] * 9 + [2] * 20
    assert d.classes[:5] == ("sst2:negative", "sst2:positive", "mnli:entailment", "mnli:neutral", "mnli:contradiction")
    assert d.train.y.tolist() == [0, 1] * 10 + d.train.y[20:29].tolist() + [5, 6] * 10
    assert np.bincount(d.train.y[20:29]).tolist() == [0, 0, 3, 3, 3]
    v = d.vocabulary
    assert tokens(v, v.labels) == "negative positive entailment neutral contradiction entailment not"
    assert v.task_of == (
        0,
        0,
        1,
        1,
        1,
        2,
        2,
    )
    assert d.train.x[:, 0].tolist() == [v.tasks[task] for task in d.train.source], "the task comes first"
    assert (d.test.x[:, 0] == np.array(v.tasks)[d.test.source]).all() and d.train.x.shape == (49, 24)
    assert tokens(v, d.train.x[21]).startswith("<extra_id_1> [CLS] mnli hypothesis : ")
    assert max(v.tasks) < v.size == 1 + max(v.tasks), "a model's embedding has a row for the last task"
    again = load("union", words=True, options={"sets": sets})
    assert again.fingerprint == d.fingerprint and again.vocabulary.labels == v.labels
    bare = load("union", options={"sets": sets})
    assert bare.classes == d.classes and bare.vocabulary.tasks == () and bare.fingerprint != d.fingerprint
    assert tokens(bare.vocabulary, bare.train.x[0]) == "[CLS] dull film number 0 [SEP]"


def test_the_tokenizer_of_a_union_sees_no_text_that_test_samples_are_drawn_from(root):
    """A set whose only split is both: its words are pieces, where a set with a test split brings whole words."""
    odd = {"sentence1": ["zebra quilt"] * 4 + ["zebra"], "sentence2": ["quilt a", "quilt b", "quilt c", "quilt d", "e"]}
    write(root / "rte_alone", "dev", {**odd, "label": pa.array([0, 1, 0, 1, 1])}, names("a", "b"))
    alone = {"source": "rte_alone", "options": {"train": "dev"}, "prompt": "odd {sentence1}"}
    d = load("union", test_fraction=0.2, options={"sets": ["sst2", alone]})
    assert "zebra" not in tokens(d.vocabulary, d.train.x[20]) and "odd" in tokens(d.vocabulary, d.train.x[20])
    assert d.test.source.tolist() == [0] * 6 + [1]
    with pytest.raises(DataError, match="no set of the union has a test split, so `train` would train on test samples"):
        load("union", options={"sets": [alone, {**alone, "name": "b"}]})


def test_public_text_of_a_union_has_the_private_words_and_marks(root):
    sets = ["sst2", "rte"]
    d = load("union", words=True, options={"sets": sets})
    public = {"same_labels": True, "root": str(root), "leak_check": False}
    proxy, _ = load_proxy(ProxyConfig(source="union", options={"sets": sets}, **public), d)
    assert np.array_equal(proxy.x, d.train.x) and np.array_equal(proxy.y, d.train.y) and proxy.same_labels
    alone = load("sst2", words=True)
    assert np.array_equal(load_proxy(ProxyConfig(source="sst2", leak_check=False), alone)[0].x, alone.train.x)
    several, _ = load_proxy(
        ProxyConfig(source="union", options={"sets": sets}, root=str(root), same_labels=False, leak_check=False), alone
    )
    assert np.array_equal(several.x[:20], alone.train.x), "nothing before the texts where the private ones have nothing"
    with pytest.raises(DataError, match="3 sets, and the private text has 2 tasks"):
        load_proxy(ProxyConfig(source="union", options={"sets": [*sets, "mnli"]}, **public), d)
    with pytest.raises(DataError, match="rte, sst2 are in another order than the private sets, sst2, rte"):
        load_proxy(ProxyConfig(source="union", options={"sets": sets[::-1]}, **public), d)
    with pytest.raises(DataError, match="the private data are a union; set it to a union"):
        load_proxy(ProxyConfig(source="sst2"), d)
    with pytest.raises(ConfigError, match=r"proxy.words: public text uses the private text's"):
        ProxyConfig(source="sst2", words=True)


@pytest.mark.parametrize(
    "source, kw, text",
    [
        ("sst2", {"words": {"negative": "so bad", "positive": "so good"}}, r"'so bad' .*'so good' .* token, 'so'"),
        ("sst2", {"words": {"negative": "\U0001f600", "positive": "good"}, "tokenizer": "T5"}, "is unknown to the tok"),
        ("sst2", {"words": {"negative": "bad"}}, "1 words for the 2 classes of .*sst2 .*, and 'positive' has none"),
        ("sst2", {"words": {"negative": "bad", "positive": "good", "so": "x"}}, "3 words for .*there is no class 'so'"),
        ("sst2", {"words": {"negative": "bad", "positive": "bad"}}, "'positive' has the word 'bad' of another class"),
        ("films", {"words": True, "prompt": "{review}"}, "data.words: 'films' has no known words .* bad, good"),
        ("films", {"words": {"bad": "bad", "good": "good"}}, "data.prompt: 'films' has no known prompt .* columns"),
        ("sst2", {"prompt": "sst2: {sentense}"}, r"no text column 'sentense' \(did you mean 'sentence'\?\)"),
        ("sst2", {"prompt": "sst2: {sentence"}, r"data.prompt 'sst2: \{sentence' is damaged .*write \{COLUMN\}"),
        ("sst2", {"prompt": "sst2: {sentence!r}"}, r"write \{sentence\}, the name alone in braces"),
        ("sst2", {"prompt": "sst2 sentence:"}, r"names no column; write \{sentence\} in it"),
        ("sst2", {"words": True, "text": "sentence"}, "data.text: the prompt .* already names"),
        ("empty", {}, r"2 rows have an empty text \(sentence\), the first is train.parquet row 1 "),
        ("sst2", {"words": True, "tokenizer": None}, "needs a tokenizer; set data.tokenizer"),
        ("digits", {"words": True, "tokenizer": None, "max_length": 128}, "data.words: not an option for images"),
        ("union", {"prompt": "{sentence}", "options": {"sets": ["sst2", "rte"]}}, "data.prompt: each set of a union"),
        ("union", {"words": {"a": "b"}, "options": {"sets": ["sst2", "rte"]}}, "write true here, or words in data.opt"),
        ("union", {"options": {"sets": ["sst2", {"source": "rte", "words": True}]}}, "for all sets or for none"),
        ("union", {"options": {"sets": ["sst2", {"source": "rte", "max_length": 8}]}}, "rte: the sets of a union"),
        ("union", {"options": {"sets": ["sst2", "digits"]}}, "'digits' not found.*sets of text are Parquet"),
    ],
)  # fmt: skip
def test_errors(root, t5, source, kw, text):
    if kw.get("tokenizer") == "T5":
        kw = {**kw, "tokenizer": str(t5)}
    write(root / "empty", "train", {"sentence": ["a", " ", ""], "label": pa.array([0, 1, 0])}, names("a", "b"))
    write(root / "empty", "test", {"sentence": ["a", "b"], "label": pa.array([0, 1])}, names("a", "b"))
    with pytest.raises((DataError, ConfigError), match=text):
        load(source, **kw)


def test_words_that_yaml_takes_for_truth_values():
    with pytest.raises(
        ConfigError, match=r"data.words.entailment: YAML reads a bare yes, no, on or off as True; write"
    ):
        DataConfig(source="rte", words=yaml.safe_load("{entailment: yes, not_entailment: no}"))
    found = DataConfig(source="boolq", words=yaml.safe_load("{False: 'no', True: 'yes'}"))
    assert found.words == {"False": "no", "True": "yes"}, "class names may be what YAML takes for truth values"
