"""The generators that a process shares belong to one thread at a time."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch

from flray.core.protocol import seeding
from flray.core.protocol.generators import preserve_globals, process_wide, seed_globals
from flray.core.protocol.seeding import turn, undisturbed, with_turn
from flray.core.schema.errors import ResourceError
from flray.engine.this_process import alone

BLOCKS = {
    "process_wide": lambda: process_wide(3, "partition"),
    "preserve_globals": preserve_globals,
    "alone": lambda: alone(1),
}


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def seeded(kind, seed, between=lambda: None):
    """What three generators give in a block of this kind, with `between` after they are seeded."""
    with BLOCKS[kind]():
        if kind != "process_wide":
            seed_globals(seed)
        between()
        return draws()


@pytest.mark.parametrize("second", BLOCKS)
@pytest.mark.parametrize("first", BLOCKS)
def test_two_threads_draw_their_own_numbers(first, second):
    """The second thread comes when the first has seeded; were it let in, the first would wait for it and draw after."""
    expected = seeded(first, 1), seeded(second, 2)
    before = draws_state()
    inside, passed = threading.Event(), threading.Event()

    def come():
        assert inside.wait(30)
        result = seeded(second, 2)
        passed.set()
        return result

    def pause():
        inside.set()
        assert not passed.wait(0.2)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(come)
        assert (seeded(first, 1, pause), other.result(30)) == expected
    assert draws_state() == before


def draws_state():
    """The next draws, which are put back."""
    with preserve_globals():
        return draws()


def test_a_thread_that_waits_too_long_says_what_to_do(monkeypatch):
    monkeypatch.setattr(seeding, "TURN_S", 0.05)
    with turn(), turn(), ThreadPoolExecutor(1) as pool, pytest.raises(ResourceError, match="process of its own"):
        pool.submit(seeded, "process_wide", 1).result(30)


def test_work_in_another_thread_has_the_turn_of_the_thread_that_waits_for_it():
    with turn(), ThreadPoolExecutor(1) as pool:
        assert pool.submit(with_turn(lambda: seeded("alone", 1))).result(30) == seeded("alone", 1)
    with ThreadPoolExecutor(1) as pool:
        work = with_turn(lambda: seeded("alone", 1))
        with turn():
            begun = pool.submit(work)
            assert not wait([begun], timeout=0.2).done, "the turn was taken later"
        assert begun.result(30) == seeded("alone", 1)


def test_a_library_that_draws_leaves_the_generators_as_they_were():
    before = draws_state()
    with undisturbed():
        draws_of_a_library = [random.random(), np.random.rand()]
    assert draws_state() == before and draws_of_a_library != list(before[:2])
