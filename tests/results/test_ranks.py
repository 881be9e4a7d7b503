"""Ranks over settings: Demsar's worked example, SciPy, closed forms of extreme tables, and hand-written runs."""

import math
from dataclasses import replace
from itertools import combinations, permutations, product
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import friedmanchisquare

from flray.core.schema.errors import ConfigError
from flray.results import compare
from flray.results.ranks import cliques, diagram, exact_p, of_scores, ranks, table, words
from tests.support.commands import invoke
from tests.support.tables import config, folder

# Demsar 2006, Table 6: AUC on 14 data sets. He ranks "voting" from more digits than he prints: 0.975 (2), 0.975 (3).
C45 = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")
AUC = """
    0.763 0.768 0.771 0.798  0.599 0.591 0.590 0.569  0.954 0.971 0.968 0.967  0.628 0.661 0.654 0.657
    0.882 0.888 0.886 0.898  0.936 0.931 0.916 0.931  0.661 0.668 0.609 0.685  0.583 0.583 0.563 0.625
    0.775 0.838 0.866 0.875  1.000 1.000 1.000 1.000  0.940 0.962 0.965 0.962  0.619 0.666 0.614 0.669
    0.972 0.981 0.9751 0.9749  0.957 0.978 0.946 0.970
"""


def demsar() -> pandas.DataFrame:
    return pandas.DataFrame(np.array(AUC.split(), float).reshape(14, 4), columns=C45)


def test_demsars_worked_example() -> None:
    """Mean ranks 3.143, 2.000, 2.893, 1.964 (Table 6); chi-squared 9.28 and F 3.69, which he computes without the
    correction for ties (3.2.2): sizes 2, 2, 4, 2 leave 1 - (3 * 6 + 60) / (14 * 4 * 15) of the variance. The critical
    difference is 1.25 with q = 2.569 (3.2.3)."""
    found = of_scores(demsar())
    assert {name: round(rank, 3) for name, rank in found.ranks.items()} == {
        "C4.5": 3.143, "C4.5+m": 2.0, "C4.5+cf": 2.893, "C4.5+m+cf": 1.964
    }  # fmt: skip
    plain = found.chi2 * (1 - 78 / 840)
    assert plain == pytest.approx(9.28, abs=0.005)
    assert 13 * plain / (14 * 3 - plain) == pytest.approx(3.69, abs=0.005)
    assert found.f == pytest.approx(13 * found.chi2 / (14 * 3 - found.chi2))
    assert found.distance == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 14)), abs=5e-4)
    assert round(found.distance, 2) == 1.25
    assert found.differ and found.groups == (tuple(found.ranks.index),)  # 3.143 - 1.964 is below it


def test_means_that_are_equal_but_for_rounding_tie() -> None:
    """Three methods with 264 right answers of 300 in each of 6 blocks: .88 by 85 + 85 + 94, one bit above or below it
    by 85 + 86 + 93. Nobody is better, whichever way the metric goes, and each is first everywhere."""
    means = [float(np.mean([a / 100, b / 100, c / 100])) for a, b, c in ((85, 85, 94), (85, 86, 93))]
    assert means[0] != means[1]
    scores = pandas.DataFrame([[means[0], means[1], means[0]]] * 6, columns=list("abc"))
    for metric in ("test/acc", "test/loss"):
        found = of_scores(scores, metric)
        assert found.ranks.tolist() == [2, 2, 2] and found.exact == 1 and not found.differ
        assert table(found)["first"].tolist() == [6, 6, 6]
    apart = of_scores(scores.assign(b=scores["b"] + 1e-6))
    assert apart.ranks.to_dict() == {"b": 1, "a": 2.5, "c": 2.5}, "one right answer of a million"


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (10, 3.164)])
def test_nemenyis_critical_values(k: int, q: float) -> None:
    """Demsar 2006, Table 5(a), the 5 % level; for two methods q is the normal quantile."""
    scores = pandas.DataFrame(np.tile(np.arange(k, dtype=float), (6, 1))) if k > 2 else None
    if scores is None:
        from scipy.stats import studentized_range

        assert studentized_range.ppf(0.95, 2, math.inf) / math.sqrt(2) == pytest.approx(q, abs=1e-3)
        return
    assert of_scores(scores).distance / math.sqrt(k * (k + 1) / 36) == pytest.approx(q, abs=1.1e-3)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 5).flatmap(lambda k: st.lists(st.lists(st.integers(0, 4), min_size=k, max_size=k), min_size=2)))
