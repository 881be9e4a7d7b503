"""This process: its connection to Ray, its node, and the file that holds its output."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import ray


def connection_id() -> str:
    """Changes when this process connects again: actors of another connection are gone."""
    context = ray.get_runtime_context()
    return f"{context.get_job_id()}{context.get_node_id()}"


def this_node() -> str:
    """Ray's id of this process's node; "": the process is not connected, and a question to Ray would start one."""
    return "" if not ray.is_initialized() else str(ray.get_runtime_context().get_node_id())


def raylet_socket() -> Path | None:
    """The socket of this node's raylet, in the folder of Ray's session; None where Ray does not say."""
    names = [str(node.get("RayletSocketName") or "") for node in ray.nodes() if node["NodeID"] == this_node()]
    return Path(names[0]) if names and names[0].startswith("/") else None


def this_process() -> dict[str, Any]:
    """`pid`, `node` (its address) and `log` of this process; `log` is None where its output is no file.

    Ray sends a worker's standard output to a file of the session, and its standard error to one beside it.
    """
    log = None
    with contextlib.suppress(OSError):  # no /proc
        path = os.readlink("/proc/self/fd/1")
        log = path if path.startswith("/") and not path.startswith("/dev/") else None
    return {"pid": os.getpid(), "node": ray.util.get_node_ip_address(), "log": log}
