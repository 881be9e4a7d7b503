"""How many cores there are. Nothing of torch is imported here: the command line asks before."""

from __future__ import annotations

import os


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
