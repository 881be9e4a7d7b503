"""Numbers that 32-bit floats lose: integers that they do not have, and numbers that they do not tell apart."""

from __future__ import annotations

import numpy as np

from flray.data.cache import Array

EXACT = 2**24  # up to here 32-bit floats have every integer
MERGED = "numbers that 32-bit floats do not tell apart"


def lossy(values: Array, rounded: Array) -> tuple[int, int, str] | None:
    """The row and the column of the first of the numbers [n, d] that 32-bit floats (`rounded`) lose, and what it is in
    words: an integer that they do not have, or numbers that become one. None: nothing that a feature needs."""
    if (first := _no_float32(values.reshape(-1))) is not None:
        return *divmod(first, values.shape[1]), "integers that 32-bit floats do not have"
    place = merged(values, rounded) if values.size else None
    return None if place is None else (*place, MERGED)


def _no_float32(values: Array) -> int | None:
    """The place of the first of the integers [n] that 32-bit floats do not have; None: they have all."""
    if values.dtype.kind not in "iu" or not len(values):
        return None
    large = np.flatnonzero((values > EXACT) | (values < (-EXACT if values.dtype.kind == "i" else 0)))
    rounded = values[large].astype(np.float32)
    # as Python's integers, because int64 as a 64-bit float is not exact
    return next((int(k) for k, x in zip(large, rounded, strict=True) if int(x) != int(values[k])), None)


def merged(values: Array, rounded: Array) -> tuple[int, int] | None:
    """The row and the column of the first of the finite numbers [n, d] whose rounding is above a thousandth of the
    range of 98 % of its column; None: there is none. `rounded`: the 32-bit floats."""
    wide = values.astype(np.float64)
    error = np.abs(wide - rounded)
    columns = np.flatnonzero(error.any(axis=0))
    if not len(columns):
        return None
    low, high = np.percentile(wide[:, columns], (1, 99), axis=0)
    wrong = np.argwhere((error[:, columns] > (high - low) / 1000) & (high > low))
    return (int(wrong[0][0]), int(columns[wrong[0][1]])) if len(wrong) else None
