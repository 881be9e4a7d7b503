"""The generators of a process that a user's code draws from without an address: torch's, NumPy's and Python's.

They are seeded by address before a user's constructor, before each client's work, the server half and each block of a
test. So the draws of a `forward` or a loss have the same bits in every process.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.core.protocol.seeding import Address, key, preserved

if TYPE_CHECKING:
    import torch


def seed_globals(seed: int, device: torch.device | None = None) -> None:
    """Seed all of them, and torch's generator on the `device` if that is a GPU."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch: Any = sys.modules.get("torch")  # one that is not imported draws nothing
    if torch is not None:  # torch.manual_seed would format a stack trace, 0.1 ms
        torch.default_generator.manual_seed(seed & 0x7FFF_FFFF_FFFF_FFFF)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def preserve_globals(device: torch.device | None = None) -> Iterator[None]:
    """A context after which they are as before, and in which no other thread draws from them."""
    devices = [device] if device is not None and device.type == "cuda" else []
    torch: Any = sys.modules.get("torch")
    with preserved(), nullcontext() if torch is None else torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def process_wide(seed: int, *address: Address) -> Iterator[None]:
    """A context that seeds these generators by an address: a user's function draws the same in every process, and the
    draws of others do not change."""
    with preserve_globals():
        seed_globals(key(seed, "process-wide", *address))
        yield
