"""Text as token ids: prompts of samples and words of classes, the columns, the rows with a label, the tokenizer.

Runs once for a data set.
"""

from __future__ import annotations

import json
import os
import string
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError, DataError, first_line, nearest, shown
from flray.data.cache import Array
from flray.data.data_config import DataConfig
from flray.data.published import ONE_TOKEN, TEXT_TO_TEXT, plain_name
from flray.data.splits import Vocabulary

if TYPE_CHECKING:
    from flray.data.sources.columns import Columns, FeatureTable

MARKS = ("<extra_id_{}>", "[unused{}]")  # tokens without a meaning: T5's sentinels, BERT's unused tokens


def known_name(config: DataConfig) -> str:
    """The name of a data set in `TEXT_TO_TEXT`: `sst2` also for `hf:nyu-mll/glue` with `options: {config: sst2}`."""
    part = config.options.get("config")
    return part if isinstance(part, str) and part in TEXT_TO_TEXT else plain_name(config.source)


def prompt_of(config: DataConfig, vocabulary: Vocabulary | None) -> str | None:
    """The prompt of a data set: `data.prompt`, else with words the known prompt; None: no prompt.

    Words are those of `data.words` or of the given vocabulary. Raises `ConfigError` if there are words and no prompt is
    known.
    """
    if config.prompt is not None or not (config.words or (vocabulary is not None and vocabulary.labels)):
        return config.prompt
    name = known_name(config)
    if name not in TEXT_TO_TEXT:
        raise ConfigError(
            f"data.prompt: {name!r} has no known prompt (known: {', '.join(TEXT_TO_TEXT)}); write one with the columns "
            'in braces, such as prompt: "review: {text}"'
        )
    return TEXT_TO_TEXT[name][0]