def test_friedman_is_scipys_and_ranks_sum_up(rows: list[list[int]]) -> None:
    scores = pandas.DataFrame(np.array(rows, float) / 10)
    found, k = of_scores(scores), scores.shape[1]
    assert found.ranks.sum() == pytest.approx(k * (k + 1) / 2)
    if any(len(set(row)) > 1 for row in rows):
        expected = friedmanchisquare(*scores.to_numpy().T)
        assert (found.chi2, found.p) == (pytest.approx(expected.statistic), pytest.approx(expected.pvalue))
    else:
        assert (found.chi2, found.p, found.p_f, found.exact) == (0, 1, 1, 1)
    joined = {pair for group in found.groups for pair in combinations(group, 2)}
    near = {
        pair
        for pair in combinations(map(str, found.ranks.index), 2)
        if abs(found.ranks[int(pair[0])] - found.ranks[int(pair[1])]) <= found.distance
    }
    assert joined == (near if found.differ else set(combinations(map(str, found.ranks.index), 2)))


def test_the_same_order_everywhere_by_closed_form() -> None:
    """No rank varies: chi-squared is at its largest, N (k - 1), and F infinite. A loss is ranked from below."""
    scores = pandas.DataFrame(np.tile([0.1, 0.2, 0.3], (30, 1)), columns=["a", "b", "c"])
    found = of_scores(scores)
    assert found.chi2 == pytest.approx(60) and math.isinf(found.f) and found.p_f == 0
    assert list(found.ranks.items()) == [("c", 1.0), ("b", 2.0), ("a", 3.0)]
    assert found.groups == ()  # 2.343 sqrt(12 / 180) = 0.6 < 1
    assert list(of_scores(scores, "test/loss").ranks.index) == ["a", "b", "c"]
    assert found.exact == pytest.approx(6.0**-29, rel=1e-9)  # one order in 30 blocks: (3!)^-29
    assert "significantly better than b, a" in words(found)[0] and "p 2.7e-23 (Friedman, exact" in words(found)[0]
    assert "F infinite; chi-squared 60)" in words(replace(found, exact=math.nan))[0]
    assert table(found)["first"].tolist() == [30, 0, 0]


def test_two_blocks_prove_nothing() -> None:
    """The same order of three methods in both: 1 of 6 orders of the second block. p was 0."""
    found = of_scores(pandas.DataFrame([[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]], columns=["a", "b", "c"]))
    assert found.exact == pytest.approx(1 / 6) and not found.differ and found.groups == (("c", "b", "a"),)
    assert words(found)[0] == (
        "Over 2 settings the 3 methods do not differ significantly: p 0.17 (Friedman, exact; chi-squared 4)."
    )


@pytest.mark.parametrize(
    ("k", "blocks", "statistic", "p"), [(3, 3, 6.0, 0.028), (3, 4, 6.5, 0.042), (4, 2, 6.0, 0.042), (4, 3, 7.4, 0.033)]
)
def test_the_exact_p_is_that_of_the_printed_tables(k: int, blocks: int, statistic: float, p: float) -> None:
    """Friedman's critical values (Hollander and Wolfe, Table A.22), by a table of ranks that has the statistic."""
    orders = list(permutations(range(1, k + 1)))
    for rest in product(orders, repeat=blocks - 1):
        table = np.array([orders[0], *rest], float)
        chi2 = 12 * ((table.sum(0) - blocks * (k + 1) / 2) ** 2).sum() / (blocks * k * (k + 1))
        if chi2 == pytest.approx(statistic):
            assert exact_p(table) == pytest.approx(p, abs=6e-4)
            return
    raise AssertionError(f"no table has the statistic {statistic}")


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.data())
def test_the_exact_p_is_that_of_all_tables(blocks: int, data: st.DataObject) -> None:
    """Every permutation of every block but the first, for three methods that may tie."""
    rows = data.draw(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=blocks, max_size=blocks))
    placed = pandas.DataFrame(rows).rank(axis=1).to_numpy()
    squares = [
        (np.array([placed[0], *table]).sum(0) ** 2).sum()
        for table in product(*(list(permutations(row)) for row in placed[1:]))
    ]
    assert exact_p(placed) == pytest.approx(np.mean(np.array(squares) >= (placed.sum(0) ** 2).sum() - 1e-9))


def test_a_large_table_has_no_exact_p_and_never_p_zero() -> None:
    rng = np.random.default_rng(0)
    large = of_scores(pandas.DataFrame(rng.standard_normal((40, 7)), columns=list("abcdefg")))
    assert math.isnan(large.exact) and large.p_value == large.p_f and "Iman and Davenport" in words(large)[0]
    same = of_scores(pandas.DataFrame(np.tile(np.arange(8.0), (100, 1)), columns=list("abcdefgh")))
    assert same.p_value == 0 and "p below 1e-300" in words(same)[0]  # (8!)^-99


def test_groups_are_the_largest_sets_of_neighbours() -> None:
    mean = pandas.Series({"a": 1.0, "b": 1.5, "c": 2.4, "d": 2.5, "e": 4.0})
    assert cliques(mean, 1.0) == (("a", "b"), ("b", "c", "d"))
    assert cliques(mean, 0.05) == () and cliques(mean, 9) == (tuple("abcde"),)


