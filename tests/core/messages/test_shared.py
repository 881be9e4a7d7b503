"""Shared parts of a broadcast: taken out by content and put back, and counted once a client."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from flray.core.messages import Broadcast, Record, equal, tensors
from flray.core.messages.fields import pools, shared, shared_fields
from flray.core.messages.packed import Packed
from flray.core.messages.shared import Reference, join, received, referring, split
from flray.core.schema.errors import AlgorithmError
from flray.files import array_checksum


class Images(Record):
    x: np.ndarray = shared()
    y: np.ndarray = shared()
    rounds: int = 3


class Generative(Broadcast):
    images: Images | None
    bases: Any = shared(default=None)


def message(seed: int = 0) -> Generative:
    draw = np.random.default_rng(seed)
    images = Images(draw.integers(0, 256, (10, 3, 8, 8)).astype(np.uint8), np.arange(10))
    bases = {"body.0": np.ones((4, 2), np.float32), "head": (np.zeros(3, np.float32), None, 0.65)}
    return Generative(draw.random(5).astype(np.float32), np.zeros(0, np.float32), images, bases)


def test_what_is_shared_is_taken_out_by_content_and_put_back():
    rest, parts = split(message())
    assert isinstance(rest.images.x, Reference) and isinstance(rest.bases["body.0"], Reference)
    assert [array.nbytes for array in parts.values()] == [10 * 3 * 8 * 8, 80, 32, 12]
    assert rest.bases["head"][1:] == (None, 0.65) and rest.images.rounds == 3
    assert equal(rest.w, message().w), "what is not declared stays"
    assert equal(join(rest, parts), message())
    assert equal(join(Packed.of(rest).message(), parts), message()), "the rest is a message"


def test_equal_contents_are_one_part():
    once = np.arange(6.0)
    rest, parts = split(Generative(once, once, None, (once, once.copy(), once.reshape(2, 3), once.astype(np.float32))))
    assert len(parts) == 3 and rest.bases[0].hash == rest.bases[1].hash == array_checksum(once)
    assert array_checksum(np.asfortranarray(once.reshape(2, 3))) == array_checksum(once.reshape(2, 3))


def test_a_message_without_shared_fields_stays_whole():
    plain = Broadcast(np.ones(3), np.zeros(1))
    rest, parts = split(plain)
    assert equal(rest, plain) and parts == {}
    assert received(parts, np.array([4, 7]), {}) == (0, {})


def test_a_part_that_did_not_arrive_is_named():
    rest, parts = split(message())
    missing = next(iter(parts))
    with pytest.raises(AlgorithmError, match=f"shared part {missing} of a broadcast has not arrived"):
        join(rest, {found: array for found, array in parts.items() if found != missing})


def test_a_part_is_counted_once_a_client():
    """1920 + 80 + 32 + 12 bytes of parts once a client; other images, with the same labels and bases, are 1920 more."""
    once = 1920 + 80 + 32 + 12
    _, parts = split(message())
    total, holders = received(parts, np.array([3, 1]), {})
    assert total == 2 * once
    total, holders = received(parts, np.array([1, 2]), holders)
    assert total == once
    assert all(held.tolist() == [1, 2, 3] for held in holders.values()) and len(holders) == 4
    _, others = split(message(seed=1))
    total, after = received(others, np.array([1, 9]), Packed.of(holders).message())
    assert total == 2 * 1920 + 80 + 32 + 12
    assert after.keys() - holders.keys() == {array_checksum(message(seed=1).images.x)}


@given(st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(0, 2))
def test_over_rounds_a_client_pays_for_what_it_sees_first(cohorts, contents):
    """One part of 8 bytes whose content changes every `contents + 1` rounds; nothing else is sent."""
    seen: set[tuple[int, int]] = set()
    holders: Any = {}
    for round, cohort in enumerate(cohorts):
        content = round // (contents + 1)
        _, parts = split(Images(np.array([float(content)]), None, None))
        total, holders = received(parts, np.array(sorted(cohort)), holders)
        new = {(content, client) for client in cohort} - seen
        assert total == 8 * len(new)
        seen |= new


def test_the_marker_is_inherited_and_says_nothing_of_pooling():
    class More(Generative):
        extra: Any = None

    assert shared_fields(More) == {"bases"} and shared_fields(Images) == {"x", "y"}
    assert set(pools(More).values()) == {"mean"}


def test_an_array_that_lies_in_another_message_stays_there_and_is_put_back_without_a_copy():
    """Of the model that tests read and the next clients begin with one copy is sent; equal values are not enough."""
    w, own = np.arange(6.0, dtype=np.float32), np.zeros(2)
    broadcast = (Broadcast(w, np.ones(1, np.float32)), {"mask": w[:3], "scale": 2.0})
    tested = {"w": w[:], "half": w[:3], "copy": w.copy(), "turned": w[::-1], "own": own, "name": "ema"}
    rest = referring(tested, broadcast)
    assert [name for name, part in rest.items() if isinstance(part, Reference)] == ["w", "half"]
    again = join(rest, tensors(broadcast))
    assert equal(again, tested) and again["w"] is w
    assert referring(tested, None) is not tested and equal(referring(tested, None), tested)
