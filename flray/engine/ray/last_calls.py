"""The calls in which actors ended (`core.last_call`): each writes into a file of its node's session folder, named
by its Ray id, which stays the same when Ray starts the actor again."""

from __future__ import annotations

import contextlib
from pathlib import Path

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flray.core.protocol import last_call
from flray.core.schema.errors import LastCall
from flray.engine.ray import Actor
from flray.engine.ray.this_node import raylet_socket

ANSWER_S = 5.0  # that other nodes have to answer


def record() -> None:
    """From now on this actor's process records the method that it is in, if it can write to the session folder."""
    folder, name = _folder(), ray.get_runtime_context().get_actor_id()
    if folder is not None and name is not None:
        with contextlib.suppress(OSError):
            last_call.record(folder / name)


def of(actor: Actor) -> LastCall | None:
    """The call in which the actor's process ended; None: it is alive, was in no call, or its node does not answer."""
    from flray.engine.ray.private.actor import actor_id

    name = actor_id(actor)
    if name is None:
        return None
    call = _read(name)
    here = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    if call is not None or not others:
        return call
    read = ray.remote(num_cpus=0, max_retries=0)(_read)
    strategies = [NodeAffinitySchedulingStrategy(node, soft=False) for node in others]
    refs = [read.options(scheduling_strategy=place).remote(name) for place in strategies]
    answers, late = ray.wait(refs, num_returns=len(refs), timeout=ANSWER_S)
    for ref in late:
        ray.cancel(ref)
    for ref in answers:
        with contextlib.suppress(Exception):  # a node that is going away
            call = ray.get(ref) or call
    return call


def _read(name: str) -> LastCall | None:
    folder = _folder()
    return None if folder is None else last_call.last_call(folder / name)


def _folder() -> Path | None:
    """In the session folder of this process's node, beside the raylet's socket; None: Ray does not say where."""
    path = raylet_socket()
    return None if path is None else path.parent / "flray_last_calls"
