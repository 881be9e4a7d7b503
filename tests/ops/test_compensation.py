"""GLFC's and LGA's losses against transcriptions of the official code, in double precision."""

import numpy as np
import pytest
import torch

from flray.ops.compensation import (
    balancing_weights,
    distillation_target,
    glfc_weights,
    gradient_sizes,
    lga_weights,
    mean_entropy,
    weighted_bce,
)
from tests.support.small_cases import normal

Y = torch.tensor([0, 5, 1, 3, 2, 5, 4, 0, 3])
LOGITS = normal(9, 6).double()
TASKS = torch.tensor([0, 0, 1, 1, 2, 2])


def official_glfc(output, label, known):
    """`efficient_old_class_weight` of GLFC: classes below `known` are old."""
    p = 1 / (1 + np.exp(-output))
    g = np.abs(p - np.eye(output.shape[1])[label])[np.arange(len(label)), label]
    if known == 0:
        return np.ones(len(label))
    w = np.zeros(len(label))
    for index in ((label < known).astype(float), (label >= known).astype(float)):
        if index.sum() != 0:
            w += g * index / ((g * index).sum() / index.sum())
    return w


def official_lga(output, label, task, softmax, size=2):
    """`efficient_old_class_weight` of LGA: `ids` is not cleared between the old tasks, so that -1 adds up."""
    e = np.exp(output)
    p = e / e.sum(1, keepdims=True) if softmax else 1 / (1 + np.exp(-output))
    g = np.abs(p - np.eye(output.shape[1])[label])
    if task > 0:
        g = g ** (task / (task + 1))
    g = g[np.arange(len(label)), label]
    if task == 0:
        return np.ones(len(label))
    index = (label >= task * size).astype(float)
    w = g * index / ((g * index).sum() / index.sum()) if index.sum() else 0 * g
    ids = label.copy()
    for i in range(task):
        for j in range(i * size, (i + 1) * size):
            ids = np.where(ids != j, ids, -1)
        index = (ids == -1).astype(float)
        if index.sum():
            w = w + g * index / ((g * index).sum() / index.sum())
    return np.clip(w, 0.5, 5)


@pytest.mark.parametrize("known", [0, 2, 4, 6])
def test_glfc_weights(known):
    found = glfc_weights(LOGITS, Y, torch.arange(6) < known)
    np.testing.assert_allclose(found, official_glfc(LOGITS.numpy(), Y.numpy(), known), rtol=1e-9)
    if 0 < known < 6:
        for group in (known > Y, known <= Y):
            assert float(found[group].mean()) == pytest.approx(1)


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("task", [0, 1, 2])
def test_lga_weights_are_those_of_the_code(task, activation):
    rows = TASKS[Y] <= task
    logits, y = LOGITS[rows], Y[rows]
    found = lga_weights(logits, y, TASKS, task, activation=activation)
    expected = official_lga(logits.numpy(), y.numpy(), task, activation == "softmax")
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_lga_weights_by_task():
    """Each group by itself: g^{2/3} over its mean in the samples of that task."""
    g = gradient_sizes(LOGITS, Y) ** (2 / 3)
    expected = torch.zeros(9, dtype=torch.float64)
    for task in range(3):
        mine = TASKS[Y] == task
        expected[mine] = g[mine] / g[mine].mean()
    found = lga_weights(LOGITS, Y, TASKS, 2, groups="per_task", bounds=(0.0, 100.0))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(lga_weights(LOGITS, Y, TASKS, 2, groups="per_task"), expected.clamp(0.5, 5))
    cumulative = lga_weights(LOGITS, Y, TASKS, 2, bounds=(0.0, 100.0))
    assert not torch.allclose(cumulative, found)


def test_weights_have_no_gradient_and_no_nan():
    logits = LOGITS.clone().requires_grad_()
    assert not glfc_weights(logits, Y, torch.arange(6) < 2).requires_grad
    assert balancing_weights(torch.zeros(3), [torch.tensor([True, True, False])]).tolist() == [0, 0, 0]
    sure = torch.full((2, 6), -1000.0).scatter(1, torch.tensor([[0], [5]]), 1000.0)
    assert torch.isfinite(glfc_weights(sure, torch.tensor([0, 5]), torch.arange(6) < 2)).all()


def test_the_loss_is_binary_cross_entropy_by_hand():
    """NumPy: -(t log s + (1 - t) log(1 - s)), s the sigmoid; the targets of the old classes are the old model's."""
    one_hot, old_logits, w = (
        torch.eye(6, dtype=torch.float64)[Y],
        normal(9, 3, seed=2).double(),
        normal(9, seed=3).abs(),
    )
    places = torch.tensor([1, 4, 5])
    target = distillation_target(one_hot, old_logits, places)
    expected = np.eye(6)[Y.numpy()]
    expected[:, [1, 4, 5]] = 1 / (1 + np.exp(-old_logits.numpy()))
    np.testing.assert_allclose(target, expected)
    s = 1 / (1 + np.exp(-LOGITS.numpy()))
    each = -(expected * np.log(s) + (1 - expected) * np.log(1 - s))
    assert float(weighted_bce(LOGITS, target)) == pytest.approx(each.mean(), rel=1e-9)
    assert float(weighted_bce(LOGITS, target, w.double())) == pytest.approx(
        (w.numpy()[:, None] * each).mean(), rel=1e-6
    )


def test_entropy():
    p = np.exp(LOGITS.numpy()) / np.exp(LOGITS.numpy()).sum(1, keepdims=True)
    assert float(mean_entropy(LOGITS)) == pytest.approx(-(p * np.log(p + 1e-5)).sum(1).mean(), rel=1e-9)
