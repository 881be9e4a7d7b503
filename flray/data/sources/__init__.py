"""The table of sources, functions `DataConfig -> Splits`, and the search for a plain name.

All sources of flray use the cache, so a worker process memory-maps arrays and never imports scikit-learn, Pillow or
torchvision. A source of your own may return plain arrays; `load_dataset` caches them by their contents.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from flray.core.schema.errors import DataError, nearest
from flray.core.schema.registry import IMPORT_PATH, OWN, Registry
from flray.data.cache import digest, file_digest
from flray.data.checks import contents, own_splits
from flray.data.data_config import DataConfig
from flray.data.sources.arrays import GIVEN, given, given_key, npy_files, npy_folder
from flray.data.sources.image_sets import MEDMNIST, cinic10_folder, medmnist_file, torchvision_files, torchvision_splits
from flray.data.sources.leaf import LEAF, leaf_files
from flray.data.sources.options import check_options, data_root, not_found
from flray.data.sources.table_sources import missing_file, parquet_folder, table
from flray.data.splits import Splits, Vocabulary, cached
from flray.files import cache_root

TORCHVISION = ("cifar10", "cifar100", "svhn", "mnist", "fashion_mnist")
ELSEWHERE = (
    "hf:NAME is a data set of the Hugging Face hub; a folder NAME of Parquet or .npy files below data.root is one; "
    "in Python flray.data.from_arrays (images of uint8 or floats), from_torch, from_hf, from_flwr give the section data"
)
SOURCES = Registry(
    "source",
    {
        "iris": "flray.data.sources.bundled:iris",
        "digits": "flray.data.sources.bundled:digits",
        "synthetic": "flray.data.sources.bundled:synthetic",
        **{name: "flray.data.sources:by_name" for name in TORCHVISION},
        "union": "flray.data.sources.union:union",
        "femnist": "flray.data.sources.leaf:femnist",
        "shakespeare": "flray.data.sources.leaf:shakespeare",
        "stack_overflow": "flray.data.sources.leaf:stack_overflow",
        "cinic10": "flray.data.sources.image_sets:cinic10",
        "pathmnist": "flray.data.sources.image_sets:pathmnist",
        "tissuemnist": "flray.data.sources.image_sets:tissuemnist",
    },
    f"{ELSEWHERE}; {OWN}",
)


def load_splits(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """The splits of `config.source`, with no draw, subsample or transformation.

    Text becomes ids of `vocabulary`; without one, of the tokenizer in `config`.
    """
    if config.source.startswith("hf:"):
        return table(config, vocabulary)
    if config.source.startswith(GIVEN):
        return given(config)
    # a folder or a name of torchvision is not in the table
    if _own_or_known(config):
        function = SOURCES.get(config.source)
        if _is_own(function):
            return own_splits(function, config)
        of_text = (vocabulary,) if config.source in ("union", *LEAF) else ()
        splits: Splits = function(config, *of_text)
        return splits
    return by_name(config, vocabulary)


def _is_own(function: Any) -> bool:
    return not getattr(function, "__module__", "").startswith("flray.")


def same_samples(config: DataConfig, other: DataConfig) -> bool:
    """Whether a source of the user's own returns the same samples with the options of `other`: it alone knows which
    are its defaults. False for other sources."""
    named = not config.source.startswith(("hf:", GIVEN)) and config.source == other.source and _own_or_known(config)
    if not named or not _is_own(function := SOURCES.get(config.source)):
        return False
    there = config.model_copy(update={"options": other.options, "root": other.root})
    return contents(own_splits(function, config)) == contents(own_splits(function, there))


def by_name(config: DataConfig, vocabulary: Vocabulary | None = None) -> Splits:
    """Parquet folder `root/name` (options: train, test, names of splits), else a folder of `.npy` files (`arrays.py`),
    else torchvision's files below `root` (SVHN: without extra)."""
    name, root = config.source, data_root(config)
    folder = parquet_folder(config)
    if folder is None and (arrays := npy_files(config)):
        return npy_folder(config, arrays)
    check_options(config, {} if folder is None else {"train": None, "test": None})
    if folder is not None:
        return table(config, vocabulary)
    looked = [] if root is None else [f"Parquet files in {root / name}"]
    if name in TORCHVISION:
        if root is None and config.download:
            raise DataError(
                f"data set {name!r}: `download: true` needs a folder to download to; set `root` or FLRAY_DATA"
            )
        if root is not None:
            files = torchvision_files(name, root, config.download)
            if files:
                key = digest("torchvision", name, file_digest(files))
                return cached(key, lambda: torchvision_splits(name, root))
            looked.append(f"torchvision's {name} files in {root}")
        what = "set `root` or FLRAY_DATA to the folder that holds it, or `download: true`"
    else:
        folders = [p.name for p in root.iterdir() if p.is_dir()] if root is not None and root.is_dir() else []
        close = nearest(name, {*SOURCES.names(), *folders})
        what = f"set `root` or FLRAY_DATA to the folder that holds it{close}; {OWN}"
        if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            what = f"one of the Hugging Face Hub is data=hf:{name}; else {what}"
        if name in folders and root is not None:
            what = f"pictures in folders of classes, CSV and JSON files are read as data=hf:{root / name}"
        if Path(os.path.expanduser(name)).exists():
            what = f"a file or a folder of your own is data=hf:{name}"
    raise not_found(config, looked, what)


def at_hand(config: DataConfig) -> bool:
    """Whether the files of `config.source` exist. Reads none of them.

    True for sources without files, and for those that only loading can check (the hub, a source of the user's own).
    """
    name, root = config.source, data_root(config)
    if name.startswith("hf:") or parquet_folder(config) is not None:
        return missing_file(config) is None
    if name.startswith(GIVEN):
        key = given_key(name)
        return key is not None and (cache_root() / "data" / key).is_dir()
    if npy_files(config):
        return True
    if name in LEAF:
        return bool(leaf_files(config))
    if name in TORCHVISION:
        return root is not None and bool(torchvision_files(name, root, download=False))
    if name == "cinic10":
        return cinic10_folder(config) is not None
    if name in MEDMNIST:
        return medmnist_file(config) is not None
    return _own_or_known(config)


def _own_or_known(config: DataConfig) -> bool:
    """Whether a function makes the data: one of the table, or `module:function`."""
    path = IMPORT_PATH.fullmatch(config.source) and parquet_folder(config) is None
    return bool(path) or config.source in SOURCES.names()
