"""Standard error that cannot stop a run: no pipe whose reader sleeps, stopped terminal or full disk holds up or ends
the process that writes lines for a person."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import IO, Any

WAIT_S = 2.0  # for a reader that has stopped to read; after that lines are left out until it reads again
CHUNK = 512  # characters; a pipe that takes anything takes as many bytes (PIPE_BUF of POSIX)


class PatientStream(io.TextIOBase):
    """Writes to a stream without an error, and without a wait of more than `WAIT_S` for its reader. What the stream
    does not take is left out; once it takes lines again, one says how many were lost."""

    def __init__(self, stream: IO[str] | None, wait_s: float = WAIT_S) -> None:
        self.stream, self._wait_s = stream, wait_s
        self._lost, self._stopped = 0, False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self.stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """All of the text, or a part of it."""
        parts = [text[first : first + CHUNK] for first in range(0, len(text), CHUNK)]
        if self._lost and self._takes():
            lost, self._lost = self._lost, 0
            parts.insert(0, f"({lost} lines are left out here: nobody read them)\n")
        for part in parts:
            if not self._takes() or not self._put(part):
                self._lost += max(text.count("\n"), 1)
                break
        return len(text)

    def flush(self) -> None:
        """Every write has done it."""

    def isatty(self) -> bool:
        return is_terminal(self.stream)

    def fileno(self) -> int:
        if self.stream is None:
            raise io.UnsupportedOperation("fileno")
        return self.stream.fileno()

    def _put(self, text: str) -> bool:
        try:
            self.stream.write(text)  # type: ignore[union-attr]
            self.stream.flush()  # type: ignore[union-attr]
        except (OSError, ValueError):  # no reader, no terminal, a full disk; a closed stream
            return False
        return True

    def _takes(self) -> bool:
        """Whether the stream would take some text now, or after a wait."""
        if self.stream is None:
            return False
        try:
            number = self.stream.fileno()
        except (OSError, ValueError, AttributeError):  # in memory, or a notebook's
            return True
        if not hasattr(select, "poll"):
            return True
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        self._stopped = not poll.poll(0 if self._stopped else self._wait_s * 1000)
        return not self._stopped


_stderr = PatientStream(None)


def stderr() -> PatientStream:
    """The present `sys.stderr`; a live display replaces that while it is shown."""
    global _stderr
    if _stderr.stream is not sys.stderr:
        _stderr = PatientStream(sys.stderr)
    return _stderr


def is_terminal(stream: Any) -> bool:
    """Whether a stream, which may be absent (None) or closed, is a terminal."""
    try:
        return stream is not None and bool(stream.isatty())
    except (OSError, ValueError):
        return False


def open_standard_streams() -> None:
    """Open what the caller closed (`>&-`) as the null device: the next file that is opened would have its number.
    Standard output writes a character that its encoding lacks as an escape, as standard error does."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def silence(stream: IO[str]) -> None:
    """What is written to the stream from now on, and what its buffer still holds, goes to the null device."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
