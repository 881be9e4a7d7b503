"""A cluster of this machine alone, for trying jobs: `ray start --head` on loopback, with a token of its own.

with LocalHead(cpus=2) as head:
    os.environ.update(head.environment)
    subprocess.run(["ray", "job", "submit", "--address", head.jobs, "--", "flray", "run", ...])
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import ray

from flray.core.schema.errors import ResourceError
from flray.engine.ray.versions import FIRST_WITH_TOKEN, knows_tokens

START_S = 120.0  # that a loaded machine may take
TRIES = 3  # Ray gives itself 30 s for a part of it, whatever else the machine does
STOP_S = 20.0  # that Ray has to end by itself
OWN = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray leaves loopback on Linux, but where it takes the machine for a Mac
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # it would let a job go on for 30 s
}
READY = "block forever"  # the last line of `ray start --block`


class LocalHead:
    """The head of a cluster with so many CPUs; it ends with `stop`, with the `with` block, or with this process.

    `insecure`: start it also with a Ray that knows no token, which every user of this machine can then use.
    `jobs` is where jobs are submitted, and `environment` what a shell needs for that: Ray's token. Raises
    `ResourceError` when it does not come up.
    """

    def __init__(self, cpus: int = 2, insecure: bool = False) -> None:
        if not (insecure or knows_tokens()):
            raise ResourceError(
                f"Ray {ray.__version__} knows no token ({FIRST_WITH_TOKEN} is the first that does): every user of this "
                "machine could send jobs to this head; start it with insecure=True, or install a newer Ray"
            )
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        for _ in range(TRIES):
            said = self._launch(cpus)
            if not said:
                return
            self.stop()
        raise ResourceError(f"no Ray head came up on this machine: {said}")

    def _launch(self, cpus: int) -> str:
        """Start it; what it said where it does not come up, empty where it does."""
        self.folder = Path(tempfile.mkdtemp(prefix="fh.", dir="/tmp"))  # short: Ray's sockets lie below it
        gcs, dashboard, client, agent, metrics = free_ports(5)
        self.jobs = f"http://127.0.0.1:{dashboard}"
        log = self.folder / "log"
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                    *("--disable-usage-stats", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"),
                    *(f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"),
                    *(f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"),
                    *("--min-worker-port=0", "--max-worker-port=0", f"--num-cpus={cpus}"),
                    *("--object-store-memory=150000000", f"--temp-dir={self.folder / 'ray'}"),
                ],
                env=_without_cluster() | self.environment | OWN | {"RAY_TMPDIR": str(self.folder)},
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C in the shell, or in a notebook, is not for it
            )
        atexit.register(self.stop)
        until = time.monotonic() + START_S
        while READY not in log.read_text() or not _listens(dashboard):
            if self._process.poll() is not None or time.monotonic() > until:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                return " ".join(log.read_text().split())[-300:] or "it said nothing"
            time.sleep(0.1)
        return ""

    def stop(self) -> None:
        """End the cluster and every job of it, and drop its folder; nothing to do the second time."""
        if not self.folder.exists():
            return
        if self._process.returncode is None:  # else its number may be another process's by now
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on, at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _without_cluster() -> dict[str, str]:
    """This process's environment, but for the cluster that it may be in."""
    left = ("RAY_ADDRESS", "RAY_AUTH", "RAY_JOB")
    return {name: value for name, value in os.environ.items() if not name.startswith(left)}
