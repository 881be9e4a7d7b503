"""Whether Ray's own processes are alive, and whether memory ran out; errors of one line.

Ray itself prints the last lines of a dead raylet's log, and ends the driver about 15 seconds after the raylet's death
and 60 after the GCS's. The actors still answer until then, so a run that notices at once can save its rounds.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ray

from flray.core.schema.errors import FlrayError, ResourceError
from flray.engine.ray.this_node import connection_id
from flray.files import quoted

PROBE_S = 2.0  # between two questions to the GCS
PATIENCE_S = 30.0  # with a GCS that another machine may start again; Ray gives up after 60
NOTICE_S = 0.5  # what fails because a process of Ray has died may fail before the watch hears of it
LEFT = (
    "this process has left the Ray of the run's actors (ray.shutdown); continue from the last checkpoint with: "
    "flray resume"
)


class RayWatch:
    """A thread that notices the death of this node's raylet or of the GCS; `lost` is then the error's line."""

    def __init__(self, connection: str, gcs_address: str, raylet_socket: Path | None, own: bool) -> None:
        """`connection`: the id of this process's connection to Ray. `own`: nobody starts its GCS again."""
        self.key, self.lost, self._own, self._stop = connection, "", own, False
        self._lost_at = 0.0
        self._gcs = gcs_address.rsplit(":", 1)
        self._raylet: socket.socket | None = socket.socket(socket.AF_UNIX)
        try:  # an open connection ends with the process at its other end
            self._raylet.connect(str(raylet_socket or ""))
            self._raylet.settimeout(PROBE_S)
        except OSError:
            self._raylet = None
        self._ended = threading.Event()
        threading.Thread(target=self._look, daemon=True, name="flray-watch").start()

    def _look(self) -> None:
        failing = None
        with self._raylet or contextlib.nullcontext():
            while not self._stop:
                if self._raylet is None:
                    time.sleep(PROBE_S)
                elif self._has_ended(self._raylet):
                    return self._report("raylet")
                try:
                    socket.create_connection((self._gcs[0].strip("[]"), int(self._gcs[1])), PROBE_S).close()
                    failing = None
                except OSError as error:
                    failing = failing or time.monotonic()
                    if (
                        self._own and isinstance(error, ConnectionRefusedError)
                    ) or time.monotonic() - failing > PATIENCE_S:
                        return self._report("GCS")
        return None

    @staticmethod
    def _has_ended(connection: socket.socket) -> bool:
        """Waits for `PROBE_S` at most. Unlike `select.select`, a read takes descriptors from 1,024 on."""
        try:
            connection.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True  # reset by its other end
        return True

    def _report(self, what: str) -> None:
        where = "on this machine" if what == "raylet" or self._own else f"at {':'.join(self._gcs)}"
        self._lost_at = time.monotonic()
        self.lost = (
            f"Ray's {what} {where} has died (killed, or memory ran out); continue from the last checkpoint with: "
            "flray resume"
        )
        self._ended.set()

    def check(self, wait: float = 0.0, patience: float = 0.0) -> None:
        """Raises `ResourceError` when a process of Ray has died, or dies within `wait` seconds; with `patience` not
        before so many seconds are over since its death was noticed.

        A Ray that this process started ends with `ray.shutdown()`: its death is then what the user wanted.
        """
        died = bool(self.lost) or bool(wait and self._ended.wait(wait))
        if died and time.monotonic() - self._lost_at >= patience:
            here = ray.is_initialized() and connection_id() == self.key
            raise ResourceError(self.lost if here else LEFT)

    def close(self) -> None:
        self._stop = True


_watch: RayWatch | None = None


def watch(connection: str, gcs_address: str, raylet_socket: Path | None, own: bool) -> None:
    """Watch over Ray's processes from now on; the arguments are those of :class:`RayWatch`."""
    global _watch
    forget()
    _watch = RayWatch(connection, gcs_address, raylet_socket, own)


def watches(connection: str) -> bool:
    return _watch is not None and _watch.key == connection


def forget() -> None:
    """Stop watching, before this process leaves Ray, or as it begins as a fork."""
    global _watch
    if _watch is not None:
        _watch.close()
    _watch = None


def check(wait: float = 0.0, patience: float = 0.0) -> None:
    """Raises `ResourceError` in one line when the raylet of this node or the GCS has died; see
    :meth:`RayWatch.check`."""
    if _watch is not None:
        _watch.check(wait, patience)


def lost(connection: str) -> bool:
    """Whether one of Ray's own processes behind this connection has died: the connection has to be left."""
    return _watch is not None and _watch.key == connection and bool(_watch.lost)


@contextlib.contextmanager
def translate_errors(folder: Path, check_connection: Callable[[], None]) -> Iterator[None]:
    """Re-raises failures caused by a dead Ray, or one that this process has left, as `ResourceError`, and adds the
    run's `folder` to a message that ends with `flray resume`.

    `check_connection` raises `ResourceError` where this process has left it.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # a call that waits while another thread leaves Ray raises `SystemExit`
        reason: BaseException = error
        try:
            if not isinstance(error, SystemExit):
                check(0.0 if isinstance(error, FlrayError) else NOTICE_S)
            if not isinstance(error, FlrayError):
                check_connection()
        except ResourceError as lost:
            reason = lost
        if isinstance(reason, ResourceError) and str(reason).endswith("flray resume"):
            raise ResourceError(f"{reason} {quoted(folder)}") from error
        raise


def oom_kills() -> int:
    """The number of processes that this machine's kernel ended for lack of memory; 0 if it does not tell."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    return 0
