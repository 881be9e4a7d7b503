"""Checks of a source's splits, of the result of a user's own source, and of options that do not fit them.

A source of a user's own is a function `DataConfig -> Splits` under a name in `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from flray.core.protocol.generators import process_wide
from flray.core.schema.errors import ConfigError, DataError, kind_of, named, shown, warn
from flray.core.schema.own import OwnOptions, call_own, is_other_result, returned
from flray.core.schema.registry import address_of
from flray.data.cache import Array, digest
from flray.data.data_config import DataConfig
from flray.data.splits import Split, Splits, Vocabulary, in_line
from flray.files import array_checksum


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


# the result of a user's own source ---------------------------------------------------------------
FORM = "return Splits(Split(x, y), Split(test_x, test_y), classes) (flray.data.splits)"
LINES = {  # fields of several texts; None: of none
    "notes": "return several texts, for example ('3 rows have no label',)",
    "reading": "return several texts, for example ('label: column kind',)",
    "sources": "return the names of the domains, for example ('photo', 'sketch')",
    "features": "return the names of the columns, for example ('age', 'bmi')",
}


def own_splits(function: Callable[[DataConfig], Any], config: DataConfig) -> Splits:
    """The splits that a registered function returns, with arrays of NumPy and class names as text.

    NumPy's, Python's and torch's generators have an address while it runs. Raises `DataError`, which names the function
    and says what to return; `check_splits` checks shapes, dtypes and labels. Warns if it returned other samples before.
    """
    what = f"source {config.source!r}"
    options = OwnOptions(config.options)
    with process_wide(config.split_seed, "source", address_of(config.source)):
        result = call_own(what, function, "def f(config)", config.model_copy(update={"options": options}))
    options.warn_of_unread("data.options", function)

    def refuse(given: str, remedy: str) -> NoReturn:
        raise DataError(f"{what}: {named(function)} returned {given}; {remedy}")

    if not isinstance(result, Splits):
        raise DataError(f"{what}: {returned(function, result, FORM)}")
    absent: dict[str, Any] = {name: () for name in (*LINES, "source_of") if getattr(result, name) is None}
    result = result._replace(**absent)
    train = _split(result.train, "train", refuse)
    test = None if result.test is None else _split(result.test, "test", refuse)
    classes = _classes(result.classes, refuse)
    lines: dict[str, Any] = {name: _texts(getattr(result, name), name, form, refuse) for name, form in LINES.items()}
    groups = None if result.groups is None else _texts(result.groups, "groups", "return the id of each number", refuse)
    if result.vocabulary is not None and not isinstance(result.vocabulary, Vocabulary):
        refuse(f"{kind_of(result.vocabulary)} as vocabulary", "return a Vocabulary, or leave it out")
    _check_numbers("train.group", train.group, "groups", groups, refuse)
    for name, split in (("train", train), ("test", test)):
        numbers = None if split is None else split.source
        _check_numbers(f"{name}.source", numbers, "sources", lines["sources"], refuse)
    if train.x.ndim == 2 and train.x.dtype.kind == "f" and len(lines["features"]) not in (0, train.x.shape[1]):
        refuse(f"{len(lines['features'])} features", f"name all {train.x.shape[1]} columns of train.x, or none")
    of = result.source_of
    owners = tuple(of) if isinstance(of, Sequence | np.ndarray) else (of,)
    if owners and (len(owners) != len(classes) or not {*owners} <= {*range(len(lines["sources"]))}):
        refuse(f"{shown(of)} as source_of", f"return the number in sources of each of {len(classes)} classes, or ()")
    _note_layout(what, train)
    # a key of the function's own would find what the cache had under it before
    key = result.key if result.content else ""
    ids = None if groups is None else np.array(groups)
    splits = result._replace(
        train=train, test=test, classes=classes, key=key, groups=ids, source_of=tuple(map(int, owners)), **lines
    )
    _note_change(what, function, config, splits)
    return splits


def _split(split: Any, name: str, refuse: Callable[[str, str], NoReturn]) -> Split:
    if not isinstance(split, Split):
        refuse(f"{kind_of(split)} as {name}", FORM)
    for field, array in split._asdict().items():
        if array is None and field in ("group", "source"):
            continue
        if not isinstance(array, np.ndarray):
            remedy = "x.numpy()" if type(array).__name__ == "Tensor" else "np.asarray(x)"
            refuse(f"{kind_of(array)} as {name}.{field}", f"return an array of NumPy: {remedy}")
        if np.ma.is_masked(array):
            refuse(f"{name}.{field} with masked values", "fill or remove them")
        if field in ("group", "source") and array.dtype.kind not in "iu":
            codes = "np.unique(ids, return_inverse=True)[1]"
            refuse(f"{array.dtype} as {name}.{field}", f"return integers, for example {codes}")
    return split


def _classes(classes: Any, refuse: Callable[[str, str], NoReturn]) -> tuple[str, ...]:
    """The names of the classes as text."""
    form = "return their names in the order of the labels, for example ('cat', 'dog')"
    names = _texts(classes, "classes", form, refuse)
    if not names:
        refuse("no classes", form)
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        refuse(f"the class {twice!r} twice", "give each class a name of its own")
    return names


def _texts(texts: Any, name: str, form: str, refuse: Callable[[str, str], NoReturn]) -> tuple[str, ...]:
    one = isinstance(texts, str | bytes) or not isinstance(texts, Iterable)
    if one or isinstance(texts, Mapping | set) or type(texts).__name__ == "Tensor":
        refuse(f"{shown(texts)} as {name}", form)
    return tuple(str(text) for text in texts)


def _check_numbers(
    what: str, numbers: Array | None, name: str, texts: Sequence[str] | None, refuse: Callable[[str, str], NoReturn]
) -> None:
    """Refuses `numbers [n]` of a split that number no text; nothing without texts (ids of clients that are numbers)."""
    if numbers is None or texts is None:
        return
    for number in (numbers.min(initial=0), numbers.max(initial=0)):
        if not 0 <= number < len(texts):
            refuse(f"{what} with number {number}", f"{name} has {len(texts)} names, from 0")


def _note_layout(what: str, train: Split) -> None:
    """Warns of images whose channels seem to come first."""
    shape = train.x.shape
    if train.x.ndim == 4 and shape[1] in (1, 3) and shape[3] > 4:
        warn(
            f"{what}: train.x {list(shape)} is read as images of {shape[1]} x {shape[2]} pixels with {shape[3]} "
            "channels; if the channels come first, return x.transpose(0, 2, 3, 1)",
            LabelWarning,
        )


def contents(splits: Splits) -> str:
    """A checksum of the samples, whose arrays have numbers."""
    parts = [array for split in (splits.train, splits.test) if split is not None for array in split[:2]]
    return splits.content or array_checksum(*parts)


def _note_change(what: str, function: Callable[..., Any], config: DataConfig, splits: Splits) -> None:
    """Warns of a function that returns other samples for the configuration of an earlier call."""
    parts = [array for split in (splits.train, splits.test) if split is not None for array in split[:2]]
    if not all(isinstance(array, np.ndarray) and array.dtype.kind in "biuf" for array in parts):
        return  # `check_splits` refuses them
    if is_other_result(digest(config.source, config.model_dump_json()), contents(splits)):
        warn(
            f"{what}: {named(function)} returned other samples than before in this process; unless its files changed, "
            "every process of a run trains on others: draw from np.random.default_rng(config.split_seed)",
            LabelWarning,
        )
