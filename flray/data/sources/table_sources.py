"""Sources that are tables: a folder of Parquet files, or a data set of the Hugging Face hub."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.core.schema.errors import DataError, nearest
from flray.data.cache import check_unchanged, digest, file_digest
from flray.data.data_config import DataConfig
from flray.data.published import plain_name
from flray.data.sources.options import check_options, data_root, not_found
from flray.data.splits import Splits, Vocabulary, cached, in_line
from flray.files import cache_root

if TYPE_CHECKING:
    from flray.data.sources.columns import FeatureTable

HUB_OPTIONS = {"config": None, "revision": None, "train": None, "test": None}
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
READ = 6  # a part of the keys of tables: raise it when their columns, classes or pictures are read otherwise


class TableSource(NamedTuple):
    """Where the tables of a source are: `contents` identifies them, `read` gives that of a split (`train`, and the
    official other one), `check` raises `DataError` if files have changed since. `folders`: those of image files.
    `unread`: the names of other splits and files."""

    where: str
    splits: tuple[str, ...]
    contents: Any
    read: Callable[[str], FeatureTable]
    check: Callable[[], None]
    folders: tuple[Path, ...]
    unread: tuple[str, ...] = ()


def parquet_folder(config: DataConfig) -> Path | None:
    """The folder `root/source`, or FOLDER of `hf:FOLDER`, if it holds Parquet files, else None."""
    root, name = data_root(config), config.source.removeprefix("hf:")
    if name != config.source:
        of_the_hub = config.options.get("config") or config.options.get("revision")
        folder = None if of_the_hub else Path(name).expanduser()
    else:
        folder = None if root is None else root / name
    return folder if folder is not None and any(folder.glob("*.parquet")) else None


def parquet_file(config: DataConfig) -> Path | None:
    """The file of `hf:FILE.parquet`; None for another source."""
    file = Path(config.source.removeprefix("hf:")).expanduser()
    return file if config.source.startswith("hf:") and file.suffix.casefold() == ".parquet" and file.is_file() else None


def missing_file(config: DataConfig) -> Path | None:
    """The file of `hf:FILE`, by its suffix one of this machine, if it does not exist; None: there is no such name."""
    file = Path(config.source.removeprefix("hf:")).expanduser()
    is_file = config.source.startswith("hf:") and file.suffix.casefold() in SUFFIXES
    of_the_hub = config.options.get("config") or config.options.get("revision")
    return file if is_file and not of_the_hub and not file.exists() else None


def locate(config: DataConfig) -> TableSource:
    """The tables of `folder/train*.parquet` and `folder/test*.parquet` (else validation), of one file, or of a data set
    of the hub.

    `options`: train, test (names of splits), and of the hub config and revision.
    """
    from flray.data.sources.readers import hub_folders, hub_tables, parquet_files, parquet_table

    if file := missing_file(config):
        near = nearest(file.name, [path.name for path in file.parent.glob("*.*")]) if file.parent.is_dir() else ""
        raise DataError(f"data.source: no such file: {file}{near}; a relative path begins at {Path.cwd()}")
    folder, lone = parquet_folder(config), parquet_file(config)
    if folder is None and lone is None:
        tables, unread = hub_tables(config, check_options(config, HUB_OPTIONS))
        prints = [(split, table.fingerprint) for split, table in sorted(tables.items())]
        places, parts = hub_folders(config), tuple(tables)
        return TableSource(config.source, parts, prints, tables.__getitem__, lambda: None, places, unread)
    if lone is not None:
        check_options(config, {})
        folder, files, unread = lone.parent, {"train": [lone]}, ()
    else:
        assert folder is not None
        files, unread = parquet_files(folder, config.options.get("train"), config.options.get("test"))
    paths = [path for split in sorted(files) for path in files[split]]
    contents = file_digest(paths)
    check = functools.partial(check_unchanged, paths, contents)
    where = "from_hf" if folder.parent == cache_root() / "given" else str(lone or folder)
    return TableSource(
        where, tuple(files), contents, lambda split: parquet_table(files[split]), check, (folder,), unread
    )


def table(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """The splits of the tables of a source, with the notes of `datasets` on their columns. Raises `DataError`."""
    from flray.data.sources.readers import table_splits

    if config.source.startswith("hf:"):
        check_options(config, HUB_OPTIONS)
    vocabulary, at = _vocabulary(config, vocabulary), locate(config)
    options = ("label", "input", "drop", "group", "domain", "resize")
    key = digest(
        f"table {READ}",
        at.contents,
        at.splits,
        at.unread,
        config.options,
        [getattr(config, option) for option in options],
        *_text_key(config, vocabulary),
        *(["whole ids as they are"] if config.group else []),
    )

    def build() -> Splits:
        at.check()
        splits = table_splits(config, {split: at.read(split) for split in at.splits}, at.where, vocabulary, at.folders)
        lines = (f"splits and files that are not read: {in_line(at.unread)}",) if at.unread else ()
        return splits._replace(reading=(*splits.reading, *lines))

    return cached(key, build)


def train_texts(config: DataConfig) -> tuple[str, Callable[[], list[list[str]]]] | None:
    """The texts of a table's train split: a key of their contents, and the function that reads them, as columns.

    None if the table has no test split, because test samples are then drawn from these texts.
    Raises `DataError` if the source is not a table.
    """
    from flray.data.sources.prompts import prompt_of
    from flray.data.sources.readers import table_texts

    check_options(config, HUB_OPTIONS)
    if parquet_folder(config) is None and not config.source.startswith("hf:"):
        raise not_found(config, [], "sets of text are Parquet files below `root` or FLRAY_DATA, or hf:NAME")
    at = locate(config)
    if len(at.splits) == 1 and config.test_fraction:
        return None
    name = digest(
        at.contents, plain_name(config.source), config.label, config.text, config.drop, prompt_of(config, None)
    )
    return name, lambda: table_texts(config, at.read("train"), at.where)


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
