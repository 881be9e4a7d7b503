"""A source of a user's own: a function `DataConfig -> Splits` under a name in `SOURCES`; its result is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from flray.core.protocol.generators import process_wide
from flray.core.schema.errors import DataError, kind_of, named, shown, warn
from flray.core.schema.own import OwnOptions, call_own, is_other_result, returned
from flray.core.schema.registry import address_of
from flray.data.cache import Array, digest
from flray.data.checks import LabelWarning
from flray.data.data_config import DataConfig
from flray.data.splits import Split, Splits, Vocabulary
from flray.files import array_checksum

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
