"""A drawn share of the rows: stratified, copies on one side, and still a sample of the data."""

import numpy as np
import pytest

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import DataError
from flray.data.draws import apart, first_copies, stratified

ODD = 10_000  # the value of the first row without a copy


def rows(sizes, alone, mixed=False, seed=0):
    """Groups of equal rows of these sizes and `alone` single rows, shuffled; two classes in turn, or labels at random
    within a group."""
    draws = np.random.default_rng(seed)
    values = np.concatenate([np.repeat(np.arange(len(sizes)), sizes), ODD + np.arange(alone)])
    y = draws.integers(0, 2, len(values)) if mixed else values % 2
    order = draws.permutation(len(values))
    return np.repeat(values[order, None], 3, axis=1).astype(np.float32), y[order].astype(np.int64)


def drawn(x, y, fraction, seed=0):
    size = round(fraction * len(y))
    test = apart(y, first_copies(x), size, seed, "test_fraction", "data.test_fraction")
    train = np.setdiff1d(np.arange(len(y)), test)
    assert not {*x[test, 0]} & {*x[train, 0]}, "a row has copies on both sides"
    return test


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_rows_that_differ_by_the_sign_of_zero_are_copies(kind):
    """Rounding to a decimal makes -0.0 of -0.04; NumPy says that the rows are equal."""
    x = np.array([[0.0, 1], [-0.0, 1], [0.0, -1], [np.nan, 0.0], [np.nan, -0.0]], kind)
    assert (x[0] == x[1]).all() and first_copies(x).tolist() == [0, 0, 2, 3, 3]


def test_data_without_copies_have_the_split_of_before():
    """The rows of the former code: of each class the draw of its own address among all of its rows."""
    y = np.random.default_rng(1).integers(0, 3, 200)
    x = np.random.default_rng(2).normal(size=(200, 4)).astype(np.float32)
    counts = np.bincount(y)
    assert first_copies(x).tolist() == list(range(200))
    test = apart(y, first_copies(x), 40, 5, "test_fraction", "data.test_fraction")
    want = [
        rng(5, "test_fraction", c).choice(np.flatnonzero(y == c), int((y[test] == c).sum()), replace=False)
        for c in range(3)
    ]
    assert test.tolist() == sorted(np.concatenate(want)) == stratified(y, 40, 5, "test_fraction").tolist()
    assert np.abs(np.bincount(y[test]) - 40 * counts / 200).max() < 1


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(
    ("sizes", "alone", "fraction"),
    [
        ([2] * 1000, 60, 0.02),
        ([2] * 1000, 60, 0.2),
        ([100] * 20, 60, 0.2),
        ([100] * 20, 60, 0.1),
        ([31] * 64, 60, 0.2),
        ([3] * 5 + [40] * 45, 200, 0.3),
        ([2], 500, 0.2),
    ],
)
def test_the_test_split_is_a_sample_of_the_data(sizes, alone, fraction, mixed):
    """Of 2,060 rows of which 2,000 repeat, 60/2060 = 2.9 % of a test split are the odd ones; it was 97.6 %."""
    x, y = rows(sizes, alone, mixed)
    for seed in range(3):
        test = drawn(x, y, fraction, seed)
        assert abs(len(test) - fraction * len(y)) <= max(sizes)
        assert abs((x[test, 0] >= ODD).mean() - alone / len(y)) <= 0.03
        shares = np.bincount(y[test], minlength=2) / len(test) - np.bincount(y) / len(y)
        assert np.abs(shares).max() <= 0.08
        assert test.tolist() == drawn(x, y, fraction, seed).tolist()
    assert drawn(x, y, fraction, 0).tolist() != drawn(x, y, fraction, 1).tolist()


@pytest.mark.parametrize(
    ("sizes", "alone", "fraction", "says"),
    [
        ([2000], 60, 0.2, r"row 0 and its copies are 2000 of 2060 rows, and copies stay on one side"),
        ([500] * 4, 0, 0.02, r"the 1000 rows drawn for 40 are no sample of all"),
        ([50, 50], 0, 0.2, r"are no sample of all"),
    ],
)
def test_groups_that_are_too_large_for_a_sample_are_refused(sizes, alone, fraction, says):
    x, y = rows(sizes, alone)
    with pytest.raises(DataError, match=rf"^data.test_fraction: .*{says}"):
        drawn(x, y, fraction)
