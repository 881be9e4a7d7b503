"""`Dataset`: the arrays of a run, from a source's splits: drawn splits, subsamples, PCA, constants, leak check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flray.core.schema.errors import ConfigError, DataError, warn
from flray.data.cache import Array, CacheEntry, digest, fetch
from flray.data.checks import LabelWarning, check_fit, check_splits, note_cut, without_samples
from flray.data.data_config import Augment, Constants, DataConfig
from flray.data.draws import apart, first_copies, row_hashes, stratified
from flray.data.published import CONSTANTS, FEDZOO, plain_name
from flray.data.sources import load_splits
from flray.data.splits import Split, Splits, Vocabulary, class_list, content_of, in_line, pack, unpack
from flray.files import array_checksum

ROWS = 1024  # float images whose statistics are summed at once
ON_TRAIN = "test split: none, so the training samples are tested on"  # a line of `Dataset.reading`
LEAK_LIMIT = 0.01  # of the test split; published CIFAR-100 has 10 such images of 10,000


class LeakWarning(UserWarning):
    """Test samples that also occur in the train split."""


class TextShape(tuple[int, ...]):
    """Shape `(L,)` of samples of token ids, with their vocabulary, which a model reads."""

    vocabulary: Vocabulary

    def __new__(cls, length: int, vocabulary: Vocabulary) -> TextShape:
        shape = super().__new__(cls, (length,))
        shape.vocabulary = vocabulary
        return shape


class Dataset(NamedTuple):
    """A data set ready to be partitioned: read-only memory-mapped arrays, class names, normalisation constants.

    `mean` and `std` are per channel, on the 0..1 scale of uint8 images or the own scale of float images, and empty for
    tabular features and token ids, which are used as they are. `bounds`: the values of float images that are 0 and 1 on
    the 0..1 scale of :attr:`constants`: the least and the largest of the train split. `vocabulary`: of token ids.
    `sources`: the names of the domains (in a union of text, the tasks) that `Split.source` numbers. `source_of`: the
    source of each class, if no two sources share a class, else empty. `fingerprint`: hash of contents, names, constants
    and vocabulary. `reading`: lines that say how the source read each column, class and picture. `features`: as in
    `Splits`, and so `groups`. `config`: the section that it was read from; None: of no section.
    `projection`: shift [d] and matrix [d, k] of standardisation and PCA, where x = (features - shift) matrix.
    Do not pickle it: reload it from its `DataConfig`.
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fingerprint: str
    augment: Augment
    vocabulary: Vocabulary | None = None
    sources: tuple[str, ...] = ()
    source_of: tuple[int, ...] = ()
    bounds: tuple[float, float] = (0.0, 1.0)
    reading: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    projection: tuple[Array, Array] | None = None
    groups: Array | None = None
    config: DataConfig | None = None

    @property
    def constants(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`mean` and `std` of images on the 0..1 scale, for what generates images; of uint8 images the same numbers."""
        low, high = self.bounds
        width = high - low
        return tuple((m - low) / width for m in self.mean), tuple(s / width for s in self.std)

    @property
    def class_groups(self) -> tuple[Array, ...]:
        """The classes of each source (int64, ascending), if no two sources share a class; else empty."""
        owner = np.array(self.source_of, np.int64)
        return tuple(np.flatnonzero(owner == source) for source in range(len(self.sources))) if self.source_of else ()

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def is_image(self) -> bool:
        return self.train.x.ndim == 4

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W) of an image, (d,) of tabular features, (L,) of token ids (a `TextShape`)."""
        shape = input_shape(self.train.x)
        return shape if self.vocabulary is None else TextShape(shape[0], self.vocabulary)


def input_shape(x: Array) -> tuple[int, ...]:
    """The shape of one sample as a model gets it."""
    shape = tuple(int(s) for s in x.shape[1:])
    return (shape[2], shape[0], shape[1]) if x.ndim == 4 else shape


def load_dataset(config: DataConfig, vocabulary: Vocabulary | None = None, *, in_union: bool = False) -> Dataset:
    """The data set of `config`, memory-mapped; decoded and prepared first if it is not in the cache.

    Text becomes ids of `vocabulary`, if one is given. Warns of texts that are cut off (`CutWarning`), unless it is a
    set of a union, which warns for all of them. Raises `DataError` for missing, damaged or leaking data,
    `ConfigError` for options that do not fit the data.
    """
    raw = load_splits(config, vocabulary)
    check_splits(raw, config.source)
    check_fit(raw, config)
    for note in raw.notes:
        warn(note, LabelWarning)
    if not in_union:
        note_cut(raw, config)
    source_key = raw.key or array_checksum(*[a for s in (raw.train, raw.test) if s for a in s])
    changes = {
        name: getattr(config, name)
        for name in ("train_size", "test_size", "per_source", "resize", "channels", "pca", "standardize")
        if getattr(config, name)
    }
    if config.pca or config.standardize:
        changes["stored"] = "shift and matrix"  # which earlier entries lack
    if raw.test is None:
        changes["test_fraction"] = config.test_fraction
    if changes.keys() & {"train_size", "test_size", "per_source", "test_fraction"}:
        changes["split_seed"] = config.split_seed

    copies = ["0.0 equals -0.0"] if raw.train.x.dtype.kind == "f" else []  # in earlier entries it did not
    key = digest("dataset", source_key, changes, *copies)
    entry = fetch(key, lambda: _prepare(raw, config, bool(changes) or not raw.content))
    train = unpack(entry, "train") or raw.train
    if config.pca and train.x.shape[1] < config.pca:
        raise DataError(f"data.pca: {config.pca} components of {len(train.y)} training samples; set it lower")
    test = train if entry.meta["test_is_train"] else unpack(entry, "test") or raw.test
    assert test is not None
    if config.leak_check and entry.meta["leaks"]:
        smaller = [name for name in ("resize", "channels", "pca") if getattr(config, name)]
        _report_leaks(config, entry.meta["leaks"], len(test.y), ["max_length"] if raw.cut else smaller)
    mean, std = _constants(config, train, entry.meta)
    more = [] if raw.vocabulary is None else [raw.vocabulary.fingerprint]
    more += [",".join(raw.sources)] if raw.sources else []
    fingerprint = digest(content_of(entry) if entry.arrays else raw.content, raw.classes, mean, std, *more)
    low, high = entry.meta.get("bounds", (0.0, 1.0))
    known = (raw.classes, mean, std, fingerprint, config.augment, raw.vocabulary, raw.sources, raw.source_of)
    fit = (entry.arrays["shift"], entry.arrays["matrix"]) if "shift" in entry.arrays else None
    reading = _reading(raw, train, test)
    return Dataset(config.source, train, test, *known, (low, high), reading, raw.features, fit, raw.groups, config)


def _reading(raw: Splits, train: Split, test: Split) -> tuple[str, ...]:
    """The lines of the source, and those about what was made of its samples."""
    lines = list(raw.reading or (f"label: {class_list(raw.classes)}",))
    if raw.test is None and test is train:
        lines.append(ON_TRAIN)
    elif raw.test is None:
        lines.append(f"test split: {len(test.y)} of {len(raw.train.y)} samples drawn, with all copies of a row or none")
    if train.x.ndim == 4 and train.x.shape[1:] != raw.train.x.shape[1:]:
        height, width, channels = train.x.shape[1:]
        lines.append(f"data.resize, data.channels: {width}x{height}, {channels} channel{'s' if channels > 1 else ''}")
    return (*lines, *without_samples(train.y, test.y, raw.classes))


def _prepare(raw: Splits, config: DataConfig, store: bool) -> CacheEntry:
    train, test = raw.train, raw.test
    if test is None and config.test_fraction:
        size = max(1, round(config.test_fraction * len(train.y)))
        if size >= len(train.y):
            raise DataError(f"data.test_fraction: {size} test samples of {len(train.y)}; set it lower")
        copies = first_copies(train.x)
        rows = apart(train.y, copies, size, config.split_seed, "test_fraction", "data.test_fraction")
        keep = np.setdiff1d(np.arange(len(train.y)), rows)
        train, test = take(train, keep), take(train, rows)
    if config.per_source:
        train = _of_each(train, config.per_source, raw.sources, config)
    if config.train_size:
        train = _subsample(train, config.train_size, config, "train_size")
    if config.test_size and test is not None:
        test = _subsample(test, config.test_size, config, "test_size")
    if train.x.ndim == 4:
        train = train._replace(x=adapt(train.x, config.resize, config.channels))
        test = test._replace(x=adapt(test.x, config.resize, config.channels)) if test else None
    fitted: dict[str, Array] = {}
    if train.x.ndim == 2 and (config.pca or config.standardize):
        fitted["shift"], fitted["matrix"] = fit = _projection(train.x, config)
        train = train._replace(x=projected(train.x, fit))
        test = test._replace(x=projected(test.x, fit)) if test else None
    meta: dict[str, Any] = {
        "test_is_train": test is None,
        "leaks": 0 if test is None else count_leaks(train.x, test.x),
    }
    if train.x.ndim == 4:
        meta["mean"], meta["std"] = channel_statistics(train.x)
    if train.x.ndim == 4 and train.x.dtype != np.uint8:
        low, high = float(train.x.min()), float(train.x.max())
        meta["bounds"] = [low, high if high > low else low + 1]
    return CacheEntry({**pack(train, test), **fitted} if store else {}, meta)


def _subsample(split: Split, size: int, config: DataConfig, option: str) -> Split:
    if size > len(split.y):
        raise DataError(f"data.{option}: {size} of {len(split.y)} samples; set it lower or leave it out")
    of = split.y if split.source is None else split.source * (split.y.max() + 1) + split.y  # each domain in proportion
    return take(split, stratified(of, size, config.split_seed, option))


def _of_each(split: Split, size: int, sources: tuple[str, ...], config: DataConfig) -> Split:
    """`size` samples of each source that has training samples, stratified by class."""
    if split.source is None:
        raise ConfigError(
            f"data.per_source: {config.source!r} has no domains; name their column with data.domain, or use train_size"
        )
    picks = []
    for number in np.unique(split.source).tolist():
        name, rows = sources[number], np.flatnonzero(split.source == number)
        if len(rows) < size:
            raise DataError(
                f"data.per_source: {size} samples of {name!r}, which has {len(rows)}; set it to at most that"
            )
        picks.append(rows[stratified(split.y[rows], size, config.split_seed, f"per_source {name}")])
    return take(split, np.sort(np.concatenate(picks)))


def take(split: Split, rows: Array) -> Split:
    return Split(*(None if part is None else part[rows] for part in split))  # type: ignore[arg-type]


def count_leaks(train: Array, test: Array) -> int:
    """The number of test samples whose values occur in train."""
    seen = set(row_hashes(train))
    return sum(h in seen for h in row_hashes(test))


def _report_leaks(config: DataConfig, count: int, total: int, smaller: Sequence[str]) -> None:
    """Raises `DataError` for more than `LEAK_LIMIT` of the test split, and warns of fewer. `smaller`: the options that
    may leave less of a sample, and so may have made two equal."""
    made = " and ".join(f"data.{name} {getattr(config, name)}" for name in smaller)
    text = f"data set {config.source!r}: {count} of {total} test samples also occur in its train split"
    text += f" as {made} leaves them" if made else ""
    if count > LEAK_LIMIT * total:
        remedy = f"set {smaller[0]} otherwise, use clean data" if smaller else "use clean data"
        raise DataError(f"{text}, above {LEAK_LIMIT:.0%}; {remedy}, or set `leak_check: false`")
    warn(text, LeakWarning)


def adapt(x: Array, resize: int | None, channels: int | None) -> Array:
    """Images resized (bilinear, Pillow) and changed between 1 and 3 channels (ITU-R 601 luma for grey).

    Raises `DataError` for other numbers of channels.
    """
    if channels and x.shape[3] != channels:
        if x.shape[3] not in (1, 3):
            raise DataError(
                f"data.channels: images of {x.shape[3]} channels become no images of {channels}; leave it out, or "
                "remove the others (an alpha channel, say) first"
            )
        if channels == 3:
            x = np.repeat(x, 3, axis=3)
        else:
            grey = x @ np.array([0.299, 0.587, 0.114], np.float32)
            x = (np.rint(grey).astype(np.uint8) if x.dtype == np.uint8 else grey)[..., None]
    if resize and x.shape[1:3] != (resize, resize):
        from PIL import Image

        # channel by channel, because Pillow takes [H, W] or [H, W, 3] only
        out = np.empty((len(x), resize, resize, x.shape[3]), x.dtype)
        for i, image in enumerate(x):
            for c in range(x.shape[3]):
                out[i, ..., c] = Image.fromarray(image[..., c]).resize((resize, resize), Image.Resampling.BILINEAR)
        x = out
    return x


def projected(x: Array, fit: tuple[Array, Array]) -> Array:
    """Features float32 [n, k] by the shift [d] and the matrix [d, k] of :attr:`Dataset.projection`."""
    shift, matrix = fit
    return ((x - shift) @ matrix).astype(np.float32)


def _projection(x: Array, config: DataConfig) -> tuple[Array, Array]:
    """Shift [d] and matrix [d, k] of standardisation and PCA, fitted on train in float64; the largest entry of a
    component is positive."""
    wide = x.astype(np.float64)
    shift = wide.mean(axis=0)
    scale = np.ones(x.shape[1])
    if config.standardize:
        std = wide.std(axis=0)
        scale = np.where(std > 0, 1 / np.where(std > 0, std, 1), 1)
    matrix = np.diag(scale)
    if config.pca:
        parts = np.linalg.svd((wide - shift) * scale, full_matrices=False)[2][: config.pca]
        signs = np.sign(parts[np.arange(len(parts)), np.abs(parts).argmax(axis=1)])
        matrix = matrix @ (parts * signs[:, None]).T
    return shift, matrix


def channel_statistics(x: Array) -> tuple[list[float], list[float]]:
    """Mean and population std of each channel: of uint8 images on the 0..1 scale, exact, from histograms of the 256
    values; of float images on their own scale, in float64."""
    if x.dtype != np.uint8:
        return _float_statistics(x)
    levels = np.arange(256) / 255
    mean, std = [], []
    for c in range(x.shape[3]):
        share = np.bincount(x[..., c].reshape(-1), minlength=256) / x[..., c].size
        mean.append(float(share @ levels))
        std.append(float(np.sqrt(share @ (levels - mean[-1]) ** 2)))
    return mean, std


def _float_statistics(x: Array) -> tuple[list[float], list[float]]:
    total, squares, parts = np.zeros(x.shape[3]), np.zeros(x.shape[3]), range(0, len(x), ROWS)
    for first in parts:
        total += x[first : first + ROWS].sum((0, 1, 2), dtype=np.float64)
    mean = total / (x.size // x.shape[3])
    for first in parts:
        squares += ((x[first : first + ROWS] - mean) ** 2).sum((0, 1, 2))
    return mean.tolist(), np.sqrt(squares / (x.size // x.shape[3])).tolist()


def _constants(config: DataConfig, train: Split, meta: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if train.x.ndim == 2:
        return (), ()
    channels = train.x.shape[3]
    name = plain_name(config.source)
    low, high = meta.get("bounds", (0.0, 1.0))
    published = low >= 0 and high <= 1  # their constants are for that scale; float images may have another
    if isinstance(config.normalize, Constants):
        mean, std = config.normalize.mean, config.normalize.std
    elif config.normalize == "half":
        mean = std = (0.5,) * channels
    elif config.normalize == "unit":
        mean, std = (0.0,) * channels, (1.0,) * channels
    elif config.normalize == "fedzoo":
        if name not in FEDZOO:
            raise ConfigError(
                f"data.normalize: fedzoo has constants for {', '.join(FEDZOO)}, not for {name!r}; use dataset"
            )
        if not published:
            raise ConfigError(f"data.normalize: fedzoo's constants are for 0..1 and the images hold {low:g}..{high:g}")
        mean, std = FEDZOO[name]
    elif published and name in CONSTANTS and len(CONSTANTS[name][0]) in (1, channels):
        mean, std = (values * (channels // len(values)) for values in CONSTANTS[name])
    else:
        mean, std = tuple(meta["mean"]), tuple(s or 1.0 for s in meta["std"])
    if len(mean) != channels:
        raise ConfigError(f"data.normalize: {len(mean)} values for {channels} channels; write one for each channel")
    return mean, std


def check_classes(dataset: Dataset) -> None:
    """Raises `DataError` if all training samples have one class. Warns if all test samples do, and of classes that
    only one of the splits has (`LabelWarning`)."""
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        label = int(split.y[0])
        if (split.y != label).any():
            continue
        who = f"all {len(split.y)} {name} samples are" if len(split.y) > 1 else f"the only {name} sample is"
        text = f"data set {dataset.name!r}: {who} of class {dataset.classes[label]!r}"
        if split is dataset.train:
            raise DataError(f"{text}; a task needs two classes: check data.label, or take more samples")
        warn(f"{text}: its accuracy says nothing of the other classes", LabelWarning)
    trained, tested = (np.unique(split.y) for split in (dataset.train, dataset.test))
    for one, other, text in (
        (tested, trained, "have test samples and no training sample, so no model can learn them"),
        (trained, tested, "have training samples and no test sample"),
    ):
        if len(only := np.setdiff1d(one, other)) and len(tested) > 1:
            names = in_line([dataset.classes[number] for number in only])
            warn(f"data set {dataset.name!r}: {len(only)} classes {text}: {names}", LabelWarning)
