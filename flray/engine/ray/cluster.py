"""Connect to Ray, or start it. Imports Ray and nothing else that is slow, so that it can run while torch is imported.

A Ray that flray starts is for this process alone: every port of its processes is bound to loopback, and Ray's token keeps the
machine's other users out. What others shall reach is started by `ray start`, whose `RAY_AUTH_MODE` a driver has to know. One port is
not Ray's and cannot be bound to loopback: the rendezvous of torch.distributed, where several workers train on all data in one place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flray.core.errors import ResourceError
from flray.engine.ray import alive

os.environ.setdefault("RAY_worker_niceness", "0")  # Ray runs its workers at nice 15 otherwise
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the round loop raises a client's error once, as one message
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # same bits on a GPU

import ray

ANSWER_S = 5.0  # how long a cluster's head may take to accept a connection


def connect(address: str | None, num_cpus: int) -> None:
    """Join the cluster at `address`, or start one here with `num_cpus`; nothing to do when this process is connected.

    `address` is HOST:PORT, `auto` (the cluster of this job, or of the last `ray start` here) or None (`RAY_ADDRESS`, else a
    new one). A cluster that is joined keeps its own resources. Raises `ResourceError` in one line, within seconds.
    """
    with _lock:
        if ray.is_initialized() and alive.lost(ray._private.worker._global_node):
            close()
            ray.shutdown()  # one that another started
        _connect(address, num_cpus)
        alive.watch(ray._private.worker._global_node, own=bool(_ours["cpus"]))


def _connect(address: str | None, num_cpus: int) -> None:
    if ray.is_initialized():
        if address is None and _ours["cpus"] and _ours["cpus"] < num_cpus:
            close()
        else:
            return
    where = f"address={address}" if address else f"RAY_ADDRESS={os.environ.get('RAY_ADDRESS')}"
    address = address or os.environ.get("RAY_ADDRESS")
    os.environ["RAY_AUTH_MODE"] = auth_mode(address)
    if address:
        _join(address, where)
        return
    with private():
        _init("a new cluster here", address="local", num_cpus=num_cpus, include_dashboard=False)
    _ours["cpus"] = num_cpus


_lock = threading.Lock()  # the early start and the run's own call
_ours = {"cpus": 0}  # CPUs of the cluster that this process started; 0: it started none
_told = os.environ.get("RAY_AUTH_MODE")  # what the environment says, before flray decides


def starts_here(address: str | None) -> bool:
    """Whether a run at `address` uses a Ray that this process has started, or will."""
    return bool(_ours["cpus"]) or not (address or os.environ.get("RAY_ADDRESS") or ray.is_initialized())


def auth_mode(address: str | None) -> str:
    """`RAY_AUTH_MODE` of a run at `address`: what the environment says, else `token` for a Ray that flray starts, `disabled` elsewhere.

    Never left to Ray, whose choice depends on whether the machine happens to hold a token.
    """
    return _told or ("disabled" if address or os.environ.get("RAY_ADDRESS") else "token")


@contextlib.contextmanager
def private() -> Iterator[None]:
    """`ray.init(address="local")` in this block starts a Ray that only processes of this user on this machine can use.

    The token is that of `RAY_AUTH_TOKEN`, of the file `RAY_AUTH_TOKEN_PATH` or of ~/.ray/auth_token, which is made when there is none;
    workers read it there, or inherit the variable. Raises `ResourceError` where a token is asked for and cannot be read.
    """
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config
    from ray.exceptions import AuthenticationError

    Config.initialize("")  # Ray read RAY_AUTH_MODE when it was imported
    if os.environ["RAY_AUTH_MODE"].lower() == "token":
        try:
            if not AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
                _make_token()
                AuthenticationTokenLoader.instance().reset_cache()
            with contextlib.suppress(OSError):
                _token_path().chmod(0o600)  # one that Ray has made is open to all
        except AuthenticationError as error:
            raise _refused("a new cluster here", error) from error
    # every server of Ray binds to loopback when its node's address is 127.0.0.1; on Linux Ray replaces that by the machine's own
    # address, except where this is off, as on macOS (`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER`, read once, when Ray is imported)
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _token_path() -> Path:
    return Path.home() / ".ray" / "auth_token"  # Ray's own place


def _make_token() -> None:
    """A new token in ~/.ray/auth_token, for this user only; in this process's environment where the file cannot be written."""
    token, path = secrets.token_hex(32), _token_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(prefix=".auth_token.", dir=path.parent)  # 0600; Ray would leave it to the umask
        with os.fdopen(descriptor, "w") as file:
            file.write(token)
        try:
            os.link(aside, path)  # the first of several processes wins
        except FileExistsError:
            if path.stat().st_size == 0:
                os.replace(aside, path)
        Path(aside).unlink(missing_ok=True)
    except OSError:
        os.environ["RAY_AUTH_TOKEN"] = token


