"""The map by least squares over stacked rows in NumPy; the density by its formula."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from flray.ops.drift_map import CONCENTRATION, PENALTY, drift_map, drift_moments, log_density
from flray.ops.exemplars import nearest_mean

DRAWS = np.random.default_rng(3)


def unit(v):
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def mapped(clients):
    parts = [drift_moments(torch.from_numpy(old), torch.from_numpy(new)) for old, new in clients]
    return drift_map(sum(part[0] for part in parts), sum(part[1] for part in parts)).numpy()


@pytest.mark.parametrize("samples", [(3,), (40, 7), (5, 1, 60)])
def test_the_map_is_penalised_least_squares_over_all_clients_samples(samples):
    """min ||U A - V||^2 + p ||A - I||^2 is least squares with rows of sqrt(p) I added; the trace of U^T U is n."""
    d, n = 6, sum(samples)
    clients = [(DRAWS.normal(size=(m, d)), DRAWS.normal(size=(m, d))) for m in samples]
    u, v = (np.concatenate([unit(client[k]) for client in clients]) for k in (0, 1))
    root = np.sqrt(PENALTY * n / d) * np.eye(d)
    expected = np.linalg.lstsq(np.concatenate([u, root]), np.concatenate([v, root]), rcond=None)[0]
    np.testing.assert_allclose(mapped(clients), expected, atol=1e-5)


def test_a_rotation_is_found_and_features_that_stay_are_left():
    old = DRAWS.normal(size=(4000, 5))
    turn = np.linalg.qr(DRAWS.normal(size=(5, 5)))[0]
    carried = unit(unit(old) @ mapped([(old, old @ turn)]))
    assert (carried * unit(old @ turn)).sum(axis=1).min() > 0.9 > (unit(old) * unit(old @ turn)).sum(axis=1).mean()
    np.testing.assert_allclose(mapped([(old, 3 * old)]), np.eye(5), atol=1e-6)


def test_without_samples_nothing_moves():
    assert torch.equal(drift_map(torch.zeros(4, 4), torch.zeros(4, 4)), torch.eye(4).double())


def test_the_density_is_a_mixture_about_the_means():
    """log sum_c e^(kappa cos) - kappa; a class without a mean adds less than e^(-kappa/2) of any other."""
    z, means = DRAWS.normal(size=(9, 4)), unit(DRAWS.normal(size=(3, 4)))
    found = log_density(nearest_mean(torch.from_numpy(z), torch.from_numpy(means), torch.ones(3)))
    expected = logsumexp(CONCENTRATION * (unit(z) @ means.T), axis=1) - CONCENTRATION
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
