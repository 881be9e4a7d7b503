"""Several data sets as one: each a domain (MNIST, MNIST-M and USPS as one set of digits), or each a task (CoLA, SST-2
and MNLI as one set of text, `text_union.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flray.core.schema.errors import DataError, shown
from flray.core.schema.section import one_line
from flray.data.cache import digest
from flray.data.data_config import DataConfig
from flray.data.sources.options import check_options, no_columns
from flray.data.splits import Split, Splits, Vocabulary, cached

OF_TEXT = ("tokenizer", "max_length", "words")
INHERITED = ("root", "download", "test_fraction", "split_seed", "resize", "channels", "leak_check")


def union(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """Sets with the same classes as one; `Split.source` numbers them in the order of `options: {sets: [mnist, usps]}`.

    A set is a source, or a mapping with keys of `data` (`{source: mnist, train_size: 2000}`) and an optional `name`. It
    inherits keys such as `resize` and `channels` from the union, because images must have one shape. Sets of text (with
    a tokenizer or a given `vocabulary`) have their own classes. Raises `DataError` if classes or shapes differ.
    """
    from flray.data.dataset import load_dataset

    no_columns(config)
    text = vocabulary is not None or config.tokenizer is not None
    sets = sets_of(config, text)
    if text:
        from flray.data.sources.text_union import text_union

        return text_union(config, sets, vocabulary)
    names, parts = tuple(sets), [load_dataset(own) for own in sets.values()]
    first = parts[0]
    for name, part in zip(names, parts, strict=True):
        if part.vocabulary is not None:
            raise DataError(
                f"data.options.sets: {name} is text with its own token ids; set data.tokenizer of the union"
            )
        if part.num_classes != first.num_classes:
            raise DataError(
                f"data.options.sets: {names[0]} has {first.num_classes} classes and {name} {part.num_classes}; a union "
                "needs sets of the same classes"
            )
        if part.train.x.shape[1:] != first.train.x.shape[1:] or part.train.x.dtype != first.train.x.dtype:
            raise DataError(
                f"data.options.sets: samples of {names[0]} are {first.train.x.dtype} {first.train.x.shape[1:]} and of "
                f"{name} {part.train.x.dtype} {part.train.x.shape[1:]}; set data.resize and data.channels"
            )

    def build() -> Splits:
        splits = [
            Split(
                np.concatenate([split.x for split in parts_of]),
                np.concatenate([split.y for split in parts_of]),
                source=np.repeat(np.arange(len(parts_of)), [len(split.y) for split in parts_of]),
            )
            for parts_of in ([part.train for part in parts], [part.test for part in parts])
        ]
        return Splits(splits[0], splits[1], first.classes, sources=names)

    return cached(digest("union", names, [part.fingerprint for part in parts]), build)


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
        return name, DataConfig.model_validate({**shared, **own})
    raise AssertionError
