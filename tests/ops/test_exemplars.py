"""Herding, the reservoir and the nearest mean, against NumPy and what is known of them."""

import numpy as np
import pytest
import torch

from flray.ops.exemplars import class_means, exemplars_per_class, herding, nearest_mean, nearest_to_mean, reservoir
from tests.support.small_cases import normal


def by_search(features, count):
    """`_construct_exemplar_set` of GLFC's code, in NumPy: the features are normalised, the running mean is a sum."""
    f = features.double().numpy()
    f = f / np.linalg.norm(f, axis=1, keepdims=True)
    mean, so_far, found = f.mean(axis=0), np.zeros((1, f.shape[1])), []
    for i in range(count):
        index = int(np.argmin(np.linalg.norm(mean - (so_far + f) / (i + 1), axis=1)))
        so_far += f[index]
        found.append(index)
    return found


@pytest.mark.parametrize(("n", "count"), [(30, 12), (5, 20), (1, 4), (7, 0)])
def test_herding_is_the_greedy_search_of_the_code(n, count):
    features = normal(n, 6, seed=n) + 1
    assert herding(features, count).tolist() == by_search(features, count)


def test_herding_may_choose_a_sample_again_and_fewer_are_the_first_of_more():
    features = normal(5, 3, seed=2)
    chosen = herding(features, 20).tolist()
    assert len(set(chosen)) < len(chosen)
    assert herding(features, 7).tolist() == chosen[:7]
    assert herding(features[:0], 4).tolist() == []


def test_the_prototype_is_nearest_the_mean_of_unit_vectors():
    """Directions 0, 40 and 100 degrees, of any length: the mean points to 45 degrees or so."""
    angles = np.deg2rad([0.0, 40.0, 100.0])
    features = torch.tensor(np.stack([np.cos(angles), np.sin(angles)], 1)) * torch.tensor([[100.0], [0.1], [3.0]])
    assert nearest_to_mean(features) == 1


def test_the_quota_is_rounded_down():
    assert [exemplars_per_class(2000, learned) for learned in (0, 1, 3, 20, 3000)] == [2000, 2000, 666, 100, 0]


def test_every_number_that_passed_is_kept_with_the_same_probability():
    """10 of 40, in two runs of the stream: each in a quarter of 4000 trials, sd sqrt(p (1 - p) / 4000) = 0.0068."""
    counts = np.zeros(40)
    for trial in range(4000):
        draws = np.random.default_rng(trial)
        kept = reservoir(np.zeros(0, np.int64), np.arange(25), 0, 10, draws)
        kept = reservoir(kept, np.arange(25, 40), 25, 10, draws)
        assert len(set(kept.tolist())) == 10
        counts[kept] += 1
    assert np.abs(counts / 4000 - 0.25).max() < 0.03


def test_a_reservoir_that_is_not_full_keeps_all():
    kept = reservoir(np.array([4, 2]), np.array([9, 7]), 2, 5, np.random.default_rng(0))
    assert kept.tolist() == [4, 2, 9, 7] and kept.dtype == np.int64


def test_means_of_classes_and_the_nearest_of_them():
    """NumPy: mean of the unit vectors, brought to unit length; minus squared distance; -5 for class 1, of which there
    is no sample."""
    features, y = normal(6, 4, seed=3), torch.tensor([0, 2, 2, 0, 3, 2])
    means, known = class_means(features, y, 4)
    units = features.numpy() / np.linalg.norm(features.numpy(), axis=1, keepdims=True)
    expected = np.zeros((4, 4))
    for c in (0, 2, 3):
        mean = units[y.numpy() == c].mean(axis=0)
        expected[c] = mean / np.linalg.norm(mean)
    np.testing.assert_allclose(means, expected, atol=1e-6)
    assert known.tolist() == [1, 0, 1, 1]
    x = normal(3, 4, seed=4)
    query = x.numpy() / np.linalg.norm(x.numpy(), axis=1, keepdims=True)
    distance = -((query[:, None] - expected) ** 2).sum(axis=2)
    distance[:, 1] = -5
    np.testing.assert_allclose(nearest_mean(3 * x, means, known), distance, atol=1e-5)
