"""Connect to Ray, or start it. Imports Ray and nothing else that is slow, so that it can run while torch is imported."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from flray.core.errors import ResourceError

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # a private cluster on this machine; never left to what the machine happens to hold
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray runs its workers at nice 15 otherwise
os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # the round loop raises a client's error once, as one message
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # same bits on a GPU

import ray


def connect(address: str | None, num_cpus: int) -> None:
    """Join the cluster at `address`, or start one here with `num_cpus`; nothing to do when this process is connected."""
    with _lock:
        _connect(address, num_cpus)


def _connect(address: str | None, num_cpus: int) -> None:
    if ray.is_initialized():
        if address is None and _ours["cpus"] and _ours["cpus"] < num_cpus:
            close()
        else:
            return
    address = address or os.environ.get("RAY_ADDRESS")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ResourceError(
                f"address={address}: no Ray cluster answers ({str(error).splitlines()[0]}); "
                "start one with `ray start --head`, or leave address out"
            ) from error
        return
    ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, **quiet)
    _ours["cpus"] = num_cpus


_lock = threading.Lock()  # the early start and the run's own call
_ours = {"cpus": 0}  # CPUs of the cluster that this process started; 0: it started none


def close() -> None:
    """Stop the cluster if this process started it."""
    if _ours["cpus"]:
        _ours["cpus"] = 0
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

    def join(self) -> None:
        """Wait for the work; raises its error."""
        self._done.wait()
        if self._error is not None:
            raise self._error
