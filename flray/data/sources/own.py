"""A source of a user's own: a function `DataConfig -> Splits` under a name in `SOURCES`; its result is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from flray.core.protocol.seeding import process_wide
from flray.core.schema.errors import DataError, kind_of, named, shown, warn
from flray.core.schema.own import OwnOptions, call_own, returned
from flray.core.schema.registry import address_of
from flray.data.cache import digest
from flray.data.checks import LabelWarning
from flray.data.data_config import DataConfig
from flray.data.splits import Split, Splits, Vocabulary
from flray.files import array_checksum

FORM = "return Splits(Split(x, y), Split(test_x, test_y), classes) (flray.data.splits)"
_seen: dict[str, str] = {}  # what each own source of this process returned: its configuration -> checksum


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
    train = _split(result.train, "train", refuse)
    test = None if result.test is None else _split(result.test, "test", refuse)
    classes = _classes(result.classes, refuse)
    if result.vocabulary is not None and not isinstance(result.vocabulary, Vocabulary):
        refuse(f"{kind_of(result.vocabulary)} as vocabulary", "return a Vocabulary, or leave it out")
    for name, split in (("train", train), ("test", test)):
        numbers = None if split is None else split.source
        if numbers is not None and (numbers.min(initial=0) < 0 or numbers.max(initial=0) >= len(result.sources)):
            refuse(f"{name}.source with number {numbers.max()}", f"sources has {len(result.sources)} names, from 0")
    _note_layout(what, train)
    # a key of the function's own would find what the cache had under it before
    key = result.key if result.content else ""
    splits = result._replace(train=train, test=test, classes=classes, key=key)
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
        if field in ("group", "source") and array.dtype.kind not in "iu":
            codes = "np.unique(ids, return_inverse=True)[1]"
            refuse(f"{array.dtype} as {name}.{field}", f"return integers, for example {codes}")
    return split


def _classes(classes: Any, refuse: Callable[[str, str], NoReturn]) -> tuple[str, ...]:
    """The names of the classes as text."""
    form = "return their names in the order of the labels, for example ('cat', 'dog')"
    if isinstance(classes, str | bytes | Mapping | set) or not isinstance(classes, Sequence | np.ndarray):
        refuse(f"{shown(classes)} as classes", form)
    names = tuple(str(name) for name in classes)
    if not names:
        refuse("no classes", form)
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        refuse(f"the class {twice!r} twice", "give each class a name of its own")
    return names


def _note_layout(what: str, train: Split) -> None:
    """Warns of images whose channels seem to come first."""
    shape = train.x.shape
    if train.x.ndim == 4 and shape[1] in (1, 3) and shape[3] > 4:
        warn(
            f"{what}: train.x {list(shape)} is read as images of {shape[1]} x {shape[2]} pixels with {shape[3]} "
            "channels; if the channels come first, return x.transpose(0, 2, 3, 1)",
            LabelWarning,
        )


def _note_change(what: str, function: Callable[..., Any], config: DataConfig, splits: Splits) -> None:
    """Warns of a function that returns other samples for the configuration of an earlier call."""
    parts = [array for split in (splits.train, splits.test) if split is not None for array in split[:2]]
    if not all(isinstance(array, np.ndarray) and array.dtype.kind in "biuf" for array in parts):
        return  # `check_splits` refuses them
    key, contents = digest(config.source, config.model_dump_json()), splits.content or array_checksum(*parts)
    if _seen.setdefault(key, contents) != contents:
        _seen[key] = contents
        warn(
            f"{what}: {named(function)} returned other samples than before in this process; unless its files changed, "
            "every process of a run trains on others: draw from np.random.default_rng(config.split_seed)",
            LabelWarning,
        )
