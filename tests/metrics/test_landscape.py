"""The Hessian's largest eigenvalues: a matrix with known ones, softmax regression in closed form, a dense Hessian."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flray.core.network.objective import Objective
from flray.metrics.landscape import sharpest, top_eigenpairs
from flray.metrics.reading import ProbeSample
from flray.models.mlp import MLP
from tests.support.small_cases import context


@pytest.mark.parametrize("size", [3, 4, 40])
def test_a_matrix_with_known_eigenvalues(size: int) -> None:
    """Q diag(size - 5, ..., 1 - 5) Q^T with a random rotation: the largest are found in order, with their sign."""
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((size, size)))
    values = np.arange(size, 0, -1.0) - 5
    matrix = rotation @ np.diag(values) @ rotation.T
    found, vectors = top_eigenpairs(lambda v: matrix @ v, size, 2, np.ones(size))
    assert found == pytest.approx(values[:2], rel=1e-2, abs=1e-9)
    assert abs(vectors.T @ rotation[:, :2]) == pytest.approx(np.eye(2), abs=2e-2)


def test_a_matrix_of_zeros_has_eigenvalues() -> None:
    """The Hessian of a task with a single class, at which Lanczos iterations have nothing to begin with."""
    values, vectors = top_eigenpairs(np.zeros_like, 20, 3, np.ones(20))
    assert values.tolist() == [0, 0, 0] and np.array_equal(vectors.T @ vectors, np.eye(3))


@pytest.mark.parametrize("size", [3, 20])
def test_the_hessian_of_a_model_that_diverged_has_no_eigenvalues(size: int) -> None:
    """The run goes on to be called diverged; Lanczos iterations raise on what is not finite."""
    values, vectors = top_eigenpairs(lambda v: v * np.nan, size, 2, np.ones(size))
    assert values.shape == (2,) and vectors.shape == (size, 2)
    assert np.isnan(values).all() and np.isnan(vectors).all()


def test_softmax_regression_in_closed_form() -> None:
    """One sample x, logits W x + b: the Hessian is (diag(p) - p p^T) kron (x~ x~^T), x~ = (x, 1), so its eigenvalues
    are those of diag(p) - p p^T times |x|^2 + 1."""
    objective = Objective(MLP((2,), 3, hidden=()))
    w, b = objective.initial()
    x = np.array([[0.5, -1.5]])
    with torch.no_grad():
        p = torch.softmax(objective.at(w, b)(torch.tensor(x, dtype=torch.float32))[0], 0).double().numpy()
    expected = np.sort(np.linalg.eigvalsh(np.diag(p) - np.outer(p, p)))[::-1][:2] * (x @ x.T + 1)[0, 0]
    sample = ProbeSample(torch.tensor(x, dtype=torch.float32), np.array([1]))
    found, _ = sharpest(context(objective), w, b, sample, 2)
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_small_network_against_its_dense_hessian() -> None:
    torch.manual_seed(0)
    module = MLP((3,), 4, hidden=(5,))
    objective = Objective(module)
    w, b = objective.initial()
    x, y = torch.randn(300, 3), torch.randint(0, 4, (300,))  # more than one block
    parameters = dict(module.named_parameters())
    names, shapes = list(parameters), [p.shape for p in parameters.values()]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        tensors = {n: part.view(shape) for n, part, shape in zip(names, parts, shapes, strict=True)}
        return cross_entropy(torch.func.functional_call(module, tensors, (x,)), y)

    views = objective.views(w)
    dense = torch.autograd.functional.hessian(loss, torch.cat([views[n].flatten() for n in names]).detach())
    expected = np.linalg.eigvalsh(dense.double().numpy())[::-1][:3]
    found, _ = sharpest(context(objective), w, b, ProbeSample(x, y.numpy()), 3)
    assert found == pytest.approx(expected, rel=5e-3)
