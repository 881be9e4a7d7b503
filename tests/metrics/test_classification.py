"""Numbers from counts, against the samples that were counted."""

import math

import numpy as np
import pytest

from flray.metrics.classification import Counts, accuracy, macro_accuracy, per_class, worst_class


def test_numbers_of_an_unbalanced_test_set():
    """y = [0 0 0 0 1 1 2], predicted [0 0 0 1 1 0 2]: classes 3/4, 1/2, 1/1; class 3 has no sample.

    Accuracy 5/7; the mean over the three classes (0.75 + 0.5 + 1) / 3 = 0.75.
    """
    y, predicted = np.array([0, 0, 0, 0, 1, 1, 2]), np.array([0, 0, 0, 1, 1, 0, 2])
    total = np.bincount(y, minlength=4)
    right = np.bincount(y[y == predicted], minlength=4)
    assert accuracy(right, total) == 5 / 7 == np.mean(y == predicted)
    np.testing.assert_array_equal(per_class(right, total), [0.75, 0.5, 1.0, np.nan])
    assert macro_accuracy(right, total) == pytest.approx(0.75)
    assert worst_class(right, total) == (1, 0.5)


def test_of_two_equally_bad_classes_the_first_is_named():
    assert worst_class([1, 0, 0], [1, 2, 3]) == (1, 0.0)


def test_without_samples_there_is_no_number():
    nothing = Counts.nothing(3)
    assert nothing.examples == 0 and nothing.loss_sum == 0
    assert all(map(math.isnan, [nothing.accuracy, nothing.loss, macro_accuracy([0], [0])]))
    number, value = worst_class([0, 0], [0, 0])
    assert number == -1 and math.isnan(value)


def test_the_loss_has_the_same_bits_however_the_blocks_were_shared_out():
    """0.1 + 0.2 + 0.3 + ... from the first on; (a + b) + (c + d) of two actors would be another number of float64."""
    losses = [0.1, 0.2, 0.3, 0.4, 0.7, 1e16, 1.0, -1e16]
    in_order = 0.0
    for value in losses:
        in_order += value
    blocks = [Counts(np.array([i, 0]), np.array([2 * i, 1]), np.array([loss]), 3) for i, loss in enumerate(losses)]
    for cut in range(1, len(blocks)):
        first, second = (sum(part[1:], part[0]) for part in (blocks[:cut], blocks[cut:]))
        both = first + second
        assert both.loss_sum == in_order and both.loss == in_order / 24
        assert both.right.tolist() == [28, 0] and both.total.tolist() == [56, 8]


def test_predicted_tasks_are_added_by_task():
    """The second part predicts a task that the first does not: [2, 1] + [0, 1, 4] = [2, 2, 4]."""
    one = Counts(np.array([3]), np.array([3]), np.zeros(0), 0, np.array([2, 1]))
    two = Counts(np.array([2]), np.array([5]), np.zeros(0), 0, np.array([0, 1, 4]))
    both = one + two
    assert both.tasks.tolist() == [2, 2, 4]
    assert math.isnan(both.loss)
    assert (Counts.nothing(1) + one).tasks.tolist() == [2, 1]
