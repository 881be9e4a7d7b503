"""The maths of a verdict, against closed forms, scipy and simulated nulls."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import t, ttest_ind_from_stats, ttest_rel

from flray.reference.papers import Printed
from flray.reference.verdict import (
    DIFFERS,
    FAILS,
    HOLDS,
    INCOMPLETE,
    INCONCLUSIVE,
    MARGIN,
    NOT_COMPARABLE,
    REPRODUCED,
    Claim,
    Spread,
    chance_against_paper,
    chance_of_order,
    claims,
    compared,
    detectable,
    order,
    rank_correlation,
    seen_between,
    verdict,
)


def by_seed(*values):
    return dict(enumerate(values))


def printed(**means):
    return {name: Printed(mean) for name, mean in means.items()}


def equivalence(ours, mean, std, n, margin=MARGIN):
    """p of the two one-sided tests; NaN where they are not made."""
    tests = compared(ours, mean, std, n, margin)
    return math.nan if tests is None else float(tests.same)


# against the paper's number ----------------------------------------------------------------------
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


def test_both_tests_against_scipy():
    """Ours 60.1, 61.9, 62.3 and the paper's 58 +- 0.7 over 5 seeds, margin 2."""
    ours = np.array([60.1, 61.9, 62.3])
    own = (ours.mean(), ours.std(ddof=1), 3)
    found = compared(ours, 58.0, 0.7, 5, 2.0)

    def one_sided(bound, side):
        return ttest_ind_from_stats(*own, bound, 0.7, 5, equal_var=False, alternative=side).pvalue

    assert float(found.same) == pytest.approx(max(one_sided(56, "greater"), one_sided(60, "less")), rel=1e-9)
    assert float(found.other) == pytest.approx(2 * min(one_sided(56, "less"), one_sided(60, "greater")), rel=1e-9)


def test_without_a_printed_spread_the_papers_runs_vary_as_ours():
    """s = 1 over 3 seeds of ours and of the paper's: se = sqrt(2/3) on 2 degrees of freedom; as an interval of
    prediction has it. Taking the paper's mean as exact would be sqrt(1/3)."""
    assert equivalence([60, 61, 62], 61.0, None, 3) == pytest.approx(t.sf(2 / math.sqrt(2 / 3), 2), rel=1e-12)
    assert equivalence([60, 61, 62], 61.0, None, 1) == pytest.approx(t.sf(2 / math.sqrt(4 / 3), 2), rel=1e-12)


def test_equivalence_where_there_is_nothing_to_test():
    assert math.isnan(equivalence([60.0], 60.0, 1.0, 3)) and math.isnan(equivalence([], 60.0, None, None))
    assert math.isnan(equivalence([60.0, math.inf], 60.0, None, None))
    assert equivalence([60.0, 60.0], 61.0, None, None) == 0.0 and equivalence([60.0, 60.0], 63.0, None, None) == 1.0
    assert float(compared([60.0, 60.0], 63.0, None, None).other) == 0.0


def test_a_mean_equal_to_the_printed_one_is_not_called_another():
    """FedAvg of FedProj's Table 1: 63.19 +- 1.48 over 3 seeds. Three seeds of ours with the same mean and spread do not
    show equivalence within 2 points (p 0.087), and no test says that they differ."""
    row = compared([63.19 - 1.48, 63.19, 63.19 + 1.48], 63.19, 1.48, 3, 2.0)
    assert float(row.same) == pytest.approx(0.0866, abs=1e-4) and float(row.other) == 1.0
    assert verdict(True, [], [row]) == INCONCLUSIVE


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        ([63.0, 63.2, 63.4], REPRODUCED),  # mean 63.2, s 0.2
        ([73.0, 73.2, 73.4], DIFFERS),
        ([61.0, 66.0, 67.0], INCONCLUSIVE),
        ([63.2], INCONCLUSIVE),  # one seed is no evidence either way
    ],
)
def test_one_method_against_the_paper(ours, told):
    assert verdict(True, [], [compared(ours, 63.19, 0.5, 3, 2.0)]) == told


