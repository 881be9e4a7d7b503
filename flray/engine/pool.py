"""The Ray side of a run: connect or start, place the actors, send work, and repeat what a dead actor left undone."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from flray.core.errors import FlrayError, ResourceError
from flray.engine.cluster import ray
from flray.experiment import Experiment

LOST = (RayActorError, ActorUnavailableError, OutOfMemoryError, NodeDiedError, ObjectLostError, WorkerCrashedError)
ATTEMPTS = 4  # per piece of work
PATIENCE_S = 120.0  # how long an actor may take to come back
SERVER_BUNDLE = 1  # of a trial's placement group: bundle 0 is its driver's, those behind the server's one client actor's each

Piece = Callable[[Any], Sequence[Any]]  # actor -> (payload ref, report ref)


class ServerLostError(FlrayError):
    """The server actor died; the driver goes on from the last checkpoint."""


class Pool:
    """One server actor and N client actors. Reused by the next run of this process that asks for the same resources."""

    current: Pool | None = None

    def __init__(self, actors: int, client: dict[str, float], server: dict[str, float]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        from flray.engine.actors import ClientActor, ServerActor

        self.shape = (actors, client, server, _cluster_id())
        group = ray.util.get_current_placement_group()
        if group is None:
            here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)  # near the run folder
            places: list[Any] = ["SPREAD" if len(ray.nodes()) > 1 else "DEFAULT"] * actors
        else:  # a trial of a sweep
            here, *places = (PlacementGroupSchedulingStrategy(group, SERVER_BUNDLE + i) for i in range(1 + actors))
        remote_client = ray.remote(max_restarts=-1, max_task_retries=0, **client)(ClientActor)
        self.server = ray.remote(scheduling_strategy=here, **server)(ServerActor).remote()
        self.clients = [remote_client.options(scheduling_strategy=place).remote() for place in places]
        self.retries = 0
        self._setup: tuple[Any, ...] = ()

    @classmethod
    def acquire(cls, actors: int, client: dict[str, float], server: dict[str, float]) -> Pool:
        """The present pool if it has this shape and lives, else a new one."""
        if cls.current is not None and cls.current.shape == (actors, client, server, _cluster_id()):
            return cls.current
        if cls.current is not None and cls.current.shape[-1] == _cluster_id():
            cls.current.kill()
        cls.current = Pool(actors, client, server)
        return cls.current

    def kill(self) -> None:
        for actor in (self.server, *self.clients):
            ray.kill(actor)
        if Pool.current is self:
            Pool.current = None

    def setup(
        self, experiment: Experiment, held: np.ndarray | None, key: str, client_threads: int, server_threads: int, folder: str
    ) -> dict[str, Any]:
        """Make every actor ready; returns the server's facts. Raises the first error of an actor as it is."""
        from flray.engine.actors import Recipe

        shared = ray.put(Recipe.of(experiment, None if held is None else np.array(held)))
        self._setup = (shared, key, client_threads)
        self.retries = 0
        pending = [actor.setup.remote(*self._setup) for actor in self.clients]
        facts = self.call("setup", shared, folder, server_threads)
        for actor, ref in zip(list(self.clients), pending, strict=True):
            try:
                ray.get(ref)
            except LOST:
                self._revive(actor)
            except RayTaskError as error:
                raise cause(error) from None
        return facts  # type: ignore[no-any-return]

    # the server -------------------------------------------------------------------------------
    def call(self, method: str, *args: Any) -> Any:
        """The result of a server method. Raises `ServerLostError` when the actor is gone, or its own error."""
        return self.wait(self.start(method, *args))

    def start(self, method: str, *args: Any, returns: int = 1) -> Any:
        """A reference to the result (`returns` of them) of a server method; the server works its calls off in order."""
        return getattr(self.server, method).options(num_returns=returns).remote(*args)

    def wait(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except ObjectLostError:
            raise
        except LOST as error:
            raise _server_lost(error) from error
        except RayTaskError as error:
            raise cause(error) from None

    # the clients ------------------------------------------------------------------------------
    def execute(self, work: Sequence[Piece]) -> list[tuple[Any, Any]]:
        """Run every piece on some client actor; (payload ref, report) in order of `work`, whatever order they ended in.

        A piece whose actor died is repeated, on whichever actor is free: the bits are the same. An application error
        ends it: raises the client's own error. Raises `ResourceError` when a piece failed `ATTEMPTS` times.
        """
        todo = deque(range(len(work)))
        attempts = [0] * len(work)
        results: list[tuple[Any, Any] | None] = [None] * len(work)
        free = deque(self.clients)
        running: dict[Any, tuple[int, Any, Any]] = {}  # report ref -> (piece, payload ref, actor)
        while todo or running:
            while todo and free:
                piece, actor = todo.popleft(), free.popleft()
                payload, report = work[piece](actor)
                running[report] = (piece, payload, actor)
            (ready,), _ = ray.wait(list(running), num_returns=1)
            piece, payload, actor = running.pop(ready)
            try:
                results[piece] = (payload, ray.get(ready))
                free.append(actor)
            except LOST as error:
                if isinstance(error, RayTaskError):  # not this actor died, but the one that its input came from
                    raise error if isinstance(error, ObjectLostError) else _server_lost(error) from error
                attempts[piece] += 1
                self.retries += 1
                if attempts[piece] >= ATTEMPTS:
                    raise ResourceError(
                        f"a client actor died {ATTEMPTS} times at the same work ({type(error).__name__}: {str(error).splitlines()[0]}); "
                        "if memory ran out, lower resources.client_actors or algorithm.batch_size, then run: flray resume"
                    ) from error
                todo.appendleft(piece)
                if self._revive(actor, wait=not running and not free):
                    free.append(actor)
                elif not running and not free:
                    raise ResourceError(
                        "no client actor is left and none came back; check the cluster with `ray status`, then run: flray resume"
                    ) from error
            except RayTaskError as error:
                for ref in running:
                    ray.cancel(ref, force=False)
                raise cause(error) from None
        return results  # type: ignore[return-value]

    def _revive(self, actor: Any, wait: bool = True) -> bool:
        """Wait until Ray has restarted an actor and set it up; an actor that does not come back is left out (False)."""
        deadline = time.monotonic() + (PATIENCE_S if wait else PATIENCE_S / 4)
        while time.monotonic() < deadline:
            try:
                ray.get(actor.setup.remote(*self._setup), timeout=max(deadline - time.monotonic(), 0.1))
                return True
            except GetTimeoutError:
                break
            except LOST:
                time.sleep(0.2)  # Ray refuses calls while the actor restarts
            except RayTaskError as error:
                raise cause(error) from None
        self.clients = [a for a in self.clients if a is not actor]
        return False


def reserved() -> int | None:
    """Client actors that this process's placement group has bundles for: in a trial of a sweep. None: there is no such group."""
    group = ray.util.get_current_placement_group()
    return None if group is None else len(group.bundle_specs) - SERVER_BUNDLE - 1


def _server_lost(error: Exception) -> ServerLostError:
    return ServerLostError(f"the server actor died ({type(error).__name__}: {str(error).strip().splitlines()[0]})")


def _cluster_id() -> str:
    """Changes when this process connects again: actors of another connection are gone."""
    return str(ray.get_runtime_context().get_job_id()) + str(ray.get_runtime_context().get_node_id())


def cause(error: RayTaskError) -> BaseException:
    """The application's own error behind Ray's wrapper."""
    inner = getattr(error, "cause", None)
    return inner if isinstance(inner, BaseException) else error
