"""Data sets in LEAF's layout: `{train,test}/*.json` with `users` and `user_data`; the users are the natural clients.

Caldas et al. 2019, "LEAF: a benchmark for federated settings" (arXiv:1812.01097); files as its scripts write them.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.schema.errors import ConfigError, DataError
from flray.data.cache import Array, digest, file_digest
from flray.data.data_config import DataConfig
from flray.data.sources.options import check_options, data_root, no_columns, not_found
from flray.data.sources.table_sources import vocabulary_of
from flray.data.splits import Split, Splits, Vocabulary, cached

if TYPE_CHECKING:  # a process that reads the cache imports no pyarrow
    from flray.data.sources.columns import FeatureTable

LEAF = ("femnist", "shakespeare", "stack_overflow")
# ALL_LETTERS of LEAF's models/utils/language_utils.py: a letter's id and its class
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
SIDE = 28  # of FEMNIST's images
CLASSES = {  # FEMNIST's in the order of `relabel_class` of LEAF's data/femnist/preprocess/data_to_json.py
    "femnist": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "shakespeare": [{"\n": "newline", " ": "space"}.get(letter, letter) for letter in LETTERS],
}


def leaf_files(config: DataConfig) -> dict[str, list[Path]]:
    """The JSON files of each split in `root/NAME`, or in `root/NAME/data`; empty: there is no `train/*.json`."""
    root = data_root(config)
    for folder in () if root is None else (root / config.source, root / config.source / "data"):
        found = {split: sorted((folder / split).glob("*.json")) for split in ("train", "test")}
        if found["train"]:
            return {split: files for split, files in found.items() if files}
    return {}


def femnist(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """LEAF's FEMNIST: grey images of 28x28 pixels of 62 letters and digits; writers are the clients of `natural`."""
    return _leaf(config, vocabulary)