# claims ------------------------------------------------------------------------------------------
def test_claims_are_the_pairs_that_the_paper_sets_apart():
    ours = {"a": by_seed(30, 33, 36), "b": by_seed(29, 31, 33), "c": by_seed(40, 41, 42)}
    found = {(claim.better, claim.worse): claim for claim in claims(printed(a=60.0, b=58.0, c=57.5), ours)}
    assert set(found) == {("a", "b"), ("a", "c")}  # c and b are level
    # differences 1, 2, 3: t = 2 sqrt 3 on 2 degrees of freedom, two-sided
    assert found["a", "b"].ours == pytest.approx(2.0) and found["a", "b"].agrees
    p = 1 - 2 * math.sqrt(3) / math.sqrt(14)
    assert found["a", "b"].p == pytest.approx(p, rel=1e-9) == ttest_rel([30, 33, 36], [29, 31, 33]).pvalue
    # differences -10, -8, -6: p 0.0207; Holm takes the smaller p twice, the larger once
    other = ttest_rel([30, 33, 36], [40, 41, 42]).pvalue
    assert (found["a", "c"].holm, found["a", "b"].holm) == (pytest.approx(2 * other), pytest.approx(p))
    assert not found["a", "b"].significant and found["a", "c"].reversed and other < 0.021


def test_a_pair_within_the_papers_own_spread_is_no_claim():
    """Two runs of 60 +- 4 and 55 +- 4 lie sqrt(32) = 5.66 apart by chance: 5 points are no claim, 6 are one."""
    ours = {"a": by_seed(1, 2), "b": by_seed(3, 5)}
    assert claims({"a": Printed(60, 4), "b": Printed(55, 4)}, ours) == []
    assert len(claims({"a": Printed(61, 4), "b": Printed(55, 4)}, ours)) == 1
    assert len(claims({"a": Printed(60, 4), "b": Printed(55)}, ours)) == 1


def test_claims_about_forgetting_are_the_other_way_round():
    (claim,) = claims(printed(a=5.0, b=20.0), {"a": by_seed(9), "b": by_seed(12)}, lower_is_better=True)
    assert (claim.better, claim.worse, claim.agrees) == ("a", "b", True) and math.isnan(claim.p)


def test_claims_are_paired_by_seed():
    (claim,) = claims(printed(a=60.0, b=50.0), {"a": {0: 1.0, 2: 9.0}, "b": {2: 4.0, 3: 99.0}})
    assert claim.ours == pytest.approx(5.0)
    assert claims(printed(a=60.0, b=50.0), {"a": {0: 1.0}, "b": {1: 2.0}}) == []


def test_methods_on_other_partitions_are_not_paired():
    ours = {"a": by_seed(60, 62, 65), "b": by_seed(50, 52, 53)}
    (claim,) = claims(printed(a=60.0, b=50.0), ours, shares={"a": "alpha 0.1", "b": "alpha 0.3"})
    a, b = np.array([60, 62, 65]), np.array([50, 52, 53])
    expected = ttest_ind_from_stats(a.mean(), a.std(ddof=1), 3, b.mean(), b.std(ddof=1), 3, equal_var=False).pvalue
    assert not claim.paired and claim.p == pytest.approx(expected, rel=1e-9)


def claim(ours, p=0.5, holm=None):
    return Claim("a", "b", 5.0, ours, p, p if holm is None else holm)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([], NOT_COMPARABLE),
        ([claim(1), claim(0.1)], INCONCLUSIVE),  # signs are no evidence
        ([claim(1, 0.01), claim(0.1, 0.04)], HOLDS),
        ([claim(1, 0.01), claim(1, 0.04, 0.08)], INCONCLUSIVE),  # not after Holm
        ([claim(1, 0.001), claim(-1, 0.01)], FAILS),
        ([claim(1, 0.001), claim(-1, 0.01, 0.07)], INCONCLUSIVE),
        ([claim(1, math.nan)], INCONCLUSIVE),  # one seed
        ([claim(0.0)], INCONCLUSIVE),
    ],
)
def test_the_verdict_on_an_order(found, told):
    assert order(found) == told
    assert verdict(True, found) == told
    assert verdict(False, found) == INCOMPLETE  # a method diverged, is unfinished or missing


def test_a_cell_is_reproduced_where_every_row_is():
    near, far = compared([60, 60.1, 60.2], 60, 0.2, 3), compared([70, 70.1, 70.2], 60, 0.2, 3)
    wide = compared([55, 60, 65], 60, 0.2, 3)
    assert verdict(True, [claim(1, 0.01)], [near, near]) == REPRODUCED
    assert verdict(True, [claim(-1, 0.01)], [near, near]) == FAILS  # a reversal within the margin is one
    assert verdict(True, [claim(1, 0.01)], [near, wide]) == HOLDS
    assert verdict(True, [claim(1)], [near, wide]) == INCONCLUSIVE
    assert verdict(True, [claim(1)], [near, far]) == DIFFERS
    assert verdict(True, [claim(1, 0.01)], [near, far]) == HOLDS
    assert verdict(False, [claim(1, 0.01)], [near, near]) == INCOMPLETE


