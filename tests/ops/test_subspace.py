"""Bases of layers against NumPy, closed forms and the properties that define them (FedProTIP Eqs. 4 to 9, FOT)."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from flray.core.network.objective import Objective
from flray.ops import subspace
from flray.ops.subspace import ColumnSample, append, extract, extract_sketch, merge, project
from tests.support.bases import matrix, orthonormal
from tests.support.layers import One


def gram_error(basis):
    gram = basis.double().T @ basis.double()
    return float((gram - torch.eye(basis.shape[1], dtype=torch.float64)).abs().max()) if basis.shape[1] else 0.0


# columns --------------------------------------------------------------------------------------
def batches_of_conv(groups=1):
    layer = One(nn.Conv2d(4, 6, 3, padding=1, groups=groups))
    objective = Objective(layer)
    draws = torch.Generator().manual_seed(0)
    w, b = objective.initial()
    return [objective.layer_inputs(w, b, torch.randn(n, 4, 5, 5, generator=draws))["layer"] for n in (3, 3, 2)]


@pytest.mark.parametrize("groups", [1, 2])
def test_sampled_columns_are_columns_and_none_twice(groups):
    seen = batches_of_conv(groups)
    every = torch.cat([inputs.columns() for inputs in seen], dim=2)
    sample = ColumnSample(40, np.random.default_rng(1))
    for inputs in seen:
        sample.add(inputs)
    assert sample.columns.shape == (groups, 36 // groups, 40)
    places = [int((every[0] == column[:, None]).all(0).nonzero()[0]) for column in sample.columns[0].T]
    assert len(set(places)) == 40 and torch.equal(sample.columns, every[..., places])


def test_columns_are_all_kept_where_there_are_fewer():
    seen = batches_of_conv()
    every = torch.cat([inputs.columns() for inputs in seen], dim=2)
    sample = ColumnSample(10_000, np.random.default_rng(1))
    for inputs in seen:
        sample.add(inputs)
    assert torch.equal(sample.columns, every)


def test_every_column_is_as_likely_whatever_batch_it_comes_in():
    """200 columns in batches of 75, 75 and 50, 20 kept, 400 times: each 40 times, sd 6."""
    seen, counts = batches_of_conv(), np.zeros(200)
    every = torch.cat([inputs.columns() for inputs in seen], dim=2)[0]
    place = {column.numpy().tobytes(): i for i, column in enumerate(every.T.contiguous())}
    for seed in range(400):
        sample = ColumnSample(20, np.random.default_rng(seed))
        for inputs in seen:
            sample.add(inputs)
        for column in sample.columns[0].T.contiguous():
            counts[place[column.numpy().tobytes()]] += 1
    assert counts.sum() == 8000 and abs(counts - 40).max() < 30
    assert abs(counts[:75].mean() - 40) < 3 and abs(counts[150:].mean() - 40) < 4


def test_no_column_is_an_error():
    with pytest.raises(ValueError, match="add at least one batch"):
        _ = ColumnSample(3, np.random.default_rng(0)).columns


# extraction -----------------------------------------------------------------------------------
def by_numpy(a, phi, eps, criterion, count_rule):
    """Section 1.4 as printed."""
    a, phi = a.numpy(), phi.numpy()
    total = (a**2).sum()
    rest = a - phi @ (phi.T @ a)
    u, s, _ = np.linalg.svd(rest, full_matrices=False)
    share = 1 - (rest**2).sum() / total if phi.shape[1] else 0.0
    sums = {
        "energy": share + np.cumsum(s**2) / total,
        "residual_energy": np.cumsum(s**2) / (rest**2).sum(),
        "sigma_sum": np.cumsum(s) / s.sum(),
    }[criterion]
    if count_rule == "gpm_strict_first" and not phi.shape[1]:
        r = int((sums < eps).sum())
    elif criterion == "energy" and share >= eps:
        r = 0
    else:
        r = int(np.flatnonzero(sums >= eps)[0]) + 1
    return u[:, :r]


@pytest.mark.parametrize("criterion", ["energy", "residual_energy", "sigma_sum"])
@pytest.mark.parametrize("count_rule", ["inclusive", "gpm_strict_first"])
@pytest.mark.parametrize("q", [0, 4])
@pytest.mark.parametrize("eps", [0.5, 0.7, 0.95])
def test_extraction_against_numpy(criterion, count_rule, q, eps):
    a, phi = matrix(20, 50), orthonormal(20, q, seed=1)
    found, expected = extract(a, phi, eps, criterion, count_rule), by_numpy(a, phi, eps, criterion, count_rule)
    assert found.shape == expected.shape
    np.testing.assert_allclose((found @ found.T).numpy(), expected @ expected.T, atol=1e-9)


def test_extraction_of_a_diagonal_by_hand():
    """Energies 16, 9, 4, 1 of 30: shares .533, .833, .967, 1. With the first axis protected .533 is there already."""
    a = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64))
    first = torch.eye(4, dtype=torch.float64)[:, :1]
    ranks = {eps: extract(a, None, eps).shape[1] for eps in (0.0, 0.5, 0.6, 0.83, 0.84, 0.97, 1.0)}
    assert ranks == {0.0: 0, 0.5: 1, 0.6: 2, 0.83: 2, 0.84: 3, 0.97: 4, 1.0: 4}
    assert extract(a, None, 0.84, count_rule="gpm_strict_first").shape[1] == 2
    assert extract(a, first, 0.53).shape[1] == 0
    assert extract(a, first, 0.84, count_rule="gpm_strict_first").shape[1] == 2
    np.testing.assert_allclose(extract(a, first, 0.83).abs().numpy(), np.eye(4)[:, 1:2], atol=1e-12)
    assert extract(a, first, 0.99, rank=1).shape[1] == 1


def test_a_threshold_that_is_never_reached_gives_the_numerical_rank():
    a = matrix(30, 40, rank=7)
    assert extract(a, None, 1.0 + 1e-9).shape[1] == 7
    assert extract(a, None, 0.5, rank=30).shape[1] == 7
    assert extract(torch.zeros(5, 8, dtype=torch.float64), None, 0.7).shape[1] == 0
    inside = orthonormal(30, 7, seed=3) @ matrix(7, 40)
    assert extract(inside, orthonormal(30, 7, seed=3), 0.99).shape[1] == 0


@pytest.mark.parametrize("shape", [(400, 300), (40, 300), (150, 90)])
@pytest.mark.parametrize("q", [0, 10])
def test_the_randomised_svd_finds_the_same_subspace(shape, q):
    a, phi = matrix(*shape, rank=40), orthonormal(shape[0], q, seed=1)
    exact = extract(a, phi, 0.9)
    found = extract(a, phi, 0.9, svd="randomized", rng=np.random.default_rng(0))
    assert found.shape == exact.shape and gram_error(found) < 1e-9
    assert float(torch.linalg.svdvals(found.T @ exact).min()) > 1 - 1e-6


def test_the_randomised_svd_doubles_its_rank_until_the_criterion_is_met(monkeypatch):
    """A flat spectrum of 300 values: 0.699 of the energy needs 210, so 64 and 128 do not do, and 256 does. No threshold
    is a whole number of 300ths, where rounding would decide."""
    asked, original = [], subspace.randomized_svd
    monkeypatch.setattr(subspace, "randomized_svd", lambda a, k, rng: asked.append(k) or original(a, k, rng))
    a = orthonormal(500, 300) @ orthonormal(300, 300, seed=2).T
    found = extract(a, None, 0.699, svd="randomized", rng=np.random.default_rng(0))
    assert asked == [64, 128, 256] and found.shape[1] == 210
    asked.clear()
    assert extract(a, None, 0.989, svd="randomized", rng=np.random.default_rng(0)).shape[1] == 297
    assert asked == [64, 128, 256]  # 512 is beyond the matrix: exact


def test_a_randomised_svd_needs_a_generator_and_no_sum_of_all():
    for options in ({"svd": "randomized"}, {"svd": "randomized", "criterion": "sigma_sum", "rng": object()}):
        with pytest.raises(ValueError, match="a randomized SVD needs a generator"):
            extract(matrix(5, 5), None, 0.7, **options)


def test_ranks_of_the_final_layer():
    """K = 5: 30, 5, 5, 5, 5, then 4 each; never below 1."""
    of = subspace.space_rank
    assert [of(5, True, k == 0) for k in range(5)] == [30, 5, 5, 5, 5] and of(5, False, True) == 4
    assert of(5, True, True, first=20) == 20 and of(1, True, True) == 30
    assert of(100, True, False) == of(100, False, False) == 1


def test_blocks_are_counted_before_they_are_made():
    """Five clients, 20 and 20: 20 + 4 x 5, then 5 x 4; of ten tasks in 128 directions six have some. With 11 for both
    11 + 4 x 2 + 9 x 5 x 2 = 109 fit; the next number that changes anything is 12: 12 + 4 x 3 + 90 = 114, and with 15
    15 + 4 x 3 + 9 x 5 x 3 = 162 do not."""
    sizes = subspace.block_sizes([5] * 10, 20, 20)
    assert sizes == [40, *[20] * 9] and sum(sizes[:5]) < 128 < sum(sizes[:6])
    assert sum(subspace.block_sizes([5] * 10, 14, 14)) == 14 + 4 * 3 + 9 * 10 == 116
    assert sum(subspace.block_sizes([5] * 10, 15, 15)) == 162
    assert subspace.fitting_rank([5] * 10, 128) == 14 and subspace.fitting_rank([5] * 10, 40) == 0
    assert subspace.block_sizes([1, 3], 30, 20) == [30, 18]


# merging --------------------------------------------------------------------------------------
def test_what_is_appended_is_what_is_missing():
    """Of three directions one lies in the basis, one at a sine of 5e-4 to it, one is new."""
    basis = torch.eye(6, dtype=torch.float64)[:, :2]
    new = torch.zeros(6, 3, dtype=torch.float64)
    new[0, 0] = 1.0
    new[1, 1], new[2, 1] = (1 - 25e-8) ** 0.5, 5e-4
    new[0, 2], new[4, 2] = 0.6, 0.8
    after = append(basis, new)
    assert torch.equal(after[:, :2], basis) and after.shape == (6, 3)
    np.testing.assert_allclose(after[:, 2].abs().numpy(), np.eye(6)[4], atol=1e-3)
    assert append(basis, new, rank_tol=1e-4).shape == (6, 4)
    assert torch.equal(append(basis, new[:, :1]), basis) and torch.equal(append(basis, new[:, :0]), basis)
    np.testing.assert_allclose(append(None, new[:, 2:]).abs().numpy(), new[:, 2:].abs().numpy(), atol=1e-12)


def test_the_official_way_has_the_same_span_where_nothing_is_missing():
    basis, new = orthonormal(12, 4), orthonormal(12, 3, seed=1)
    one, two = append(basis, new), append(basis, new, method="official")
    np.testing.assert_allclose((one @ one.T).numpy(), (two @ two.T).numpy(), atol=1e-10)
    full = append(basis, orthonormal(12, 12, seed=2), method="official")
    assert full.shape == (12, 12) and gram_error(full) < 1e-12


def test_the_order_of_delivery_does_not_matter():
    basis, new = orthonormal(15, 3), {k: orthonormal(15, 2, seed=k + 1) for k in (0, 2, 5, 11)}
    expected = basis
    for k in (0, 2, 5, 11):
        expected = append(expected, new[k])
    for order in itertools.permutations(new):
        assert torch.equal(merge(basis, {k: new[k] for k in order}), expected)


@settings(max_examples=40, deadline=None)
@given(
    d=st.integers(1, 12),
    clients=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=6),
    near=st.floats(0, 1),
    method=st.sampled_from(["residual", "official"]),
)
def test_bases_stay_orthonormal_and_no_wider_than_the_layer(d, clients, near, method):
    """Any number of tasks and clients, with directions that are new, old, or nearly old; stored as float32."""
    basis = torch.zeros(d, 0)
    for seed, ranks in enumerate(clients):
        increments = {}
        for k, rank in enumerate(ranks):
            fresh = matrix(d, min(rank, d), seed=31 * seed + k)
            if basis.shape[1]:
                fresh = fresh + near * 1e4 * basis.double()[:, [k % basis.shape[1]]]
            increments[k] = torch.linalg.qr(fresh).Q.float().double()
        before = basis
        basis = merge(basis.double(), increments, method=method).float()
        assert basis.shape[0] == d and before.shape[1] <= basis.shape[1] <= d
        assert gram_error(basis) < 1e-6
        if method == "residual":
            assert torch.equal(basis[:, : before.shape[1]], before)


# projection -----------------------------------------------------------------------------------
@pytest.mark.parametrize("groups", [1, 2])
def test_a_projected_gradient_moves_no_output_of_protected_inputs(groups):
    """Against the dense projection that the official code forms; of groups each by its own basis."""
    g = torch.stack([matrix(7, 9, seed=group) for group in range(groups)])
    bases = torch.stack([orthonormal(9, 3, seed=group) for group in range(groups)])
    after = project(g, bases)
    assert float((after @ bases).abs().max()) < 1e-12 and after.shape == g.shape
    dense = torch.eye(9).double() - bases @ bases.mT
    np.testing.assert_allclose(after.numpy(), (g @ dense).numpy(), atol=1e-12)
    in_place = g.clone()
    assert subspace.project_(in_place, bases) is in_place
    np.testing.assert_allclose(in_place.numpy(), after.numpy(), atol=1e-12)


@pytest.mark.parametrize("shape", [(8, 20, 5), (64, 600, 150)])
def test_in_place_it_is_the_same_for_small_and_large_layers(shape):
    out, d, q = shape
    g, basis = matrix(out, d).float(), orthonormal(d, q, seed=1).float()
    expected = project(g.double(), basis.double())
    np.testing.assert_allclose(subspace.project_(g.clone(), basis), expected, atol=1e-5 * float(g.abs().max()))


@settings(max_examples=40, deadline=None)
@given(
    d=st.integers(1, 10),
    q=st.integers(0, 10),
    out=st.integers(1, 5),
    scale=st.floats(1e-3, 1e3),
    seed=st.integers(0, 99),
)
def test_projection_never_raises_the_norm(d, q, out, scale, seed):
    g, basis = scale * matrix(out, d, seed).float(), orthonormal(d, min(q, d), seed + 1).float()
    after = project(g, basis)
    assert float(after.norm()) <= float(g.norm()) * (1 + 1e-6)
    np.testing.assert_allclose(project(after, basis).numpy(), after.numpy(), atol=1e-5 * scale)


# FOT ------------------------------------------------------------------------------------------
def test_a_sketch_has_the_span_of_the_residual():
    a, phi = matrix(12, 60, rank=5), orthonormal(12, 3, seed=1)
    omega = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 20)))
    rest = subspace.residual(a, phi)
    u = extract_sketch(rest @ omega, 1.0)
    assert u.shape == (12, 5)
    np.testing.assert_allclose((u @ (u.T @ rest)).numpy(), rest.numpy(), atol=1e-9)


def test_thresholds_of_a_sketch_by_hand():
    """rho = 1: eps itself; rho = 0.5, eps = 0.87: (0.5 - 0.13) / 0.5 = 0.74; all known: nothing."""
    assert subspace.sketch_threshold(1.0, 0.87) == pytest.approx(0.87)
    assert subspace.sketch_threshold(0.5, 0.87) == pytest.approx(0.74)
    assert subspace.sketch_threshold(0.1, 0.87) < 0 == subspace.sketch_threshold(0.0, 0.87)
    z = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0], dtype=torch.float64))  # shares .533, .833, .967, 1
    ranks = {t: extract_sketch(z, t).shape[1] for t in (-0.1, 0.0, 0.5, 0.6, 0.9)}
    assert ranks == {-0.1: 0, 0.0: 0, 0.5: 1, 0.6: 2, 0.9: 3}
    assert extract_sketch(z, 0.9, "strict").shape[1] == 2
