"""Several sets of text as one data set, each a task with its own classes: GLUE.

A class is a pair of task and label, `cola:unacceptable`, numbered in the order of the sets. All sets share a tokenizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from flray.core.schema.errors import ConfigError, DataError
from flray.data.cache import Array, CacheEntry, digest, fetch
from flray.data.checks import CutWarning
from flray.data.data_config import DataConfig
from flray.data.sources.prompts import MARKS, known_words, literals, prompt_of, task_marks
from flray.data.sources.table_sources import train_texts
from flray.data.sources.text import pretrained, trained
from flray.data.splits import Split, Splits, Vocabulary, cached


def text_union(config: DataConfig, sets: Mapping[str, DataConfig], vocabulary: Vocabulary | None) -> Splits:
    """The sets as one, with `Split.source` and the numbers of the classes in their order.

    With `words` each text begins with the token of its task. The tokenizer is that of the given `vocabulary`, which is
    then the result's; else the one in `config`; else one trained on the train splits of all sets, without those from
    which test samples are drawn. Raises `ConfigError` for options that belong to the sets, `DataError` if the given
    vocabulary is for other tasks.
    """
    from flray.data.dataset import load_dataset
    from flray.data.sources import load_splits

    _check(config, sets)
    marked = bool(vocabulary.tasks if vocabulary is not None else config.words)
    if vocabulary is not None and len(vocabulary.tasks) not in (0, len(sets)):
        raise DataError(
            f"proxy.options.sets: {len(sets)} sets, and the private text has {len(vocabulary.tasks)} tasks; name the "
            "same sets in the same order"
        )
    base = _base(config, sets) if vocabulary is None else vocabulary._replace(tasks=())
    length = config.max_length - marked
    shorter = [own.model_copy(update={"max_length": length}) for own in sets.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CutWarning)  # one warning of the union is for all sets
        parts = [load_dataset(own, base) for own in shorter]
    task_of = tuple(task for task, part in enumerate(parts) for _ in part.classes)
    if vocabulary is None:
        vocabulary = base
        if marked:
            labels = tuple(token for part in parts for token in (part.vocabulary or base).labels)
            vocabulary = base._replace(labels=labels, task_of=task_of, tasks=task_marks(base, len(parts)))
    classes = tuple(f"{name}:{label}" for name, part in zip(sets, parts, strict=True) for label in part.classes)
    fitted = vocabulary

    def build() -> Splits:
        firsts = np.cumsum([0, *(part.num_classes for part in parts)])
        train, test = (
            _together(splits, firsts, fitted.tasks)
            for splits in ([part.train for part in parts], [part.test for part in parts])
        )
        cut = _cut([load_splits(own, base) for own in shorter])
        return Splits(train, test, classes, vocabulary=fitted, sources=tuple(sets), source_of=task_of, cut=cut)

    return cached(digest("text union", classes, [part.fingerprint for part in parts], fitted.fingerprint), build)


def _check(config: DataConfig, sets: Mapping[str, DataConfig]) -> None:
    for option in ("prompt", "text"):
        if getattr(config, option) is not None:
            raise ConfigError(f"data.{option}: each set of a union has its own; write it in data.options.sets")
    if isinstance(config.words, Mapping):
        raise ConfigError("data.words: each set of a union has its own; write true here, or words in data.options.sets")
    for name, own in sets.items():
        if name in ("test", "val") or name.startswith(("task-", "val-")):
            raise ConfigError(f"data.options.sets: {name!r} is the name of a test set; give the set another name")
        for option in ("tokenizer", "max_length"):
            if getattr(own, option) != getattr(config, option):
                raise ConfigError(f"data.options.sets: {name}: the sets of a union share {option}; leave it out")
        if bool(own.words) != bool(config.words):
            raise ConfigError(f"data.options.sets: {name}: words are for all sets or for none; set data.words")


def _base(config: DataConfig, sets: Mapping[str, DataConfig]) -> Vocabulary:
    """The tokenizer of all sets: the named one, or one trained on them that has all words and prompts."""
    if config.tokenizer not in (None, "train"):
        return pretrained(config.tokenizer, config.download)
    read = [texts for own in sets.values() if (texts := train_texts(own)) is not None]
    if not read:
        raise DataError(
            "data.tokenizer: no set of the union has a test split, so `train` would train on test samples; set it to "
            "a tokenizer's folder, or data.test_fraction to 0"
        )
    words = [word for own in sets.values() for word in literals(prompt_of(own, None))]
    if config.words:
        words += [word for own in sets.values() for word in (known_words(own) or {}).values()]
    marks = [MARKS[0].format(task) for task in range(len(sets))] if config.words else []

    def build() -> CacheEntry:
        vocabulary = trained([column for _, texts in read for column in texts()], words, marks)
        assert vocabulary.tokenizer is not None
        return CacheEntry({"tokenizer": vocabulary.tokenizer}, {"vocabulary": list(vocabulary[:3])})

    entry = fetch(digest("vocabulary", [name for name, _ in read], words, marks), build)
    size, pad, separator = entry.meta["vocabulary"]
    return Vocabulary(size, pad, separator, entry.arrays["tokenizer"])


def _cut(sets: Sequence[Splits]) -> tuple[tuple[str, int, int], ...]:
    """The field `cut` of the union: the sums over all sets."""
    cut = []
    for name in ("train", "test"):
        size = sum(len(split.y) for each in sets if (split := getattr(each, name)) is not None)
        cut.append((name, sum(count for each in sets for of, count, _ in each.cut if of == name), size))
    return tuple(counts for counts in cut if counts[1])


def _together(splits: Sequence[Split], firsts: Array, marks: Sequence[int]) -> Split:
    """The splits concatenated: class numbers shifted by the first of each set, texts after their task's token."""
    x = [split.x for split in splits]
    if marks:
        x = [np.insert(ids, 0, mark, axis=1) for ids, mark in zip(x, marks, strict=True)]
    y = [split.y + first for split, first in zip(splits, firsts[:-1], strict=True)]
    source = np.repeat(np.arange(len(splits)), [len(split.y) for split in splits])
    return Split(np.concatenate(x), np.concatenate(y), source=source)
