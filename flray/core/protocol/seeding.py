"""Randomness is addressed, not consumed: a draw depends on its address alone.

`rng(seed, "batches", task, round, client)` gives the same stream whichever process asks, however
often, and whatever was drawn before. Nothing in flray draws from a process-wide generator.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import numpy as np
from numpy.random.bit_generator import ISeedSequence

from flray.core.schema.errors import ResourceError

Address = int | str
T = TypeVar("T")
TURN_S = 3600.0  # how long a thread waits for another one that holds the generators of this process

_turn = threading.Lock()


class _Mine(threading.local):
    depth = 0  # blocks of `turn` that this thread is in


_mine = _Mine()


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """A block in which no other thread of this process draws from the generators that they share.

    Raises `ResourceError` if another thread holds them for `TURN_S` without a pause.
    """
    held, outermost = _turn, not _mine.depth
    if outermost and not held.acquire(timeout=TURN_S):
        raise ResourceError(
            f"another run of this process computes for {TURN_S:.0f} s and lets this one do nothing; start one of them "
            "in a process of its own"
        )
    _mine.depth += 1
    try:
        yield
    finally:
        _mine.depth -= 1
        if outermost:
            held.release()


def with_turn(work: Callable[[], T]) -> Callable[[], T]:
    """`work` for another thread, which this one will wait for: it has the turn if this thread has it now."""
    depth = _mine.depth

    def call() -> T:
        before, _mine.depth = _mine.depth, depth
        try:
            return work()
        finally:
            _mine.depth = before

    return call


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """A block of :func:`turn` after which the generators of Python and NumPy are as before."""
    with turn():
        python, numpy = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A block in which a library draws from the generators of Python and NumPy; they are as before afterwards."""
    with preserved():
        random.seed()  # by the system: its numbers are not those of a seed
        yield


def _after_fork() -> None:
    """The thread that held the generators is not in the fork."""
    global _turn
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def key(seed: int, *address: Address) -> int:
    """128-bit key of an address; `1` and `"1"` are different addresses."""
    text = "/".join(f"{type(part).__name__[0]}{part}" for part in (seed, *address))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def rng(seed: int, *address: Address) -> np.random.Generator:
    """The generator of an address: Philox, counter-based, keyed by 128 bits.

    NumPy keeps its bit streams stable over versions and machines; torch's CPU generator
    keeps 32 bits of a seed only.
    """
    # NumPy's annotation has only its own class of seeds
    return np.random.Generator(np.random.Philox(cast(np.random.SeedSequence, _Key(key(seed, *address)))))


class _Key(ISeedSequence):
    """The key of a Philox as the seed that it is made from: the bits of `Philox(key=...)`.

    That one asks the system for entropy first and then throws it away, which costs a client's training 25 us.
    """

    def __init__(self, key: int) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        """The key as two words of 64 bits, which is all that a Philox asks for."""
        return np.array([self._key & 0xFFFF_FFFF_FFFF_FFFF, self._key >> 64], dtype=np.uint64)


def torch_seed(seed: int, *address: Address) -> int:
    """A seed for `torch.manual_seed`: what a module itself draws (dropout) is addressed as well."""
    return key(seed, *address) & 0x7FFF_FFFF_FFFF_FFFF
