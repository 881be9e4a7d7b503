"""Which run of this process has which actors: one run owns one pool, from :func:`lease` to :func:`give_back`.

A pool that is given back stays for the next run with the same resources where flray started Ray, or in a block of
:func:`actors_stay`. A Ray that others share gets its CPUs back at once.

Two runs at the same time (threads, iterators in turn, a run within another's loop) have two pools. Where the cluster
has no CPUs for the second one, it waits for a run of another thread that goes on; it never waits for one that only its
own thread could continue.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from flray.core.schema.errors import ResourceError
from flray.engine.ray import alive, cluster
from flray.engine.ray.capacity import num_client_actors, shares
from flray.engine.ray.cluster import ray
from flray.engine.ray.placement import Bundles, free_bundles, num_client_bundles, user_group
from flray.engine.ray.pool import PATIENCE_S, POLL_S, ActorPool
from flray.log import LOGGER

INSTEAD = "or run it without Ray: resources.executor=local"

_idle: ActorPool | None = None  # waits for the next run
_keeping = 0  # blocks of `actors_stay` that this process is in


class Wanted(NamedTuple):
    """What a run asks for: at most so many client `actors` (`auto`: as many as fit) for its largest `cohort`, and the
    shares of one and of the server. `name` stands in the actors' names; messages say `run`, the run's folder.
    `sources`: the fingerprints of the modules that the actors import."""

    name: str
    run: str
    actors: int | str
    cohort: int
    client: dict[str, float]
    server: dict[str, float]
    sources: Mapping[str, str]


def lease(wanted: Wanted) -> ActorPool:
    """A pool for one run alone.

    Raises `ResourceError` if it does not fit the cluster, or if a run that cannot go on meanwhile holds it.
    """
    bundles = free_bundles(wanted.client)
    began, said = time.monotonic(), False
    while True:
        with cluster.lock:
            actors = _num_actors(wanted, bundles, others())
            if actors:
                return _take(wanted, actors, bundles)
            waited_for = _refuse_hopeless(wanted, began)
        if not said:
            names = _names(waited_for)
            LOGGER.info(f"{wanted.run}: waiting for {names} of this process, whose actors hold the CPUs or GPUs")
            said = True
        time.sleep(POLL_S)
        alive.check()


def others() -> list[ActorPool]:
    """The pools of runs of this process that have begun and not ended."""
    cluster.borrowers[:] = [pool for pool in cluster.borrowers if pool.connected()]
    return list(cluster.borrowers)


def newest() -> ActorPool | None:
    """The pool of the run that began last, else the idle one."""
    return others()[-1] if others() else _idle


def register(pool: ActorPool) -> None:
    """Count a pool that was not made by :func:`lease`."""
    cluster.borrowers.append(pool)


def give_back(pool: ActorPool, *, busy: bool = False) -> None:
    """The run of this pool has ended; nothing to do the second time. `busy`: its actors may still work: they end."""
    global _idle
    with cluster.lock:
        if pool not in cluster.borrowers:
            return
        cluster.borrowers.remove(pool)
        if busy or not pool.reusable or not (_keeping or cluster.started()):
            pool.kill()
        else:
            if _idle is not None:
                _idle.kill()
            _idle = pool
        cluster.left()


def end(pool: ActorPool) -> None:
    """End the actors of a pool, whoever has it."""
    with cluster.lock:
        if pool in cluster.borrowers:
            cluster.borrowers.remove(pool)
        if pool is _idle:
            _drop_idle()
        else:
            pool.kill()
        cluster.left()


def alone(what: str) -> None:
    """End the idle actors, so that `what` has the cluster. Raises `ResourceError` while a run of this process is not
    finished: its actors would hold their CPUs meanwhile."""
    with cluster.lock:
        if running := others():
            raise ResourceError(
                f"{what}: {_names(running)} of this process is not finished; let it end or close its iterator first"
            )
        _drop_idle()


@contextlib.contextmanager
def actors_stay() -> Iterator[None]:
    """Within this block the actors of a run stay for the next one, also in a Ray that flray did not start."""
    keep(True)
    try:
        yield
    finally:
        keep(False)


def keep(wanted: bool) -> None:
    """Enter (True) or leave (False) a block of :func:`actors_stay`; who leaves the last one ends the idle actors."""
    global _keeping
    _keeping += 1 if wanted else -1
    if not (_keeping or cluster.started()):
        with cluster.lock:
            _drop_idle()


def close() -> None:
    """End the idle actors, and the Ray that flray has started. Raises `ResourceError` while a run is not finished."""
    with cluster.lock:
        alone("close")
        cluster.close()


def _drop_idle() -> None:
    global _idle
    if _idle is not None:
        _idle.kill()
    _idle = None


# how many, and who is in the way -------------------------------------------------------------------
def _num_actors(wanted: Wanted, bundles: Bundles | None, pools: Sequence[ActorPool]) -> int:
    """The number of client actors that fit beside these pools; 0: none. Raises `ResourceError` if the cluster can never
    hold them."""
    if (places := num_client_bundles()) is not None:
        return 0 if pools else min(places, wanted.cohort)
    if bundles is not None:
        asked = wanted.cohort if wanted.actors == "auto" else min(int(wanted.actors), wanted.cohort)
        return min(asked, bundles.clients)
    taken = [*(share for pool in pools for share in pool.shares()), *own_shares()]
    return num_client_actors(wanted.actors, wanted.client, wanted.server, wanted.cohort, taken)


def own_shares() -> list[dict[str, float]]:
    """What this process itself keeps from its run: its own share where it is an actor, and its placement group.

    A Ray task gives its CPUs away while it waits; an actor does not.
    """
    group = user_group()
    if group is not None:
        shares = list(group.bundle_specs)
    elif ray.get_runtime_context().get_actor_id() is not None and num_client_bundles() is None:
        shares = [ray.get_runtime_context().get_assigned_resources()]
    else:
        shares = []
    return [{"num_cpus": share.get("CPU", 0.0), "num_gpus": share.get("GPU", 0.0)} for share in shares]


def _refuse_hopeless(wanted: Wanted, began: float) -> list[ActorPool]:
    """The pools of other threads for whose end the run can wait. Raises `ResourceError` if there is no hope in it."""
    here, now = threading.get_ident(), time.monotonic()
    stuck = [pool for pool in others() if pool.thread == here]
    if not _num_actors(wanted, None, stuck):
        own = sum(share["num_cpus"] for share in own_shares())
        if stuck:
            raise ResourceError(
                f"{wanted.run}: no client actor fits beside {_names(stuck)} of this process, which is not finished and "
                f"holds the CPUs or GPUs; let it end or close its iterator first, start it with fewer "
                f"resources.client_actors, {INSTEAD}"
            )
        raise ResourceError(
            f"{wanted.run}: no client actor fits: each needs {shares(wanted.client)}, and the actor or trial that "
            f"starts this run holds {own:g} of the cluster's CPUs itself, also while it waits; give it fewer or the "
            f"cluster more, {INSTEAD}"
        )
    waited_for = [pool for pool in others() if pool.thread != here]
    if all(now - max(pool.moved, began) > PATIENCE_S for pool in waited_for):
        raise ResourceError(
            f"{wanted.run}: {_names(waited_for)} of this process holds the CPUs or GPUs and did not go on for "
            f"{PATIENCE_S:.0f} s; let it end or close its iterator first, {INSTEAD}"
        )
    return waited_for


def _names(pools: Sequence[ActorPool]) -> str:
    return "run " + " and ".join(dict.fromkeys(pool.run for pool in pools))


def _take(wanted: Wanted, actors: int, bundles: Bundles | None) -> ActorPool:
    """The idle pool, with so many client actors, if its actors have this share of this cluster and no other code of
    these modules, else a new one."""
    global _idle
    pool, _idle = _idle, None
    group = None if bundles is None else bundles.group
    share = wanted.client, wanted.server
    fits = pool is not None and pool.fits(*share, group) and pool.has_sources(wanted.sources)
    if pool is not None and fits and (pool.num_clients == actors or not _in_bundles(pool)):
        pool.resize(wanted.name, actors)
    else:
        if pool is not None:
            pool.kill()
        pool = ActorPool(wanted.name, actors, *share, group)
    pool.sources |= wanted.sources
    pool.begin(wanted.run)
    cluster.watch()  # the end of another run, for which this one waited, may have ended the watch
    cluster.borrowers.append(pool)
    return pool


def _in_bundles(pool: ActorPool) -> bool:
    """A placement group has one bundle for each actor, and which of them a resize would free is not known."""
    return pool.group is not None or num_client_bundles() is not None


def _after_fork() -> None:
    """A forked process has none of its parent's actors, and ends none of them."""
    global _idle, _keeping
    cluster.leave_to_parent(_idle)
    _idle, _keeping = None, 0


os.register_at_fork(after_in_child=_after_fork)
