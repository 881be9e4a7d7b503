"""Which process an actor runs in: its node, and the file that holds its output."""

from __future__ import annotations

import contextlib
import os
from typing import Any


def this_node() -> str:
    """Ray's id of the node of the process that asks."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def this_process() -> dict[str, Any]:
    """`pid`, `node` (its address) and `log` of the process that asks; `log` is None where its output is no file.

    Ray sends a worker's standard output to a file of the session, and its standard error to one beside it.
    """
    import ray

    log = None
    with contextlib.suppress(OSError):  # no /proc
        path = os.readlink("/proc/self/fd/1")
        log = path if path.startswith("/") and not path.startswith("/dev/") else None
    return {"pid": os.getpid(), "node": ray.util.get_node_ip_address(), "log": log}
