"""How many threads compute: part of what decides the bits of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def threads(count: int | None) -> Iterator[None]:
    """With so many torch threads; None: as many as there are."""
    import torch  # not above: the command line asks for the cores before it is imported

    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
