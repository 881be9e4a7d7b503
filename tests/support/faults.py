"""Actors that die in the middle of their work."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from unittest.mock import patch

import ray

from flray.engine.ray.actors import ServerActor
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.pool import ActorPool
from flray.engine.server import Server
from flray.engine.simulation import Simulation


@contextmanager
def _first_work_in_round(round: int, does: Callable[..., Any]) -> Iterator[list[int]]:
    """`does(work, actor, setup, pids)` in place of `work(actor)`, once: for the first client actor that gets work in a
    round (from 0)."""
    original, pids = CallsExecutor._work, []

    def sent(self: CallsExecutor, job: Any, exchange: Any, broadcast: Any, actor: Any, *rest: Any) -> Any:
        def work(actor: Any) -> Any:
            return original(self, job, exchange, broadcast, actor, *rest)

        if job[0].clock.round != round or pids:
            return work(actor)
        return does(work, actor, self.pool._setup, pids)

    with patch.object(CallsExecutor, "_work", sent):
        yield pids


def _killed(work: Any, actor: Any, setup: Any, pids: list[int]) -> Any:
    """SIGKILL for an actor that has accepted the work and never ends it."""
    pid = ray.get(actor.setup.remote(*setup))["pid"]
    os.kill(pid, signal.SIGSTOP)
    refs = work(actor)
    pids.append(pid)
    os.kill(pid, signal.SIGKILL)
    return refs


def _lost(work: Any, actor: Any, setup: Any, pids: list[int]) -> Any:
    """The actor does the work, and then stands there as one that Ray has started again: what it delivered is gone,
    nobody has set it up. A restart without the seconds that it takes."""
    ray.get(work(actor)[1])
    pids.append(ray.get(actor.__ray_call__.remote(_forget)))
    return work(actor)


def _forget(actor: Any) -> int:
    actor._client, actor._key = None, ""
    return os.getpid()


client_killed_in_round = partial(_first_work_in_round, does=_killed)
client_lost_in_round = partial(_first_work_in_round, does=_lost)


@contextmanager
def combiner_killed() -> Iterator[list[int]]:
    """SIGKILL for the first client actor that is asked to combine sums; it has accepted the call and never ends it."""
    original, killed = ActorPool.execute, []

    def execute(self: ActorPool, work: Any, nodes: Any = None, **options: Any) -> Any:
        def killing(call: Any) -> Any:
            return lambda actor: call(actor) if killed else _killed(call, actor, self._setup, killed)

        return original(self, work if nodes is None else [killing(call) for call in work], nodes, **options)

    with patch.object(ActorPool, "execute", execute):
        yield killed


@contextmanager
def server_killed_at(method: str, call: int) -> Iterator[list[str]]:
    """The server actor's process is gone when one of its methods is called for the `call`-th time (from 0), once."""
    original, calls, killed = ActorPool.start, [], []

    def start(self: ActorPool, called: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        name = (
            arguments[0].__name__ if called in (ServerActor.call, ServerActor.call_with_warnings) else called.__name__
        )
        if name == method:
            calls.append(method)
        if name == method and len(calls) == call + 1 and not killed:
            killed.append(method)
            ray.kill(self.server)
            with suppress(ray.exceptions.RayActorError):
                while True:  # until the kill has arrived
                    ray.get(original(self, ServerActor.call, Server.states, ([],), {}))
        return original(self, called, *arguments, **options)

    with patch.object(ActorPool, "start", start):
        yield killed


@contextmanager
def interrupted(
    where: str, round: int, error: type[BaseException] = KeyboardInterrupt, task: int = 0
) -> Iterator[None]:
    """Ctrl-C (or an error) in round `round` (from 0): `before` it, or in its `evaluate` half, when the state has
    already moved on."""
    name = {"before": "_round", "evaluate": "_test"}[where]
    original = getattr(Simulation, name)

    def raising(self: Simulation, *arguments: Any) -> Any:
        clock = arguments[1]
        if (clock.phase, clock.task, clock.round) == ("round", task, round):
            raise error("stopped by the test")
        return original(self, *arguments)

    with patch.object(Simulation, name, raising):
        yield
