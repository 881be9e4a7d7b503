"""`ProxyData`: public samples on the server, for distillation and FedProj's memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, DataError
from flray.data.cache import Array, CacheEntry, digest, fetch
from flray.data.class_names import Labels, owned
from flray.data.data_config import DataConfig, ProxyConfig
from flray.data.dataset import LEAK_LIMIT, ON_TRAIN, Dataset, count_leaks, input_shape, load_dataset, projected, take
from flray.data.draws import stratified
from flray.data.sources import same_samples
from flray.data.sources.arrays import GIVEN
from flray.data.sources.bundled import template_of
from flray.data.sources.options import data_root
from flray.data.sources.union import sets_of
from flray.data.splits import Split, check_features, content_of, in_line, pack, unpack
from flray.files import array_checksum

BUNDLED = ("iris", "digits")  # sources without files
OF_READING = ("train", "test", "include_valid", "channels")  # options: the samples of a split, and how arrays are read


class ProxyData(NamedTuple):
    """Public samples: `x` as in `Split`, `y` int64 [n] or None, and their data set's normalisation constants."""

    x: Array
    y: Array | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    same_labels: bool
    fingerprint: str


def load_proxy(config: ProxyConfig, dataset: Dataset, *, seed: int = 0) -> tuple[ProxyData, Array]:
    """The public data, and the rows of `dataset.train` (int64, ascending) that stay with the clients.

    `seed` is the run's; `config.seed` overrides it. Raises `DataError` if shapes or sizes do not fit the task's.
    """
    seed = seed if config.seed is None else config.seed
    everyone = np.arange(len(dataset.train.y))
    if config.source == "uniform_box":
        return _uniform_box(config, dataset, seed), everyone
    if config.source == "holdout":
        return _holdout(config, dataset, seed)
    return _other(config, dataset), everyone


def _other(config: ProxyConfig, dataset: Dataset) -> ProxyData:
    same_source = config.source == dataset.name and (
        dataset.config is None or _origins(config) <= _origins(dataset.config)
    )
    if not same_source and dataset.config is not None and (config.same_labels is None or config.splits != "train"):
        same_source = same_samples(config, dataset.config)  # it calls a function of the user's
    if same_source and config.splits != "train":
        raise ConfigError(
            f"proxy.splits: {config.splits!r} of {config.source!r} contains the task's test samples; use train, or "
            "proxy.source: holdout"
        )
    # the public set has its own statistics, subsamples and constants, and the private text's token ids
    words = dataset.vocabulary
    length = {} if words is None else {"max_length": dataset.input_shape[0]}
    public = load_dataset(config.model_copy(update={"leak_check": False, **length}), words)
    public = _as_private(config, dataset, public)
    if (public.vocabulary and public.vocabulary.fingerprint) != (words and words.fingerprint):
        raise DataError(
            f"proxy {config.source!r} and data set {dataset.name!r} have different token ids; choose another public set"
        )
    if words is not None and words.tasks and public.sources != dataset.sources:
        moved = [name for name in public.sources if name in dataset.sources]
        if any(public.sources.index(name) != dataset.sources.index(name) for name in moved):
            raise DataError(
                f"proxy.options.sets: {in_line(public.sources)} are in another order than the private sets, "
                f"{in_line(dataset.sources)}, and each text begins with the token of its place; write the same order"
            )
    _check_shape(config, dataset, public)
    splits = _splits(config, public)
    split = public.test if splits == "test" else public.train
    total = len(public.train.y) + len(public.test.y) if splits == "all" else len(split.y)
    if config.size is not None and config.size > total:
        raise DataError(f"proxy.size: {config.size} of {total} samples of {config.source!r}; set it lower")
    if splits == "all" or (config.size is not None and config.size < total):

        def build() -> CacheEntry:
            parts = [public.train, public.test] if splits == "all" else [split]
            pooled = Split(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))
            if config.size is not None:
                pooled = take(pooled, stratified(pooled.y, config.size, config.split_seed, "proxy"))
            return _entry(pooled)

        entry = fetch(digest("proxy", public.fingerprint, splits, config.size, config.split_seed), build)
        split, content = unpack(entry, "train") or split, content_of(entry)
    else:
        content = public.fingerprint
    same = same_source if config.same_labels is None else config.same_labels
    y = None if config.labelled is False else split.y
    if same and y is not None:
        y = _as_of_the_task(config, dataset, public, y)
    if config.leak_check and dataset.test is not dataset.train:
        _check_leaks(config, split.x, public.fingerprint, dataset)
    fingerprint = digest(content, config.splits, public.mean, public.std, y is None)
    return ProxyData(split.x, y, public.mean, public.std, same, fingerprint)


