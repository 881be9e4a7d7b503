"""Scores of alarms against the rounds in which something was wrong: by hand, and against a second method."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flray.metrics.detection import adjusted, delays, false_alarms, scores, segments

ROUNDS = st.integers(1, 30).flatmap(lambda n: st.tuples(*[st.lists(st.booleans(), min_size=n, max_size=n)] * 2))


def test_scores_by_hand():
    """Segments [2, 5) and [7, 9); alarms in rounds 1, 4, 5."""
    labels = [False, False, True, True, True, False, False, True, True, False]
    alarms = [t in (1, 4, 5) for t in range(10)]
    assert segments(labels) == [(2, 5), (7, 9)]
    assert scores(labels, alarms) == pytest.approx((1 / 3, 1 / 5, 1 / 4))  # F1 = 2 / (3 + 5)
    assert np.flatnonzero(adjusted(labels, alarms)).tolist() == [1, 2, 3, 4, 5]
    assert scores(labels, alarms, adjust=True) == pytest.approx((3 / 5, 3 / 5, 3 / 5))
    first, second = delays(labels, alarms)
    assert first == 2 and math.isnan(second)
    assert false_alarms(labels, alarms) == pytest.approx(2 / 5)


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
