"""Scores of alarms against the rounds in which something was wrong: by hand, and against a second method."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flray.metrics.detection import adjusted, delays, false_alarms, on_before, onsets, scores, segments

ROUNDS = st.integers(1, 30).flatmap(lambda n: st.tuples(*[st.lists(st.booleans(), min_size=n, max_size=n)] * 2))


def test_scores_by_hand():
    """Segments [2, 5) and [7, 9); alarms in rounds 1, 4, 5; they begin in 1 and 4."""
    labels = [False, False, True, True, True, False, False, True, True, False]
    alarms = [t in (1, 4, 5) for t in range(10)]
    assert segments(labels) == [(2, 5), (7, 9)]
    assert scores(labels, alarms) == pytest.approx((1 / 3, 1 / 5, 1 / 4))  # F1 = 2 / (3 + 5)
    assert np.flatnonzero(adjusted(labels, alarms)).tolist() == [1, 2, 3, 4, 5]
    assert scores(labels, alarms, adjust=True) == pytest.approx((3 / 5, 3 / 5, 3 / 5))
    first, second = delays(labels, alarms)
    assert first == 2 and math.isnan(second)
    assert false_alarms(labels, alarms) == pytest.approx(2 / 5)


def test_an_alarm_that_was_on_before_finds_nothing():
    """Segment [3, 7). On in 1..4: no alarm begins inside, so the segment is missed, and by point 2 of 4 rounds count.
    The delay was 0 and the adjusted recall 1. On again in 6: it begins 3 rounds late."""
    labels = [3 <= t < 7 for t in range(9)]
    on = [t in (1, 2, 3, 4) for t in range(9)]
    assert on_before(labels, on) == [True] and math.isnan(delays(labels, on)[0])
    assert scores(labels, on) == scores(labels, on, adjust=True) == pytest.approx((0.5, 0.5, 0.5))
    again = [t in (1, 2, 3, 4, 6) for t in range(9)]
    assert np.flatnonzero(onsets(again)).tolist() == [1, 6]
    assert delays(labels, again) == [3] and on_before(labels, again) == [True]
    assert scores(labels, again, adjust=True).recall == 1
    ends = [t in (1, 2) for t in range(9)]  # off when the segment begins
    assert on_before(labels, ends) == [False] and on_before([True], [True]) == [False]
    assert delays([True, True], [True, True]) == [0]  # the first round of all has none before


def test_what_is_undefined_is_zero():
    assert scores([False] * 4, [False] * 4) == (0, 0, 0)
    assert scores([False] * 4, [True] * 4) == (0, 0, 0)
    assert scores([True] * 4, [False] * 4, adjust=True) == (0, 0, 0)
    assert segments([]) == delays([False], [True]) == []
    assert math.isnan(false_alarms([True], [True]))
    with pytest.raises(ValueError, match="3 labels and 2 alarms"):
        scores([True] * 3, [True] * 2)


@given(ROUNDS)
def test_against_scikit_learn_and_adjustment_only_helps(rounds):
    from sklearn.metrics import precision_recall_fscore_support

    labels, alarms = rounds
    plain, helped = scores(labels, alarms), scores(labels, alarms, adjust=True)
    known = precision_recall_fscore_support(labels, alarms, average="binary", zero_division=0)
    assert plain == pytest.approx(known[:3])
    assert all(after >= before - 1e-12 for before, after in zip(plain, helped, strict=True))
    assert helped == pytest.approx(scores(labels, adjusted(labels, adjusted(labels, alarms))))
