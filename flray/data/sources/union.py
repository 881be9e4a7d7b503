"""Several data sets as one: each a domain (MNIST, MNIST-M and USPS as one set of digits), or each a task (CoLA, SST-2
and MNLI as one set of text).

In a union of text a class is a pair of task and label, `cola:unacceptable`, numbered in the order of the sets. All sets
share a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError, DataError, shown
from flray.core.schema.section import one_line
from flray.data.cache import Array, CacheEntry, digest, fetch
from flray.data.class_names import Labels, owned
from flray.data.data_config import DataConfig
from flray.data.sources.options import check_options, no_columns
from flray.data.sources.table_sources import train_texts
from flray.data.sources.text import MARKS, known_words, literals, pretrained, prompt_of, task_marks, trained
from flray.data.splits import Split, Splits, Vocabulary, cached, check_features, class_list

if TYPE_CHECKING:
    from flray.data.dataset import Dataset

OF_TEXT = ("tokenizer", "max_length", "words")
INHERITED = ("root", "download", "test_fraction", "split_seed", "resize", "channels", "leak_check")
WHOLE = ("augment", "normalize", "shuffle", "batch_order")  # these are for the samples of all sets


def union(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """Sets with the same classes, by name, as one; `Split.source` numbers them in the order of `options: {sets: [mnist,
    usps]}`.

    A set is a source, or a mapping with keys of `data` and an optional `name`. It inherits keys such as `resize` and
    `channels`, because images must have one shape. Sets of text (with a tokenizer or a given `vocabulary`) have their
    own classes. Raises `DataError` for other names of classes, and if shapes differ.
    """
    from flray.data.dataset import load_dataset

    no_columns(config)
    text = vocabulary is not None or config.tokenizer is not None
    sets = sets_of(config, text)
    if text:
        return text_union(config, sets, vocabulary)
    names, parts = tuple(sets), [load_dataset(own) for own in sets.values()]
    first = parts[0]
    for name, part in zip(names, parts, strict=True):
        if part.vocabulary is not None:
            raise DataError(
                f"data.options.sets: {name} is text with its own token ids; set data.tokenizer of the union"
            )
    labels = [
        Labels(name, np.concatenate([part.train.y, part.test.y]), dict(enumerate(part.classes)))
        for name, part in zip(names, parts, strict=True)
    ]
    united = owned(labels, "data.options.sets")
    for name, part in zip(names, parts, strict=True):
        if part.train.x.shape[1:] != first.train.x.shape[1:] or part.train.x.dtype != first.train.x.dtype:
            raise DataError(
                f"data.options.sets: samples of {names[0]} are {first.train.x.dtype} {first.train.x.shape[1:]} and of "
                f"{name} {part.train.x.dtype} {part.train.x.shape[1:]}; set data.resize and data.channels"
            )
        check_features("data.options.sets", first.features, names[0], part.features, name)

    on_train = _tests_on_train(config, parts)

    def build() -> Splits:
        ids = [np.split(ids, [len(part.train.y)]) for ids, part in zip(united.ids, parts, strict=True)]
        train = _together([part.train for part in parts], [own for own, _ in ids])
        test = None if on_train else _together([part.test for part in parts], [own for _, own in ids])
        lines = [f"{name}: {line}" for name, part in zip(names, parts, strict=True) for line in part.reading]
        reading = (f"label: {class_list(united.classes)}", *united.lines, *lines)
        return Splits(train, test, united.classes, sources=names, reading=reading, features=first.features)

    key = digest(
        "union", "by name", names, [part.fingerprint for part in parts], *(["tested on train"] if on_train else [])
    )
    return cached(key, build)


def sets_of(config: DataConfig, text: bool = False) -> dict[str, DataConfig]:
    """The sets of a union by name, with inherited keys; for `text` also the tokenizer. Reads no data.

    Raises `DataError` for fewer than two sets, and for two of one name.
    """
    entries = check_options(config, {"sets": []})["sets"]
    if len(entries) < 2:
        raise DataError("data.options.sets: a union is of two sets or more; write options: {sets: [mnist, usps]}")
    shared = {name: getattr(config, name) for name in (*INHERITED, *(OF_TEXT if text else ()))}
    named = [_named(entry, shared) for entry in entries]
    names = [name for name, _ in named]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(f"data.options.sets: two sets are called {twice[0]!r}; give one of them a name")
    return dict(named)


def _named(entry: Any, shared: Mapping[str, Any]) -> tuple[str, DataConfig]:
    """(the set's name, its configuration)."""
    own = {"source": entry} if isinstance(entry, str) else dict(entry) if isinstance(entry, Mapping) else None
    if own is None or not isinstance(own.get("source"), str):
        raise DataError(f"data.options.sets: {shown(entry)} is not a set; write its source, or {{source: ..., ...}}")
    name = str(own.pop("name", own["source"]))
    with one_line("data.options.sets", DataConfig):
        config = DataConfig.model_validate({**shared, **own})
        for option in WHOLE:
            if getattr(config, option) != DataConfig.model_fields[option].default:
                raise DataError(
                    f"data.options.sets: {name}: {option} is no option of one set; leave it out, or set data.{option}"
                )
        for option in ("group", "domain"):
            if getattr(config, option) and not (option == "domain" and config.per_source):
                raise DataError(
                    f"data.options.sets: {name}: a union has no {option} column, its sets are the domains; leave it "
                    f"out, or write drop: {getattr(config, option)}"
                )
        return name, config
    raise AssertionError


def text_union(config: DataConfig, sets: Mapping[str, DataConfig], vocabulary: Vocabulary | None) -> Splits:
    """The sets as one, with `Split.source` and the numbers of the classes in their order.

    With `words` each text begins with the token of its task. The tokenizer is that of the given `vocabulary`, else the
    one in `config`, else one trained on the train splits of all sets from which no test samples are drawn. Raises
    `ConfigError` for options that belong to the sets, `DataError` if the given vocabulary is for other tasks.
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
    parts = [load_dataset(own, base, in_union=True) for own in shorter]
    task_of = tuple(task for task, part in enumerate(parts) for _ in part.classes)
    if vocabulary is None:
        vocabulary = base
        if marked:
            labels = tuple(token for part in parts for token in (part.vocabulary or base).labels)
            vocabulary = base._replace(labels=labels, task_of=task_of, tasks=task_marks(base, len(parts)))
    classes = tuple(f"{name}:{label}" for name, part in zip(sets, parts, strict=True) for label in part.classes)
    fitted, on_train = vocabulary, _tests_on_train(config, parts)

    def build() -> Splits:
        firsts = np.cumsum([0, *(part.num_classes for part in parts)])
        train, test = (
            _together(splits, [split.y + first for split, first in zip(splits, firsts[:-1], strict=True)], fitted.tasks)
            for splits in ([part.train for part in parts], [part.test for part in parts])
        )
        cut = _cut([load_splits(own, base) for own in shorter])
        reading = tuple(f"{name}: {line}" for name, part in zip(sets, parts, strict=True) for line in part.reading)
        tested = None if on_train else test
        return Splits(train, tested, classes, "", fitted, (), "", tuple(sets), task_of, cut, reading)

    key = ["text union", classes, [part.fingerprint for part in parts], fitted.fingerprint]
    return cached(digest(*key, *(["tested on train"] if on_train else [])), build)


def _tests_on_train(config: DataConfig, parts: Sequence[Dataset]) -> bool:
    """Whether the union has no test split, because no set has one and `data.test_fraction` is 0."""
    return not config.test_fraction and all(part.test is part.train for part in parts)


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


def _together(splits: Sequence[Split], y: Sequence[Array], marks: Sequence[int] = ()) -> Split:
    """The splits concatenated, with the labels `y`, texts after their task's token."""
    x = [split.x for split in splits]
    if marks:
        x = [np.insert(ids, 0, mark, axis=1) for ids, mark in zip(x, marks, strict=True)]
    source = np.repeat(np.arange(len(splits)), [len(split.y) for split in splits])
    return Split(np.concatenate(x), np.concatenate(y), source=source)
