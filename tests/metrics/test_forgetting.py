"""Forgetting: matrices small enough to do by hand, and the formulas once more as loops over the paper's indices."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from flray.metrics.classification import per_class
from flray.metrics.forgetting import (
    accuracy_curve,
    average_accuracy,
    average_incremental_accuracy,
    backward_transfer,
    forgetting,
    forgetting_std,
    forward_transfer,
    official,
    pooled_accuracy,
    task_prediction_accuracy,
    through_window,
)

NONE = math.nan
# after task 1, 2, 3 on tasks 1, 2, 3; task 1 was best after task 2
THREE = [[0.8, 0.1, 0.2], [0.9, 0.7, 0.4], [0.5, 0.6, 1.0]]


def test_three_tasks_by_hand():
    """ACC (.5 + .6 + 1) / 3 = .7; FT ((.9 - .5) + (.7 - .6)) / 3 = .5 / 3, and / 2 = .25 as a mean of two tasks;
    curve .8, (.9 + .7) / 2 = .8, .7, whose mean is 2.3 / 3; BWT ((.5 - .8) + (.6 - .7)) / 2 = -.2;
    FWT with b = (.3, .25, .1): ((.1 - .25) + (.4 - .1)) / 2 = .075."""
    assert average_accuracy(THREE) == pytest.approx(0.7)
    assert forgetting(THREE) == pytest.approx(0.5 / 3)
    assert forgetting_std(THREE) == pytest.approx(0.25)
    np.testing.assert_allclose(accuracy_curve(THREE), [0.8, 0.8, 0.7])
    assert average_incremental_accuracy(THREE) == pytest.approx(2.3 / 3)
    assert backward_transfer(THREE) == pytest.approx(-0.2)
    assert forward_transfer(THREE, [0.3, 0.25, 0.1]) == pytest.approx(0.075)


def test_tasks_that_were_not_seen_are_needed_by_forward_transfer_alone():
    below = np.where(np.tri(3, dtype=bool), THREE, NONE)
    for metric in (average_accuracy, forgetting, forgetting_std, average_incremental_accuracy, backward_transfer):
        assert metric(below) == metric(THREE)
    assert math.isnan(forward_transfer(below, [0.0, 0.0, 0.0]))


def test_a_test_that_is_missing_makes_no_number():
    gap = np.array(THREE)
    gap[1, 0] = NONE
    assert math.isnan(forgetting(gap)) and math.isnan(forgetting_std(gap))
    assert math.isnan(average_incremental_accuracy(gap)) and math.isnan(accuracy_curve(gap)[1])
    assert average_accuracy(gap) == pytest.approx(0.7) and backward_transfer(gap) == pytest.approx(-0.2)
    gap[2, 1] = NONE
    assert math.isnan(average_accuracy(gap)) and math.isnan(backward_transfer(gap))


@pytest.mark.parametrize("wrong", [[], [[]], [0.1, 0.2], [[0.1, 0.2]]])
def test_what_is_no_square_matrix_is_refused(wrong):
    with pytest.raises(ValueError, match="an accuracy matrix is"):
        average_accuracy(wrong)


def test_pooled_accuracy_weighs_tasks_by_their_samples():
    """After task 2: 50 of 100 and 9 of 10, so (50 + 9) / 110 beside the mean of the tasks (.5 + .9) / 2."""
    right, total = [[80, 0], [50, 9]], [[100, 10], [100, 10]]
    assert pooled_accuracy(right, total) == pytest.approx(59 / 110)
    assert average_accuracy(per_class(right, total)) == pytest.approx(0.7)
    assert math.isnan(pooled_accuracy([[1, 0], [1, 0]], [[1, 0], [1, 0]]))


def test_the_official_numbers_are_made_of_rounded_percentages():
    """2/3 and 1/3 are 66.67 % and 33.33 % there: FT is (66.67 - 33.33) / 2 = 16.67 and not 16.666..."""
    matrix = [[2 / 3, NONE], [1 / 3, 1.0]]
    np.testing.assert_array_equal(official(matrix), [[66.67, NONE], [33.33, 100.0]])
    assert forgetting(official(matrix)) == pytest.approx(16.67, abs=1e-12)
    assert average_accuracy(official(matrix)) == pytest.approx(66.665, abs=1e-12)


def test_task_prediction_over_all_tasks_seen():
    """8 of 10 samples of task 1 and 5 of 30 of task 2 were sent to their own task: 13 of 40; one went to a third."""
    assert task_prediction_accuracy([[8, 2, 0], [24, 5, 1]]) == 13 / 40
    assert math.isnan(task_prediction_accuracy([[0, 0], [0, 0]]))


# a second method ----------------------------------------------------------------------------------
@st.composite
def matrices(draw):
    size = draw(st.integers(1, 6))
    shares = st.floats(0, 1, allow_subnormal=False)
    return draw(arrays.arrays(np.float64, (size, size), elements=shares)), draw(
        arrays.arrays(np.float64, size, elements=shares)
    )


@given(matrices())
def test_the_formulas_written_as_loops_over_the_papers_indices(drawn):
    matrix, initial = drawn
    tasks = len(matrix)

    def a(i, t):  # on task t after task i, from 1
        return matrix[i - 1][t - 1]

    acc = lost = backward = forward = curve = 0.0
    for t in range(1, tasks + 1):
        acc += a(tasks, t)
        if t < tasks:
            best = -math.inf
            for i in range(t, tasks):
                best = max(best, a(i, t))
            lost += best - a(tasks, t)
            backward += a(tasks, t) - a(t, t)
        if t >= 2:
            forward += a(t - 1, t) - initial[t - 1]
        seen = 0.0
        for j in range(1, t + 1):
            seen += a(t, j)
        curve += seen / t
    earlier = max(1, tasks - 1)
    found = [
        average_accuracy(matrix), forgetting(matrix), forgetting_std(matrix), average_incremental_accuracy(matrix),
        backward_transfer(matrix), forward_transfer(matrix, initial),
    ]  # fmt: skip
    wanted = [acc / tasks, lost / tasks, lost / earlier, curve / tasks, backward / earlier, forward / earlier]
    np.testing.assert_allclose(found, wanted, atol=1e-12)


# through a window ---------------------------------------------------------------------------------
ROUNDS = [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_a_window_by_hand():
    """Rounds 3 to 5 miss data: .8 before, .4 at the end, .79 in round 7 is back within a point, two rounds after."""
    found = through_window(ROUNDS, [0.1, 0.5, 0.8, 0.6, 0.3, 0.4, 0.7, 0.79, 0.9], 3, 6)
    assert found[:4] == (0.8, 0.4, 0.9, 2.0)
    assert found.worst_drop == pytest.approx(0.5)
    strict = through_window(ROUNDS, [0.1, 0.5, 0.8, 0.6, 0.3, 0.4, 0.7, 0.79, 0.9], 3, 6, margin=0.0)
    assert strict.recovered_after == 3.0


def test_within_a_point_is_counted_in_samples():
    """Of n samples k were right before the window and k - n / 100 after it, exactly one point less."""
    for n in (100, 200, 1000):
        for k in range(n // 100, n + 1):
            low = (k - n // 100) / n
            assert through_window([1, 2, 3], [k / n, 0, low], 2, 3).recovered_after == 1
            if k > n // 100:
                assert through_window([1, 2, 3], [k / n, 0, low - 1 / n], 2, 3).recovered_after == math.inf


def test_data_that_never_return():
    found = through_window(ROUNDS, [0.9] * 3 + [0.2] * 6, 3, math.inf)
    assert found[:3] == (0.9, 0.2, 0.2) and math.isnan(found.recovered_after) and found.worst_drop == pytest.approx(0.7)


def test_a_window_of_which_nothing_was_tested():
    """Tested in rounds 4 and 8 only: no test lies in the window, and the first one after it is late and says so."""
    values = [NONE] * 4 + [0.7] + [NONE] * 3 + [0.7]
    found = through_window(ROUNDS, values, 5, 7)
    assert found.before == 0.7 and math.isnan(found.window_end) and found.recovered_after == 8 - 6
    early = through_window(ROUNDS, values, 1, 3)
    assert math.isnan(early.before) and math.isnan(early.recovered_after) and math.isnan(early.worst_drop)
    assert all(map(math.isnan, through_window([], [], 1, 3)))


def test_a_run_that_stopped_in_the_window_has_not_failed_to_recover():
    found = through_window([0, 1, 2, 3], [0.1, 0.6, 0.8, 0.4], 3, 6)
    assert found[:3] == (0.8, 0.4, 0.4) and math.isnan(found.recovered_after)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(1, 20), st.integers(1, 20))
def test_a_window_once_more_by_looking_at_each_round(right, start, length):
    """A point is 10 of 1,000 samples."""
    stop, rounds, values = start + length, range(len(right)), [count / 1000 for count in right]
    found = through_window(list(rounds), values, start, stop)
    level, enough = NONE, 0
    for r in rounds:
        if r < start:
            level, enough = values[r], right[r] - 10
    late = NONE
    for r in rounds:
        if r >= stop and not late < math.inf:
            late = r - (stop - 1) if right[r] >= enough else math.inf
    lowest = min((values[r] for r in rounds if r >= start), default=NONE)
    np.testing.assert_array_equal(found, (level, found.window_end, values[-1], late, level - lowest))
