"""Local test shares: counts by hand and by exact fractions, what is drawn, who draws."""

from collections import Counter
from fractions import Fraction

import numpy as np
from hypothesis import given, strategies as st

from flray.core.protocol.seeding import rng
from flray.scenario import local_test

TEST = np.array([0, 1, 2] * 20 + [2] * 5)  # 20, 20 and 25 of classes 0, 1 and 2


def share(labels, rule="proportional", client=0, test=TEST, classes=3, **kw):
    return local_test(np.asarray(labels), test, classes, rule, rng(0, "local test", client), **kw)


def test_proportional_by_hand():
    """3/4 of class 0 and 1/4 of class 2: 7 and 2 of 10; of 1000 everything there is of both."""
    found = share([0, 0, 0, 2], size=10)
    assert Counter(TEST[found].tolist()) == {0: 7, 2: 2}
    assert found.dtype == np.int64 and (np.diff(found) > 0).all()
    assert share([0, 0, 0, 2]).tolist() == np.flatnonzero(TEST != 1).tolist()


def test_classes_is_everything_of_the_classes_held():
    assert share([2, 0, 2], "classes").tolist() == np.flatnonzero(TEST != 1).tolist()
    assert share([1], "classes", size=3).tolist() == np.flatnonzero(TEST == 1).tolist()


def test_a_sample_without_a_class_is_in_no_share():
    """The label -1 of a domain that was left out: it is no last class."""
    for rule in ("classes", "proportional"):
        assert share([2, 0], rule, test=np.array([0, -1, 2, 1, -1])).tolist() == [0, 2]


def test_counts_are_exact():
    """29 of 100 samples and size 100: int(100 * 0.29) is 28 in floating point."""
    found = share([0] * 29 + [1] * 71, test=np.repeat([0, 1], 100), size=100)
    assert np.bincount(found // 100).tolist() == [29, 71]


def test_what_is_too_little_for_a_sample():
    assert share([0] * 999 + [1], size=500).tolist() == share([0]).tolist()  # 1/1000 of 500 is no whole sample
    assert share([0, 1, 2], size=2).tolist() == []
    assert share(np.zeros(0, np.int64)).tolist() == [] == share(np.zeros(0, np.int64), "classes").tolist()
    assert share([0, 3], classes=4).tolist() == np.flatnonzero(TEST == 0).tolist()  # no test sample of class 3


def test_draws_are_the_clients_own_and_uniform():
    """Each of 20 test samples of class 0 is in a share of 10 with probability 1/2: 200 of 400, give or take 10."""
    assert share([0], size=10).tolist() == share([0], size=10).tolist()
    drawn = np.bincount(np.concatenate([share([0], size=10, client=k) for k in range(400)]), minlength=len(TEST))
    assert (drawn[TEST != 0] == 0).all()
    assert drawn[TEST == 0].min() > 150 and drawn[TEST == 0].max() < 250


def test_inputs_may_be_read_only():
    labels = np.array([0, 0, 1])
    labels.flags.writeable = False
    for rule in ("proportional", "classes"):
        assert len(share(labels, rule))


labels = st.lists(st.integers(0, 4), max_size=40)


@given(labels, labels, st.integers(1, 200), st.integers(0, 3))
def test_properties(mine, test, size, client):
    test = np.array(test, np.int64)
    found = share(np.array(mine, np.int64), test=test, classes=5, size=size, client=client)
    assert sorted(set(found.tolist())) == found.tolist()
    assert all(0 <= i < len(test) for i in found)
    have, held = Counter(test.tolist()), Counter(mine)
    wanted = {c: min(have[c], int(size * Fraction(held[c], len(mine)))) for c in held}
    assert Counter(test[found].tolist()) == {c: n for c, n in wanted.items() if n}
    everything = share(np.array(mine, np.int64), "classes", test=test, classes=5)
    assert everything.tolist() == [i for i, c in enumerate(test.tolist()) if c in held]
    assert set(found.tolist()) <= set(everything.tolist())
