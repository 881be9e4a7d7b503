"""Text as token ids: its columns, the rows with a label, the tokenizer, and the ids. Runs once for a data set."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import DataError, nearest
from flray.data.cache import Array
from flray.data.data_config import DataConfig
from flray.data.sources.prompts import filled
from flray.data.splits import Vocabulary

if TYPE_CHECKING:  # a process that reads the cache imports no pyarrow
    from flray.data.sources.columns import Columns, FeatureTable

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
        text = str(error).strip().split("\n")[0] or type(error).__name__
        raise DataError(
            f"data.tokenizer: {name!r} cannot be loaded ({text}); give a folder that holds it, set `download: true`, "
            "or `tokenizer: train`"
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
