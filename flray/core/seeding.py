"""Randomness is addressed, not consumed: a draw depends on its address alone.

`rng(seed, "batches", task, round, client)` gives the same stream whichever process asks, however
often, and whatever was drawn before. Nothing in flray draws from a process-wide generator.
"""

from __future__ import annotations

import hashlib

import numpy as np

Address = int | str


def key(seed: int, *address: Address) -> int:
    """128-bit key of an address; `1` and `"1"` are different addresses."""
    text = "/".join(f"{type(part).__name__[0]}{part}" for part in (seed, *address))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def rng(seed: int, *address: Address) -> np.random.Generator:
    """The generator of an address: Philox, counter-based, keyed by 128 bits.

    NumPy keeps its bit streams stable over versions and machines; torch's CPU generator
    keeps 32 bits of a seed only.
    """
    return np.random.Generator(np.random.Philox(key=key(seed, *address)))


def torch_seed(seed: int, *address: Address) -> int:
    """A seed for `torch.manual_seed`: what a module itself draws (dropout) is addressed as well."""
    return key(seed, *address) & 0x7FFF_FFFF_FFFF_FFFF