def grid(root: Path, accuracies: dict[str, dict[float, list[float]]]) -> list[Path]:
    """A run an algorithm, alpha and seed."""
    return [
        folder(root / f"{name}-{alpha}-{seed}", config(name, seed, partition={"name": "lda", "alpha": alpha}), [value])
        for name, of in accuracies.items()
        for alpha, values in of.items()
        for seed, value in enumerate(values)
    ]


ACCURACIES = {
    "fedavg": {0.1: [0.3, 0.4], 0.3: [0.5, 0.6], 1.0: [0.7, 0.8]},
    "fedprox": {0.1: [0.4, 0.5], 0.3: [0.6, 0.7], 1.0: [0.6, 0.7]},
    "fedsol": {0.1: [0.5, 0.6], 0.3: [0.7, 0.8]},
}


def test_a_block_is_a_setting_and_one_that_lacks_a_method_is_left_out(tmp_path: Path) -> None:
    found = ranks(compare(grid(tmp_path, ACCURACIES)))
    assert found.blocks == "settings" and list(found.scores.index) == ["alpha=0.1", "alpha=0.3"]
    assert found.scores.to_numpy() == pytest.approx(np.array([[0.35, 0.45, 0.55], [0.55, 0.65, 0.75]]))
    assert found.left_out == ("alpha=1 (no run of FedSOL)",)
    assert list(found.ranks.items()) == [("FedSOL", 1.0), ("FedProx", 2.0), ("FedAvg", 3.0)]
    assert found.distance > 2 and any("no two of 3 methods" in line for line in words(found)[1:])


def test_of_one_setting_the_seeds_are_the_blocks_and_hyper_parameters_make_methods(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / f"{lr}-{seed}", config("fedavg", seed, lr), [seed / 10 + lr])
        for lr in (0.1, 0.2, 0.3)
        for seed in range(3)
    ]
    found = ranks(compare(runs))
    assert found.blocks == "seeds of one setting" and list(found.scores.index) == ["seed 0", "seed 1", "seed 2"]
    assert list(found.ranks.index) == ["FedAvg, lr=0.3", "FedAvg, lr=0.2", "FedAvg, lr=0.1"]
    with pytest.raises(ConfigError, match=r"at least 3 methods and 2 settings .* here are 2 and 3"):
        ranks(compare(runs[:6]))


def test_the_commands_print_the_test_and_draw_the_diagram(tmp_path: Path) -> None:
    grid(tmp_path, ACCURACIES | {"fedsol": ACCURACIES["fedsol"] | {1.0: [0.9, 0.9]}})
    shown = invoke("compare", tmp_path, "--format", "markdown", "--stats")
    assert shown.exit_code == 0, shown.output
    assert "Mean ranks by test/acc over 3 settings" in shown.output
    # ranks 1 1 1, 2 2 3, 3 3 2: chi-squared 3 (1 + 49/9 + 64/9 - 12) = 14/3, F = 2 (14/3) / (6 - 14/3) = 7
    # of 36 tables with the first block fixed 7 have as large a statistic; p was 0.049 by F
    assert "* Over 3 settings the 3 methods do not differ significantly: p 0.19" in shown.output
    assert "(Friedman, exact; chi-squared 4.67)" in shown.output
    out = tmp_path / "ranks.png"
    drawn = invoke("figure", "ranks", tmp_path, "--out", out)
    assert drawn.exit_code == 0 and out.stat().st_size > 10_000
    axis = diagram(of_scores(demsar())).axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert {"C4.5+m+cf  1.96", "3.14  C4.5", "critical difference 1.25"} <= set(texts)


def test_the_seeds_of_two_experiments_are_blocks_of_their_own(tmp_path: Path) -> None:
    """Three methods on two partitions, as experiment `first` with seed 0 and `second` with seed 1: four blocks. With a
    name for each method's experiment there are the two partitions alone."""
    methods = ("fedavg", "fedprox", "fedsol")
    for (number, method), (alpha, low) in product(enumerate(methods), ((0.1, 0.2), (1.0, 0.6))):
        for seed, name in enumerate(("first", "second")):
            accuracy = low + number / 10 * (1 if name == "first" else -1)  # the order turns round
            values = config(method, seed, partition={"alpha": alpha}) | {"name": name}
            folder(tmp_path / "two" / f"{method}-{alpha}-{name}", values, [accuracy])
            own = values | {"name": method, "seed": 0}
            if name == "first":
                folder(tmp_path / "one" / f"{method}-{alpha}", own, [accuracy])
    found = ranks(compare(sorted((tmp_path / "two").iterdir())))
    assert found.ranks.tolist() == [2, 2, 2] and found.scores.shape == (4, 3)
    assert sorted(found.scores.index) == [f"alpha={a}, name={n}" for a in ("0.1", "1") for n in ("first", "second")]
    found = ranks(compare(sorted((tmp_path / "one").iterdir())))
    assert found.ranks.to_dict() == {"FedSOL": 1, "FedProx": 2, "FedAvg": 3}
    assert sorted(found.scores.index) == ["alpha=0.1", "alpha=1"]