def _join(address: str, where: str) -> None:
    if "://" in address:
        raise ResourceError(
            f"{where}: a run's driver is a process of the cluster; give the head's HOST:PORT (6379 if `ray start --head` was not told "
            "otherwise), or send the run there: ray job submit --address http://HEAD:8265 -- flray run ..."
        )
    from ray._common.network_utils import parse_address
    from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    from ray._private.services import canonicalize_bootstrap_address_or_die
    from ray._raylet import Config, GcsClient
    from ray.exceptions import AuthenticationError, RpcError

    Config.initialize("")  # Ray read RAY_AUTH_MODE when it was imported
    try:  # Ray itself tries for minutes, and then does not say what was wrong
        found = canonicalize_bootstrap_address_or_die(address)
        host, port = parse_address(found) or ("", "0")
        socket.create_connection((host, int(port)), ANSWER_S).close()
        ensure_token_if_auth_enabled(create_token_if_missing=False)  # without a token, the next line would abort the process
        GcsClient(address=found)
    except AuthenticationError as error:
        raise _refused(where, error) from error
    except (OSError, ValueError, RpcError) as error:
        raise ResourceError(
            f"{where}: no Ray cluster answers ({_line(error)}); start one with `ray start --head`, or leave it out"
        ) from error
    _init(where, address=found)


def _init(where: str, **options: Any) -> None:
    from ray.exceptions import AuthenticationError

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        _silence()
        _exit_on_sigterm(before)
    except AuthenticationError as error:
        raise _refused(where, error) from error
    except (ConnectionError, ValueError, RuntimeError) as error:
        hint = "; install the cluster's versions" if "Version mismatch" in str(error) else ""
        raise ResourceError(f"{where}: cannot connect to Ray ({_line(error)}){hint}") from error


def _silence() -> None:
    """No log of a dead raylet or worker on the terminal, which `log_to_driver` does not end: what they mean flray says itself."""
    worker = ray._private.worker.global_worker
    worker.threads_stopped.set()
    worker.gcs_error_subscriber.close()
    worker.listener_thread.join()


def _refused(where: str, error: Exception) -> ResourceError:
    mode = os.environ["RAY_AUTH_MODE"]
    if mode.lower() != "token":
        return ResourceError(
            f"{where}: the cluster asks for a token, and RAY_AUTH_MODE is {mode}; run with RAY_AUTH_MODE=token "
            "(and the token in RAY_AUTH_TOKEN, in the file RAY_AUTH_TOKEN_PATH or in ~/.ray/auth_token)"
        )
    return ResourceError(
        f"{where}: {_line(error).partition('. ')[0]}; put the token of the cluster's nodes into RAY_AUTH_TOKEN, into the file "
        "RAY_AUTH_TOKEN_PATH or into ~/.ray/auth_token"
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def close() -> None:
    """Stop the cluster if this process started it."""
    if _ours["cpus"]:
        _ours["cpus"] = 0
        alive.forget()
        ray.shutdown()


def cores() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Background:
    """Work in a thread that then stays: Ray's processes are tied to the thread that started them, and die with it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: BaseException | None = None
        self._done = threading.Event()

        def body() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error
            self._done.set()
            if self._error is None:
                threading.Event().wait()

        threading.Thread(target=body, daemon=True, name="flray-ray").start()

    @property
    def ready(self) -> bool:
        """Whether :meth:`join` returns at once."""
        return self._done.is_set()

    def join(self) -> None:
        """Wait for the work; raises its error. From then on SIGTERM ends this process as Ctrl-C does: what is done is saved."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        _exit_on_sigterm(signal.getsignal(signal.SIGTERM))


def _exit_on_sigterm(before: Any) -> None:
    """`SystemExit` where a stopped Ray job or a SLURM job out of time gets SIGTERM; `before`: the handler before Ray, a user's own stays.

    In another thread than the main one `ray.init` leaves SIGTERM to a handler that ends the process on the spot, and no handler can be set.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, (lambda number, _: sys.exit(128 + number)) if before in (signal.SIG_DFL, None) else before)