def _origins(config: DataConfig) -> set[str]:
    """A name for the data set that `config` reads, and one for each set of a union.

    Sections of one source read other sets if their folders, options, or templates of synthetic classes differ. Which
    samples are read, how, and in which split, is no part of the name.
    """
    if config.source == "union":
        return {name for own in sets_of(config).values() for name in _origins(own)}
    if config.source == "synthetic":
        return {digest(config.source, template_of(config))}
    options = {key: value for key, value in config.options.items() if key not in OF_READING and value is not None}
    root = None if config.source.startswith(("hf:", GIVEN)) or config.source in BUNDLED else data_root(config)
    return {digest(config.source, root and str(root.resolve()), options)}


def _splits(config: ProxyConfig, public: Dataset) -> str:
    """`proxy.splits`; train if the test split is the train split. Raises `DataError` if that of a union's set is."""
    if public.test is public.train:
        return "train"
    if config.splits == "all":
        for line in public.reading:
            name, on_train, _ = line.partition(f": {ON_TRAIN}")
            if on_train:
                raise DataError(
                    f"proxy.splits: all has each sample of {name!r} twice: that set has no test split and "
                    "test_fraction 0; set test_fraction higher, or use train"
                )
    return config.splits


def _as_private(config: ProxyConfig, dataset: Dataset, public: Dataset) -> Dataset:
    """The public features with the private ones' shift and matrix. Raises `ConfigError` for a fit of their own, and
    `DataError` for another number of features, or other names."""
    if not dataset.is_image and (config.pca or config.standardize):
        key = "pca" if config.pca else "standardize"
        raise ConfigError(f"proxy.{key}: public features get the shift and the scale of data.{key}; leave it out")
    check_features("proxy", dataset.features, dataset.name, public.features, config.source)
    fit = dataset.projection
    if fit is None:
        return public
    if public.train.x.shape[1:] != fit[0].shape:
        raise DataError(
            f"proxy {config.source!r} has samples of shape {public.train.x.shape[1:]} and data set {dataset.name!r} "
            f"{fit[0].shape} before data.pca and data.standardize; choose another public set"
        )
    train = public.train._replace(x=projected(public.train.x, fit))
    test = train if public.test is public.train else public.test._replace(x=projected(public.test.x, fit))
    return public._replace(train=train, test=test, fingerprint=digest(public.fingerprint, *map(array_checksum, fit)))


def _check_shape(config: ProxyConfig, dataset: Dataset, public: Dataset) -> None:
    """Raises `DataError` if public samples have another shape than private ones."""
    if input_shape(public.train.x) == dataset.input_shape:
        return
    axes, way = "", "choose another public set"
    if dataset.is_image and public.is_image:
        axes, way = " (C, H, W)", "set proxy.resize and proxy.channels"
    raise DataError(
        f"proxy {config.source!r} has samples of shape {public.input_shape}{axes} and data set {dataset.name!r} "
        f"{dataset.input_shape}; {way}"
    )


def _check_leaks(config: ProxyConfig, x: Array, key: str, dataset: Dataset) -> None:
    """Raises `DataError` if more than `LEAK_LIMIT` of the task's test samples are among the public ones, unless as many
    are among the private ones: few values make equal rows, or `data.leak_check` is off."""
    keys = digest("proxy leaks", key, config.splits, config.size, config.split_seed, dataset.fingerprint)
    sides = {"leaks": x, "natural": dataset.train.x}
    counts = fetch(
        keys, lambda: CacheEntry({}, {name: count_leaks(side, dataset.test.x) for name, side in sides.items()})
    ).meta
    count, most = counts["leaks"], LEAK_LIMIT * len(dataset.test.y)
    if count > most >= counts["natural"]:
        raise DataError(
            f"proxy {config.source!r} has {count} of {len(dataset.test.y)} test samples of {dataset.name!r}, above "
            f"{LEAK_LIMIT:.0%}; give it data's own test_fraction and split_seed, other files, or `leak_check: false`"
        )


