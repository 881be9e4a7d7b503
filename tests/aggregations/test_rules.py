"""Rules of aggregation on vectors small enough to compute by hand; the NumPy that gives the numbers stands in each test
or its docstring."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flray.aggregations import AGGREGATIONS
from flray.aggregations.mean import Mean
from flray.contracts.played import Local
from flray.core.messages import Cohort, Models, Record, ServerState
from flray.core.protocol.aggregation import Aggregated
from flray.core.schema.errors import AlgorithmError, ConfigError
from flray.ops.robust import krum_scores, squared_distances
from tests.contracts.table import experiment

RULES = AGGREGATIONS.names()


def cohort(weights):
    ids = torch.arange(len(weights))
    return Cohort(ids, ids + 1, ids + 1, torch.tensor(weights, dtype=torch.float64))


def models(w, b=None):
    """Every client's model from arrays `w [K, P]` and `b [K, Q]`."""
    w = torch.as_tensor(np.array(w), dtype=torch.float32)
    b = w[:, :0] if b is None else torch.as_tensor(np.array(b), dtype=torch.float32)
    return Models(tuple(w), tuple(b))


def combine(name, updates, weights=None, **options):
    """(w, b) after the rule, from the model 0."""
    rule, K = AGGREGATIONS.get(name)(**options), len(updates.w)
    before = ServerState(torch.zeros_like(updates.w[0]), torch.zeros_like(updates.b[0]))
    after = rule.combine(SimpleNamespace(), None, before, updates, cohort(weights or [1 / K] * K), "average")
    return after.w.numpy(), after.b.numpy()


@pytest.mark.parametrize("K", [1, 2, 3, 4, 7])
def test_median_is_numpys(K):
    x, s = np.random.default_rng(K).normal(size=(K, 100_000)), np.random.default_rng(9).normal(size=(K, 3))
    w, b = combine("median", models(x, s), weights=[0.9, *[0.1 / max(K - 1, 1)] * (K - 1)])
    np.testing.assert_allclose(w, np.median(x.astype(np.float32), axis=0), rtol=1e-6)
    np.testing.assert_allclose(b, np.median(s.astype(np.float32), axis=0), rtol=1e-6)


