"""The loss on a plane: a quadratic's closed form, a network's loss by hand, filter norms by NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

from flray.core.network.objective import Objective
from flray.metrics.landscape import (
    filter_normalised,
    loss_on_plane,
    mean_loss,
    random_plane,
    sharpest_plane,
    top_eigenpairs,
)
from flray.metrics.reading import ProbeSample
from flray.models.mlp import MLP
from tests.support.small_cases import context, normal

AT = np.linspace(-1, 1, 5)


def test_a_quadratic_is_its_closed_form() -> None:
    """L(w) = w^T H w / 2 + g^T w with H = Q diag(9, 4, 1, ..) Q^T: along the first two eigenvectors it is
    L(w) + a (H w + g)^T q_1 + b (H w + g)^T q_2 + 9 a^2 / 2 + 4 b^2 / 2."""
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.standard_normal((12, 12)))
    hessian = rotation @ np.diag([9.0, 4.0, *np.linspace(1, 0, 10)]) @ rotation.T
    g, w = rng.standard_normal((2, 12))
    values, vectors = top_eigenpairs(lambda v: hessian @ v, 12, 2, np.ones(12), 1e-10)
    assert values == pytest.approx([9, 4])
    first, second = vectors.T

    def loss(point: torch.Tensor) -> float:
        at = point.numpy()
        return float(at @ hessian @ at / 2 + g @ at)

    found = loss_on_plane(loss, *map(torch.from_numpy, (w, first, second)), AT)
    slope, b, a = hessian @ w + g, AT[:, None], AT[None]
    flat = w @ hessian @ w / 2 + g @ w + a * (slope @ first) + b * (slope @ second)
    np.testing.assert_allclose(found, flat + 9 * a**2 / 2 + 4 * b**2 / 2, rtol=1e-12)


def test_every_point_is_watched_once() -> None:
    seen = []

    def watch(points):
        for point in points:
            seen.append(point)
            yield point

    loss_on_plane(lambda w: 0.0, *torch.zeros(3, 2), AT, watch)
    assert sorted(seen) == [(i, j) for i in range(5) for j in range(5)]


def test_softmax_regression_on_a_plane_by_numpy() -> None:
    """300 samples (two blocks), logits W x + b at W + a X + b Y: the mean of log sum exp minus the label's logit."""
    objective = Objective(MLP((3,), 4, hidden=()))
    w, b = objective.initial()
    x, y = normal(300, 3), np.random.default_rng(0).integers(0, 4, 300)
    u, v = random_plane(w, objective.layout, 7)
    found = loss_on_plane(mean_loss(context(objective), b, ProbeSample(x, y)), w, u, v, AT)
    for row, column in ((0, 0), (2, 2), (4, 1)):
        at = w + AT[column] * u + AT[row] * v
        weight, bias = (part.double().numpy() for part in objective.views(at).values())
        logits = x.double().numpy() @ weight.T + bias
        by_hand = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(300), y]
        assert found[row, column] == pytest.approx(by_hand.mean(), rel=1e-5)


def test_along_the_sharpest_directions_the_loss_curves_by_the_eigenvalues() -> None:
    """Second differences over 2 h = 0.02 are the eigenvalues; the directions are unit, at right angles, of one sign."""
    torch.manual_seed(0)
    objective = Objective(MLP((3,), 4, hidden=(8,)))
    w, b = objective.initial()
    w = 3 * w
    sample, ctx = ProbeSample(normal(200, 3), np.arange(200) % 4), context(objective)
    x, y, values = sharpest_plane(ctx, w, b, sample)
    assert len(values) == 5 and list(values) == sorted(values, reverse=True)
    np.testing.assert_allclose([x @ x, y @ y, x @ y], [1, 1, 0], atol=1e-3)
    assert x[x.abs().argmax()] > 0 and y[y.abs().argmax()] > 0
    h = 0.1
    found = loss_on_plane(mean_loss(ctx, b, sample), w, x, y, np.array([-h, 0, h]))
    curved = [(line[0] - 2 * line[1] + line[2]) / h**2 for line in (found[1], found[:, 1])]
    assert curved == pytest.approx(values[:2], rel=0.05)


class Mixed(nn.Module):
    """A convolution, batch norm, and a linear layer without and one with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.body, self.head = nn.Linear(3, 5, bias=False), nn.Linear(5, 4)


def test_filters_have_the_norms_of_the_model() -> None:
    """By NumPy, filter by filter: as long as the model's, and along the draw; biases and batch norm stand still."""
    objective = Objective(Mixed())
    w, _ = objective.initial()
    rows = objective.layout.views(w)["body.weight"]
    rows[2] = 0  # a filter that is 0 has nowhere to go
    drawn = normal(len(w), seed=3)
    found = filter_normalised(drawn, w, objective.layout)
    directions, draws = ({n: t.numpy() for n, t in objective.layout.views(flat).items()} for flat in (found, drawn))
    for name, trained in objective.layout.views(w).items():
        assert trained.dim() > 1 or not directions[name].any(), name
        for filter, own, draw in zip(directions[name], trained.numpy(), draws[name], strict=True):
            if trained.dim() > 1:
                expected = draw / np.sqrt((draw.astype(float) ** 2).sum()) * np.sqrt((own.astype(float) ** 2).sum())
                np.testing.assert_allclose(filter, expected, rtol=1e-5, atol=1e-9)
    used = torch.zeros_like(w)
    for name, view in objective.layout.views(used).items():
        view.fill_(float(directions[name].ndim > 1))
    assert not found[used == 0].any()


def test_random_directions_are_addressed() -> None:
    """The same seed gives the same draws at another model: only the lengths of the filters differ."""
    objective = Objective(MLP((3,), 4, hidden=(5,)))
    w, _ = objective.initial()
    one, same, other = (random_plane(w, objective.layout, seed) for seed in (0, 0, 1))
    assert torch.equal(one[0], same[0]) and torch.equal(one[1], same[1])
    assert not torch.equal(one[0], one[1]) and not torch.equal(one[0], other[0])
    torch.testing.assert_close(random_plane(2 * w, objective.layout, 0)[0], 2 * one[0])
