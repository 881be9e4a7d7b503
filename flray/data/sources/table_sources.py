"""Sources that are tables: a folder of Parquet files, or a data set of the Hugging Face hub."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flray.core.schema.errors import DataError, nearest
from flray.data.cache import CacheEntry, check_unchanged, digest, fetch, file_digest, listing_digest
from flray.data.data_config import DataConfig
from flray.data.published import plain_name
from flray.data.sources.options import check_options, data_root, not_found
from flray.data.sources.split_names import TABLES, choose_splits, kind_of
from flray.data.sources.text import known_words, pretrained, prompt_of
from flray.data.splits import Splits, Vocabulary, cached, in_line
from flray.files import cache_root

if TYPE_CHECKING:
    from flray.data.sources.columns import FeatureTable

HUB_OPTIONS = {"config": None, "revision": None, "train": None, "test": None}
SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
READ = 11  # a part of the keys of tables: raise it when their columns, classes or pictures are read otherwise


class TableSource(NamedTuple):
    """Where the tables of a source are: `contents` identifies them, `read` gives that of a split (`train`, and the
    official other one), `check` raises `DataError` if files have changed since. `folders`: those of image files, which
    `contents` has but for those that a Parquet file names (`names_pictures`). `unread`: the names of other splits and
    files."""

    where: str
    splits: tuple[str, ...]
    contents: Any
    read: Callable[[str], FeatureTable]
    check: Callable[[], None]
    folders: tuple[Path, ...]
    unread: tuple[str, ...] = ()
    names_pictures: bool = True


def parquet_folder(config: DataConfig) -> Path | None:
    """The folder `root/source`, or FOLDER of `hf:FOLDER`, if it holds Parquet files, else None."""
    root, name = data_root(config), config.source.removeprefix("hf:")
    if name != config.source:
        of_the_hub = config.options.get("config") or config.options.get("revision")
        folder = None if of_the_hub else Path(os.path.expanduser(name))
    else:
        folder = None if root is None else root / name
    return folder if folder is not None and any(folder.glob("*.parquet")) else None


def parquet_file(config: DataConfig) -> Path | None:
    """The file of `hf:FILE.parquet`; None for another source."""
    file = Path(os.path.expanduser(config.source.removeprefix("hf:")))
    return file if config.source.startswith("hf:") and file.suffix.casefold() == ".parquet" and file.is_file() else None


def missing_file(config: DataConfig) -> Path | None:
    """The file of `hf:FILE`, by its suffix one of this machine, if it does not exist; None: there is no such name."""
    file = Path(os.path.expanduser(config.source.removeprefix("hf:")))
    is_file = config.source.startswith("hf:") and file.suffix.casefold() in SUFFIXES
    of_the_hub = config.options.get("config") or config.options.get("revision")
    return file if is_file and not of_the_hub and not file.exists() else None


def parquet_files(
    folder: Path, train: str | None = None, test: str | None = None
) -> tuple[dict[str, list[Path]], tuple[str, ...]]:
    """The files of the splits `train` and `test` (None: the official ones), `train.parquet` or
    `train-00000-of-00003.parquet`, and the names of splits that are not read. Raises `DataError` for missing shards and
    splits, and for splits whose rows nobody would miss."""
    splits: dict[str, list[Path]] = {}
    counts: dict[str, tuple[str | None, Path]] = {}  # by split: its number of shards, from its first file
    for path in sorted(folder.glob("*.parquet")):
        match = re.fullmatch(r"(.+?)(?:-[0-9]+-of-([0-9]+))?", path.stem, re.DOTALL)
        assert match is not None
        if not path.is_file() or not os.access(path, os.R_OK):
            raise DataError(f"{path} is not a readable file; copy it again, or remove it")
        splits.setdefault(match[1], []).append(path)
        shards, first = counts.setdefault(match[1], (match[2], path))
        if shards != match[2]:
            raise DataError(
                f"{folder} has the split {match[1]} twice, in {first.name} and in {path.name}, and every sample would "
                "count twice; remove one of them"
            )
        if match[2] and len(list(folder.glob(f"{match[1]}-*-of-{match[2]}.parquet"))) != int(match[2]):
            raise DataError(f"{folder}: {match[1]} lacks some of its {int(match[2])} shards; copy the missing files")
    for path in sorted(folder.iterdir()):
        kind = kind_of(path.stem) if path.is_dir() or path.suffix.casefold() in TABLES else None
        if kind is not None and path.suffix != ".parquet" and train is None and kind not in map(kind_of, splits):
            raise DataError(
                f"{folder} has Parquet files, and {path.name} beside them would not be read; write "
                f"{path.stem}.parquet, or options: {{train: NAME}} to leave it out"
            )
    train, test, unread = choose_splits(splits, train, test, str(folder))
    for option, name in (("train", train), ("test", test)):
        if name is not None and name not in splits:
            raise DataError(
                f"{folder} has no {name} split (it has {', '.join(sorted(splits))}); choose one with options: "
                f"{{{option}: NAME}}"
            )
    # test splits are not pooled with train
    other = {} if test is None else {"test" if test == "train" else test: splits[test]}
    return {"train": splits[train]} | other, unread


def locate(config: DataConfig) -> TableSource:
    """The tables of `folder/train*.parquet` and `folder/test*.parquet` (else validation), of one file, or of a data set
    of the hub.

    `options`: train, test (names of splits), and of the hub config and revision.
    """
    if file := missing_file(config):
        near = nearest(file.name, [path.name for path in file.parent.glob("*.*")]) if file.parent.is_dir() else ""
        raise DataError(f"data.source: no such file: {file}{near}; a relative path begins at {Path.cwd()}")
    folder, lone = parquet_folder(config), parquet_file(config)
    if folder is None and lone is None:
        from flray.data.sources.readers import hub_folders, hub_tables

        tables, unread = hub_tables(config, check_options(config, HUB_OPTIONS))
        prints = [(split, table.fingerprint) for split, table in sorted(tables.items())]
        places, parts = hub_folders(config), tuple(tables)
        return TableSource(config.source, parts, prints, tables.__getitem__, lambda: None, places, unread, False)
    if lone is not None:
        check_options(config, {})
        folder, files, unread = lone.parent, {"train": [lone]}, ()
    else:
        assert folder is not None
        files, unread = parquet_files(folder, config.options.get("train"), config.options.get("test"))
    paths = [path for split in sorted(files) for path in files[split]]
    contents = file_digest(paths)
    check = functools.cache(functools.partial(check_unchanged, paths, contents))
    where = "from_hf" if folder.parent == cache_root() / "given" else str(lone or folder)

    @functools.cache
    def read(split: str) -> FeatureTable:
        from flray.data.sources.readers import parquet_table

        return parquet_table(files[split])

    return TableSource(where, tuple(files), contents, read, check, (folder,), unread)


def table(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """The splits of the tables of a source, with the notes of `datasets` on their columns. Raises `DataError`."""
    if config.source.startswith("hf:"):
        check_options(config, HUB_OPTIONS)
    vocabulary, at = vocabulary_of(config, vocabulary), locate(config)
    pictures = _named_pictures(at) if at.names_pictures else []
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
        *([listing_digest(pictures)] if pictures else []),
    )

    def build() -> Splits:
        from flray.data.sources.readers import table_splits

        at.check()
        splits = table_splits(config, {split: at.read(split) for split in at.splits}, at.where, vocabulary, at.folders)
        lines = (f"splits and files that are not read: {in_line(at.unread)}",) if at.unread else ()
        return splits._replace(reading=(*splits.reading, *lines))

    return cached(key, build, at.where)


def _named_pictures(at: TableSource) -> list[str]:
    """The picture files that a table's rows name without their bytes. For a missing one the decoder names the row."""

    def build() -> CacheEntry:
        from flray.data.sources.pictures import named_files

        at.check()
        return CacheEntry({}, {"names": named_files(map(at.read, at.splits))})

    names = fetch(digest("named pictures", at.contents, at.splits), build).meta["names"]
    return [path for name in names if os.path.exists(path := os.path.join(at.folders[0], name))]