@pytest.mark.parametrize(("K", "trim", "drop"), [(5, 0.2, 1), (10, 0.3, 3), (4, 0.2, 0), (3, 0.4, 1), (1, 0.4, 0)])
def test_trimmed_mean_leaves_the_ends_out(K, trim, drop):
    """np.sort(x, axis=0)[drop : K - drop].mean(axis=0), drop = floor(trim K)."""
    x, s = np.random.default_rng(K).normal(size=(K, 70_000)), np.random.default_rng(9).normal(size=(K, 3))
    w, b = combine("trimmed_mean", models(x, s), trim=trim)
    for found, of in ((w, x), (b, s)):
        expected = np.sort(of.astype(np.float32), axis=0)[drop : K - drop].mean(axis=0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def scores(x, f):
    """Krum's: of each row the sum of the squared distances to its len(x) - f - 2 nearest others."""
    distances = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    return np.array([np.sort(np.delete(row, k))[: max(len(x) - f - 2, 1)].sum() for k, row in enumerate(distances)])


@pytest.mark.parametrize(("K", "faulty", "f"), [(10, 0.2, 2), (7, 0.0, 0), (9, 0.3, 2), (3, 0.4, 1), (1, 0.0, 0)])
def test_krum_takes_one_client_and_multi_krum_the_mean_of_several(K, faulty, f):
    x = np.random.default_rng(K).normal(size=(K, 50)).astype(np.float32)
    s = np.random.default_rng(9).normal(size=(K, 2)).astype(np.float32)
    order = np.argsort(scores(x, f), kind="stable")
    np.testing.assert_allclose(krum_scores(tuple(torch.tensor(x)), f), scores(x, f), rtol=1e-5)
    w, b = combine("krum", models(x, s), faulty=faulty)
    np.testing.assert_array_equal(w, x[order[0]])
    np.testing.assert_array_equal(b, s[order[0]])
    for m_given, m in ((None, K - f), (2, min(2, K))):
        w, b = combine("multi_krum", models(x, s), faulty=faulty, models=m_given)
        np.testing.assert_allclose(w, x[order[:m]].mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(b, s[order[:m]].mean(axis=0), rtol=1e-5, atol=1e-6)


def test_krums_distances_do_not_lose_digits_far_from_the_origin():
    """Models of norm 1e4 that differ by 1e-3: scalar products in float32 would be wrong in every digit."""
    apart = np.array([0.0, 0.001, 0.002, 0.009])[:, None]
    x = torch.tensor(np.float64(1e4) + apart @ np.ones((1, 3)))
    distances = squared_distances(tuple(x)).numpy()
    np.testing.assert_allclose(distances, 3 * (apart - apart.T) ** 2, rtol=1e-6, atol=1e-12)


def weiszfeld(x, p, nu, steps):
    beta = p
    for _ in range(steps):
        v = beta @ x / beta.sum()
        beta = p / np.maximum(nu, np.linalg.norm(x - v, axis=1))
    return beta / beta.sum()


@pytest.mark.parametrize(("steps", "nu"), [(1, 1e-6), (3, 1e-6), (3, 5.0), (100, 1e-6)])
def test_geometric_median_is_weiszfelds(steps, nu):
    x, s = np.random.default_rng(1).normal(size=(6, 4)), np.random.default_rng(2).normal(size=(6, 2))
    p = np.array([0.3, 0.1, 0.1, 0.2, 0.2, 0.1])
    beta = weiszfeld(x, p, nu, steps)
    w, b = combine("geometric_median", models(x, s), weights=p.tolist(), steps=steps, nu=nu)
    np.testing.assert_allclose(w, beta @ x, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(b, beta @ s, rtol=2e-5, atol=1e-6)


def test_geometric_median_of_a_line_is_its_weighted_median():
    """With more than half of the weight on one point that point is the minimum, wherever the others are."""
    w, _ = combine("geometric_median", models([[0.0], [1.0], [100.0]]), weights=[0.2, 0.6, 0.2], steps=300, nu=1e-9)
    np.testing.assert_allclose(w, [1.0], atol=1e-3)


@pytest.mark.parametrize(("size", "faulty", "ok"), [(10, 0.3, True), (10, 0.4, False), (5, 0.2, True), (3, 0.2, True)])
def test_krum_refuses_more_faulty_clients_than_it_tolerates(size, faulty, ok):
    """2 f + 2 < K: of 10 clients f = 3 are tolerated, 4 are not."""
    ctx = SimpleNamespace(cohort_size=size)
    with nullcontext() if ok else pytest.raises(ConfigError, match=r"aggregation.faulty: 0.4 of 10 .* tolerates 3"):
        AGGREGATIONS.get("krum")(faulty=faulty).initial(ctx, None, None)


class Careless(Mean, frozen=True):
    """A user's rule that forgets the record."""

    def combine(self, ctx, own, before, updates, cohort, buffers):
        return updates.w, updates.b


def test_what_a_users_rule_returns_is_checked_and_its_state_goes_round(tmp_path):
    with pytest.raises(AlgorithmError, match=r"Careless.combine .*returned .*; return Aggregated\(w, b\)"):
        played(tmp_path / "a", Careless)
    assert played(tmp_path / "b", Counting).state.rule.rounds == 3


class Rounds(Record):
    rounds: int


class Counting(Mean, frozen=True):
    """A user's rule with a state."""

    def initial(self, ctx, w, b):
        return Rounds(1)

    def combine(self, ctx, own, before, updates, cohort, buffers):
        return Aggregated(updates.w, updates.b, own.replace(rounds=own.rounds + 1), {"rule/rounds": own.rounds})


def played(folder, kind):
    local = Local(experiment("fedprox", aggregation=kind()), folder)
    local.play(2)
    return local
