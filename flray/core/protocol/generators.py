"""The generators of a process that a user's code draws from without an address: torch's, NumPy's and Python's.

They are seeded by address before a user's constructor, before each client's work, the server half and each block of a
test. So the draws of a `forward` or a loss have the same bits in every process.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from flray.core.protocol.seeding import preserved


def seed_globals(seed: int, device: torch.device | None = None) -> None:
    """Seed all of them, and torch's generator on the `device` if that is a GPU."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would format a stack trace, 0.1 ms
    np.random.seed(seed & 0xFFFF_FFFF)
    random.seed(seed)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def preserve_globals(device: torch.device | None = None) -> Iterator[None]:
    """A context after which they are as before, and in which no other thread draws from them."""
    devices = [device] if device is not None and device.type == "cuda" else []
    with preserved(), torch.random.fork_rng(devices=devices):
        yield
