"""A connection to Ray, beyond `ray.init`: read the environment again, see whether a head answers, be silent."""

from __future__ import annotations

import ctypes
import socket

from ray._private import state, worker
from ray._raylet import Config, GcsClient  # type: ignore[attr-defined]
from ray.experimental import internal_kv


def read_environment() -> None:
    """Ray reads its settings, `RAY_AUTH_MODE` among them, once, when it is imported: read them again."""
    Config.initialize("")


def answering(address: str, seconds: float) -> str:
    """HOST:PORT of the head at `address`, which answers with this process's token within so many seconds.

    Ray itself tries for minutes, and then does not say what was wrong. Raises `OSError`, `ValueError`, `RpcError` or
    `AuthenticationError`.
    """
    from ray._common.network_utils import parse_address
    from ray._private.services import canonicalize_bootstrap_address_or_die

    resolved: str = canonicalize_bootstrap_address_or_die(address)
    host, port = parse_address(resolved) or ("", "0")
    socket.create_connection((host, int(port)), seconds).close()
    _check_token()
    GcsClient(address=resolved)
    return resolved


def _check_token() -> None:
    """Raises `AuthenticationError` without a token, where the next line would abort the process."""
    try:
        from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    except ImportError:  # a Ray without tokens
        return
    ensure_token_if_auth_enabled(create_token_if_missing=False)


def silence() -> None:
    """No log of a dead raylet or worker on the terminal, which `log_to_driver` does not end: what they mean flray says
    itself."""
    here = worker.global_worker
    listener, subscriber = here.listener_thread, here.gcs_error_subscriber  # both, before one of them ends
    here.threads_stopped.set()
    subscriber.close()
    listener.join()


def abandon() -> None:
    """In a process that was forked: leave the connection to its parent, whose sockets it shares.

    Nothing of it is ever freed here: a handle or a client that ends would speak, or close the parent's connection.
    """
    here = worker.global_worker
    owned = [getattr(here, name, None) for name in ("core_worker", "gcs_client")]
    owned += [getattr(state.state, "global_state_accessor", None), internal_kv.global_gcs_client]
    for one in owned:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one))
    here.set_is_connected(False)
    vars(here).pop("core_worker", None)
