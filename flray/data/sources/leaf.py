"""Data sets in LEAF's layout: `{train,test}/*.json` with `users` and `user_data`; the users are the natural clients.

Caldas et al. 2019, "LEAF: a benchmark for federated settings" (arXiv:1812.01097); files as its scripts write them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flray.core.schema.errors import ConfigError, DataError, shown
from flray.data.cache import Array, digest, file_digest
from flray.data.data_config import DataConfig
from flray.data.sources.arrays import unnamed
from flray.data.sources.options import check_options, data_root, no_columns, not_found
from flray.data.splits import Split, Splits, Vocabulary, cached

LEAF = ("femnist", "shakespeare", "stack_overflow")
# ALL_LETTERS of LEAF's models/utils/language_utils.py: a letter's id and its class
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
SIDE = 28  # of FEMNIST's images


class Users(NamedTuple):
    """The samples of a split by user: x, y and the user's name."""

    x: list[Any]
    y: list[Any]
    name: list[str]


def leaf_files(config: DataConfig) -> dict[str, list[Path]]:
    """The JSON files of each split in `root/NAME`, or in `root/NAME/data`; empty: there is no `train/*.json`."""
    root = data_root(config)
    for folder in () if root is None else (root / config.source, root / config.source / "data"):
        found = {split: sorted((folder / split).glob("*.json")) for split in ("train", "test")}
        if found["train"]:
            return {split: files for split, files in found.items() if files}
    return {}


def femnist(config: DataConfig) -> Splits:
    """LEAF's FEMNIST: grey images of 28x28 pixels of 62 letters and digits; writers are the clients of `natural`."""
    return _leaf(config)


def shakespeare(config: DataConfig) -> Splits:
    """LEAF's Shakespeare: 80 letters of a play, the class is the next one; roles are the clients of `natural`."""
    return _leaf(config)


def stack_overflow(config: DataConfig) -> Splits:
    """LEAF's Stack Overflow: texts (`data.tokenizer`), the class is the tag; users are the clients of `natural`."""
    return _leaf(config)


def _leaf(config: DataConfig) -> Splits:
    """`root/NAME/{train,test}/*.json`. Raises `DataError`; `ConfigError` for a tokenizer of Shakespeare's letters."""
    check_options(config, {})
    no_columns(config)
    if config.source == "shakespeare" and config.tokenizer:
        raise ConfigError("data.tokenizer is not for shakespeare, whose tokens are LEAF's 80 letters; remove it")
    files = leaf_files(config)
    if not files:
        root = data_root(config)
        looked = [] if root is None else [f"LEAF's files {root / config.source}/{{train,test}}/*.json"]
        raise not_found(config, looked, "run LEAF's preprocess.sh and copy its folders train and test there")
    paths = [path for split in sorted(files) for path in files[split]]
    text = [config.tokenizer, config.max_length] if config.tokenizer else []
    key = digest("leaf", config.source, file_digest(paths), [len(files[split]) for split in sorted(files)], *text)
    return cached(key, lambda: _splits(config, files))


def _splits(config: DataConfig, files: dict[str, list[Path]]) -> Splits:
    users = {split: _read(paths) for split, paths in files.items()}
    where = str(files["train"][0].parent.parent)
    ids = {name: number for number, name in enumerate(sorted({n for read in users.values() for n in read.name}))}
    sizes = {split: [len(y) for y in read.y] for split, read in users.items()}
    groups = {
        split: np.repeat(np.array([ids[name] for name in read.name], np.int64), sizes[split])
        for split, read in users.items()
    }
    flat = {split: [label for y in read.y for label in y] for split, read in users.items()}
    first = users["train"].x[0][0]
    vocabulary: Vocabulary | None = None
    cut: tuple[tuple[str, int, int], ...] = ()
    if isinstance(first, str) or (isinstance(first, list) and first and isinstance(first[0], str)):
        x, vocabulary, cut = _texts(config, users, where)
    else:
        x = _numbers(config, users, where)
    labels, classes = _labels(config, flat, where)
    splits = {split: Split(x[split], labels[split], groups[split]) for split in users}
    return Splits(splits["train"], splits.get("test"), classes, vocabulary=vocabulary, cut=cut)


def _read(paths: Sequence[Path]) -> Users:
    users = Users([], [], [])
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            for name in content["users"]:
                own = content["user_data"][name]
                if not isinstance(own["x"], list) or not isinstance(own["y"], list):
                    raise TypeError(f"x and y of user {name} are not lists")
                if len(own["x"]) != len(own["y"]):
                    raise DataError(f"{path}: user {name} has {len(own['x'])} samples and {len(own['y'])} labels")
                if own["y"]:
                    users.x.append(own["x"])
                    users.y.append(own["y"])
                    users.name.append(str(name))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"{path} is not a file of LEAF with users and user_data ({why}); write it again") from error
    if not users.y:
        raise DataError(f"{paths[0].parent}: no user has a sample; run LEAF's preprocess.sh again")
    return users


