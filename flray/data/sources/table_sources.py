"""Sources that are tables: a folder of Parquet files, or a data set of the Hugging Face hub."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flray.core.schema.errors import DataError
from flray.data.cache import digest, file_digest
from flray.data.data_config import DataConfig
from flray.data.published import plain_name
from flray.data.sources.options import check_options, data_root, not_found
from flray.data.splits import Splits, Vocabulary, cached


def parquet_folder(config: DataConfig) -> Path | None:
    """The folder `root/source` if it holds Parquet files, else None."""
    root = data_root(config)
    return root / config.source if root is not None and any((root / config.source).glob("*.parquet")) else None


def parquet(config: DataConfig, folder: Path, vocabulary: Vocabulary | None = None) -> Splits:
    """`folder/train*.parquet` and `folder/test*.parquet` (else validation), with the `datasets` feature notes."""
    from flray.data.sources.readers import parquet_files, parquet_splits

    vocabulary = _vocabulary(config, vocabulary)
    files = parquet_files(folder, config.options.get("train") or "train", config.options.get("test"))
    key = digest(
        "parquet",
        file_digest([path for split in sorted(files) for path in files[split]]),
        sorted(files),
        config.label,
        config.input,
        config.group,
        config.resize,
        *(["domain", config.domain] if config.domain else []),
        *_text_key(config, vocabulary),
    )
    return cached(key, lambda: parquet_splits(config, folder, files, vocabulary))


def hub(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """`hf:<folder>` or `hf:<hub id>`; options: config, revision, train, test (names of splits)."""
    name = config.source.removeprefix("hf:")
    folder = Path(name).expanduser()
    options = check_options(config, {"config": None, "revision": None, "train": None, "test": None})
    if folder.is_dir() and any(folder.glob("*.parquet")) and not any(options.values()):
        return parquet(config, folder, vocabulary)
    from flray.data.sources.readers import hub_splits, hub_tables

    vocabulary = _vocabulary(config, vocabulary)
    tables = hub_tables(config, options)
    key = digest(
        "hf",
        name,
        options,
        [(split, table.fingerprint) for split, table in sorted(tables.items())],
        config.label,
        config.input,
        config.group,
        config.resize,
        *(["domain", config.domain] if config.domain else []),
        *_text_key(config, vocabulary),
    )
    return cached(key, lambda: hub_splits(config, tables, vocabulary))


def train_texts(config: DataConfig) -> tuple[str, Callable[[], list[list[str]]]] | None:
    """The texts of a table's train split: a key of their contents, and the function that reads them, as columns.

    None if the table has no test split, because test samples are then drawn from these texts.
    Raises `DataError` if the source is not a table.
    """
    from flray.data.sources.prompts import prompt_of
    from flray.data.sources.readers import hub_tables, parquet_files, parquet_table, table_texts

    folder, place = parquet_folder(config), Path(config.source.removeprefix("hf:")).expanduser()
    options = check_options(config, {"config": None, "revision": None, "train": None, "test": None})
    if folder is None and config.source.startswith("hf:") and place.is_dir() and any(place.glob("*.parquet")):
        folder = place
    if folder is not None:
        files = parquet_files(folder, options["train"] or "train", options["test"])
        splits, contents, where = len(files), file_digest(files["train"]), str(folder)
        read = functools.partial(parquet_table, files["train"])
    elif config.source.startswith("hf:"):
        tables = hub_tables(config, options)
        splits, contents, where = len(tables), tables["train"].fingerprint, config.source
        read = functools.partial(tables.__getitem__, "train")
    else:
        raise not_found(config, [], "sets of text are Parquet files below `root` or FLRAY_DATA, or hf:NAME")
    if splits == 1 and config.test_fraction:
        return None
    name = digest(contents, plain_name(config.source), config.label, config.text, prompt_of(config, None))
    return name, lambda: table_texts(config, read(), where)


def _vocabulary(config: DataConfig, given: Vocabulary | None) -> Vocabulary | None:
    """The `given` vocabulary, else that of the tokenizer in `config`; None: no text, or a tokenizer to be trained.

    Raises `DataError` for a vocabulary of several tasks, because a table does not name its task.
    """
    if given is not None and given.tasks:
        raise DataError(
            f"proxy.source: {config.source} is one set, the private data are a union; set it to a union of the same "
            "sets"
        )
    if given is not None or config.tokenizer in (None, "train"):
        return given
    from flray.data.sources.text import pretrained

    return pretrained(config.tokenizer, config.download)


def _text_key(config: DataConfig, vocabulary: Vocabulary | None) -> list[Any]:
    """The options that decide on a table's token ids, for its key; [] without token ids."""
    if vocabulary is None and config.tokenizer is None:
        return []
    from flray.data.sources.prompts import known_words, prompt_of

    prompt = prompt_of(config, vocabulary)
    return [
        "text",
        plain_name(config.source),
        config.text,
        config.max_length,
        vocabulary.fingerprint if vocabulary else "train",
        *(["prompt", prompt] if prompt else []),
        *(["words", known_words(config)] if config.words else []),
    ]
