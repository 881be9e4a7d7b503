"""Where the actors of a run go: on the cluster's nodes, or in the bundles of a placement group.

The bundles of a trial belong to a sweep only where the sweep says so (:func:`trial_of_sweep`). A placement group that
somebody else put this process in (a user's own Tune trial, a worker of Ray Train) is one with room in it, or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from flray.engine.ray.capacity import times
from flray.engine.ray.cluster import ray

SERVER_BUNDLE = 1  # of a trial's placement group: bundle 0 is its driver's, those behind the server's one client's each
ROOM_S = 10.0  # how long a bundle may take to become free, after a run before this one has ended
POLL_S = 0.2
UNITS = {"num_cpus": "CPU", "num_gpus": "GPU"}  # Ray's options and the names of its resources

_in_trial = ContextVar("a trial of a sweep", default=False)


class Bundles(NamedTuple):
    """Room for `clients` client actors in a placement group (Ray's own object) that is not a sweep's."""

    group: Any
    clients: int


@contextmanager
def trial_of_sweep() -> Iterator[None]:
    """A block in which runs are those of a trial of a sweep of flray: the placement group is the trial's own."""
    token = _in_trial.set(True)
    try:
        yield
    finally:
        _in_trial.reset(token)


def num_client_bundles() -> int | None:
    """The number of client actors' bundles in a trial of a sweep; None: this process is no such trial."""
    trial = _trials_group()
    return None if trial is None else len(trial.bundle_specs) - SERVER_BUNDLE - 1


def _trials_group() -> Any:
    """The placement group of this trial of a sweep; None: the process is in none."""
    return ray.util.get_current_placement_group() if _in_trial.get() else None


def user_group() -> Any:
    """The placement group in which this process puts what it starts, where that is not a sweep's; None: there is
    none."""
    captures = ray.get_runtime_context().should_capture_child_tasks_in_placement_group
    return ray.util.get_current_placement_group() if captures and _trials_group() is None else None


def free_bundles(client: Mapping[str, float]) -> Bundles | None:
    """The room for client actors in the group of :func:`user_group`; None: no group, or all of it is taken."""
    group = user_group()
    need = {UNITS[name]: value for name, value in client.items() if value}
    if group is None or not need:
        return None
    until = time.monotonic() + ROOM_S
    while True:
        free = ray.available_resources()
        taken = [
            {name: free.get(f"{name}_group_{place}_{group.id.hex()}", 0.0) for name in need}
            for place in range(len(group.bundle_specs))
        ]
        clients = _fitting(taken, need)
        # the processes of a run before this one may need a moment to end; this process's own share stays taken
        spare = _fitting(group.bundle_specs, need) > _fitting(
            [ray.get_runtime_context().get_assigned_resources()], need
        )
        if clients or not spare or time.monotonic() > until:
            return Bundles(group, clients) if clients else None
        time.sleep(POLL_S)


def _fitting(bundles: list[dict[str, float]], need: Mapping[str, float]) -> int:
    return sum(
        min(times(bundle.get(name, 0.0), value, name == "GPU") for name, value in need.items()) for bundle in bundles
    )


def scheduling_strategies(actors: int, server: Mapping[str, float], group: Any = None) -> list[Any]:
    """Scheduling strategies: the server's, then one for each client actor.

    The server is on the driver's node, where the run folder is. A server with CPUs or GPUs goes to another node if that
    one has too few. `group`: the placement group that takes the client actors, of :func:`free_bundles`.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    if (trial := _trials_group()) is not None:
        return [PlacementGroupSchedulingStrategy(trial, SERVER_BUNDLE + i) for i in range(1 + actors)]
    # without resources Ray would put a soft one on any node
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=any(server.values()))
    if group is not None:
        return [here, *[PlacementGroupSchedulingStrategy(group)] * actors]
    return [here, *["SPREAD" if len(ray.nodes()) > 1 else "DEFAULT"] * actors]
