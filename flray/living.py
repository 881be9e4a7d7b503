"""Whether a process of this machine is alive, by its number and the time of its start: process numbers are reused."""

from __future__ import annotations

import os
from pathlib import Path


def machine() -> str:
    """This boot of this machine and this process namespace, in which process numbers are valid; empty if the system
    does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def state(pid: int) -> str | None:
    """The kernel's letter (`R`, `S`, `T`, `Z` ...); None: there is no such process."""
    fields = _stat(pid)
    return fields[0] if fields else None


def started(pid: int) -> int | None:
    """When the process began, in clock ticks since the machine's boot; None: there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def is_alive(pid: int, began: int) -> bool:
    """Whether the process `pid` that began then still runs on this machine."""
    return state(pid) not in (None, "Z", "X") and started(pid) == began


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the process's name, which may contain spaces and brackets."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
