"""Narrowed logits and mapped labels, against NumPy's own indexing."""

import pytest
import torch

from flray.core.protocol.classes import Classes, ClassSet
from flray.core.schema.errors import ConfigError, DataError
from flray.ops.losses import cross_entropy
from tests.support import second_device
from tests.support.devices import using


def logits(count, size):
    """Column `c` is `c` in the first row, `100 + c` in the second, and so on: it says which place it was."""
    return 100.0 * torch.arange(count)[:, None] + torch.arange(size)


def columns(some, size):
    return some.narrow(logits(2, size))[0].tolist()


def test_the_sets_of_a_stream_of_tasks():
    """Ten classes in the order 7 2, 9 0, 1 5: every set is in the order of the head, whatever that of the stream."""
    classes = Classes([[7, 2], [9, 0], [1, 5]], 10)
    found = {name: columns(getattr(classes, name), 10) for name in ("new", "old", "seen")}
    assert found == {"new": [1, 5], "old": [0, 2, 7, 9], "seen": [0, 1, 2, 5, 7, 9]}
    assert [columns(classes.task(t), 10) for t in range(3)] == [[2, 7], [0, 9], [1, 5]]
    assert classes.index.tolist() == [1, 5] and len(classes.seen) == 6
    with pytest.raises(IndexError, match=r"task 3 \(0 is the first\) has not begun: there are 3"):
        classes.task(3)


def test_in_the_first_task_nothing_is_old():
    classes = Classes([[0, 1]], 4)
    assert len(classes.old) == 0 and classes.old.narrow(logits(3, 4)).shape == (3, 0)
    with pytest.raises(DataError, match="label 0 is none of the 0 classes"):
        classes.old.local(torch.tensor([0]))


def test_a_class_that_comes_again_is_new_and_old():
    classes = Classes([[0, 1], [1, 2]], 4)
    assert [columns(some, 4) for some in (classes.new, classes.old, classes.seen)] == [[1, 2], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("places", [[1, 5], [5, 3, 4], [2]])
def test_a_label_stands_where_its_logit_is(places):
    classes, y = Classes([places], 6), torch.tensor(places + places[::-1])
    narrowed = classes.narrow(logits(len(y), 6))
    assert narrowed.shape == (len(y), len(places))
    picked = narrowed.gather(1, classes.local(y)[:, None])[:, 0]
    assert torch.equal(picked, logits(len(y), 6).gather(1, y[:, None])[:, 0])


def test_the_whole_head_is_the_logits_and_the_labels_themselves():
    classes, z, y = Classes([[1, 0, 2]], 3), logits(2, 3), torch.tensor([2, 0])
    assert classes.narrow(z) is z and classes.local(y) is y


def test_neighbours_are_a_view():
    z = logits(2, 6)
    assert Classes([[3, 2]], 6).narrow(z)._base is z


def test_labels_are_known_to_be_inside_or_outside():
    chosen = Classes([[0], [5, 1, 2]], 6)
    assert chosen.has(torch.tensor([0, 1, 5, 3, -1])).tolist() == [False, True, True, False, False]


def test_a_batch_with_exemplars_reads_all_classes_seen():
    classes = Classes([[0], [5, 1, 2]], 6)
    assert classes.of(torch.tensor([1, 5])) is classes and classes.of(torch.tensor([1, 0])) is classes.seen


@pytest.mark.parametrize("label", [-1, 0, 3, 6, 9])
def test_a_label_outside_is_named(label):
    with pytest.raises(DataError, match=rf"label {label} is none of the 3 classes in use: \[1, 2, 5\]"):
        Classes([[0], [5, 1, 2]], 6).local(torch.tensor([1, label, 5]))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (([], 3), "no task is given"),
        (([[0, 3]], 3), r"places \[0, 3\] of a head that has 0 to 2"),
        (([[-1]], 3), r"places \[-1\] of a head"),
    ],
)
def test_sets_that_cannot_be(given, says):
    with pytest.raises(ConfigError, match=says):
        Classes(*given)


def test_logits_of_another_head_are_refused():
    with pytest.raises(ConfigError, match="places in a head of 4, and the model gives 3 logits"):
        ClassSet([0], 4).narrow(torch.zeros(2, 3))


def test_on_a_device_a_wrong_label_is_left_to_the_loss():
    """Nothing waits for an answer; the label lies past the last class, which a cross-entropy refuses."""
    with using("strict") as device:
        found = ClassSet([1, 3], 5, device)
        before = second_device.traffic.total()
        y = found.local(torch.tensor([3, 1, 2]).to(device))
        assert second_device.traffic.total() == before + 1  # the upload of the labels
        assert y.tolist() == [1, 0, 2]
        with pytest.raises(IndexError, match="out of bounds"):
            cross_entropy(torch.zeros(3, 5).to(device), torch.tensor([3, 1, 2]).to(device), found)
