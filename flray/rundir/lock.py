"""One writer for a folder: a file `.lock` in it says who that is, and every writer reads it before it writes.

A file and no advisory lock of the operating system, so that it also works on NFS and between machines. The owner is
known by its process on its own machine, and by the time of its last sign of life elsewhere. A process that slept
through a takeover finds another id in the file, and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
import warnings
from pathlib import Path
from typing import NamedTuple

from flray.core.schema.errors import CheckpointError

NAME = ".lock"
BEAT_S = 10.0  # between two signs of life
STALE_S = 45.0  # without one, a process of another machine counts as dead
WATCH_S = 0.5  # between two looks for one
# how long who takes over a dead owner's folder waits before it looks whether somebody else did so as well
TAKEOVER_WAIT_S = 0.2


class FolderLostError(CheckpointError):
    """The folder was deleted or taken over by another process: nothing more may be written to it."""


class Owner(NamedTuple):
    """Who holds a folder.

    `machine` names the boot and the process namespace: a process number means something only there.
    """

    host: str
    machine: str
    pid: int
    started: int  # of the process, in clock ticks since boot: a process number is used again
    id: str

    @classmethod
    def this_process(cls) -> Owner:
        """This process, with a new random id."""
        pid = os.getpid()
        return cls(socket.gethostname(), _machine(), pid, _started(pid) or 0, secrets.token_hex(8))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class FolderLock:
    """The right to write to a folder: made by :meth:`acquire`, given back by :meth:`release`.

    A process that dies leaves it behind; whoever wants the folder next finds that out.
    """

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.folder, self.owner = folder, owner
        self._over = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="flray-lock").start()

    @classmethod
    def acquire(cls, folder: Path) -> FolderLock:
        """Take the folder, which exists.

        Raises `CheckpointError` that names the owner where another process holds it.
        """
        me, path = Owner.this_process(), folder / NAME
        record = json.dumps(me._asdict()).encode()
        try:
            try:
                file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                _refuse(folder)
                written = folder / f"{NAME}.{me.id}"
                written.write_bytes(record)
                written.replace(path)
                time.sleep(TAKEOVER_WAIT_S)  # two that found the same dead owner: the later one has it
                _refuse(folder, but=me)
            else:
                with open(file, "wb") as out:
                    out.write(record)
        except OSError as error:
            raise CheckpointError(f"cannot write {path}: {error.strerror or error}; give another --out") from error
        return cls(folder, me)

    def check(self) -> None:
        """Raises `FolderLostError` when this process no longer holds the folder."""
        check(self.folder, self.owner.id)

    def folder_renamed(self, folder: Path) -> None:
        """The folder has another name now."""
        self.folder = folder

    def release(self) -> None:
        """Give the folder back; nothing happens to one that is no longer held."""
        self._over.set()
        with contextlib.suppress(CheckpointError, OSError):
            self.check()
            (self.folder / NAME).unlink()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            with contextlib.suppress(CheckpointError, OSError):
                self.check()
                os.utime(self.folder / NAME)


def check(folder: Path, id: str) -> None:
    """Raises `FolderLostError` unless the folder is held under this id."""
    present = owner(folder)
    if present is None or present.id != id:
        what = (
            f"was taken over by {present}"
            if present
            else "is gone"
            if not folder.exists()
            else "is no longer this run's: its .lock is gone"
        )
        raise FolderLostError(f"{folder} {what}; this process stops and writes nothing more there")


def holder(folder: Path) -> Owner | None:
    """Who holds the folder now; None when nobody does, or only a process that is dead."""
    present = owner(folder)
    return present if present is not None and _alive(present, folder) else None


class LockStatus(NamedTuple):
    """What can be told of a folder's owner by reading alone: whether its process lives (None: it is another machine's),
    and when it touched its lock last, by the clock of the file system."""

    owner: Owner
    alive: bool | None
    last_beat: float


def lock_status(folder: Path) -> LockStatus | None:
    """The status of the lock in `folder`; None if there is no lock. Only reads."""
    present = owner(folder)
    return None if present is None else LockStatus(present, _alive_here(present), _last_beat(folder))


def check_unused(folder: Path) -> None:
    """Raises `CheckpointError` if a living process of this machine holds the folder. Only reads."""
    status = lock_status(folder)
    if status is not None and status.alive:
        _refuse(folder)


def _refuse(folder: Path, but: Owner | None = None) -> None:
    """Raises `CheckpointError` when a process that lives, other than `but`, holds the folder.

    Of a process on another machine that was heard of lately, it waits for the next sign of life: a lost node has left
    its lock.
    """
    present = holder(folder)
    if present is None or (but is not None and present.id == but.id):
        return
    here = present.machine == _machine()
    if not here and not _shows_life(present, folder):
        return
    stopped = (
        " and is stopped (kill -CONT lets it go on, kill -9 ends it)" if here and _state(present.pid) == "T" else ""
    )
    raise CheckpointError(
        f"{folder} is in use: {present} writes to it{stopped}; wait for it, stop it, or give another --out"
    )


def _shows_life(present: Owner, folder: Path) -> bool:
    """Whether the owner touches its lock within `STALE_S`; a warning says so, because it takes that long.

    A lock that is dated in the future (the file server's clock was wrong, or is) counts like a fresh one.
    """
    first, until = _last_beat(folder), time.monotonic() + STALE_S
    ahead = first - time.time()
    dated = f" (its lock is dated {ahead:.0f} s in the future: a clock is wrong)" if ahead > STALE_S else ""
    warnings.warn(
        f"{folder} was last held by {present}{dated}; waiting up to {STALE_S:.0f} s for a sign of life of it",
        stacklevel=2,
    )
    while holder(folder) == present and time.monotonic() < until:
        if _last_beat(folder) != first:
            return True
        time.sleep(WATCH_S)
    return False


def _last_beat(folder: Path) -> float:
    """When the lock was touched last.

    Opened first: on NFS that asks the server, where the file's times may be cached.
    """
    try:
        with (folder / NAME).open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return 0.0


def owner(folder: Path) -> Owner | None:
    """Returns who held the folder last, dead or alive, or None where there is no folder or no record.

    A record that somebody is just writing is waited for.
    """
    for _ in range(20):
        try:
            return Owner(**json.loads((folder / NAME).read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError):
            time.sleep(0.05)
    return None


def _alive_here(present: Owner) -> bool | None:
    """Whether it is a process of this machine that lives; None: it is one of another machine."""
    if not present.machine or present.machine != _machine():
        return None
    return _state(present.pid) not in (None, "Z", "X") and _started(present.pid) == present.started


def _alive(present: Owner, folder: Path) -> bool:
    here = _alive_here(present)
    if here is not None:
        return here
    probe = folder / f"{NAME}.{secrets.token_hex(4)}"  # the file server's clock, not this machine's
    try:
        probe.touch()
        age = probe.stat().st_mtime - _last_beat(folder)
    except OSError:
        return True
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return age < STALE_S


def _machine() -> str:
    """This boot of this machine and this process namespace; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the process's name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _state(pid: int) -> str | None:
    fields = _stat(pid)
    return fields[0] if fields else None


def _started(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields else None
