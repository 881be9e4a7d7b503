"""The maths of a verdict, against closed forms and a second method."""

import math

import numpy as np
import pytest
from scipy.stats import t

from flray.reference.verdict import (
    DIFFERS,
    FAILS,
    HOLDS,
    NOT_COMPARABLE,
    REPRODUCED,
    UNDECIDED,
    Claim,
    claims,
    equivalence,
    order,
    rank_correlation,
    verdict,
)


def by_seed(*values):
    return dict(enumerate(values))


def test_two_one_sided_tests_against_a_mean_without_a_spread():
    """Ours 60, 61, 62 and 60.5 printed: mean 61, s = 1, se = 1 / sqrt 3; the nearer bound is 62.5, so t = 1.5 sqrt 3 on
    2 degrees of freedom, whose upper tail is 1/2 - t / (2 sqrt(2 + t^2))."""
    statistic = 1.5 * math.sqrt(3)
    expected = 0.5 - statistic / (2 * math.sqrt(2 + statistic**2))
    assert equivalence([60, 61, 62], 60.5, None, None, 2.0) == pytest.approx(expected, rel=1e-12)
    # the interval of level 90 % lies within the margin where p < 5 %, and only there
    for margin in (1.0, 2.0, 2.1, 2.2, 3.0):
        half = t.ppf(0.95, 2) / math.sqrt(3)
        inside = 60.5 - margin < 61 - half and 61 + half < 60.5 + margin
        assert (equivalence([60, 61, 62], 60.5, None, None, margin) < 0.05) == inside


def test_two_one_sided_tests_with_the_papers_spread_are_welchs():
    """Means 61 and 61, s = 1 each over 3 seeds: se^2 = 2/3, and with equal variances and sizes Welch has 4 degrees of
    freedom; the upper tail of t on 4 is 1/2 - 3/8 u (1 - u^2 / 12), u = t / sqrt(1 + t^2 / 4)."""
    statistic = 2 / math.sqrt(2 / 3)
    u = statistic / math.sqrt(1 + statistic**2 / 4)
    assert equivalence([60, 61, 62], 61.0, 1.0, 3, 2.0) == pytest.approx(0.5 - 0.375 * u * (1 - u * u / 12), rel=1e-9)
    # the same on either side
    assert equivalence([60, 61, 62], 61.7, 0.5, 3) == pytest.approx(equivalence([60, 61, 62], 60.3, 0.5, 3), rel=1e-9)


def test_equivalence_where_there_is_nothing_to_test():
    assert math.isnan(equivalence([60.0], 60.0, 1.0, 3)) and math.isnan(equivalence([], 60.0, None, None))
    assert math.isnan(equivalence([60.0, math.inf], 60.0, None, None))
    assert equivalence([60.0, 60.0], 61.0, None, None) == 0.0 and equivalence([60.0, 60.0], 63.0, None, None) == 1.0


def test_claims_are_the_pairs_that_the_paper_sets_apart():
    printed = {"a": 60.0, "b": 58.0, "c": 57.5}  # c and b are level
    ours = {"a": by_seed(30, 33, 36), "b": by_seed(29, 31, 33), "c": by_seed(40, 41, 42)}
    found = {(claim.better, claim.worse): claim for claim in claims(printed, ours)}
    assert set(found) == {("a", "b"), ("a", "c")}
    # differences 1, 2, 3: t = 2 sqrt 3 on 2 degrees of freedom, two-sided
    assert found["a", "b"].ours == pytest.approx(2.0) and found["a", "b"].holds
    assert found["a", "b"].p == pytest.approx(1 - 2 * math.sqrt(3) / math.sqrt(14), rel=1e-9)
    assert not found["a", "b"].sure and Claim("a", "b", 2.0, 2.0, 0.04).sure  # p is 0.074
    assert not found["a", "c"].holds and not found["a", "c"].sure and found["a", "c"].ours == pytest.approx(-8.0)


def test_claims_about_forgetting_are_the_other_way_round():
    (claim,) = claims({"a": 5.0, "b": 20.0}, {"a": by_seed(9), "b": by_seed(12)}, lower_is_better=True)
    assert (claim.better, claim.worse, claim.holds) == ("a", "b", True) and math.isnan(claim.p)


def test_claims_are_paired_by_seed():
    (claim,) = claims({"a": 60.0, "b": 50.0}, {"a": {0: 1.0, 2: 9.0}, "b": {2: 4.0, 3: 99.0}})
    assert claim.ours == pytest.approx(5.0)
    assert claims({"a": 60.0, "b": 50.0}, {"a": {0: 1.0}, "b": {1: 2.0}}) == []


def claim(ours, p=0.5):
    return Claim("a", "b", 5.0, ours, p)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([], NOT_COMPARABLE),
        ([claim(1), claim(0.1)], HOLDS),
        ([claim(1), claim(1), claim(-1)], UNDECIDED),
        ([claim(1), claim(1), claim(-1, 0.01)], FAILS),
        ([claim(-1), claim(-1)], UNDECIDED),
        ([claim(1), claim(-1, math.nan)], UNDECIDED),  # one seed
        ([claim(0.0)], UNDECIDED),  # level, where the paper has a difference
    ],
)
def test_the_verdict_on_an_order(found, told):
    assert order(found) == told
    assert verdict(False, [0.0], found) == told  # at another scale nothing is reproduced


def test_a_cell_is_reproduced_where_every_row_is():
    assert verdict(True, [0.01, 0.04], [claim(-1, 0.01)]) == REPRODUCED
    assert verdict(True, [0.01, 0.06], [claim(1)]) == HOLDS
    assert verdict(True, [0.06], []) == DIFFERS
    assert verdict(True, [math.nan], []) == NOT_COMPARABLE  # one seed
    assert verdict(True, [], []) == NOT_COMPARABLE


def test_rank_correlation_is_kendalls():
    """One of six pairs is the other way round: (5 - 1) / 6; of the 24 orders 4 have at most one inversion."""
    tau, p = rank_correlation([1, 2, 3, 4], [1, 3, 2, 4])
    assert (tau, p) == (pytest.approx(4 / 6), pytest.approx(4 / 24))
    assert np.isnan(rank_correlation([1, 2], [1, 2])).all()
