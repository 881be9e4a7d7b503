"""The actors of a run: place them, send work, and repeat the work of a dead actor."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from flray.core.schema.errors import ResourceError, ServerLostError, headline, warn
from flray.engine.blame import LESS_MEMORY
from flray.engine.exchanges import Chunk
from flray.engine.ray import Actor, Ref, alive
from flray.engine.ray.actors import ClientActor, Recipe, ServerActor
from flray.engine.ray.cluster import ray
from flray.engine.ray.placement import scheduling_strategies
from flray.engine.ray.this_node import connection_id
from flray.engine.runtime import check_equal_tensors
from flray.log import LOGGER

LOST = (RayActorError, ActorUnavailableError, OutOfMemoryError, NodeDiedError, ObjectLostError, WorkerCrashedError)
ATTEMPTS = 4  # per piece of work
PATIENCE_S = 300.0  # how long a run waits when it has no client actor at all
TOGETHER_S = 30.0  # how long the first client actors wait for the others; who comes later joins in
TELL_S = 30.0  # without an actor, before the run says for what it waits
CHECK_S = 1.0  # between two looks at Ray's own processes while actors work
POLL_S = 0.2  # between two calls to the actors that are away: Ray refuses calls while an actor restarts

NO_MEMORY = "memory ran out"
T = TypeVar("T")

ActorCall = Callable[[Any], Sequence[Any]]  # actor -> (payload: references, report ref)


class SentCall(NamedTuple):
    """A call that an actor has got: its payload, one reference or several, and the reference to its report."""

    actor: Actor
    payload: Any
    report: Ref
    life: int  # of the actor, which has another one after a restart


def _tell(waited: float, who: str) -> bool:
    """Says that a run has waited long (seconds) for an actor; returns whether it has."""
    if waited > TELL_S:
        LOGGER.info(f"waiting for {who} for {TELL_S:g} s: other work may hold the CPUs or GPUs (see `ray status`)")
    return waited > TELL_S


class ActorPool:
    """One server actor and N client actors, of one run at a time (`leases.py`)."""

    reusable = True  # by the next run

    def __init__(
        self,
        run: str,
        actors: int,
        client: dict[str, float],
        server: dict[str, float],
        group: Any = None,
        kind: type[ServerActor] = ServerActor,
        **options: Any,
    ) -> None:
        """`run` stands in the actors' names, `flray:RUN:client-3`, which `ray list actors` shows.

        A later run of this process that takes the pool over does not rename them: new processes cost seconds.
        `group`: the placement group of a user's own process that takes the client actors. `kind`: the server's class,
        and `options` of its actor.
        """
        self.resources, self.group = (client, server), group  # of one actor each
        self.sources: dict[str, str] = {}  # the fingerprints of the user's modules that its actors have imported
        self.begin(run)
        self.processes: list[dict[str, Any]] = []  # every one that was set up for the present run, with its actor
        self._remote_client = ray.remote(max_restarts=-1, max_task_retries=0, **client)(ClientActor)
        self._space = new_namespace()
        self._names: dict[Actor, str] = {}
        self._nodes: dict[Actor, str] = {}  # Ray's ids of those of client actors that were set up
        self._lives = Counter[Actor]()  # of client actors: how often they were taken out
        here, *places = scheduling_strategies(actors, server, group)
        remote_server = ray.remote(scheduling_strategy=here, **server, **options)(kind)
        self.server = remote_server.options(name=f"flray:{run}:server", namespace=self._space).remote()
        # those that are set up, those of a node side by side: neighbouring chunks go to one node
        self.clients: list[Actor] = []
        for place in places:
            self._add_client(run, place)
        self._away: dict[Any, Any] = {}  # the others -> their setup call, None: to be called again
        self._asked = self._seen = 0.0  # when they were, and when there was a client actor
        self._told = False  # that there has been none for long
        self.retries = 0
        # of memory: once a run; the kernel's count when it began
        self._warned, self._oom_kills = False, alive.oom_kills()
        self._setup: tuple[Any, ...] = ()

    _patience = 0.0  # see `patient`

    def begin(self, run: str) -> None:
        """These actors are the ones of this run from now on, which goes on in this thread."""
        self.run = run
        self.connection, self._process = connection_id(), os.getpid()
        self.thread, self.moved = threading.get_ident(), time.monotonic()

    def connected(self) -> bool:
        """Whether this process is still connected to the Ray of these actors, and that is alive."""
        return self._here() and not alive.lost(self.connection)

    def _here(self) -> bool:
        return os.getpid() == self._process and ray.is_initialized() and connection_id() == self.connection

    def fits(self, client: dict[str, float], server: dict[str, float], group: Any) -> bool:
        """Whether these actors can serve a run that asks for such shares, in this group."""
        return self.connected() and self.resources == (client, server) and self.group == group

    def has_sources(self, sources: Mapping[str, str]) -> bool:
        """Whether these actors have imported no other code of these modules: a process keeps what it has imported."""
        return all(self.sources.get(name, source) == source for name, source in sources.items())

    def shares(self) -> list[dict[str, float]]:
        client, server = self.resources
        return [server, *[client] * self.num_clients]

    def look(self) -> None:
        """Called again and again while the run waits: it goes on, in this thread.

        Raises `ResourceError` if a process of Ray has died, or this process is no longer connected to these actors.
        """
        alive.check(patience=self._patience)
        self.check_connection()
        self.thread, self.moved = threading.get_ident(), time.monotonic()

    def check_connection(self) -> None:
        """Raises `ResourceError` if this process is no longer connected to the Ray of these actors, dead or alive."""
        if not self._here():
            if os.getpid() == self._process:
                raise ResourceError(alive.LEFT)
            raise ResourceError(
                f"this process was forked from process {self._process}, whose actors it cannot use, continue with: "
                "flray resume"
            )

    @contextlib.contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """In this block the death of a process of Ray is an error after so many seconds: the actors answer until
        then."""
        self._patience = seconds
        try:
            yield
        finally:
            self._patience = 0.0

    def _add_client(self, run: str, place: Any) -> None:  # Any: Ray's strategies have no common type
        name = next(name for i in itertools.count() if (name := f"client-{i}") not in self._names.values())
        options = {"name": f"flray:{run}:{name}", "namespace": self._space, "scheduling_strategy": place}
        self.clients.append(self._remote_client.options(**options).remote())
        self._names[self.clients[-1]] = name

    @property
    def num_clients(self) -> int:
        """The number of client actors, those included that are away."""
        return len(self.clients) + len(self._away)

    def resize(self, run: str, actors: int) -> None:
        """End client actors that are more than these, or start those that are missing; the others keep their
        processes."""
        if self.num_clients == actors:
            return
        present = [*self.clients, *self._away]
        for actor in present[actors:]:
            ray.kill(actor)
            for known in (self._names, self._nodes, self._lives):
                known.pop(actor, None)
        self.clients, self._away = present[:actors], {}
        self._space = new_namespace()  # the names of those that end may be taken a little longer
        for place in scheduling_strategies(actors, self.resources[1], self.group)[1 + len(self.clients) :]:
            self._add_client(run, place)

    def kill(self) -> None:
        """End the actors, and free what this process has put into Ray's store for them."""
        if self.connected():
            for actor in (self.server, *self.clients, *self._away):
                ray.kill(actor)
        self._setup = ()

    def setup(
        self, recipe: Recipe, key: str, client_threads: int, server_threads: int, folder: str, lock: str
    ) -> dict[str, Any]:
        """Set every actor up; returns the server's facts. Raises an actor's own error."""
        shared = ray.put(recipe)
        self._setup = (shared, key, client_threads)
        self.retries, self._warned, self._oom_kills = 0, False, alive.oom_kills()
        self._away, self.clients, self._asked = dict.fromkeys((*self.clients, *self._away)), [], 0.0
        self.processes = []
        self._returned()
        ready = self.server.__ray_ready__.remote()
        set_up = self.start(ServerActor.setup, shared, folder, server_threads, lock)
        self._await_start(ready, "the server actor", "server")
        facts: dict[str, Any] = self.wait(set_up)
        self.processes.append({"actor": "server", **facts.pop("process")})
        self._tensors = facts["fixed_tensors"]
        started, self._told = time.monotonic(), False
        self._seen = started
        while self._away and not (self.clients and time.monotonic() - started > TOGETHER_S):
            self._rest()
        return facts

    def peak_gpu_memory(self, recipe: Recipe, key: str, threads: int, chunk: Chunk) -> tuple[int, int]:
        """See :meth:`ClientActor.peak_gpu_memory`, by the first client actor. Raises its own error, and `ResourceError`
        if it has no place or dies."""
        actor = self.clients[0]
        self._await_start(actor.__ray_ready__.remote(), "the client actor that measures a GPU", "client")
        ready, peak = actor.setup.remote(recipe, key, threads), actor.peak_gpu_memory.remote(chunk)
        while not ray.wait([peak], timeout=CHECK_S)[0]:
            self.look()
        try:
            ray.get(ready)  # its own error, and not that of an actor without a setup
            return cast(tuple[int, int], ray.get(peak))
        except RayTaskError as error:
            raise cause(error) from None
        except LOST as error:
            raise ResourceError(
                f"resources.client.num_gpus: auto: the client actor that measures a GPU died ({self._reason(error)}); "
                "write a number instead, for example 1"
            ) from error

    def _await_start(self, ready: Ref, who: str, key: str) -> None:
        """Wait until an actor has its place. Raises `ResourceError` if it has none for `PATIENCE_S`; what ends it as it
        starts, its first call says."""
        began, told = time.monotonic(), False
        while not ray.wait([ready], timeout=CHECK_S)[0]:
            self.look()
            waited = time.monotonic() - began
            told = told or _tell(waited, who)
            if waited > PATIENCE_S:
                raise ResourceError(
                    f"no place for {who} for {PATIENCE_S:.0f} s: other work holds the CPUs or GPUs (see `ray status`); "
                    f"lower resources.{key}, then run: flray resume"
                )

    # the server -------------------------------------------------------------------------------
    # arguments are Any here and in `start`: Ray sends them untyped; the executors check those of the server's methods
    def call(self, method: Callable[..., T], *args: Any) -> T:
        """The result of a server method. Raises `ServerLostError` if the actor died, or its own error."""
        return cast(T, self.wait(self.start(method, *args)))

    def start(self, method: Callable[..., Any], *args: Any, returns: int = 1, name: str = "") -> Any:
        """A reference to the result (`returns` of them) of a server method; the server works its calls off in order.

        `name`: of the call in Ray's dashboard, see :func:`call_name`; "": Ray's own. Raises as :meth:`look`: a call
        through a connection that the user has ended would start a new Ray.
        """
        self.look()
        return getattr(self.server, method.__name__).options(num_returns=returns, name=name).remote(*args)

    def wait(self, ref: Ref) -> Any:
        """The result of a reference. Raises as :meth:`call`, and `ResourceError` if a process of Ray died."""
        self.look()
        while not ray.wait([ref], timeout=CHECK_S)[0]:
            self.look()
        try:
            return ray.get(ref)
        except ObjectLostError:
            raise
        except LOST as error:
            raise self._server_lost(error) from error
        except RayTaskError as error:
            raise cause(error) from None

    def _server_lost(self, error: Exception) -> ServerLostError:
        return ServerLostError(f"the server actor died ({self._reason(error)})")

    # the clients ------------------------------------------------------------------------------
    def execute(
        self,
        work: Sequence[ActorCall],
        nodes: Sequence[str] | None = None,
        begun: Mapping[int, SentCall] | None = None,
        meanwhile: Callable[[], object] | None = None,
        where: Callable[[int], str] = lambda index: "",
    ) -> list[tuple[Any, Any]]:
        """Run every call on some client actor, if possible on its one of `nodes`; returns (payload, report) in order.

        The call of a dead actor is repeated on a free one, to the same bits. `begun`: calls that are already sent, by
        their place in `work`. `meanwhile` is called once, while the actors work. `where` gives a call's clients and
        moment in words. Raises the client's own error, and `ResourceError` if a call failed `ATTEMPTS` times.
        """
        sent = {index: call for index, call in (begun or {}).items() if self._has(call)}
        running = {call.report: (index, call) for index, call in sent.items()}
        queue = deque(index for index in range(len(work)) if index not in sent)
        busy = {call.actor for call in sent.values()}
        free = deque(actor for actor in self.clients if actor not in busy)
        attempts = [0] * len(work)
        results: dict[int, tuple[Any, Any]] = {}
        while queue or running:
            self.look()
            while queue and free:
                actor = self._chosen(free, nodes[queue[0]] if nodes else None)
                index = queue.popleft()
                call = self.send(work[index], actor)
                running[call.report] = (index, call)
            if self._away:
                free.extend(self._rest(list(running)))
            if not running:
                continue
            if meanwhile is not None:
                try:
                    meanwhile()
                except BaseException:
                    self.cancel(list(running))
                    raise
                meanwhile = None
            ready, _ = ray.wait(list(running), num_returns=1, timeout=0 if self._away else CHECK_S)
            for report in ready:
                index, (actor, payload, _, _) = running.pop(report)
                try:
                    results[index] = (payload, ray.get(report))
                    free.append(actor)
                except (*LOST, RayTaskError) as error:
                    attempts[index] += 1
                    self._repeat(error, actor, attempts[index], list(running), where(index))
                    queue.appendleft(index)
        return [results[index] for index in range(len(work))]

    def send(self, call: ActorCall, actor: Actor) -> SentCall:
        payload, report = call(actor)
        return SentCall(actor, payload, report, self._lives[actor])

    def cancel(self, calls: Iterable[Ref]) -> None:
        """Take calls back that their actors have not begun."""
        if self.connected():  # else this would start a new Ray
            for ref in calls:
                ray.cancel(ref, force=False)

    def _has(self, call: SentCall) -> bool:
        """Whether the actor of a call has not been restarted since: the call was lost with its process."""
        return call.actor in self.clients and call.life == self._lives[call.actor]

    def _repeat(self, error: Exception, actor: Actor, attempt: int, running: Sequence[Ref], where: str) -> None:
        """Take a dead actor out, so that its call is repeated; `running` are the calls of the others, `where` its
        own in words.

        Raises what :meth:`execute` raises if the call cannot be repeated.
        """
        from flray.engine.ray.actors import FreshActorError

        if isinstance(error, RayTaskError) and not isinstance(cause(error), FreshActorError):
            if isinstance(error, LOST):  # not this actor died, but the one that its input came from
                raise error if isinstance(error, ObjectLostError) else self._server_lost(error) from error
            self.cancel(running)
            raise cause(error) from None
        self.retries += 1
        reason = self._reason(error)
        if attempt >= ATTEMPTS:
            raise ResourceError(
                f"a client actor died {ATTEMPTS} times at the same work{where and f', {where}'} ({reason}); "
                f"{'' if NO_MEMORY in reason else 'if memory ran out, '}{LESS_MEMORY}, then run: flray resume"
            ) from error
        if NO_MEMORY in reason and not self._warned:
            self._warned = True
            warn(f"a client actor died ({reason}); its work is repeated; if it happens often, {LESS_MEMORY}")
        self.clients.remove(actor)
        self._lives[actor] += 1
        self._away[actor], self._seen = None, time.monotonic()

    def _chosen(self, free: deque[Actor], node: str | None) -> Actor:
        """The first of the free actors, taken out: the first on this node, if there is one."""
        actor = next((actor for actor in free if self._nodes[actor] == node), free[0])
        free.remove(actor)
        return actor

    def _reason(self, error: Exception) -> str:
        """The reason of an actor's death, in a few words. Raises `ResourceError` if a process of Ray died too."""
        # Ray itself ended it, or the actor answers: no process of Ray has died with it
        known = isinstance(error, OutOfMemoryError) or not isinstance(error, LOST)
        alive.check(0.0 if known else alive.NOTICE_S, self._patience)
        if isinstance(error, OutOfMemoryError):
            return f"{NO_MEMORY}: Ray ended it before the machine had none left"
        if alive.oom_kills() > self._oom_kills:
            return f"{NO_MEMORY}: the kernel ended processes for it"
        return headline(error)

    def _rest(self, running: Sequence[Any] = ()) -> list[Any]:
        """Wait for work or a setup, at most `POLL_S`; returns the actors that are set up again.

        Raises `ResourceError` if there was no client actor for `PATIENCE_S`.
        """
        self.look()
        waiting = [*running, *(call for call in self._away.values() if call is not None)]
        if waiting:
            ray.wait(waiting, num_returns=1, timeout=POLL_S)
        else:
            time.sleep(POLL_S)
        back = self._returned()
        now = time.monotonic()
        if self.clients:
            self._seen = now
        self._told = not self.clients and (self._told or _tell(now - self._seen, "a client actor"))
        if now - self._seen > PATIENCE_S:
            raise ResourceError(
                f"no client actor for {PATIENCE_S:.0f} s: other work holds the CPUs or GPUs (see `ray status`), or "
                "they die as they start; then run: flray resume"
            )
        return back

    def _returned(self) -> list[Any]:
        """The actors that have been set up since the last call; starts the setup of the others, without waiting.

        Ray restarts an actor of a lost node on another node, if that has free CPUs; until then the other actors do its
        work.
        """
        back, ask = [], time.monotonic() - self._asked > POLL_S
        for actor, call in list(self._away.items()):
            if call is None and ask:
                self._away[actor] = actor.setup.remote(*self._setup)
                self._asked = time.monotonic()
            elif call is not None and ray.wait([call], timeout=0)[0]:
                self._away[actor] = None
                try:
                    process = {"actor": self._names[actor], **ray.get(call)}
                    self._nodes[actor] = process.pop("node_id")
                    check_equal_tensors(self._tensors, process.pop("fixed_tensors"), str(process["actor"]))
                except LOST:
                    continue
                except RayTaskError as error:
                    raise cause(error) from None
                self._check_arithmetic(process)
                self.processes.append(process)
                del self._away[actor]
                self.clients.append(actor)
                self.clients.sort(key=lambda actor: (self._nodes[actor], *map(int, self._names[actor].split("-")[1:])))
                back.append(actor)
        return back

    def _check_arithmetic(self, process: Mapping[str, Any]) -> None:
        """Warns if an actor's results may have other bits than those of the first client actor."""
        first = next((known for known in self.processes if "arithmetic" in known), process)
        if first["arithmetic"] != process["arithmetic"]:
            warn(
                f"{process['actor']} on {process['node']} computes with {process['arithmetic']}, {first['actor']} on "
                f"{first['node']} with {first['arithmetic']}: the bits of the run depend on which of them trains a "
                "client; for the same bits again, give it nodes of one kind"
            )


def call_name(method: Callable[..., Any], task: str) -> str:
    """`ClientActor.work: round 17`: the call in Ray's dashboard, and the title of the process that carries it out.

    The class comes first, as in Ray's own titles, by which processes are found.
    """
    return f"{method.__qualname__}: {task}"


def new_namespace() -> str:
    """A namespace for one pool's actors: the names of an earlier pool may still be taken."""
    return f"flray-{uuid.uuid4().hex}"


def cause(error: RayTaskError) -> BaseException:
    """The application's own error behind Ray's wrapper."""
    inner = getattr(error, "cause", None)
    return inner if isinstance(inner, BaseException) else error
