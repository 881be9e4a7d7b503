"""A Ray head of a test's own: ports, folder and token that nobody else has. It ends with everything that it started."""

import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

BIN = Path(sys.executable).parent
START_S = 120.0  # on a loaded machine


class Head:
    """`environment` is that of a shell that may use the cluster; `dashboard` the address of its jobs, `address` that of
    its drivers."""

    def __init__(self, folder: Path, token: str | None) -> None:
        self.folder = folder
        self.address = self.dashboard = ""
        self.environment = {
            name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")
        }
        self.environment |= {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_TMPDIR": str(folder),
            "FLRAY_CACHE": str(folder / "cache"),
        }
        self.environment |= (
            {"RAY_AUTH_MODE": "disabled"} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        )

    def launch(self, cpus: int) -> None:
        for _ in range(3):  # Ray gives itself 30 s, whatever else the machine does
            gcs, jobs, client = free_ports(3)
            self.address, self.dashboard = f"127.0.0.1:{gcs}", f"http://127.0.0.1:{jobs}"
            options = (
                "--head",
                f"--port={gcs}",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={jobs}",
                f"--ray-client-server-port={client}",
            )
            if self.start(*options, cpus=cpus) and self._answers():
                return
            self.kill()
        raise RuntimeError(f"no Ray head came up: {self.log.read_text()[-2000:]}")

    def start(self, *options: str, cpus: int) -> bool:
        """One more `ray start`; whether it came up."""
        self.log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        agent, self.metrics = free_ports(2)
        options += (f"--num-cpus={cpus}", "--object-store-memory=150000000", "--disable-usage-stats", "--block")
        # of its own: nodes that share one delete each other's copies of a job's working directory
        options += (f"--temp-dir={self.folder / self.log.stem}",)
        options += (
            f"--dashboard-agent-listen-port={agent}",
            f"--metrics-export-port={self.metrics}",
            "--min-worker-port=0",
            "--max-worker-port=0",
        )
        with self.log.open("w") as log:
            process = subprocess.Popen(
                [BIN / "ray", "start", *options], env=self.environment, stdout=log, stderr=log, cwd=self.folder
            )
        until = time.monotonic() + START_S
        while "block forever" not in self.log.read_text():
            if process.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.1)
        return True

    def _answers(self) -> bool:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            try:
                with urlopen(f"{self.dashboard}/api/version", timeout=5):
                    return True
            except HTTPError as error:  # 401: it asks for the token
                return error.code == 401
            except OSError:
                time.sleep(0.2)
        return False

    def job(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`ray job WORDS` as a user types it."""
        return run(
            BIN / "ray",
            "job",
            words[0],
            "--address",
            self.dashboard,
            *words[1:],
            cwd=self.folder,
            **{**self.environment, **environment},
        )

    def kill(self) -> None:
        """End every process that has this head's folder in its environment."""
        while found := self.processes():
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def processes(self) -> list[int]:
        return processes_of(self.folder)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on, at this moment."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def ray_head(cpus: int = 2, token: str | None = None) -> Iterator[Head]:
    """A running head; its processes and its folder are gone afterwards."""
    head = Head(Path(tempfile.mkdtemp(prefix="fh.", dir="/tmp")), token)  # short: sockets lie below it
    try:
        head.launch(cpus)
        yield head
    finally:
        head.kill()
        shutil.rmtree(head.folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """Processes whose RAY_TMPDIR is this folder."""
    wanted, found = f"RAY_TMPDIR={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def named(folder: Path, name: str) -> list[int]:
    """Those of them with this name, of which Linux keeps 15 letters: `raylet`, `gcs_server`, `ray::ClientActor`."""
    found = []
    for pid in processes_of(folder):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == name[:15]:
                found.append(pid)
    return found


def listening(processes: list[int]) -> list[str]:
    """Addresses (without ports) on which these processes accept TCP connections, one for each socket."""
    mine = set()
    for pid in processes:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                mine.add(os.readlink(descriptor))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in mine:  # LISTEN
                raw = bytes.fromhex(words[1].split(":")[0])  # 32-bit words, each in the machine's byte order
                swapped = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                found.append(str(ipaddress.ip_address(swapped if sys.byteorder == "little" else raw)))
    return found


def run(*words: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in exactly this environment; stdout and stderr together in `stdout`."""
    return subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240, cwd=cwd
    )


def facts_of(module: str, *words: str | Path) -> dict[str, Any]:
    """What `python -m MODULE WORDS` prints as JSON, from a shell that knows no cluster."""
    known = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = run(BIN / "python", "-m", module, *words, cwd=Path(__file__).parents[2], **known)
    assert done.returncode == 0, done.stdout[-3000:]
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"')))
    return found


def flray(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`flray WORDS` as from a shell that knows no cluster, but for what `environment` says; the token is the
    session's."""
    known = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    return run(BIN / "python", "-m", "flray", *words, **{**known, **environment})