def _numbers(config: DataConfig, users: dict[str, Users], where: str) -> dict[str, Array]:
    """Features [n, d] or images; pixels that are whole multiples of 1/255 as uint8."""
    shape = (SIDE, SIDE, 1) if config.source == "femnist" else None
    try:
        x = {s: np.concatenate([np.asarray(own, np.float32) for own in read.x]) for s, read in users.items()}
        x = {s: part if shape is None else part.reshape(-1, *shape) for s, part in x.items()}
        if not all(part.size for part in x.values()):
            raise ValueError("a sample has no number")
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{where}: samples are not equally many numbers ({error}); run LEAF's script again") from error
    for split, part in x.items():
        if not np.isfinite(part).all():
            raise DataError(f"{where}: a sample of {split} has a number that is not finite; remove it")
    x = {s: part[..., None] if part.ndim == 3 else part for s, part in x.items()}
    if x["train"].ndim == 4 and all(_is_pixels(part) for part in x.values()):
        x = {s: np.rint(part * 255).astype(np.uint8) for s, part in x.items()}
    return x


def _is_pixels(x: Array) -> bool:
    levels = x * 255
    return bool(levels.min() >= -1e-3 and levels.max() <= 255.001 and np.abs(levels - np.rint(levels)).max() < 1e-3)


def _texts(
    config: DataConfig, users: dict[str, Users], where: str
) -> tuple[dict[str, Array], Vocabulary, tuple[tuple[str, int, int], ...]]:
    from flray.data.sources.text import encode, pretrained, trained

    texts = {s: [_text(sample) for own in read.x for sample in own] for s, read in users.items()}
    if config.source == "shakespeare":
        vocabulary, length = letters(), max(len(text) for part in texts.values() for text in part)
        odd = sorted(set().union(*(set(text) for part in texts.values() for text in part)) - set(LETTERS))
        if not length:
            raise DataError(f"{where}: all samples are empty texts; run LEAF's script again")
        if odd:
            raise DataError(f"{where}: the letter {odd[0]!r} is not one of LEAF's 80; run LEAF's script again")
    elif config.tokenizer is None:
        raise DataError(
            f"{where}: samples are texts; set data.tokenizer to `train`, or to a tokenizer's name or folder"
        )
    else:
        named = config.tokenizer != "train"
        if not named and "test" not in texts and config.test_fraction:
            raise DataError(
                f"{where} has no test split, so `data.tokenizer: train` would train on test samples; set it to a "
                "tokenizer's folder, or data.test_fraction to 0"
            )
        vocabulary = pretrained(config.tokenizer, config.download) if named else trained([texts["train"]])
        length = config.max_length
    encoded = {split: encode(vocabulary, [part], length, where) for split, part in texts.items()}
    cut = tuple((split, count, len(ids)) for split, (ids, count) in encoded.items() if count)
    return {split: ids for split, (ids, _) in encoded.items()}, vocabulary, cut


def _text(sample: Any) -> str:
    return " ".join(map(str, sample)) if isinstance(sample, list) else str(sample)


def letters() -> Vocabulary:
    """The 80 letters as tokens 0 to 79, then the padding and an unknown letter."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokens = {letter: number for number, letter in enumerate(LETTERS)} | {"[PAD]": 80, "[UNK]": 81}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return Vocabulary(82, 80, -1, np.frombuffer(tokenizer.to_str().encode(), np.uint8))


def _labels(config: DataConfig, flat: dict[str, list[Any]], where: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The labels as int64, and the classes' names: letters, integers from 0, or sorted texts."""
    values = [label for part in flat.values() for label in part]
    if config.source == "shakespeare":
        if wrong := [v for v in values if not (isinstance(v, str) and len(v) == 1 and v in LETTERS)]:
            raise DataError(f"{where}: label {shown(wrong[0])} is not one of LEAF's 80 letters")
        number: dict[Any, int] = {letter: place for place, letter in enumerate(LETTERS)}
        names = tuple({"\n": "newline", " ": "space"}.get(letter, letter) for letter in LETTERS)
    elif all(isinstance(v, str) for v in values):
        names = tuple(sorted(set(values)))
        number = {name: place for place, name in enumerate(names)}
    else:
        if wrong := [v for v in values if not isinstance(v, int) or isinstance(v, bool) or v < 0]:
            raise DataError(f"{where}: label {shown(wrong[0])} is neither an integer from 0 nor a text")
        names = unnamed(max(values) + 1, len(values), where)
        number = {place: place for place in range(len(names))}
    return {split: np.array([number[v] for v in part], np.int64) for split, part in flat.items()}, names
