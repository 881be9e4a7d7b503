"""Labels of several places are one list of classes: right values by plain dictionaries of names."""

import numpy as np
import pytest

from flray.core.schema.errors import DataError
from flray.data.class_names import Labels, owned

rng = np.random.default_rng(3)


def place(name, names, n=40, closed=True):
    """Random ids of `names`, and the names themselves, sample by sample."""
    ids = rng.integers(0, len(names), n)
    return Labels(name, ids, dict(enumerate(names)), closed), [names[id_] for id_ in ids]


def test_equal_lists_may_name_two_classes_alike_and_ids_may_begin_anywhere():
    """ImageNet has two classes called crane; a mapping of one's own may number from 5."""
    first, second = (Labels(name, np.array([5, 7, 6]), {5: "crane", 6: "ox", 7: "crane"}) for name in ("a", "b"))
    found = owned([first, second], "here")
    assert found.classes == ("crane", "ox", "crane") and [ids.tolist() for ids in found.ids] == [[0, 2, 1]] * 2
    with pytest.raises(DataError, match="here: a has two classes 'crane'"):
        owned([first, second._replace(names={5: "ox", 6: "crane", 7: "crane"})], "here")


def test_ids_without_names():
    ids = [np.array([3, 1, 7]), np.array([7, 9])]
    found = owned([Labels("train", ids[0]), Labels("test", ids[1])], "here")
    assert found.classes == ("1", "3", "7", "9") and [own.tolist() for own in found.ids] == [[1, 0, 2], [2, 3]]
    assert found.lines == ("classes: the ids 1, 3, 7, 9 are numbered 0 to 3",)
    assert owned([Labels("train", np.arange(3))], "here").lines == ()
    train = place("train", ["x", "y", "z"])[0]
    found = owned([train, Labels("test", np.array([2, 0]))], "here")
    assert found.ids[1].tolist() == [2, 0] and "test: ids without names" in found.lines[0]
    digits = Labels("digits", np.array([1, 2]), {0: "0", 1: "1", 2: "2"})
    assert owned([train, digits], "here").ids[1].tolist() == [1, 2], "names that repeat the ids are none"
    stars = place("stars", ["1", "2", "3", "4"])[0]
    found = owned([stars, Labels("test", np.array([1, 3])), Labels("more", np.array([0]))], "here")
    assert [own.tolist() for own in found.ids[1:]] == [[1, 3], [0]], "no class is called 0: these are numbers"
    found = owned([place("train", ["0", "1", "x"])[0], Labels("test", np.array([1, 0]))], "here")
    assert found.ids[1].tolist() == [1, 0], "names and numbers are the same"


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (
            [Labels("a", np.array([0]), {0: "cafe\u0301"}, False), Labels("b", np.array([0]), {0: "caf\u00e9"}, False)],
            "differ in case, spaces or form only",
        ),
        (
            [place("train", ["red fox", "Red  Fox", "dog"])[0]],
            "here: 'Red  Fox' in train and 'red fox' in train differ in case, spaces or form only; write them alike",
        ),
        (
            [place("train", ["a", "b"])[0], place("test", ["b", "a"])[0], Labels("more", np.array([0]))],
            "here: more has ids without names, and train and test number their classes differently",
        ),
        (
            [place("train", ["1", "2", "3", "4"])[0], Labels("test", np.array([1, 2, 3]))],
            "here: test has the ids 1, 2, 3 without names, which may be the names of classes .1, 2, 3, 4. or their num",
        ),
        (
            [place("train", ["01", "02", "none"])[0], Labels("more", np.array([1, 1]))],
            "here: more has the ids 1 without names",
        ),
    ],
)  # fmt: skip
def test_what_is_not_clear_is_one_line(places, says):
    with pytest.raises(DataError, match=says):
        owned(places, "here")


def test_letters_are_classes_of_their_own():
    upper, lower = (Labels(name, np.array([0, 1]), dict(enumerate(name)), False) for name in ("AB", "ab"))
    assert owned([upper, lower], "here").classes == ("A", "B", "a", "b")