def test_rank_correlation_is_kendalls():
    """One of six pairs is the other way round: (5 - 1) / 6; of the 24 orders 4 have at most one inversion."""
    tau, p = rank_correlation([1, 2, 3, 4], [1, 3, 2, 4])
    assert (tau, p) == (pytest.approx(4 / 6), pytest.approx(4 / 24))
    assert np.isnan(rank_correlation([1, 2], [1, 2])).all()


# chance and power --------------------------------------------------------------------------------
def pairs_of(k):
    return tuple((one, two, True) for one, two in itertools.combinations(range(k), 2))


def verdicts_under_the_null(methods, seeds, cells):
    """Shares of `order holds` and `order does not hold` where no two methods differ, by `claims` and `order` alone.

    Every pair is a claim. Seeds have an effect of their own, which all methods of a seed share.
    """
    rng, names = np.random.default_rng([methods, seeds]), [str(method) for method in range(methods)]
    paper = {name: Printed(60.0 - 2 * place) for place, name in enumerate(names)}
    told = []
    for _ in range(cells):
        values = 30 + 2 * rng.standard_normal((1, seeds)) + rng.standard_normal((methods, seeds))
        told.append(order(claims(paper, {name: by_seed(*row) for name, row in zip(names, values, strict=True)})))
    return told.count(HOLDS) / cells, told.count(FAILS) / cells


@pytest.mark.parametrize(("methods", "seeds"), [(2, 3), (3, 5)])
def test_under_a_null_few_cells_have_a_verdict(methods, seeds):
    """With signs alone the order held in 50 % and 17 % of these cells. 300 cells at 2.5 % have more than 5 % with
    probability 0.4 %; the draws are fixed."""
    holds, fails = verdicts_under_the_null(methods, seeds, 300)
    assert holds <= 0.05 and fails <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("methods", range(2, 9))
def test_under_every_null_at_most_one_cell_in_twenty_has_a_verdict(methods, seeds):
    """The test, 2,000 cells; what is printed beside a verdict is the same within the errors of both simulations."""
    holds, fails = verdicts_under_the_null(methods, seeds, 2000)
    assert holds <= 0.05 and fails <= 0.05
    chance = chance_of_order(pairs_of(methods), seeds)
    error = 4 * math.sqrt(0.025 * 0.975 * (1 / 2000 + 1 / 10_000))
    assert abs(chance.holds - holds) < error and abs(chance.fails - fails) < error


def test_the_chance_of_two_methods_is_that_of_a_two_sided_test():
    """One test at 5 %: 2.5 % on either side, whatever the number of seeds; standard error 0.16 % over 10,000 draws."""
    for seeds in (2, 3, 5):
        chance = chance_of_order(((0, 1, True),), seeds)
        assert chance.holds == pytest.approx(0.025, abs=0.007) and chance.fails == pytest.approx(0.025, abs=0.007)
    assert chance_of_order(((0, 1, True),), 1) == (0.0, 0.0)


def test_against_the_paper_no_verdict_comes_more_often_than_its_level():
    """One row, spreads so small that the other side of the margin is out of reach: 5 % for equivalence at the margin.
    Under the null itself nothing is 2 points off. Where the spread is as large as the margin neither comes."""
    differs, same = chance_against_paper((Spread(0.1, 3, 0.1, 3),), 2.0)
    assert differs == 0.0 and same == pytest.approx(0.05, abs=0.01)
    wide = chance_against_paper((Spread(2.0, 3, 2.0, 3), Spread(2.0, 3, None, 3), Spread(2.0, 3, None, None)), 2.0)
    assert max(wide) <= 0.05


def test_the_smallest_difference_is_found_with_the_stated_power():
    """Simulated: 3 seeds, standard error of the difference 1 / sqrt 3; 20,000 draws, standard error 0.3 %."""
    smallest = detectable(1 / math.sqrt(3), 2)
    rng = np.random.default_rng(0)
    draws = smallest + rng.standard_normal((20_000, 3))
    found = ttest_rel(draws, np.zeros_like(draws), axis=1).pvalue < 0.05
    assert (found & (draws.mean(axis=1) > 0)).mean() == pytest.approx(0.8, abs=0.015)
    assert math.isnan(detectable(0.0, 2)) and math.isnan(detectable(math.nan, 2))
    # of two claims the first step of Holm's correction takes 2.5 %
    both = claims(printed(a=60, b=50, c=49.5), {"a": by_seed(1, 3, 5), "b": by_seed(0, 1, 2), "c": by_seed(0, 1, 2)})
    assert seen_between(both) == pytest.approx([detectable(1 / math.sqrt(3), 2, 0.025)] * 2)
