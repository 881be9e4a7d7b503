"""This process's connection to Ray and its node, by Ray's public API."""

from __future__ import annotations

from pathlib import Path

import ray


def connection_id() -> str:
    """Changes when this process connects again: actors of another connection are gone."""
    context = ray.get_runtime_context()
    return f"{context.get_job_id()}{context.get_node_id()}"


def raylet_socket() -> Path | None:
    """The socket of this node's raylet, in the folder of Ray's session; None where Ray does not say."""
    here = ray.get_runtime_context().get_node_id()
    names = [str(node.get("RayletSocketName") or "") for node in ray.nodes() if node["NodeID"] == here]
    return Path(names[0]) if names and names[0].startswith("/") else None
