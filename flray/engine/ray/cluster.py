"""Connect to Ray, or start it. Imports Ray and nothing else that is slow, so that it can run while torch is imported.

A Ray that flray starts is for this process alone: every port of its processes is bound to loopback, and Ray's token
keeps the machine's other users out. What others shall reach is started by `ray start`, whose `RAY_AUTH_MODE` a driver
has to know. One port is not Ray's and cannot be bound to loopback: the rendezvous of torch.distributed, where several
workers train on all data in one place.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from flray.core.schema.errors import ResourceError
from flray.engine.ray import alive

os.environ.setdefault("RAY_worker_niceness", "0")  # Ray runs its workers at nice 15 otherwise
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the round loop raises a client's error once, as one message
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # same bits on a GPU
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # `data.root` and `model.weights` of a trial may be relative

import ray as ray  # the others take it from here: what must be set before ray is imported is set above

from flray.engine.ray.private import start
from flray.engine.ray.private.start import line, refused

# every process of a Ray that is started here imports it while other things are made ready
ACTORS = "flray.engine.ray.actors"
AHEAD = 8  # of those processes for client actors at most; more start when they are asked for
ANSWER_S = 5.0  # how long a cluster's head may take to accept a connection


def connect(address: str | None, num_cpus: int, trials: int = 0) -> None:
    """Join the cluster at `address`, or start one here with `num_cpus`; nothing to do when this process is connected.

    One that is started here has processes that import what the actors of a run need, and as many more as there are
    `trials` of a sweep.

    `address` is HOST:PORT, `auto` (the cluster of this job, or of the last `ray start` here) or None (`RAY_ADDRESS`,
    else a new one). A cluster that is joined keeps its own resources. Raises `ResourceError` in one line, within
    seconds.
    """
    with _lock:
        if ray.is_initialized() and alive.lost(ray._private.worker._global_node):
            close()
            ray.shutdown()  # one that another started
        _connect(address, num_cpus, trials)
        alive.watch(ray._private.worker._global_node, own=bool(_ours["cpus"]))


def _connect(address: str | None, num_cpus: int, trials: int) -> None:
    if ray.is_initialized():
        if _ours["cpus"] and (address is not None or _ours["cpus"] < num_cpus):
            close()  # started early, on a guess, or for a run before
        else:
            return
    where = f"address={address}" if address else f"RAY_ADDRESS={os.environ.get('RAY_ADDRESS')}"
    address = address or os.environ.get("RAY_ADDRESS")
    os.environ["RAY_AUTH_MODE"] = auth_mode(address)
    if address:
        _join(address, where)
        return
    start.drop_semaphores()
    _ours["cpus"] = num_cpus
    processes = min(num_cpus, AHEAD) + 1 + trials
    config = {"preload_python_modules": [ACTORS], "num_workers_soft_limit": max(processes, num_cpus)}
    try:
        with start.private(processes):
            _init(
                "a new cluster here", address="local", num_cpus=num_cpus, include_dashboard=False, _system_config=config
            )
    except BaseException:
        _ours["cpus"] = 0
        raise


_lock = threading.Lock()  # the early start and the run's own call
_ours = {"cpus": 0}  # CPUs of the cluster that this process started, or is starting; 0: there is none
_configured_auth = os.environ.get("RAY_AUTH_MODE")  # what the environment says, before flray decides


def starts_here(address: str | None) -> bool:
    """Whether a run at `address` uses a Ray that this process has started, or will."""
    return bool(_ours["cpus"]) or not (address or os.environ.get("RAY_ADDRESS") or ray.is_initialized())


def auth_mode(address: str | None) -> str:
    """`RAY_AUTH_MODE` of a run at `address`: what the environment says, else `token` for a Ray that flray starts,
    `disabled` elsewhere.

    Never left to Ray, whose choice depends on whether the machine happens to hold a token.
    """
    return _configured_auth or ("disabled" if address or os.environ.get("RAY_ADDRESS") else "token")


def _join(address: str, where: str) -> None:
    if "://" in address:
        raise ResourceError(
            f"{where}: a run's driver is a process of the cluster; give the head's HOST:PORT (6379 if `ray start "
            "--head` was not told otherwise), or send the run there: ray job submit --address http://HEAD:8265 -- "
            "flray run ..."
        )
    from ray._common.network_utils import parse_address
    from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    from ray._private.services import canonicalize_bootstrap_address_or_die
    from ray._raylet import Config, GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError, RpcError

    Config.initialize("")  # Ray read RAY_AUTH_MODE when it was imported
    try:  # Ray itself tries for minutes, and then does not say what was wrong
        gcs_address = canonicalize_bootstrap_address_or_die(address)
        host, port = parse_address(gcs_address) or ("", "0")
        socket.create_connection((host, int(port)), ANSWER_S).close()
        # without a token, the next line would abort the process
        ensure_token_if_auth_enabled(create_token_if_missing=False)
        GcsClient(address=gcs_address)
    except AuthenticationError as error:
        raise refused(where, error) from error
    except (OSError, ValueError, RpcError) as error:
        raise ResourceError(
            f"{where}: no Ray cluster answers ({line(error)}); start one with `ray start --head`, or leave it out"
        ) from error
    _init(where, address=gcs_address)


def _init(where: str, **options: Any) -> None:
    from ray.exceptions import AuthenticationError

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        _silence()
        _exit_on_sigterm(before)
    except AuthenticationError as error:
        raise refused(where, error) from error
    except (ConnectionError, ValueError, RuntimeError) as error:
        hint = "; install the cluster's versions" if "Version mismatch" in str(error) else ""
        raise ResourceError(f"{where}: cannot connect to Ray ({line(error)}){hint}") from error


def _silence() -> None:
    """No log of a dead raylet or worker on the terminal, which `log_to_driver` does not end: what they mean flray says
    itself."""
    worker = ray._private.worker.global_worker
    worker.threads_stopped.set()
    worker.gcs_error_subscriber.close()
    worker.listener_thread.join()


def close() -> None:
    """Stop the cluster if this process started it."""
    if _ours["cpus"]:
        _ours["cpus"] = 0
        alive.forget()
        raylet = start.raylet()
        ray.shutdown()
        start.drop_semaphores(raylet)


def started() -> bool:
    """Whether this process has started a cluster, or is about to."""
    return bool(_ours["cpus"])


class Background:
    """Work in a thread that then stays: Ray's processes are tied to the thread that started them, and die with it."""

    def __init__(self, work: Callable[[], object]) -> None:
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
        """Wait for the work; raises its error.

        From then on SIGTERM ends this process as Ctrl-C does: what is done is saved.
        """
        self._done.wait()
        if self._error is not None:
            raise self._error
        _exit_on_sigterm(signal.getsignal(signal.SIGTERM))


def _exit_on_sigterm(before: Any) -> None:
    """`SystemExit` where a stopped Ray job or a SLURM job out of time gets SIGTERM; `before`: the handler before Ray, a
    user's own stays.

    In another thread than the main one `ray.init` leaves SIGTERM to a handler that ends the process on the spot, and no
    handler can be set.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(
            signal.SIGTERM, (lambda number, _: sys.exit(128 + number)) if before in (signal.SIG_DFL, None) else before
        )
