"""The diagonal of the Fisher information against softmax regression, where it has a closed form."""

import numpy as np
import pytest
import torch

from flray.core.messages import Batch
from flray.core.network.objective import Objective
from flray.models.mlp import MLP
from flray.ops.fisher import fisher_diagonal, sampled_labels
from tests.support.small_cases import normal


def softmax_regression():
    """(objective of a linear classifier of three classes, w, b, x [6, 4], p [6, 3])."""
    torch.manual_seed(1)
    objective = Objective(MLP((4,), 3, hidden=()))
    w, b = objective.initial()
    x = normal(6, 4)
    p = torch.softmax(objective.at(w, b)(x), dim=1).detach().double().numpy()
    return objective, w, b, x, p


def layers(objective, vector):
    return {name: view.double().numpy() for name, view in objective.views(vector).items()}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_batch_gives_the_square_of_its_summed_gradient(size):
    """grad log p(y | x) = (e_y - p) x^T for the weight, e_y - p for the bias; y by the inverse of the distribution
    function at the same uniform numbers."""
    objective, w, b, x, p = softmax_regression()
    batches = [Batch(part, torch.zeros(len(part), dtype=torch.int64)) for part in x.split(size)]
    found = layers(objective, fisher_diagonal(objective, w, b, batches, np.random.default_rng(5)))
    draws, weight, bias = np.random.default_rng(5), np.zeros((3, 4)), np.zeros(3)
    for first in range(0, 6, size):
        own = slice(first, first + size)
        u = draws.random((len(p[own]), 1), dtype=np.float32)
        y = (p[own].cumsum(axis=1) <= u).sum(axis=1)
        error = np.eye(3)[y] - p[own]
        weight += (error.T @ x[own].double().numpy()) ** 2
        bias += error.sum(axis=0) ** 2
    np.testing.assert_allclose(found["head.weight"], weight / 6, rtol=1e-4)
    np.testing.assert_allclose(found["head.bias"], bias / 6, rtol=1e-4)


def test_labels_are_those_of_the_inverse_distribution_function():
    logits = torch.tensor([[0.25, 0.5, 0.25]]).log().expand(5, 3)
    u = torch.tensor([0.0, 0.2, 0.3, 0.74, 0.9999999])[:, None]
    assert sampled_labels(logits, u).tolist() == [0, 0, 1, 1, 2]
