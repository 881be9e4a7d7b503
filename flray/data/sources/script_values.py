"""Values that a script gives: labels that are integers or texts, frames of pandas."""

from __future__ import annotations

from typing import Any

import numpy as np

from flray.core.schema.errors import DataError, shown
from flray.data.cache import Array


def labels(values: Array, what: str, first: int) -> Array:
    """Labels [n]: int64 of integers, a string array of texts. `first` is the number of the first sample.

    Raises `DataError` for other types, for missing labels and for blank texts.
    """
    if values.dtype.kind == "O":
        wrong = next((row for row, value in enumerate(values) if not isinstance(value, str)), None)
        if wrong is not None:
            raise DataError(
                f"{what}s are objects, and that of sample {first + wrong} is {shown(values[wrong])}, not a text; give "
                "integers or texts, one for a sample"
            )
        values = values.astype(str)
    if values.dtype.kind != "U":
        return integers(values, what, first)
    blank = np.flatnonzero(np.char.strip(values) == "")
    if len(blank):
        raise DataError(
            f"{what} is an empty text in sample {first + int(blank[0])} ({len(blank)} such samples); fill or remove "
            "them"
        )
    return values


def integers(values: Array, what: str, first: int) -> Array:
    """int64 of integers. Raises `DataError` for other types; `first` is the number of the first sample."""
    if values.dtype.kind not in "biu":
        remedy = ""
        if values.dtype.kind == "f" and (np.isfinite(values) & (values == np.floor(values))).all():
            remedy = "; they are whole, so write y.astype('int64')"
        elif values.dtype.kind in "UO":
            remedy = "; number them: numpy.unique(ids, return_inverse=True)[1]"
        raise DataError(
            f"{what}s are {values.dtype}, not integers (sample {first}: {shown(values[:1].tolist()[0])}){remedy}"
        )
    return values.astype(np.int64)


def check_one_type(values: Any, what: str) -> None:
    """Raises `DataError` for a list of texts beside other values, of which NumPy would make texts."""
    if not isinstance(values, list | tuple) or not any(isinstance(value, str) for value in values):
        return
    row, other = next(((row, value) for row, value in enumerate(values) if not isinstance(value, str)), (0, None))
    if not isinstance(values[row], str):
        raise DataError(f"{what} are texts, and that of sample {row} is {shown(other)}; give texts only, or integers")


def numbers_of_frame(values: Any, what: str) -> Any:
    """The numbers [n, d] of a DataFrame of pandas, whose columns are numbers or truth values; other values as they are.

    Raises `DataError`, which names the column, for columns of other types and for missing values.
    """
    if not hasattr(values, "iloc") or values.ndim != 2:
        return values
    for place, (name, kind) in enumerate(zip(values.columns, values.dtypes, strict=True)):
        if kind.kind not in "biuf":
            raise DataError(
                f"{what}: column {shown(name)} is {kind}, not numbers; leave it out: x.drop(columns=[{name!r}]), or "
                "make numbers of it"
            )
        missing = np.flatnonzero(values.iloc[:, place].isna())
        if len(missing):
            raise DataError(
                f"{what}: column {shown(name)} has no value in row {missing[0]} ({len(missing)} such rows); fill or "
                "remove them"
            )
    array = values.to_numpy()
    return array if array.dtype.kind != "O" else values.astype("float64").to_numpy()  # truth values beside numbers


def check_same_rows(values: Any, others: Any, what: str) -> None:
    """Raises `DataError` for two objects of pandas whose rows have the same names in another order."""
    one, two = (getattr(each, "index", None) if hasattr(each, "iloc") else None for each in (values, others))
    if one is None or two is None or one.equals(two) or set(one) != set(two):
        return
    row = next(row for row, (name, other) in enumerate(zip(one, two, strict=False)) if name != other)
    raise DataError(
        f"{what}: row {row} of x has the index {shown(one[row])} and that of y {shown(two[row])}; give both in one "
        "order, y.loc[x.index], or y.to_numpy() if the places are right"
    )
