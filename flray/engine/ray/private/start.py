"""A Ray that a process starts for itself: who may use it, what of Ray it needs, and how it ends.

Every port of its processes is bound to loopback, and Ray's token keeps the machine's other users out. Of Ray's own
processes it has those that runs need (GCS, raylet, the two agents that the raylet starts), not those that serve people
and other nodes: no dashboard, no autoscaler, no log monitor. Each of them is a Python process that imports for as long
as a small run trains.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private import node, parameter, ray_constants, services, utils
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError

from flray.core.schema.errors import ResourceError

START_S = 30.0  # that Ray itself gives a raylet
SHARED = Path("/dev/shm")
SEMAPHORE = re.compile(r"sem\.(?:hdr|obj)(\d+)-\d+")  # as Ray 2.60 names those of a channel, with its raylet's number
FORGOTTEN_S = 3600.0  # after which nobody opens one by its name any more
LOOK_S = 0.05  # between two questions whether it is there


@contextlib.contextmanager
def private(processes: int = 0) -> Iterator[None]:
    """`ray.init(address="local")` in this block starts a Ray that only processes of this user on this machine can use.

    It begins with this many `processes` for actors to come.

    The token is that of `RAY_AUTH_TOKEN`, of the file `RAY_AUTH_TOKEN_PATH` or of ~/.ray/auth_token, which is made when
    there is none; workers read it there, or inherit the variable. Raises `ResourceError` where a token is asked for and
    cannot be read.
    """
    Config.initialize("")  # Ray read RAY_AUTH_MODE when it was imported
    if os.environ["RAY_AUTH_MODE"].lower() == "token":
        try:
            if not AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
                _make_token()
                AuthenticationTokenLoader.instance().reset_cache()
            with contextlib.suppress(OSError):
                _token_path().chmod(0o600)  # one that Ray has made is open to all
        except AuthenticationError as error:
            raise refused("a new cluster here", error) from error
    with contextlib.ExitStack() as stack:
        for place, name, value in _changes(processes):
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        yield


def _changes(processes: int) -> list[tuple[Any, str, Any]]:
    """(place, name, value) in Ray 2.60's own modules while `ray.init` starts a node; it has no options for these."""
    return [
        # every server of Ray binds to loopback when its node's address is 127.0.0.1; on Linux Ray replaces that by the
        # machine's own address, except where this is off, as on macOS (`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER`, read once,
        # when Ray is imported)
        (ray_constants, "ENABLE_RAY_CLUSTER", False),
        (parameter, "RayParams", functools.partial(parameter.RayParams, no_monitor=True, include_log_monitor=False)),
        # `include_dashboard=False` starts it, too, and waits for it
        (node.Node, "start_api_server", lambda self, **_: None),
        # the node's agent has no web server, as where Ray is installed without its extra `default`
        (utils, "get_dashboard_dependency_error", lambda: ImportError("not wanted")),
        (services, "start_ray_process", functools.partial(_start, services.start_ray_process, processes)),
        (services, "get_node", functools.partial(_get_node, services.get_node)),
    ]


def _start(
    start: Callable[..., Any], processes: int, command: list[str], kind: str, *others: Any, **options: Any
) -> Any:
    """Ray's own `start_ray_process`, but that a raylet begins with this many processes, all at once: Ray has one a CPU,
    side by side."""
    if kind == ray_constants.PROCESS_TYPE_RAYLET:
        flags = ("--num_prestart_python_workers=", "--maximum_startup_concurrency=")
        at_once = max([processes, *(int(word.partition("=")[2]) for word in command if word.startswith(flags[1]))])
        command = [word for word in command if not word.startswith(flags)]
        command += [f"{flags[0]}{processes}", f"{flags[1]}{at_once}"]
    return start(command, kind, *others, **options)


def _get_node(ask: Callable[[str, str], dict[str, Any]], gcs_address: str, node_id: str) -> dict[str, Any]:
    """What Ray's own `get_node` says, as soon as the node is there: that one looks once a second."""
    client, until = GcsClient(address=gcs_address), time.monotonic() + START_S
    while time.monotonic() < until and all(listed.hex() != node_id for listed in client.get_all_node_info()):
        time.sleep(LOOK_S)
    return ask(gcs_address, node_id)


def raylet() -> int | None:
    """The process number of this process's own raylet; None: it is another's."""
    here = ray._private.worker._global_node
    running = here.all_processes.get(ray_constants.PROCESS_TYPE_RAYLET) if here is not None else None
    return running[0].process.pid if running else None


def drop_semaphores(ended: int | None = None) -> None:
    """Remove the names of semaphores that raylets which have ended left in /dev/shm: two for each channel of a compiled
    graph, 4 kB each.

    `ended`: a raylet of this process. Of others those that are old: a process that this one cannot see may live.
    """
    for path in SHARED.glob("sem.*"):
        match = SEMAPHORE.fullmatch(path.name)
        with contextlib.suppress(OSError):
            if match is None or path.stat().st_uid != os.getuid():
                continue
            pid, age = int(match[1]), time.time() - path.stat().st_mtime
            if pid == ended or (age > FORGOTTEN_S and not Path(f"/proc/{pid}").exists()):
                path.unlink()


def _token_path() -> Path:
    return Path.home() / ".ray" / "auth_token"  # Ray's own place


def _make_token() -> None:
    """A new token in ~/.ray/auth_token, for this user only; in this process's environment where the file cannot be
    written."""
    token, path = secrets.token_hex(32), _token_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # 0600; Ray would leave it to the umask
        descriptor, temporary = tempfile.mkstemp(prefix=".auth_token.", dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        try:
            os.link(temporary, path)  # the first of several processes wins
        except FileExistsError:
            if path.stat().st_size == 0:
                os.replace(temporary, path)
        Path(temporary).unlink(missing_ok=True)
    except OSError:
        os.environ["RAY_AUTH_TOKEN"] = token


def refused(where: str, error: Exception) -> ResourceError:
    """What to do about a token that is missing, wrong or not expected, at the cluster `where`."""
    mode = os.environ["RAY_AUTH_MODE"]
    if mode.lower() != "token":
        return ResourceError(
            f"{where}: the cluster asks for a token, and RAY_AUTH_MODE is {mode}; run with RAY_AUTH_MODE=token "
            "(and the token in RAY_AUTH_TOKEN, in the file RAY_AUTH_TOKEN_PATH or in ~/.ray/auth_token)"
        )
    return ResourceError(
        f"{where}: {line(error).partition('. ')[0]}; put the token of the cluster's nodes into RAY_AUTH_TOKEN, into "
        "the file RAY_AUTH_TOKEN_PATH or into ~/.ray/auth_token"
    )


def line(error: Exception) -> str:
    """The error's text in one line."""
    return " ".join(str(error).split()) or type(error).__name__
