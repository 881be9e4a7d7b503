"""A Ray that a process starts for itself: where it listens, what of Ray it needs, and what it leaves behind.

Every port of its processes is bound to loopback. Of Ray's own processes it has those that runs need (GCS, raylet, the
two agents that the raylet starts), not those that serve people and other nodes: no dashboard, no autoscaler, no log
monitor. Each of them is a Python process that imports for as long as a small run trains.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ray._private import node, parameter, ray_constants, services, utils
from ray._raylet import GcsClient  # type: ignore[attr-defined]

HERE = Path(__file__).parent
RAYS_AGENT = Path(services.RAY_PATH, "dashboard", "agent.py")
START_S = 30.0  # that Ray itself gives a raylet
LOOK_S = 0.05  # between two questions whether it is there
END_S = 5.0  # until killed processes have ended
PR_SET_CHILD_SUBREAPER = 36


def loopback() -> AbstractContextManager[None]:
    """`ray.init(address="local")` in this block binds every port of its processes to loopback.

    Raises `AttributeError` at once where this Ray has no such setting.
    """
    # every server of Ray binds to loopback when its node's address is 127.0.0.1; on Linux Ray replaces that by the
    # machine's own address, except where this is off, as on macOS (`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER`, read once,
    # when Ray is imported)
    setting = "ENABLE_RAY_CLUSTER"
    getattr(ray_constants, setting)
    return _changed([(ray_constants, setting, False)])


def few_processes(ahead: int, forks: tuple[str, str] | None = None) -> AbstractContextManager[None]:
    """`ray.init(address="local")` in this block starts what runs need of Ray, and `ahead` processes for actors.

    `forks`: (where to ask for forks, which every worker then is, the module that they have imported; see
    `forked.Programs`).
    """
    return _changed(_changes(ahead, forks))


def preloading(module: str, at_most: int) -> dict[str, Any]:
    """Options of `ray.init`: workers import `module` as they start, and so many of them stay."""
    return {"_system_config": {"preload_python_modules": [module], "num_workers_soft_limit": at_most}}


@contextlib.contextmanager
def _changed(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for place, name, value in changes:
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        yield


def _changes(processes: int, forks: tuple[str, str] | None) -> list[tuple[Any, str, Any]]:
    """(place, name, value) in Ray's own modules while `ray.init` starts a node; it has no options for these."""
    return [
        (parameter, "RayParams", functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)),
        # `include_dashboard=False` starts it, too, and waits for it
        (node.Node, "start_api_server", lambda self, **_: None),
        # the node's agent has no web server, as where Ray is installed without its extra `default`
        (utils, "get_dashboard_dependency_error", lambda: ImportError("not wanted")),
        (services, "start_ray_process", functools.partial(_start, services.start_ray_process, processes, forks)),
        (services, "get_node", functools.partial(_get_node, services.get_node)),
    ]


# the others are Any: arguments of Ray's own function, passed on
def _start(
    start: Callable[..., Any],
    processes: int,
    forks: tuple[str, str] | None,
    command: list[str],
    kind: str,
    *others: Any,
    **options: Any,
) -> Any:
    """Ray's own `start_ray_process`, but that a raylet begins with this many processes, all at once (Ray has one a CPU,
    side by side), that its agent imports nothing that serves people, and that its workers are `forks`."""
    if kind == ray_constants.PROCESS_TYPE_RAYLET:
        flags = ("--num_prestart_python_workers=", "--maximum_startup_concurrency=")
        at_once = max([processes, *(int(word.partition("=")[2]) for word in command if word.startswith(flags[1]))])
        command = [word for word in command if not word.startswith(flags)]
        command += [f"{flags[0]}{processes}", f"{flags[1]}{at_once}"]
        agent, by = (subprocess.list2cmdline([str(path)]) for path in (RAYS_AGENT, HERE / "agent.py"))
        command = [word.replace(f" {agent} ", f" {by} {agent} ", 1) for word in command]
        if forks:
            flag = "--python_worker_command="
            words = subprocess.list2cmdline([sys.executable, "-I", "-S", str(HERE / "worker.py"), *forks])
            command = [
                f"{flag}{words} {word.removeprefix(flag)}" if word.startswith(flag) else word for word in command
            ]
    return start(command, kind, *others, **options)


def _get_node(ask: Callable[[str, str], dict[str, Any]], gcs_address: str, node_id: str) -> dict[str, Any]:
    """What Ray's own `get_node` says, as soon as the node is there: that one looks once a second."""
    client, until = GcsClient(address=gcs_address), time.monotonic() + START_S
    while time.monotonic() < until and all(listed.hex() != node_id for listed in client.get_all_node_info()):
        time.sleep(LOOK_S)
    return ask(gcs_address, node_id)


@contextlib.contextmanager
def none_left() -> Iterator[None]:
    """After this block, which ends a Ray of this process and nothing else, none of its processes lives.

    An agent whose raylet dies while it begins does not end. In the block this process becomes the parent of such ones.
    """
    _adopt(True)
    others = {pid for pid, command in _children().items() if "/ray/core/src/ray/" not in command}
    try:
        yield
    finally:
        until = time.monotonic() + END_S
        while (living := _children().keys() - others) and time.monotonic() < until:
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        _adopt(False)


def _adopt(orphans: bool) -> None:
    """Whether this process becomes the parent of a descendant whose parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def _children() -> dict[int, str]:
    """Each child of this process that lives, and its command."""
    found = {}
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread ends at this moment
            found.update({pid: _command(pid) for pid in map(int, file.read_text().split()) if _lives(pid)})
    return found


def _lives(pid: int) -> bool:
    """A zombie lives as long as it has another thread: until then its children have the old parent."""
    with contextlib.suppress(OSError):
        threads, state = os.listdir(f"/proc/{pid}/task"), Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        return len(threads) > 1 or state.split()[0] not in "ZX"
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""
