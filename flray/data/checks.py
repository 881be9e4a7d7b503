"""Checks of a source's splits, and of options that do not fit them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flray.core.schema.errors import ConfigError, DataError, warn
from flray.data.cache import Array
from flray.data.data_config import DataConfig
from flray.data.splits import Splits, in_line


class LabelWarning(UserWarning):
    """Rows that are left out because they have no label; labels that may mark such rows; a test split of one class;
    classes that only one split has."""


class CutWarning(UserWarning):
    """Texts longer than `data.max_length`, whose end is cut off."""


class ScaleWarning(UserWarning):
    """Features whose scales differ so much that a model trained by gradient steps may learn nothing."""


WIDE, RATIO = 10.0, 20.0  # std above which a feature is on a scale of its own, and its ratio to that of another
ROWS = 1024  # samples that are compared at once


def check_splits(splits: Splits, source: str) -> None:
    """Raises `DataError` for splits with wrong shapes, dtypes, labels or numbers that are not finite."""
    for name, split in (("train", splits.train), ("test", splits.test)):
        if split is None:
            continue
        what = f"source {source!r}: {name}"
        image = split.x.ndim == 4 and split.x.dtype in (np.uint8, np.float32)
        text = split.x.ndim == 2 and split.x.dtype == np.int32
        if not image and not text and not (split.x.ndim == 2 and split.x.dtype == np.float32):
            raise DataError(
                f"{what}.x is {split.x.dtype} {split.x.shape}; make it uint8 or float32 [n, H, W, C], float32 [n, d] "
                "or (token ids) int32 [n, L]"
            )
        if text != (splits.vocabulary is not None):
            raise DataError(
                f"{what}.x is {split.x.dtype}; return int32 token ids with a vocabulary, other samples without one"
            )
        if split.y.shape != split.x.shape[:1] or split.y.dtype != np.int64:
            raise DataError(f"{what}.y is {split.y.dtype} {split.y.shape}; make it int64 [{len(split.x)}]")
        for name_of, numbers in (("group", split.group), ("source", split.source)):
            if numbers is not None and numbers.shape != split.y.shape:
                raise DataError(f"{what}.{name_of} has shape {numbers.shape}; make it [{len(split.y)}]")
        if not len(split.y):
            raise DataError(f"{what} has no samples; return at least one")
        low, high = int(split.y.min()), int(split.y.max())
        if low < 0 or high >= len(splits.classes):
            raise DataError(
                f"{what}.y holds class {low if low < 0 else high}; classes are 0..{len(splits.classes) - 1}"
            )
        if split.x.dtype == np.float32 and not splits.key:  # cached arrays were checked when they were built
            first, count = _not_finite(split.x)
            if count:
                row, *place = first
                where = f"column {place[0]}" if len(place) == 1 else "pixel {}, {}, channel {}".format(*place)
                raise DataError(
                    f"{what}.x row {row}, {where} is {split.x[(row, *place)]}, not a finite number; "
                    f"fill or remove all {count}"
                )
        if split.x.dtype != splits.train.x.dtype:
            raise DataError(
                f"{what} samples are {split.x.dtype}, train samples {splits.train.x.dtype}; make them equal"
            )
        if split.x.shape[1:] != splits.train.x.shape[1:]:
            raise DataError(
                f"{what} samples have shape {split.x.shape[1:]}, train samples {splits.train.x.shape[1:]}; make "
                "them equal"
            )


def _not_finite(x: Array) -> tuple[list[int], int]:
    """(place of the first number that is not finite, how many there are), in parts of `ROWS` samples."""
    first: list[int] = []
    count = 0
    for start in range(0, len(x), ROWS):
        wrong = np.argwhere(~np.isfinite(x[start : start + ROWS]))
        count += len(wrong)
        if len(wrong) and not first:
            row, *place = map(int, wrong[0])
            first = [start + row, *place]
    return first, count


def note_cut(splits: Splits, config: DataConfig) -> None:
    """Warns once in a process of texts that were cut off (`CutWarning`)."""
    if splits.cut:
        parts = " and ".join(f"{count} of {size} texts of {name}" for name, count, size in splits.cut)
        text = f"data set {config.source!r}: {parts} are longer than data.max_length {config.max_length} and cut off"
        warn(text, CutWarning)


def without_samples(train: Array, test: Array, classes: Sequence[str]) -> tuple[str, ...]:
    """Lines on the classes of which the labels of the train or the test split have none."""
    counts = {name: np.bincount(y, minlength=len(classes)) for name, y in (("training", train), ("test", test))}
    lines = []
    for name, count in counts.items():
        if missing := [classes[number] for number in np.flatnonzero(count == 0).tolist()]:
            lines.append(f"no {name} sample: {len(missing)} of {len(classes)} classes ({in_line(missing)})")
    return tuple(lines)


def note_scales(train: Array, names: Sequence[str], source: str) -> None:
    """Warns of features [n, d] (`names`: of the columns, or none) whose standard deviations differ more than `RATIO`
    times, if the largest is above `WIDE` (`ScaleWarning`)."""
    parts, zero = [train[first : first + ROWS] for first in range(0, len(train), ROWS)], np.zeros(train.shape[1])
    mean = sum((part.sum(axis=0, dtype=np.float64) for part in parts), zero) / len(train)
    std = np.sqrt(sum((((part - mean) ** 2).sum(axis=0) for part in parts), zero) / len(train))
    varied = np.flatnonzero(train.max(axis=0) > train.min(axis=0))
    if not len(varied):
        return
    low, high = (int(varied[place]) for place in (std[varied].argmin(), std[varied].argmax()))
    if std[high] > WIDE and std[high] > RATIO * std[low]:
        one, other = (f"{repr(names[k]) if names else k} has the standard deviation {std[k]:.3g}" for k in (high, low))
        warn(
            f"data set {source!r}: column {one} and column {other}; write data.standardize=true, or training may learn "
            "nothing from columns of such scales",
            ScaleWarning,
        )


def check_fit(raw: Splits, config: DataConfig) -> None:
    """Raises `ConfigError` for options that do not fit the kind of data, `DataError` for too many components."""
    image, text = raw.train.x.ndim == 4, raw.vocabulary is not None
    wrong = [n for n in ("pca", "standardize") if (image or text) and getattr(config, n)]
    wrong += [
        n
        for n in ("text", "tokenizer", "max_length", "prompt", "words")
        if not text and getattr(config, n) != DataConfig.model_fields[n].default
    ]
    wrong += [n for n in ("resize", "channels") if not image and getattr(config, n)]
    if not image and config.normalize != "dataset":
        wrong.append("normalize")
    if not image and config.augment.active:
        wrong.append("augment")
    if raw.vocabulary is not None and config.words and not raw.vocabulary.labels:
        raise ConfigError(f"data.words: source {config.source!r} has no words for its classes; leave it out")
    if wrong:
        kind = "images" if image else "text" if text else "tabular features"
        remedy = "leave it out"
        if wrong[0] == "normalize" and not text:
            remedy = "data.standardize=true standardises columns by the train split's mean and standard deviation"
        raise ConfigError(f"data.{wrong[0]}: not an option for {kind}, which source {config.source!r} has; {remedy}")
    own = config.source == "union"  # its sets have used test_fraction
    if not own and raw.test is not None and config.test_fraction != DataConfig.model_fields["test_fraction"].default:
        raise ConfigError(
            f"data.test_fraction: source {config.source!r} has an official test split of "
            f"{len(raw.test.y)} samples; leave it out, or use test_size for a smaller one"
        )
    if config.test_size and raw.test is None and not config.test_fraction:
        raise ConfigError(
            "data.test_size: with test_fraction: 0 the test samples are the training samples; leave it out"
        )
    if config.pca and config.pca > raw.train.x.shape[1]:
        raise DataError(f"data.pca: {config.pca} components of {raw.train.x.shape[1]} features; set it lower")
