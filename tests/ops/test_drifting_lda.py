"""The map by least squares over stacked rows, statistics from the samples themselves, densities by SciPy."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from flray.ops.drifting_lda import (
    PENALTY,
    SHRINKAGE,
    TEMPER,
    added,
    compensated,
    discriminants,
    drift_map,
    feature_moments,
    log_density,
)

DRAWS = np.random.default_rng(3)


def unit(v):
    return v / np.linalg.norm(v, axis=-1, keepdims=True)


def least_squares(u, v):
    """min ||U A - V||^2 + p ||A - I||^2 is least squares with rows of sqrt(p) I added; the trace of U^T U is n."""
    root = np.sqrt(PENALTY * len(u) / u.shape[1]) * np.eye(u.shape[1])
    return np.linalg.lstsq(np.concatenate([u, root]), np.concatenate([v, root]), rcond=None)[0]


def moments(clients, num_classes):
    """Of all clients, each with (features, labels) or (features, labels, features before)."""
    total = None
    for x, y, *before in clients:
        old = torch.from_numpy(before[0]) if before else None
        total = added(total, feature_moments(torch.from_numpy(x), torch.from_numpy(y), num_classes, old))
    return total


def client(n, d=6, classes=3, before=True):
    x, y = DRAWS.normal(size=(n, d)) + 2, DRAWS.integers(classes, size=n)
    return (x, y, x + DRAWS.normal(size=(n, d))) if before else (x, y)


@pytest.mark.parametrize("samples", [(3,), (40, 7), (5, 1, 60)])
def test_the_map_is_penalised_least_squares_over_all_clients_samples(samples):
    clients = [client(n) for n in samples]
    found = moments(clients, 3)
    u, v = (np.concatenate([unit(own[k]) for own in clients]) for k in (2, 0))
    np.testing.assert_allclose(drift_map(found.old, found.cross).numpy(), least_squares(u, v), atol=1e-5)


def test_a_rotation_is_found_and_features_that_stay_are_left():
    old = DRAWS.normal(size=(4000, 5))
    turn = np.linalg.qr(DRAWS.normal(size=(5, 5)))[0]
    y = np.zeros(4000, int)
    turned, kept = (moments([(new, y, old)], 1) for new in (old @ turn, 3 * old))
    after = unit(unit(old) @ drift_map(turned.old, turned.cross).numpy())
    assert (after * unit(old @ turn)).sum(axis=1).min() > 0.9 > (unit(old) * unit(old @ turn)).sum(axis=1).mean()
    np.testing.assert_allclose(drift_map(kept.old, kept.cross).numpy(), np.eye(5), atol=1e-6)


def test_statistics_are_those_of_the_samples_and_of_the_compensated_ones():
    """Task 0's samples, mapped by hand and with the residuals as their noise, then task 1's: means and scatter."""
    first, second = [client(30, before=False), client(9, before=False)], [client(50), client(4), client(20)]
    found = compensated(compensated(None, moments(first, 3), "0"), moments(second, 3), "1")
    u, v = (np.concatenate([unit(own[k]) for own in second]) for k in (2, 0))
    a, scatter = least_squares(u, v), np.zeros((6, 6))
    for task, clients in (("0", first), ("1", second)):
        x, y = np.concatenate([unit(own[0]) for own in clients]), np.concatenate([own[1] for own in clients])
        x = x @ a if task == "0" else x
        for c in range(3):
            np.testing.assert_allclose(found.means[task][c], x[y == c].mean(axis=0), atol=1e-5)
            scatter += (y == c).sum() * np.cov(x[y == c].T, bias=True)
    noise = v - u @ a
    np.testing.assert_allclose(found.scatter, scatter + 39 * noise.T @ noise / len(v), atol=1e-4)
    assert float(found.number) == 39 + 74


def test_the_density_is_a_mixture_of_normal_distributions():
    """From task to task; each leaves out what both share."""
    statistics = compensated(None, moments([client(200, d=4, before=False)], 3), "0")
    statistics = compensated(statistics, moments([client(100, d=4)], 3), "1")
    sigma = statistics.scatter.double().numpy() / 300
    sigma = (1 - SHRINKAGE) * sigma + SHRINKAGE * np.trace(sigma) / 4 * np.eye(4)
    z = DRAWS.normal(size=(9, 4)) + 2
    found, expected = [], []
    for task, rule in discriminants(statistics).items():
        log = [multivariate_normal(mu, sigma).logpdf(unit(z)) for mu in statistics.means[task].double().numpy()]
        found.append(log_density(torch.from_numpy(z).float(), *rule).numpy())
        expected.append(logsumexp(TEMPER * np.array(log), axis=0) - np.log(len(log)))
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    np.testing.assert_allclose(found[0] - found[1], expected[0] - expected[1], atol=1e-3)


def test_features_of_0_before_are_no_error():
    zero = np.zeros((5, 3))
    found = moments([(DRAWS.normal(size=(5, 3)), np.zeros(5, int), zero)], 1)
    assert torch.equal(drift_map(found.old, found.cross), torch.eye(3).double())


def test_a_task_of_many_classes_is_not_more_probable_for_it():
    """The same twenty samples as one class, and as four alike: the mean of the classes' densities is the same."""
    x = np.tile(DRAWS.normal(size=(5, 4)), (4, 1))
    one = feature_moments(torch.from_numpy(x), torch.zeros(20, dtype=torch.int64), 1, None)
    four = feature_moments(torch.from_numpy(x), torch.arange(4).repeat_interleave(5), 4, None)
    both = discriminants(compensated(compensated(None, one, "0"), four, "1"))
    z = torch.from_numpy(DRAWS.normal(size=(7, 4))).float()
    torch.testing.assert_close(log_density(z, *both["0"]), log_density(z, *both["1"]), rtol=1e-4, atol=1e-4)


def test_a_class_without_samples_is_never_the_nearest_and_one_sample_a_class_is_enough():
    rules = discriminants(compensated(None, moments([(np.eye(3), np.array([0, 1, 3]))], 4), "0"))
    assert rules["0"][1].tolist()[2] == -np.inf and np.isfinite(rules["0"][1][[0, 1, 3]]).all()
    assert torch.isfinite(log_density(torch.eye(3), *rules["0"])).all()
