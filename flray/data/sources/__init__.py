"""Where samples come from: a table of functions `DataConfig -> Splits`, and how a plain name is found.

Every source of flray goes through the cache, so a worker process memory-maps arrays and never imports
scikit-learn, Pillow or torchvision. A source of your own may return plain arrays; `load_dataset` caches by
their contents.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flray.core.disk import array_checksum
from flray.core.errors import DataError, nearest, shown
from flray.core.registry import Registry
from flray.data.cache import Array, Entry, digest, fetch, file_digest
from flray.data.data_config import DataConfig
from flray.data.published import plain_name


class Split(NamedTuple):
    """Samples of one split: `x` uint8 [n, H, W, C], float32 [n, d] or token ids int32 [n, L]; `y` int64 [n]; `group` int64 [n] or None."""

    x: Array
    y: Array
    group: Array | None = None


class Vocabulary(NamedTuple):
    """What token ids count in: `size` tokens, of which one fills up (`pad`) and one ends a text (`separator`).

    `tokenizer` is the description (JSON, as uint8) that the `tokenizers` library reads; None: public text cannot be tokenised alike.
    """

    size: int
    pad: int
    separator: int
    tokenizer: Array | None = None

    @property
    def fingerprint(self) -> str:
        return digest(*self[:3], array_checksum(self.tokenizer))


class Splits(NamedTuple):
    """What a source returns. `test` is None without an official test split; `key` names the contents, or is "".

    `vocabulary` belongs to token ids; `notes` tell the user what was left out; `content` is the checksum of samples from the cache, or "".
    """

    train: Split
    test: Split | None
    classes: tuple[str, ...]
    key: str = ""
    vocabulary: Vocabulary | None = None
    notes: tuple[str, ...] = ()
    content: str = ""


TORCHVISION = ("cifar10", "cifar100", "svhn", "mnist", "fashion_mnist")
SOURCES = Registry(
    "source",
    {
        "iris": "flray.data.sources.bundled:iris",
        "digits": "flray.data.sources.bundled:digits",
        "synthetic": "flray.data.sources.bundled:synthetic",
        **{name: "flray.data.sources:by_name" for name in TORCHVISION},
        "cinic10": "flray.data.sources.image_sets:cinic10",
        "pathmnist": "flray.data.sources.image_sets:pathmnist",
        "tissuemnist": "flray.data.sources.image_sets:tissuemnist",
    },
)


def load_splits(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """The splits of `config.source`, as the source has them: nothing drawn, subsampled or transformed.

    Text becomes ids of `vocabulary`; without one, of the tokenizer that `config` names.
    """
    if config.source.startswith("hf:"):
        return hub(config, vocabulary)
    # a folder or torchvision name needs no table; other names may be a user's own
    if config.source in SOURCES.names():
        splits: Splits = SOURCES.get(config.source)(config)
        return splits
    return by_name(config, vocabulary)


def data_root(config: DataConfig) -> Path | None:
    """The folder of data sets; None where none is named. Raises DataError for one that cannot be looked into."""
    named = config.root or os.environ.get("FLRAY_DATA")
    if not named:
        return None
    try:
        root = Path(named).expanduser()
        if root.is_dir():
            next(root.iterdir(), None)
    except (OSError, ValueError, RuntimeError) as error:  # too long, not allowed; ~nobody has no home
        why = getattr(error, "strerror", None) or error
        raise DataError(f"the folder of data sets {shown(named)} cannot be read ({why}); set data.root or FLRAY_DATA") from error
    return root


def parquet_folder(config: DataConfig) -> Path | None:
    """`root/source`, where that folder holds Parquet files."""
    root = data_root(config)
    return root / config.source if root is not None and any((root / config.source).glob("*.parquet")) else None


def by_name(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """Parquet folder `root/name` (options: train, test, names of splits), else torchvision's files below `root` (SVHN: without extra)."""
    name, root = config.source, data_root(config)
    folder = parquet_folder(config)
    check_options(config, {} if folder is None else {"train": None, "test": None})
    if folder is not None:
        return parquet(config, folder, vocabulary)
    looked = [] if root is None else [f"Parquet files in {root / name}"]
    if name in TORCHVISION:
        if root is None and config.download:
            raise DataError(f"data set {name!r}: `download: true` needs a folder to download to; set `root` or FLRAY_DATA")
        if root is not None:
            from flray.data.sources.image_sets import torchvision_files, torchvision_splits

            files = torchvision_files(name, root, config.download)
            if files:
                key = digest("torchvision", name, file_digest(files))
                return cached(key, lambda: torchvision_splits(name, root))
            looked.append(f"torchvision's {name} files in {root}")
        what = "set `root` or FLRAY_DATA to the folder that holds it, or `download: true`"
    else:
        folders = [p.name for p in root.iterdir() if p.is_dir()] if root is not None and root.is_dir() else []
        what = "set `root` or FLRAY_DATA to the folder that holds it" + nearest(name, {*SOURCES.names(), *folders})
    raise not_found(config, looked, what)


