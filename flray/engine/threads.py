"""Cores and memory of this machine. This module imports no torch, because the command line uses it before torch."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROCESS_BYTES = 2**28  # of one that has imported torch, at least
# of control groups, versions 2 and 1: bytes, or "max"
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory of this machine, or of the container that this process is in."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in LIMITS:
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(path.read_text()))
    return min(sizes)


def spin_briefly() -> None:
    """In processes that load OpenMP from now on its threads wait less than 0.1 ms for the next parallel part.

    Its own 4 ms (CPU after an addition by two threads) take a core from the client actors after each step of the
    server. A user's setting holds.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
