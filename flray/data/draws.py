"""Drawn shares of the rows of a split: stratified by class, and with all copies of a row on one side.

A test sample whose copy is trained on tests memory. But rows with copies may be most of a data set (few features of few
values), so that a share without them is no sample of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError
from flray.data.cache import Array
from flray.files import checksum

SPREAD = 0.1  # the rate at which rows without copies are drawn changes by at most this part
ODD = 0.1  # shares of classes, of rows with copies and of the rows drawn may be off by so much (and by one row)


def stratified(y: Array, size: int, seed: int, purpose: str) -> Array:
    """`size` row numbers, ascending; each class in proportion (largest remainders, ties to the lower class)."""
    return _drawn(y, np.arange(len(y)), _quotas(y, size), seed, purpose)


def _quotas(y: Array, size: int) -> dict[int, int]:
    """How many of `size` rows are of each class."""
    classes, counts = np.unique(y, return_counts=True)
    exact = size * counts / len(y)
    quota = np.floor(exact).astype(np.int64)
    order = np.lexsort((classes, -(exact - quota)))
    quota[order[: size - quota.sum()]] += 1
    return {int(c): int(q) for c, q in zip(classes, quota, strict=True)}


def _drawn(y: Array, rows: Array, wanted: Mapping[int, int], seed: int, purpose: str) -> Array:
    """`wanted` of the `rows` (ascending, with labels `y`) of each class, drawn without replacement."""
    picks = [rng(seed, purpose, c).choice(rows[y == c], q, replace=False) for c, q in wanted.items()]
    return np.sort(np.concatenate(picks))


def row_hashes(x: Array) -> list[str]:
    """The checksum of each row, in which 0.0 equals -0.0. 128 bits: equal hashes are not compared further."""
    rows = np.ascontiguousarray(x).reshape(len(x), -1)
    if x.dtype.kind == "f":
        zero = x.dtype.type(0)
        return [checksum((row + zero).view(np.uint8).data) for row in rows]
    return [checksum(row.data) for row in rows.view(np.uint8)]


def first_copies(x: Array) -> Array:
    """For each row of `x` [n, ...] the number (int64 [n]) of the first row with the same values."""
    _, first, inverse = np.unique(np.array(row_hashes(x)), return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def apart(y: Array, first: Array, size: int, seed: int, purpose: str, what: str) -> Array:
    """About `size` rows of labels `y` [n], ascending: each class in proportion, and all copies of a row or none.

    `first`: see :func:`first_copies`. Rows without copies are drawn as by :func:`stratified`, so data without copies
    give its rows. Groups of copies are drawn by :func:`_nearest` within their class; groups of several labels count as
    one more class. A group cannot be cut, so there may be more or fewer than `size` rows. Raises `DataError`, which
    begins with `what`, if the groups are so large that the rows are no sample of all.
    """
    members = _groups(first)
    if not members:
        return stratified(y, size, seed, purpose)
    copied = np.zeros(len(y), bool)
    copied[np.concatenate(members)] = True
    strata = np.asarray(y, np.int64).copy()
    for rows in members:
        strata[rows] = y[rows[0]] if (y[rows] == y[rows[0]]).all() else y.max() + 1
    rate, wanted = size / len(y), dict[int, int]()
    drawn = [np.zeros(0, np.int64)]
    for stratum, quota in _quotas(strata, size).items():
        here = strata == stratum
        alone = int((here & ~copied).sum())
        groups = [rows for rows in members if strata[rows[0]] == stratum]
        order = rng(seed, purpose, stratum, "copies").permutation(len(groups))
        others = rate * alone if alone else size - rate * int(here.sum())
        taken = _nearest([groups[k] for k in order], rate, others)
        low, high = np.floor((1 - SPREAD) * rate * alone), np.ceil((1 + SPREAD) * rate * alone)
        wanted[stratum] = int(np.clip(quota - sum(map(len, taken)), low, min(high, alone)))
        drawn += taken
    free = np.flatnonzero(~copied)
    rows = np.sort(np.concatenate([*drawn, _drawn(strata[free], free, wanted, seed, purpose)]))
    if not len(rows) and len(free):  # a handful of rows, most of them copies
        rows = free[stratified(y[free], min(size, len(free)), seed, purpose)]
    largest = max(members, key=len)
    _check_sample(y, copied, rows, size, f"{what}: row {largest[0]} and its copies are {len(largest)} of {len(y)} rows")
    return rows


def _groups(first: Array) -> list[Array]:
    """The rows (ascending) of each group of copies, in the order of their first rows."""
    order, counts = np.argsort(first, kind="stable"), np.unique(first, return_counts=True)[1]
    return [rows for rows in np.split(order, np.cumsum(counts)[:-1]) if len(rows) > 1]


def _nearest(groups: Sequence[Array], rate: float, others: float) -> list[Array]:
    """Those of the groups, in their order, that bring the number of rows nearer to `rate` times all of them.

    All may be too large. Then the smallest one is taken, unless it is the only one, if the share of copies beside
    `others` rows is so nearer to its right value than it is without.
    """
    sizes = [len(rows) for rows in groups]
    target, count, taken = rate * sum(sizes), 0, list[Array]()
    for rows in groups:
        if abs(count + len(rows) - target) < abs(count - target):
            taken.append(rows)
            count += len(rows)
    if not taken and len(groups) > 1:
        least, right = min(sizes), target / (target + others)
        if abs(least / (least + others) - right) < right:
            taken = [groups[sizes.index(least)]]
    return taken


def _check_sample(y: Array, copied: Array, rows: Array, size: int, what: str) -> None:
    """Raises `DataError` if classes, or rows with copies, have other shares among `rows` than among all, or if there
    are far more than `size` rows."""
    right = _quotas(y, size)
    counts = np.bincount(y[rows], minlength=int(y.max()) + 1) / max(len(rows), 1)
    off = 0.5 * sum(abs(counts[c] - q / size) for c, q in right.items())
    odd = abs(copied.mean() - copied[rows].mean()) if len(rows) else 1.0
    large = len(rows) - size > ODD * len(y)
    if not len(rows) or large or max(off, odd) > ODD + 1 / size:
        raise DataError(
            f"{what}, and copies stay on one side: the {len(rows)} rows drawn for {size} are no sample of all (shares "
            f"of classes differ by {off:.0%}, of rows with copies by {odd:.0%}); raise it, remove copies, or give the "
            "split yourself"
        )
