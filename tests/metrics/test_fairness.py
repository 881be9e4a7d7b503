"""Spread over clients: values small enough to do by hand, and the definition over all pairs."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flray.metrics.fairness import gini, minority, spread


def test_three_clients_by_hand():
    """.2 .4 .9: mean .5, variance (.09 + .01 + .16) / 3, p10 a fifth of the way from .2 to .4; pairs .2 .5 .7, twice
    each, so Gini 2 * 1.4 / (2 * 9 * .5) = 2.8 / 9."""
    found = spread([0.9, math.nan, 0.2, 0.4])
    assert found == pytest.approx((0.5, math.sqrt(0.26 / 3), 0.24, 0.2, 2.8 / 9, 3))


def test_ends_of_the_gini_coefficient():
    assert gini([0.7] * 5) == 0 == gini([0.0, 0.0]) == gini([0.3])
    assert gini([0, 0, 0, 1]) == 0.75
    assert math.isnan(gini([0.5, math.nan]))
    assert math.isnan(gini([])) and spread([math.nan]).clients == 0 and math.isnan(spread([]).worst)
    with pytest.raises(ValueError, match="values of at least 0"):
        gini([0.5, -0.1])


def test_the_minority_by_hand():
    """21 and 19 of 40 samples: 0.525 and 0.475. Distances .025, .375, .025, .325; the last client has no samples."""
    counts = [[5, 5], [9, 1], [5, 5], [2, 8], [0, 0]]
    assert minority(counts).tolist() == [1], "a tenth of four clients, at least one"
    assert minority(counts, 0.5).tolist() == [1, 3]
    assert minority(counts, 0.75).tolist() == [0, 1, 3], "of equals those of the lowest numbers"
    assert minority([[2, 3], [4, 6]]).tolist() == minority([[0, 0]]).tolist() == []


@given(st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=20))
def test_gini_by_all_pairs(values):
    pairs = sum(abs(a - b) for a in values for b in values)
    wanted = pairs / (2 * len(values) ** 2 * np.mean(values)) if sum(values) else 0.0
    assert gini(values) == pytest.approx(wanted, abs=1e-9)
    assert 0 <= gini(values) <= 1