def check_validation(
    config: ProxyConfig, public: ProxyData, dataset: Dataset, samples: Array, private: Array | None = None
) -> None:
    """Raises `DataError` if more than `LEAK_LIMIT` of the validation samples (numbers in `dataset.train`) are among the
    public ones, unless as many are among the other `private` ones (None: all are private), or `proxy.leak_check` is
    off."""
    most, x = LEAK_LIMIT * len(samples), dataset.train.x
    count = count_leaks(public.x, x[samples]) if config.leak_check else 0
    if count > most:
        others = np.setdiff1d(np.arange(len(x)) if private is None else private, samples)
        if count_leaks(x[others], x[samples]) > most:
            return
        other = (
            "remove copies from the data" if config.source == "holdout" else "use proxy.source: holdout, other files"
        )
        raise DataError(
            f"proxy {config.source!r} has {count} of {len(samples)} validation samples of {dataset.name!r}, above "
            f"{LEAK_LIMIT:.0%}; {other}, or set `proxy.leak_check: false`"
        )


def _as_of_the_task(config: ProxyConfig, dataset: Dataset, public: Dataset, y: Array) -> Array:
    """The public labels as numbers of the task's classes, by name. Raises `DataError` for other names."""
    if public.classes == dataset.classes:
        return y
    private = Labels(dataset.name, y[:0], dict(enumerate(dataset.classes)))
    place = Labels(f"proxy {config.source!r}", y, dict(enumerate(public.classes)))
    found = owned([private, place], "proxy.same_labels")
    if found.classes != dataset.classes:
        other = [name for name in found.classes if name not in dataset.classes]
        raise DataError(
            f"proxy.same_labels: {config.source!r} has the class {other[0]!r}, which {dataset.name!r} does not have "
            f"({in_line(dataset.classes)}); set it to false, or use the same names"
        )
    return found.ids[1]


def _holdout(config: ProxyConfig, dataset: Dataset, seed: int) -> tuple[ProxyData, Array]:
    n, size = len(dataset.train.y), config.size
    if size is None or size >= n:
        raise DataError(
            f"proxy.size: holdout takes {size} of {n} train samples and leaves none to the clients; set it lower"
        )
    rows = stratified(dataset.train.y, size, seed, "holdout")
    private = np.setdiff1d(np.arange(n), rows)
    entry = fetch(
        digest("holdout", dataset.fingerprint, array_checksum(rows)), lambda: _entry(take(dataset.train, rows))
    )
    split = unpack(entry, "train")
    assert split is not None
    y = None if config.labelled is False else split.y
    same = True if config.same_labels is None else config.same_labels
    fingerprint = digest(content_of(entry), dataset.mean, dataset.std, y is None)
    return ProxyData(split.x, y, dataset.mean, dataset.std, same, fingerprint), private


def _uniform_box(config: ProxyConfig, dataset: Dataset, seed: int) -> ProxyData:
    if dataset.is_image or dataset.vocabulary is not None:
        kind = "images" if dataset.is_image else "text"
        raise DataError(f"proxy: uniform_box needs tabular features and {dataset.name!r} has {kind}; use holdout")
    x = dataset.train.x
    low, high = x.min(axis=0), x.max(axis=0)
    points = rng(seed, "uniform_box").uniform(low, high, (config.size or len(x), x.shape[1])).astype(np.float32)
    same = False if config.same_labels is None else config.same_labels
    return ProxyData(points, None, dataset.mean, dataset.std, same, array_checksum(points))


def _entry(split: Split) -> CacheEntry:
    return CacheEntry(pack(split._replace(group=None), None), {})
