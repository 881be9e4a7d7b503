"""KL and cross-entropy against the formulas in NumPy."""

import functools

import numpy as np
import pytest
import scipy
import torch

from flray.core.protocol.classes import Classes
from flray.ops.losses import cross_entropy, inter_task_loss, kl, not_true_kl, soft_cross_entropy
from tests.support.small_cases import normal

softmax = functools.partial(scipy.special.softmax, axis=1)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_kl(temperature, direction):
    """(1/B) sum_rows sum_c P (log P - log Q); forward: P = softmax(teacher / T), Q = softmax(student / T)."""
    teacher, student = 3 * normal(6, 4), 2 * normal(6, 4, seed=1)
    p, q = (softmax(t.double().numpy() / temperature) for t in (teacher, student))
    if direction == "reverse":
        p, q = q, p
    expected = (p * (np.log(p) - np.log(q))).sum() / 6
    assert float(kl(teacher, student, temperature, direction)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_the_teacher_gets_no_gradient(direction):
    teacher, student = normal(5, 3).requires_grad_(), normal(5, 3, seed=1).requires_grad_()
    kl(teacher, student, 2.0, direction).backward()
    assert teacher.grad is None
    assert student.grad.abs().sum() > 0


def test_cross_entropy_is_the_mean_of_minus_log_p_over_the_classes_in_use():
    """NumPy: -mean(log softmax(z)[y]), the softmax over the classes in use only."""
    z, y = normal(5, 4), torch.tensor([0, 1, 1, 0, 1])
    every = -np.log(softmax(z.double().numpy())[np.arange(5), y.numpy()]).mean()
    assert float(cross_entropy(z, y)) == pytest.approx(every, rel=1e-5)
    two = -np.log(softmax(z[:, [1, 3]].double().numpy())[np.arange(5), y.numpy()]).mean()
    assert float(cross_entropy(z, 1 + 2 * y, Classes([[3, 1]], 4))) == pytest.approx(two, rel=1e-5)


def test_all_classes_in_use_are_the_same_computation():
    z, y = normal(5, 4).requires_grad_(), torch.tensor([0, 1, 3, 0, 2])
    values = [cross_entropy(z, y), cross_entropy(z, y, Classes([[2, 0, 1, 3]], 4))]
    assert torch.equal(*values) and torch.equal(*(torch.autograd.grad(value, z)[0] for value in values))


def test_a_divergence_over_some_classes_is_a_number_where_filled_logits_gave_nan():
    """Old and new classes of the same logits: NumPy's KL of the softmax over those columns; -inf in the others is 0 *
    (inf - inf)."""
    teacher, student, classes = normal(5, 4), normal(5, 4, seed=1), Classes([[0, 2], [1, 3]], 4)
    for some, columns in ((classes.old, [0, 2]), (classes.new, [1, 3])):
        p, q = softmax(teacher[:, columns].double().numpy()), softmax(student[:, columns].double().numpy())
        expected = (p * (np.log(p) - np.log(q))).sum() / 5
        assert float(kl(some.narrow(teacher), some.narrow(student))) == pytest.approx(expected, rel=1e-5)
        mask = torch.ones(4, dtype=torch.bool).index_fill(0, some.index, False)
        assert kl(teacher.masked_fill(mask, float("-inf")), student.masked_fill(mask, float("-inf"))).isnan()


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_not_true_kl_drops_the_true_class_on_both_sides(temperature):
    """NumPy: np.delete(row, y), T^2 mean_rows sum_c P (log P - log Q); the gradient T (Q - P) / B, 0 at the true
    class."""
    teacher, student, y = 3 * normal(5, 4), normal(5, 4, seed=1).requires_grad_(), [2, 0, 3, 3, 1]
    rest = [
        np.stack([np.delete(row, c) for row, c in zip(t.detach().double().numpy(), y, strict=True)])
        for t in (teacher, student)
    ]
    p, q = (softmax(z / temperature) for z in rest)
    value = not_true_kl(teacher, student, torch.tensor(y), temperature)
    assert value.item() == pytest.approx(temperature**2 * (p * (np.log(p) - np.log(q))).sum() / 5, rel=1e-5)
    value.backward()
    expected = np.stack([np.insert(row, c, 0.0) for row, c in zip(temperature * (q - p) / 5, y, strict=True)])
    np.testing.assert_allclose(student.grad.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_soft_cross_entropy_is_the_divergence_and_the_teachers_entropy(temperature):
    """-(1/B) sum p log q by NumPy = KL(p || q) + H(p)."""
    teacher, student = 3 * normal(5, 4), normal(5, 4, seed=1)
    p, q = (softmax(z.double().numpy() / temperature) for z in (teacher, student))
    value = soft_cross_entropy(teacher, student, temperature)
    assert value.item() == pytest.approx(-(p * np.log(q)).sum() / 5, rel=1e-5)
    entropy = -(p * np.log(p)).sum() / 5
    assert value.item() == pytest.approx(kl(teacher, student, temperature).item() + entropy, rel=1e-5)


def test_new_against_old_is_a_softmax_over_two_sums():
    """-log(e^b / (e^a + e^b)), a over the old classes 0 and 2, b over the new ones 1 and 3, mean over the batch."""
    logits, classes = 2 * normal(6, 4), Classes([[0, 2], [1, 3]], 4)
    e = np.exp(logits.double().numpy())
    old, new = e[:, [0, 2]].sum(1), e[:, [1, 3]].sum(1)
    value = inter_task_loss(logits, classes.new, classes.old)
    assert value.item() == pytest.approx(-np.log(new / (old + new)).mean(), rel=1e-5)
