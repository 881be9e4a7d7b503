"""One client's samples: batches by epochs and by steps, the samples as they are, exemplars."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from flray.core.protocol.batching import edges
from flray.core.protocol.seeding import rng
from flray.data import Augment, Normalizer, Split
from flray.data.client_data import ClientSamples

X = np.arange(60, dtype=np.float32).reshape(60, 1)  # a sample is its own number
Y = np.arange(60) % 3
IMAGES = Split(np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8), Y)


def draws(purpose, epoch):
    return rng(0, 1, purpose, epoch)


def samples(numbers, last_batch="keep", **options):
    values = {"rng": draws, "normalizer": Normalizer((), ()), "augment": None, "plain_batch": 4, **options}
    return ClientSamples(Split(X, Y), np.asarray(numbers, np.int32), last_batch=last_batch, **values)


def numbers(batches):
    return [batch.x[:, 0].int().tolist() for batch in batches]


def flat(batches):
    return list(itertools.chain.from_iterable(numbers(batches)))


def by_hand(held, size, last_batch, epochs):
    """The sample numbers of every batch, from the definition of an epoch's order."""
    found = []
    for epoch in range(epochs):
        order = held[draws("batches", epoch).permutation(len(held))]
        cuts = edges(len(held), size, last_batch)
        found += [order[a:b].tolist() for a, b in itertools.pairwise(cuts)]
    return found


@given(st.integers(0, 13), st.integers(1, 6), st.integers(0, 40), st.sampled_from(["keep", "drop", "merge"]), st.data())
def test_so_many_steps_are_the_first_of_as_many_epochs_as_they_need(n, size, steps, last_batch, data):
    held = np.arange(50, 50 - n, -1)
    whole = by_hand(held, size, last_batch, 41)
    found = samples(held, last_batch).batches(size, steps=steps)
    assert len(found) == (steps if n else 0) and numbers(found) == whole[:steps]
    epochs = data.draw(st.integers(0, 4))
    both = samples(held, last_batch).batches(size, epochs, steps)
    assert numbers(both) == by_hand(held, size, last_batch, epochs)[:steps] and len(both) == len(list(both))


def test_neither_epochs_nor_steps_is_an_error():
    with pytest.raises(ValueError, match="needs epochs or steps"):
        samples(range(5)).batches(2)


def test_plain_is_every_sample_once_in_its_order_without_augmentation():
    """Whatever `last_batch` says of training."""
    held = [7, 3, 50, 12, 9]
    assert numbers(samples(held, "drop").plain) == [[7, 3, 50, 12], [9]]
    normalizer = Normalizer((0.5,) * 3, (0.25,) * 3)
    data = ClientSamples(IMAGES, np.array(held), draws, normalizer, Augment(crop_padding=2), "keep", plain_batch=4)
    plain = torch.cat([batch.x for batch in data.plain])
    assert torch.equal(plain, normalizer(IMAGES.x[held]))
    (batch,) = data.batches(5, 1)
    assert not torch.equal(batch.x, plain[torch.from_numpy(draws("batches", 0).permutation(5))])


def test_exemplars_come_behind_the_clients_own_samples():
    data = samples([7, 3])
    more = data.with_samples(np.array([50, 7]))
    assert more.numbers.tolist() == [7, 3, 50, 7] and more.num_examples == 4 and more.numbers.dtype == np.int32
    assert numbers(more.plain) == [[7, 3, 50, 7]]
    assert sorted(flat(more.batches(3, 1))) == [3, 7, 7, 50]
    assert data.numbers.tolist() == [7, 3] and data.with_samples(np.zeros(0)).numbers.tolist() == [7, 3]


def test_exemplars_alone_are_in_the_order_in_which_they_were_kept():
    data = samples([7, 3]).only(np.array([50, 7, 9]))
    assert data.numbers.tolist() == [50, 7, 9] and numbers(data.plain) == [[50, 7, 9]]
    assert list(samples([7, 3]).only(np.zeros(0)).plain) == []


@pytest.mark.parametrize("wrong", [[60], [-1], [5, 61]])
def test_an_exemplar_that_does_not_exist_is_an_error(wrong):
    with pytest.raises(IndexError, match=f"numbered 0 to 59; got {min(wrong)} to {max(wrong)}"):
        samples([7]).with_samples(np.array(wrong))


def test_nothing_was_held_before_unless_it_is_told():
    before = samples([1, 2])
    assert before.previous is None
    data = samples([7], previous=before)
    assert data.previous.numbers.tolist() == data.with_samples(np.array([5])).previous.numbers.tolist() == [1, 2]
