"""Neighbours' batches, gathered together, are those that each client cuts alone."""

import functools
import itertools
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, strategies as st

from flray.core.protocol.seeding import rng
from flray.data import Normalizer, Split
from flray.data.batching import CHUNK
from flray.data.client_data import ClientSamples, Gathered, neighbours

X = np.random.default_rng(0).integers(0, 256, (90, 4, 4, 3), dtype=np.uint8)
IMAGES = Split(X, np.arange(90) % 7)


def client(number, size, last_batch="keep"):
    held = rng(7, number).permutation(90)[:size].astype(np.int32)
    draws = functools.partial(rng, 0, number)
    normalizer = Normalizer((0.5, 0.4, 0.3), (0.2, 0.2, 0.3))
    return ClientSamples(IMAGES, held, draws, normalizer, None, last_batch, plain_batch=4)


def same(left, right):
    left, right = list(left), list(right)
    assert [len(batch.y) for batch in left] == [len(batch.y) for batch in right]
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
        assert one.x.stride()[1:] == other.x.stride()[1:]  # channels-last: other kernels have other bits


def together(clients, batch_size, epochs):
    gathered = Gathered(clients, batch_size, epochs)
    return [replace(one, gathered=functools.partial(gathered.of, i)) for i, one in enumerate(clients)]


@given(
    st.lists(st.integers(0, 14), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 4),
    st.sampled_from(["keep", "drop", "merge"]),
)
def test_batches_are_those_of_a_client_alone(sizes, batch_size, gathered, epochs, last_batch):
    alone = [client(i, size, last_batch) for i, size in enumerate(sizes)]
    for one, other in zip(together(alone, batch_size, gathered), alone, strict=True):
        same(one.batches(batch_size, epochs), other.batches(batch_size, epochs))
        same(one.batches(batch_size, steps=5), other.batches(batch_size, steps=5))
        same(one.batches(batch_size + 1, epochs), other.batches(batch_size + 1, epochs))
        same(one.plain, other.plain)
        same(one.with_samples(np.array([3, 3])).batches(2, 2), other.with_samples(np.array([3, 3])).batches(2, 2))


@given(st.integers(1, 14), st.integers(1, 6))
def test_the_memory_of_a_batch_begins_at_a_multiple_of_64_bytes(size, batch_size):
    """On a CPU the products of small matrices depend on where it begins."""
    odd = Split(X[..., :3, :3, :1].copy(), IMAGES.y)  # of 36 bytes each, as float32
    alone = [replace(client(i, n), split=odd, normalizer=Normalizer((0.5,), (0.2,))) for i, n in ((0, 3), (1, size))]
    for one in (*alone, *together(alone, batch_size, 2)):
        assert all(batch.x.data_ptr() % 64 == 0 for batch in one.batches(batch_size, 2))


def test_a_batch_that_was_written_to_is_not_given_again():
    one, _ = together([client(0, 8), client(1, 8)], 4, 1)
    for batch in one.batches(4, 1):
        batch.x.zero_()
    same(one.batches(4, 1), client(0, 8).batches(4, 1))


@given(st.lists(st.integers(0, 2 * CHUNK), max_size=12), st.integers(0, 3))
def test_every_client_has_one_place_and_those_together_are_few(sizes, epochs):
    places = list(neighbours(sizes, epochs))
    assert [place for some in places for place in some] == list(range(len(sizes)))
    for some in places:
        assert len(some) == 1 or sum(sizes[place] for place in some) * epochs <= CHUNK
    for some, after in itertools.pairwise(places):  # as many as there is space for
        assert (sum(sizes[place] for place in some) + sizes[after.start]) * epochs > CHUNK
