"""LGA's radius and noisy features against NumPy."""

import numpy as np
import pytest
import torch

from flray.ops.augmented_features import deviations, feature_radius, noisy_copies, scatter_sums
from tests.support.small_cases import normal

Y = torch.tensor([0, 2, 0, 2, 2, 0, 3])


def test_the_radius_of_summed_clients_is_that_of_all_features():
    """NumPy: sqrt(mean of trace(np.cov(f of a class)) / F); class 3 has one sample and is left out."""
    z = normal(7, 5) + 3
    parts = [scatter_sums(z[rows], Y[rows], 4) for rows in (slice(0, 4), slice(4, 7))]
    found = feature_radius(*(a + b for a, b in zip(*parts, strict=True)))
    traces = [np.trace(np.cov(z[c == Y].double().numpy().T)) for c in (0, 2)]
    assert found == pytest.approx(np.sqrt(np.mean(traces) / 5), rel=1e-9)
    assert feature_radius(*scatter_sums(z[6:], Y[6:], 4)) == 0


def test_the_deviations_are_of_the_unbiased_variance():
    z = normal(4, 3)
    np.testing.assert_allclose(deviations(z), np.std(z.numpy(), axis=0, ddof=1), rtol=1e-5)
    np.testing.assert_allclose(deviations(z, "official"), np.diagonal(np.cov(z.numpy().T)) ** 2, rtol=1e-5)
    assert not deviations(z[:1]).any()


@pytest.mark.parametrize("kind", ["std", "official"])
def test_each_feature_has_its_copies_within_the_bound(kind):
    """The transcription draws from the same generator, rejects, and counts what it rejected by class."""
    z, rho = 0.7 * normal(7, 5), 0.2
    found, labels = noisy_copies(z, Y, rho, np.random.default_rng(0), kind)
    draws, expected, tries = np.random.default_rng(0), [], {0: 0, 2: 0, 3: 0}
    for f, c in zip(z, Y.tolist(), strict=True):
        made = 0
        while made < 5 and tries[c] < 100:
            noise = rho * deviations(z[c == Y], kind).double().numpy() * draws.standard_normal(5)
            if noise @ noise > 0.1 * float(deviations(z[c == Y], kind).sum()):
                tries[c] += 1
            else:
                expected.append(f.numpy() + noise)
                made += 1
    np.testing.assert_allclose(found, np.array(expected), atol=1e-5)
    assert len(labels) == len(found) and set(labels.tolist()) <= {0, 2, 3}


def test_a_noise_that_is_always_too_large_ends():
    found, labels = noisy_copies(normal(4, 5), torch.zeros(4, dtype=torch.int64), 1e3, np.random.default_rng(0))
    assert found.shape == (0, 5) and labels.shape == (0,)