def shakespeare(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """LEAF's Shakespeare: 80 letters of a play, the class is the next one; roles are the clients of `natural`."""
    return _leaf(config, vocabulary)


def stack_overflow(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """LEAF's Stack Overflow: texts (`data.tokenizer`), the class is the tag; users are the clients of `natural`."""
    return _leaf(config, vocabulary)


def _leaf(config: DataConfig, vocabulary: Vocabulary | None) -> Splits:
    """`root/NAME/{train,test}/*.json`; text as ids of the given `vocabulary`, else of the tokenizer in `config`. Raises
    `DataError`; `ConfigError` for options that its text does not have."""
    check_options(config, {})
    no_columns(config)
    for name in ("text", "prompt", "words"):
        if getattr(config, name):
            raise ConfigError(f"data.{name}: the texts of {config.source} are read as they are; leave it out")
    own = vocabulary_of(config, vocabulary) if config.source == "stack_overflow" else None
    if own is not None and own.labels:
        raise DataError("stack_overflow has no prompt for a model that answers in words; choose another set of text")
    if config.source == "shakespeare":
        _check_letters(config, vocabulary)
    files = leaf_files(config)
    if not files:
        root = data_root(config)
        looked = [] if root is None else [f"LEAF's files {root / config.source}/{{train,test}}/*.json"]
        raise not_found(config, looked, "run LEAF's preprocess.sh and copy its folders train and test there")
    paths = [path for split in sorted(files) for path in files[split]]
    tokens = own.fingerprint if own is not None else config.tokenizer
    text = [tokens, config.max_length] if tokens else []
    key = digest("leaf 4", config.source, file_digest(paths), [len(files[split]) for split in sorted(files)], *text)
    where = str(files["train"][0].parent.parent)
    return cached(key, lambda: _splits(config, files, where, own), where)


def _check_letters(config: DataConfig, vocabulary: Vocabulary | None) -> None:
    """Raises `ConfigError` for a tokenizer or a length of Shakespeare's texts, `DataError` for another `vocabulary`."""
    for name in ("tokenizer",) if vocabulary is not None else ("tokenizer", "max_length"):  # public text has a length
        if getattr(config, name) != DataConfig.model_fields[name].default:
            raise ConfigError(f"data.{name} is not for shakespeare, whose texts are of LEAF's 80 letters; remove it")
    if vocabulary is not None and vocabulary.fingerprint != letters().fingerprint:
        raise DataError("shakespeare has LEAF's letters as tokens, unlike the private text; choose another public set")


def _splits(config: DataConfig, files: dict[str, list[Path]], where: str, vocabulary: Vocabulary | None) -> Splits:
    """The tables of the splits, read as other tables are: labels `y`, samples `x`, users `client`."""
    from flray.data.sources.columns import is_text
    from flray.data.sources.readers import table_splits

    tables = {split: _table(config.source, paths) for split, paths in files.items()}
    text = is_text(tables["train"], "x")
    length = config.max_length
    if config.source == "shakespeare":
        vocabulary, length = letters(), _letters_of(tables, where)
    elif text and vocabulary is None and config.tokenizer is None:
        raise DataError(
            f"{where}: samples are texts; set data.tokenizer to `train`, or to a tokenizer's name or folder"
        )
    chosen = {"label": "y", "group": "client", "max_length": length, "text" if text else "input": ("x",)}
    splits = table_splits(config.model_copy(update=chosen), tables, where, vocabulary, ())
    users = {name for table in tables.values() for name in table.data.column("client").unique().to_pylist()}
    splits = splits._replace(reading=(*splits.reading, f"clients: {len(users)} users, by name"))
    if config.source != "femnist":
        return splits
    train, *tests = _images([split for split in (splits.train, splits.test) if split is not None], where)
    return splits._replace(train=train, test=tests[0] if tests else None)


def _table(source: str, paths: Sequence[Path]) -> FeatureTable:
    """The samples of the users in the files of a split."""
    import pyarrow as pa

    from flray.data.sources.columns import FeatureTable

    x: list[Any] = []
    y: list[Any] = []
    users, counts = list[str](), list[int]()
    for path in paths:
        before = len(y)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            for name in dict.fromkeys(content["users"]):
                own = content["user_data"][name]
                if not isinstance(own["x"], list) or not isinstance(own["y"], list):
                    raise TypeError(f"x and y of user {name} are not lists")
                if len(own["x"]) != len(own["y"]):
                    raise DataError(f"{path}: user {name} has {len(own['x'])} samples and {len(own['y'])} labels")
                x += own["x"]
                y += own["y"]
                users += [str(name)] * len(own["y"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"{path} is not a file of LEAF with users and user_data ({why}); write it again") from error
        counts.append(len(y) - before)
    folder = paths[0].parent
    if not y:
        raise DataError(f"{folder}: no user has a sample; run LEAF's preprocess.sh again")
    names = CLASSES.get(source)
    try:
        labels = pa.array([LETTERS.index(letter) for letter in y] if source == "shakespeare" else y)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise DataError(f"{folder}: labels are not all integers, or all texts ({error}); remove the others") from error
    features = {} if names is None else {"y": {"_type": "ClassLabel", "names": list(names)}}
    data = pa.table({"x": _samples(x, folder), "y": labels, "client": users})
    return FeatureTable(data, features, "", tuple(zip((path.name for path in paths), counts, strict=True)))


def _samples(x: list[Any], folder: Path) -> Any:
    """The samples as a column: texts (lists of words with spaces between), or equally many numbers."""
    import pyarrow as pa

    if isinstance(x[0], str) or (isinstance(x[0], list) and x[0] and isinstance(x[0][0], str)):
        return pa.array([" ".join(map(str, sample)) if isinstance(sample, list) else str(sample) for sample in x])
    try:
        numbers = np.asarray(x, np.float32).reshape(len(x), -1)
        if not numbers.size:
            raise ValueError("a sample has no number")
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(f"{folder}: samples are not equally many numbers ({error}); run LEAF's script again") from error
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1])


def _images(splits: Sequence[Split], where: str) -> list[Split]:
    """FEMNIST's samples as images; pixels that are whole multiples of 1/255 as uint8."""
    if any(split.x.shape[1] != SIDE**2 for split in splits):
        raise DataError(f"{where}: samples are not {SIDE} x {SIDE} numbers; run LEAF's script again")
    images = [split.x.reshape(-1, SIDE, SIDE, 1) for split in splits]
    if all(_is_pixels(part) for part in images):
        images = [np.rint(part * 255).astype(np.uint8) for part in images]
    return [split._replace(x=part) for split, part in zip(splits, images, strict=True)]


def _is_pixels(x: Array) -> bool:
    levels = x * 255
    return bool(levels.min() >= -1e-3 and levels.max() <= 255.001 and np.abs(levels - np.rint(levels)).max() < 1e-3)


def _letters_of(tables: Mapping[str, FeatureTable], where: str) -> int:
    """The length of the longest text. Raises `DataError` for a letter that is none of LEAF's, and for empty texts."""
    texts = [text for table in tables.values() for text in table.data.column("x").to_pylist()]
    odd = sorted(set().union(*texts) - set(LETTERS))
    if odd:
        raise DataError(f"{where}: the letter {odd[0]!r} is not one of LEAF's 80; run LEAF's script again")
    if not any(texts):
        raise DataError(f"{where}: all samples are empty texts; run LEAF's script again")
    return max(map(len, texts))


def letters() -> Vocabulary:
    """The 80 letters as tokens 0 to 79, then the padding and an unknown letter."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokens = {letter: number for number, letter in enumerate(LETTERS)} | {"[PAD]": 80, "[UNK]": 81}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return Vocabulary(82, 80, -1, np.frombuffer(tokenizer.to_str().encode(), np.uint8))