def train_texts(config: DataConfig) -> tuple[str, Callable[[], list[list[str]]]] | None:
    """The texts of a table's train split: a key of their contents, and the function that reads them, as columns.

    None if the table has no test split, because test samples are then drawn from these texts.
    Raises `DataError` if the source is not a table.
    """
    check_options(config, HUB_OPTIONS)
    if parquet_folder(config) is None and not config.source.startswith("hf:"):
        root = data_root(config)
        raise not_found(
            config,
            [] if root is None else [f"Parquet files in {root / config.source}"],
            "sets of text are Parquet files below `root` or FLRAY_DATA, or hf:NAME, and LEAF's if data.tokenizer is a "
            "tokenizer's name or folder",
        )
    at = locate(config)
    if len(at.splits) == 1 and config.test_fraction:
        return None
    name = digest(
        at.contents, plain_name(config.source), config.label, config.text, config.drop, prompt_of(config, None)
    )

    def texts() -> list[list[str]]:
        from flray.data.sources.readers import table_texts

        return table_texts(config, at.read("train"), at.where)

    return name, texts


def vocabulary_of(config: DataConfig, given: Vocabulary | None) -> Vocabulary | None:
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
    return pretrained(config.tokenizer, config.download)


def _text_key(config: DataConfig, vocabulary: Vocabulary | None) -> list[Any]:
    """The options that decide on a table's token ids, for its key; [] without token ids."""
    if vocabulary is None and config.tokenizer is None:
        return []
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
