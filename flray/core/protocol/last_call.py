"""The method of an algorithm that a process is in, written where it outlives the process.

An actor opens a file in its node's session folder and maps its first page. Entering a method copies its name into the
page, in about 0.3 µs. The pool reads there which method ended a dead actor. `faulthandler` appends fatal signals that
Python sees (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL). A process that opened no file writes nothing.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from flray.core.schema.errors import LastCall

SIZE = 1024  # bytes: one half says where, the other half in which method
HALF = SIZE // 2
PATIENCE_S = 2.0  # until a process whose connections are closed is gone
SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}


class _Page(NamedTuple):
    map: mmap.mmap
    file: BinaryIO  # open as long as the process: faulthandler writes to it
    before: int  # bytes of the file that earlier processes of the actor have written


_page: _Page | None = None


def label(text: str) -> bytes:
    """The argument of `enter` for a method of this name."""
    return text.encode()[: HALF - 1].ljust(HALF, b"\0")


NOWHERE = label("")
_method = NOWHERE


def record(path: Path) -> None:
    """From now on this process writes into `path`. An earlier process's call stays there until the first call."""
    global _page
    if _page is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
        if path.stat().st_size < SIZE:
            file.write(bytes(SIZE))  # allocates its blocks, in case the disk is full later
            file.flush()
        _page = _Page(mmap.mmap(file.fileno(), SIZE), file, path.stat().st_size)
        faulthandler.enable(file, all_threads=False)


def enter(method: bytes) -> bytes:
    """This process enters `method`, or returns to it. Returns the method that it was in."""
    global _method
    before, _method = _method, method
    if _page is not None:
        _page.map[HALF:] = method
    return before


@contextmanager
def at(where: str, client: int | None = None) -> Iterator[None]:
    """Methods entered in this block belong to `where`. Restores the present method afterwards."""
    before = _method
    if _page is not None:
        text = f"{os.getpid()}\n{'' if client is None else client}\n{_page.before}\n{where}"
        _page.map[:HALF] = label(text)
    try:
        yield
    finally:
        enter(before)


@contextmanager
def within(method: bytes) -> Iterator[None]:
    """This process is in `method` during the block."""
    before = enter(method)
    try:
        yield
    finally:
        enter(before)


def last_call(path: Path) -> LastCall | None:
    """The call in which the process that wrote `path` ended; None: it is alive, or was in no call.

    Waits up to `PATIENCE_S` for a process to end whose connections are closed.
    """
    try:
        content = path.read_bytes()
    except OSError:
        return None
    where, method = (part.rstrip(b"\0").decode(errors="replace") for part in (content[:HALF], content[HALF:SIZE]))
    if not method or where.count("\n") < 3:
        return None
    pid, client, before, place = where.split("\n", 3)
    until = time.monotonic() + PATIENCE_S
    while _lives(int(pid)):
        if time.monotonic() > until:
            return None
        time.sleep(0.02)
    fault = content[int(before) :] if len(content) > int(before) else path.read_bytes()[int(before) :]
    _, _, text = fault.decode(errors="replace").rpartition("Fatal Python error: ")
    kind = text.partition("\n")[0].strip()
    return LastCall(int(pid), int(client) if client else None, place, method, SIGNALS.get(kind, kind))


def _lives(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