def fields(config: DataConfig, prompt: str, columns: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns in a prompt, in its order; they must be text `columns` of the table.

    Raises `DataError` for another column and for empty braces, `ConfigError` if `data.text` names columns too.
    """
    if config.text is not None:
        raise ConfigError(
            f"data.text: the prompt {shown(prompt)} of {where} already names the columns; leave data.text out, or "
            "write another data.prompt"
        )
    try:
        parts = list(string.Formatter().parse(prompt))
    except ValueError as error:
        raise DataError(f"{where}: data.prompt {shown(prompt)} is damaged ({error}); write {{COLUMN}}") from error
    names = tuple(name for _, name, _, _ in parts if name is not None)
    for _, name, style, change in parts:
        if name is not None and (style or change):
            raise DataError(f"{where}: data.prompt {shown(prompt)}: write {{{name}}}, the name alone in braces")
        if name is not None and name not in columns:
            raise DataError(f"{where}: data.prompt: no text column {shown(name)}{nearest(name, columns)}")
    if not names:
        raise DataError(f"{where}: data.prompt {shown(prompt)} names no column; write {{{columns[0]}}} in it")
    return tuple(dict.fromkeys(names))


def literals(prompt: str | None) -> list[str]:
    """The text of a prompt between its columns."""
    return [] if prompt is None else [text for text, _, _, _ in string.Formatter().parse(prompt) if text.strip()]


def filled(prompt: str, columns: Mapping[str, Sequence[str]]) -> list[str]:
    """The prompt filled in with each row."""
    rows = zip(*columns.values(), strict=True)
    return [prompt.format(**dict(zip(columns, row, strict=True))) for row in rows]


def known_words(config: DataConfig) -> Mapping[str, str] | None:
    """The word of each class by name, from the configuration or `TEXT_TO_TEXT`; None: unknown."""
    if isinstance(config.words, Mapping):
        return config.words
    if config.words == "one_token":
        return ONE_TOKEN.get(known_name(config))
    return TEXT_TO_TEXT.get(known_name(config), (None, None))[1]


def words_of(config: DataConfig, classes: Sequence[str], where: str) -> tuple[str, ...]:
    """The word of each class, in the order of the classes.

    Raises `ConfigError` if no words are known, a class has none, or two classes have the same.
    """
    given = known_words(config)
    if given is None:
        raise ConfigError(
            f"data.words: {known_name(config)!r} has no known words (known: {', '.join(TEXT_TO_TEXT)}); write "
            f"{{class: word}} for {', '.join(classes)}"
        )
    missing = [label for label in classes if label not in given]
    if missing or len(given) != len(classes):
        other = [label for label in given if label not in classes]
        what = f"{missing[0]!r} has none" if missing else f"there is no class {other[0]!r}"
        raise ConfigError(
            f"data.words: {len(given)} words for the {len(classes)} classes of {where} ({', '.join(classes)}), and "
            f"{what}; write one for each"
        )
    words = tuple(given[label] for label in classes)
    twice = [label for place, label in enumerate(classes) if words[place] in words[:place]]
    if twice:
        raise ConfigError(
            f"data.words: {where}: {twice[0]!r} has the word {given[twice[0]]!r} of another class; write another"
        )
    return words


def with_words(vocabulary: Vocabulary, classes: Sequence[str], words: Sequence[str], where: str) -> Vocabulary:
    """The vocabulary with the first token of each class's word, for one task.

    A model scores one token, so the first tokens have to differ.
    Raises `DataError` for a word that the tokenizer does not know, and for two words with the same first token.
    """
    tokenizer, unknown = _tokenizer(vocabulary)
    owner: dict[int, int] = {}  # the class of each token
    for number, (label, word) in enumerate(zip(classes, words, strict=True)):
        encoding = tokenizer.encode(word, add_special_tokens=False)
        remedy = f"write other words with data.words: {{{label}: WORD, ...}}"
        if not encoding.ids or unknown in encoding.ids:
            raise DataError(f"{where}: the word {word!r} of class {label!r} is unknown to the tokenizer; {remedy}")
        other = owner.setdefault(encoding.ids[0], number)
        if other != number:
            raise DataError(
                f"{where}: the words {words[other]!r} of class {classes[other]!r} and {word!r} of class {label!r} have "
                f"the same first token, {encoding.tokens[0]!r}, which is scored; {remedy}"
            )
    return vocabulary._replace(labels=tuple(owner), task_of=(0,) * len(owner))


def task_marks(vocabulary: Vocabulary, count: int) -> tuple[int, ...]:
    """The first token of the texts of each of `count` tasks: T5's sentinels, else BERT's unused tokens.

    Raises `DataError` for a tokenizer with fewer of them.
    """
    tokenizer, _ = _tokenizer(vocabulary)
    for mark in MARKS:
        tokens = [tokenizer.token_to_id(mark.format(task)) for task in range(count)]
        if None not in tokens:
            return tuple(tokens)
    names = " or ".join(f"{mark.format(0)} to {mark.format(count - 1)}" for mark in MARKS)
    raise DataError(
        f"data.words: texts of {count} tasks begin with the task's token, and the tokenizer has neither {names}; set "
        "data.tokenizer to T5's, BERT's, or train"
    )


def _tokenizer(vocabulary: Vocabulary) -> tuple[Any, int | None]:
    """The tokenizer of a vocabulary, and its token for unknown text."""
    from tokenizers import Tokenizer

    if vocabulary.tokenizer is None:
        raise DataError("data.words: the source of the data has no tokenizer, so words have no tokens; leave it out")
    description = vocabulary.tokenizer.tobytes().decode()
    tokenizer, model = Tokenizer.from_str(description), json.loads(description)["model"]
    name = model.get("unk_token")
    return tokenizer, model.get("unk_id") if name is None else tokenizer.token_to_id(name)


PAIRS = (("question1", "question2"), ("sentence1", "sentence2"), ("question", "sentence"), ("question", "passage"))
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TOKENS = 30_522  # BERT's; a small data set has fewer
ROWS = 10_000  # tokenised at once, because the library's records are large


def text_columns(config: DataConfig, columns: Sequence[str], where: str) -> tuple[str, ...]:
    """The text column, or the two of a pair: those in `config.text`, or the only choice among `columns`. Raises
    `DataError`."""
    if config.input is not None:
        raise DataError(f"{where}: data.input is not for text; name the column, or the two of a pair, with data.text")
    if config.text and len(set(config.text)) < len(config.text):
        raise DataError(f"{where}: data.text names {config.text[0]!r} twice; name it once, or two columns for pairs")
    for name in config.text or ():
        if name not in columns:
            raise DataError(f"{where}: no text column {name!r} for data.text{nearest(name, columns)}")
    if config.text:
        return config.text
    if {"premise", "hypothesis"} <= set(columns):  # MNLI has a dozen other columns
        return "premise", "hypothesis"
    pair = next((pair for pair in PAIRS if set(pair) == set(columns)), None)
    chosen = pair or (("text",) if "text" in columns else tuple(columns))
    if not columns:
        raise DataError(f"{where}: no text column for data.tokenizer; leave it out, or choose a text set")
    if pair is None and len(chosen) > 1:
        raise DataError(
            f"{where}: the text column is not clear; set data.text to one of {', '.join(columns)}, or to two for pairs"
        )
    return chosen


def labelled(
    tables: Mapping[str, FeatureTable], columns: Columns, where: str
) -> tuple[dict[str, FeatureTable], tuple[str, ...]]:
    """The rows with a label, and notes on the others: missing values, and -1 beside the names of a ClassLabel.

    Raises `DataError` for integers below 0 without names, which may be classes; -1 and 1 are the two of a margin.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    filtered, notes = {}, []
    for split, table in tables.items():
        y = table.data.column(columns.label)
        if columns.values is not None:
            keep, why = (
                np.isin(y.to_numpy(), list(columns.values)),
                f"with other labels than {', '.join(map(str, columns.values))}",
            )
        else:
            keep, why = y.is_valid().to_numpy(), "without a label"
            if pa.types.is_integer(y.type):
                bare = columns.names is None
                marked = pc.fill_null(pc.less(y, 0) if bare else pc.equal(y, -1), False).to_numpy()
                if bare and (keep & ~marked).any():
                    _check_below(tables, split, columns.label, where)
                else:
                    keep = keep & ~marked
        if not keep.any():
            option = "train" if split == "train" else "test"
            raise DataError(
                f"{where}: no row of {split} has a label; name a labelled split with options: {{{option}: NAME}}"
            )
        if not keep.all():
            notes.append(f"{len(y) - keep.sum()} of {len(y)} rows of {split} {why} are left out")
        filtered[split] = table.selected(keep)
    return filtered, tuple(notes)


def _check_below(tables: Mapping[str, FeatureTable], split: str, label: str, where: str) -> None:
    """Raises `DataError` for an integer label of `split` below 0, unless the labels of all splits are -1 and 1."""
    import pyarrow.compute as pc

    values = {value for table in tables.values() for value in table.data.column(label).unique().to_pylist()}
    below = pc.less(tables[split].data.column(label), 0)
    if pc.any(below).as_py() and values - {None} != {-1, 1}:
        row = pc.index(below, True).as_py()
        value = tables[split].data.column(label)[row].as_py()
        raise DataError(
            f"{where}: label column {label!r} is {value} in {tables[split].place(row)} ({pc.sum(below).as_py()} rows "
            "below 0): a class, or no label? write the classes as text or from 0, and remove rows without a label"
        )


def texts_of(table: FeatureTable, columns: Columns, where: str) -> list[list[str]]:
    """The texts of a table as columns: one, or the two of a pair; with a prompt the filled-in prompts.

    Raises `DataError` for columns that are not text, and for empty samples.
    """
    import pyarrow as pa

    data = table.data.select(columns.input)
    for name in data.column_names:
        if not (pa.types.is_string(data.column(name).type) or pa.types.is_large_string(data.column(name).type)):
            raise DataError(
                f"{where}: column {name!r} holds {data.column(name).type} in one split, not text; choose another"
            )
        if data.column(name).null_count:
            raise DataError(f"{where}: column {name!r} has no text in {table.missing(name)}")
    texts_by = {name: data.column(name).to_pylist() for name in data.column_names}
    empty = [row for row, texts in enumerate(zip(*texts_by.values(), strict=True)) if not "".join(texts).strip()]
    if empty:
        raise DataError(
            f"{where}: {len(empty)} rows have an empty text ({', '.join(texts_by)}), the first is "
            f"{table.place(empty[0])} among those with a label; remove them"
        )
    return list(texts_by.values()) if columns.prompt is None else [filled(columns.prompt, texts_by)]


def token_ids(
    config: DataConfig,
    texts: Sequence[Sequence[Sequence[str]]],
    vocabulary: Vocabulary | None,
    words: Sequence[str],
    where: str,
) -> tuple[Vocabulary, list[tuple[Array, int]]]:
    """The vocabulary (the given one, or a trained one with `words` in it), and for each split (train first) the ids
    int32 [n, L] of its texts, one column or a pair, and the number of texts that were cut off."""
    if vocabulary is None:
        if len(texts) == 1 and config.test_fraction:
            raise DataError(
                f"{where} has no test split, so `data.tokenizer: train` would train on test samples; set it to a "
                "tokenizer's folder, or data.test_fraction to 0"
            )
        vocabulary = trained(texts[0], words)
    return vocabulary, [encode(vocabulary, columns, config.max_length, where) for columns in texts]


def encode(vocabulary: Vocabulary, columns: Sequence[Sequence[str]], length: int, where: str) -> tuple[Array, int]:
    """Ids int32 [n, length] of texts, or of pairs (the longer one is cut off first), padded on the right, and the
    number of texts that were cut off."""
    from tokenizers import Tokenizer

    if vocabulary.tokenizer is None:
        raise DataError(
            f"{where}: the private data have no tokenizer, so public text cannot get the same token ids; set "
            "data.tokenizer"
        )
    tokenizer = Tokenizer.from_str(vocabulary.tokenizer.tobytes().decode())
    tokenizer.enable_truncation(length, strategy="longest_first")
    tokenizer.enable_padding(length=length, pad_id=vocabulary.pad)
    out, cut = np.empty((len(columns[0]), length), np.int32), 0
    for start in range(0, len(out), ROWS):
        rows = [column[start : start + ROWS] for column in columns]
        batch = rows[0] if len(rows) == 1 else list(zip(*rows, strict=True))
        encodings = tokenizer.encode_batch_fast(batch)
        out[start : start + ROWS] = [encoding.ids for encoding in encodings]
        cut += sum(bool(encoding.overflowing) for encoding in encodings)
    return out, cut


def pretrained(name: str, download: bool) -> Vocabulary:
    """The vocabulary of a Hugging Face tokenizer: a folder, or a name in the local hub cache (or on the hub, with
    `download`)."""
    from transformers import AutoTokenizer

    try:
        folder = Path(os.path.expanduser(name))
        place = str(folder) if folder.is_dir() else name
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=not download, trust_remote_code=False)
    except Exception as error:  # the library raises many kinds; the user needs one line
        raise DataError(
            f"data.tokenizer: {name!r} cannot be loaded ({first_line(error)}); give a folder that holds it, set "
            "`download: true`, or `tokenizer: train`"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or tokenizer.pad_token_id is None:
        lacks = "no padding token" if backend is not None else "no form that the `tokenizers` library reads"
        raise DataError(f"data.tokenizer: {name!r} has {lacks}; choose another, such as BERT's")
    separator = tokenizer.sep_token_id
    return _vocabulary(backend, tokenizer.pad_token_id, -1 if separator is None else separator)


def trained(columns: Sequence[Sequence[str]], words: Sequence[str] = (), marks: Sequence[str] = ()) -> Vocabulary:
    """A WordPiece vocabulary (as BERT's: lower case, split at spaces and punctuation) of the tokens that occur twice,
    at most 30,522, of all `words`, and of special tokens that no text has (`marks`)."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    def tokenizer(model: Any) -> Any:
        new = Tokenizer(model)
        new.normalizer, new.pre_tokenizer = (
            normalizers.BertNormalizer(lowercase=True),
            pre_tokenizers.BertPreTokenizer(),
        )
        return new

    learner = tokenizer(models.WordPiece(unk_token="[UNK]"))
    letters = set()
    for text in chain.from_iterable(columns):
        letters.update(learner.normalizer.normalize_str(text))
    # the trainer numbers these pieces in a hash map's order and breaks ties by number: given first, the result is
    # always the same
    pieces = [f"##{letter}" for letter in sorted(letters) if not letter.isspace()]
    trainer = trainers.WordPieceTrainer(
        vocab_size=TOKENS, min_frequency=2, special_tokens=[*SPECIAL, *pieces], show_progress=False
    )
    learner.train_from_iterator(chain.from_iterable(columns), trainer)
    learned = learner.get_vocab()
    for word in words:
        for piece, _ in learner.pre_tokenizer.pre_tokenize_str(learner.normalizer.normalize_str(word)):
            learned.setdefault(piece, len(learned))
    wordpiece = tokenizer(models.WordPiece(learned, unk_token="[UNK]"))  # without the pieces as special tokens
    wordpiece.add_special_tokens([*SPECIAL, *marks])
    named = [(token, wordpiece.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    wordpiece.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=named
    )
    return _vocabulary(wordpiece, wordpiece.token_to_id("[PAD]"), wordpiece.token_to_id("[SEP]"))


def _vocabulary(tokenizer: Any, pad: int, separator: int) -> Vocabulary:
    description = np.frombuffer(tokenizer.to_str().encode(), np.uint8)
    size = max(tokenizer.get_vocab().values()) + 1  # the ids of a tokenizer may have gaps
    return Vocabulary(size, pad, separator, description)
