"""One writer for a folder: the file `.lock` in it names the owner, and a writer reads it before it writes.

It is a file, not an advisory lock of the operating system, so it works on NFS and between machines. On the owner's
machine the process number tells whether the owner is alive; elsewhere the time of its last heartbeat does. A process
that was suspended during a takeover finds another id in the file, and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

from flray.core.schema.errors import CheckpointError, warn
from flray.files import SMALL, atomic_write, regular, writing
from flray.living import is_alive, machine, started, state

NAME = ".lock"
BEAT_S = 10.0  # between two heartbeats
STALE_S = 45.0  # a process of another machine without a heartbeat for so long counts as dead
WATCH_S = 0.5  # between two looks for a heartbeat
# wait after a takeover from a dead owner, then look whether another process took it over too
TAKEOVER_WAIT_S = 0.2


class FolderLostError(CheckpointError):
    """The folder was deleted or taken over by another process: nothing more may be written to it."""


class Owner(NamedTuple):
    """The owner of a folder. `machine`: the boot and the process namespace in which `pid` is valid."""

    host: str
    machine: str
    pid: int
    started: int  # of the process, in clock ticks since boot, because process numbers are reused
    id: str

    @classmethod
    def this_process(cls) -> Owner:
        """This process, with a new random id."""
        pid = os.getpid()
        return cls(socket.gethostname(), machine(), pid, started(pid) or 0, secrets.token_hex(8))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class FolderLock:
    """The right to write to a folder, from :meth:`acquire`, which takes over the lock of a dead process, to
    :meth:`release`."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.folder, self.owner = folder, owner
        self._over = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="flray-lock").start()

    @classmethod
    def acquire(cls, folder: Path) -> FolderLock:
        """Lock the folder, which must exist. Raises `CheckpointError` that names the owner if it is locked."""
        me, path = Owner.this_process(), folder / NAME
        record = json.dumps(me._asdict()).encode()
        with writing(path, ", or give another --out"):
            try:
                file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
            except FileExistsError:
                _refuse(folder)
                with atomic_write(path) as written:
                    written.write_bytes(record)
                time.sleep(TAKEOVER_WAIT_S)  # of two processes that take over at once, the later one has the lock
                _refuse(folder, but=me)
            else:
                with open(file, "wb") as out:
                    out.write(record)
        return cls(folder, me)

    def check(self) -> None:
        """Raises `FolderLostError` if this process no longer has the lock."""
        check(self.folder, self.owner.id)

    def release(self) -> None:
        """Remove the lock, if it is still this process's own."""
        self._over.set()
        if os.getpid() != self.owner.pid:  # of the process from which this one was forked
            return
        with contextlib.suppress(CheckpointError, OSError):
            self.check()
            (self.folder / NAME).unlink()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            with contextlib.suppress(CheckpointError, OSError):
                self.check()
                os.utime(self.folder / NAME)


def check(folder: Path, id: str) -> None:
    """Raises `FolderLostError` unless the folder's lock has this id."""
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
    """The owner of the folder; None: there is no lock, or its process is dead."""
    present = owner(folder)
    return present if present is not None and _alive(present, folder) else None


class LockStatus(NamedTuple):
    """Whether the owner is alive (None: it is on another machine), and the time of its last heartbeat by the clock of
    the file system."""

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
    """Raises `CheckpointError` if a live process other than `but` has the lock. Of one on another machine it waits for
    the next heartbeat, because a lost node leaves its lock behind."""
    present = holder(folder)
    if present is None or (but is not None and present.id == but.id):
        return
    here = present.machine == machine()
    if not here and not _shows_life(present, folder):
        return
    stopped = " and is stopped (kill -CONT continues it, kill -9 ends it)" if here and state(present.pid) == "T" else ""
    raise CheckpointError(
        f"{folder} is in use: {present} writes to it{stopped}; wait for it, stop it, or give another --out"
    )


def _shows_life(present: Owner, folder: Path) -> bool:
    """Whether a heartbeat of the owner follows within `STALE_S`. Warns that it waits."""
    first, until = _last_beat(folder), time.monotonic() + STALE_S
    ahead = first - time.time()
    dated = f" (its lock is dated {ahead:.0f} s in the future: a clock is wrong)" if ahead > STALE_S else ""
    warn(f"{folder} was last locked by {present}{dated}; waiting up to {STALE_S:.0f} s for its next sign of life")
    while holder(folder) == present and time.monotonic() < until:
        if _last_beat(folder) != first:
            return True
        time.sleep(WATCH_S)
    return False


def _last_beat(folder: Path) -> float:
    """The time of the last heartbeat. Opening the file first makes an NFS client fetch the time from the server."""
    try:
        with (folder / NAME).open("rb") as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return 0.0


def owner(folder: Path) -> Owner | None:
    """The last owner of the folder, dead or alive; None: there is no folder or no lock. Waits up to a second for a lock
    that another process is writing."""
    for _ in range(20):
        try:
            return Owner(**json.loads(regular(folder / NAME, SMALL).read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError):
            time.sleep(0.05)
    return None


def _alive_here(present: Owner) -> bool | None:
    """Whether the owner's process on this machine is alive; None: it is on another machine."""
    if not present.machine or present.machine != machine():
        return None
    return is_alive(present.pid, present.started)


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