def not_found(config: DataConfig, looked: Sequence[str], what: str) -> DataError:
    """The error of a data set that is nowhere: where it was `looked` for (nowhere: no root is set), `what` to do."""
    place = "; looked for " + " and ".join(looked) if looked else "; neither `root` nor FLRAY_DATA is set"
    return DataError(f"data set {config.source!r} not found{place}; {what}")


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
        *_text_key(config, vocabulary),
    )
    return cached(key, lambda: hub_splits(config, tables, vocabulary))


def _vocabulary(config: DataConfig, given: Vocabulary | None) -> Vocabulary | None:
    """The `given` vocabulary, else that of the tokenizer which `config` names; None: no text, or to be trained on it."""
    if given is not None or config.tokenizer in (None, "train"):
        return given
    from flray.data.sources.text import pretrained

    return pretrained(config.tokenizer, config.download)


def _text_key(config: DataConfig, vocabulary: Vocabulary | None) -> list[Any]:
    """What decides on the token ids of a table, besides its contents; nothing where there are none."""
    if vocabulary is None and config.tokenizer is None:
        return []
    return ["text", plain_name(config.source), config.text, config.max_length, vocabulary.fingerprint if vocabulary else "train"]


def check_options(config: DataConfig, default: dict[str, Any]) -> dict[str, Any]:
    """`data.options` over the `default` of a source (None: a word); one that it does not read, or of another type, is an error."""
    for name, value in config.options.items():
        if name not in default:
            raise DataError(f"data.options: {config.source} does not read {name!r}{nearest(name, default)}")
        kinds = {type(None): str, float: int | float, list: int | list | tuple}
        kind = kinds.get(type(default[name]), type(default[name]))
        if value != default[name] and (not isinstance(value, kind) or isinstance(value, bool) != isinstance(default[name], bool)):
            raise DataError(f"data.options.{name}: {shown(value)} is no value for it; an example is {shown(default[name] or 'train')}")
    return {**default, **config.options}


def no_columns(config: DataConfig) -> None:
    """Label, input and group column are for tables only."""
    for name in ("label", "input", "group"):
        if getattr(config, name) is not None:
            raise DataError(f"data.{name}: {config.source} has no columns to choose from; leave it out")


def cached(key: str, build: Callable[[], Splits]) -> Splits:
    """Splits as one cache entry: what `build` returns, memory-mapped."""

    def make() -> Entry:
        splits = build()
        arrays = pack(splits.train, splits.test)
        meta: dict[str, Any] = {"classes": list(splits.classes), "notes": list(splits.notes)}
        if splits.vocabulary is not None and splits.vocabulary.tokenizer is not None:
            arrays["tokenizer"], meta["vocabulary"] = splits.vocabulary.tokenizer, list(splits.vocabulary[:3])
        return Entry(arrays, meta)

    entry = fetch(key, make)
    train, test = unpack(entry, "train"), unpack(entry, "test")
    if train is None:
        raise DataError(f"data cache entry {key} has no train split; delete it from FLRAY_CACHE")
    vocabulary = Vocabulary(*entry.meta["vocabulary"], tokenizer=entry.arrays["tokenizer"]) if "vocabulary" in entry.meta else None
    return Splits(train, test, tuple(entry.meta["classes"]), key, vocabulary, tuple(entry.meta["notes"]), content_of(entry))


def content_of(entry: Entry) -> str:
    """The checksum of an entry's samples, from those of its files, which were compared when they were opened."""
    return digest({name: value for name, value in entry.checksums.items() if name != "tokenizer"})


def pack(train: Split | None, test: Split | None) -> dict[str, Array]:
    """Arrays of up to two splits under the names of a cache entry."""
    both = {"train": train, "test": test}
    named = {f"{name}_{field}": array for name, split in both.items() if split for field, array in zip(Split._fields, split, strict=True)}
    return {name: array for name, array in named.items() if array is not None}


def unpack(entry: Entry, name: str) -> Split | None:
    arrays = entry.arrays
    if f"{name}_x" not in arrays:
        return None
    return Split(arrays[f"{name}_x"], arrays[f"{name}_y"], arrays.get(f"{name}_group"))
