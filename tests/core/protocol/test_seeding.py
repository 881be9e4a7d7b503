"""Addressed randomness: different addresses, different streams; the same address, the same numbers for ever."""

import pickle

import numpy as np
from hypothesis import given, strategies as st

from flray.core.network.objective import Objective
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.seeding import key, rng, torch_seed
from tests.support.networks import Mlp, build

PART = st.one_of(st.integers(-5, 10**6), st.text(alphabet="abc12-", min_size=1, max_size=6))
ADDRESS = st.tuples(st.integers(0, 1000), st.lists(PART, max_size=4))


@given(ADDRESS, ADDRESS)
def test_different_addresses_have_different_keys(left, right):
    assert (key(left[0], *left[1]) == key(right[0], *right[1])) == (left == right)


def test_a_number_and_its_text_are_different_addresses():
    assert key(0, 1) != key(0, "1")
    assert key(0, 12) != key(0, 1, 2)


def test_golden_values():
    """Results of published runs rest on these; key and permutation are computed from the definition with hashlib and
    NumPy alone.

    int.from_bytes(hashlib.blake2b(b"i0/sbatches/i3", digest_size=16).digest(), "little"); Philox(key=...).integers(...)
    """
    import hashlib

    by_hand = int.from_bytes(hashlib.blake2b(b"i0/sbatches/i3", digest_size=16).digest(), "little")
    assert key(0, "batches", 3) == by_hand
    expected = np.random.Generator(np.random.Philox(key=by_hand)).permutation(10)
    assert rng(0, "batches", 3).permutation(10).tolist() == expected.tolist()
    assert rng(0, "golden").integers(0, 1000, 5).tolist() == GOLDEN_INTEGERS
    assert torch_seed(0, "golden") == GOLDEN_SEED


GOLDEN_INTEGERS = [469, 862, 79, 3, 942]
GOLDEN_SEED = 1441724674243639446


def test_a_context_addresses_by_everything_that_identifies_the_work():
    """Also by the phase and the turn; not by `done`, so that a task's draws do not depend on the others' length."""
    objective = Objective(build(Mlp))
    changes = [{"task": 1}, {"round": 1}, {"exchange": 1}, {"phase": "task_end"}, {"phase": "task_begin"}, {"turn": 1}]
    works = [(0, Clock(**change), 3) for change in ({}, *changes)] + [(1, Clock(), 3), (0, Clock(), 4)]
    own = {"num_steps": 1, "num_examples": 1, "weight": 1.0}
    contexts = [ClientContext(objective, seed, clock, 10, 5, client=client, **own) for seed, clock, client in works]
    contexts.append(Context(objective, 0, Clock(), 10, 5))  # the server's
    draws = {float(ctx.rng(purpose).random()) for ctx in contexts for purpose in "xy"}
    assert len(draws) == 2 * len(contexts)
    assert ClientContext(objective, 0, Clock(done=7), 10, 5, client=3, **own).rng("x").random() in draws


def test_torch_seeds_fit_torch():
    assert all(0 <= torch_seed(s, "model") < 2**63 for s in range(200))


@given(ADDRESS)
def test_a_generator_is_the_philox_of_its_key_and_can_be_sent(address):
    """In every bit of its state; pickled it goes on where it was."""
    found = rng(address[0], *address[1])
    assert str(found.bit_generator.state) == str(np.random.Philox(key=key(address[0], *address[1])).state)
    found.random()
    assert pickle.loads(pickle.dumps(found)).random() == found.random()
