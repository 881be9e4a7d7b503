"""The executor by a compiled Ray graph: an exchange is one execution, whose messages go from actor to actor.

One generic graph for a set of actors: server (broadcast) -> clients (work) -> server (finish, plan ahead) -> clients
(test, if one is due) -> server (answer). Exchange, chunks, states and test are data. What does not fit goes by ordinary
calls, and so does what a failure left undone: the bits are the same.
"""

from __future__ import annotations

import logging
import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Concatenate

from ray.dag import InputNode
from ray.exceptions import RayChannelError, RayChannelTimeoutError, RayTaskError

from flray.config.experiment import Experiment
from flray.core.messages import to_numpy
from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.engine.client import Chunk
from flray.engine.cohort import Turn
from flray.engine.counts import TestCounts
from flray.engine.ray import Actor, alive
from flray.engine.ray.actors import ServerActor
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.cluster import ray
from flray.engine.ray.nodes import ExchangeOrder, ExchangeResult, ServerCall
from flray.engine.ray.pool import LOST, ActorPool, cause
from flray.engine.ray.private.channel import LOOK_S, ChannelType, as_driver_proxy
from flray.engine.rounds import P, TurnResult
from flray.engine.server import ExchangePlan, Server

BROADCAST_MODELS = 3  # models that a channel has room for: a broadcast, or states
DELIVERY_MODELS = 12  # the same for a run's partial sums, 2 log2 of its clients
MAX_MODEL_BYTES = 2**24  # of one channel's models; what is larger goes through the object store
EXTRA_BYTES = 2**17  # of a channel beside its models
SUBMIT_S = 300.0  # until the actors have read what is sent to them; Ray's 10 s are little for processes that just began

# it tells of every dead actor with a traceback; the pool has a line for it
logging.getLogger("ray.dag.compiled_dag_node").setLevel(logging.CRITICAL)


class CompiledGraph:
    """The graph of a server actor and its client actors; they work in it until it is closed."""

    def __init__(self, server: Actor, clients: Sequence[Actor], model_bytes: int) -> None:
        """Takes about 0.1 s. Raises one of `LOST` when an actor is gone."""
        self.actors, self.model_bytes, parts = (server, *clients), model_bytes, len(clients)
        name, broadcast_bytes = uuid.uuid4().hex, min(BROADCAST_MODELS * model_bytes, MAX_MODEL_BYTES)
        small, large = ChannelType(EXTRA_BYTES, name), ChannelType(EXTRA_BYTES + broadcast_bytes, name)
        sums = ChannelType(EXTRA_BYTES + min(DELIVERY_MODELS * model_bytes, MAX_MODEL_BYTES), name)

        def typed(node: Any, channel_type: ChannelType) -> Any:
            node.type_hint = channel_type
            return node

        with InputNode() as inputs:
            orders = [typed(inputs[i], small) for i in range(1 + parts)]
            broadcast, *states = server.graph_broadcast.options(num_returns=1 + parts).bind(orders[0])
            typed(broadcast.class_method_call, large)
            runs = zip(clients, orders[1:], states, strict=True)
            work = [typed(client.graph_work.bind(order, broadcast, state), sums) for client, order, state in runs]
            published = typed(server.graph_finish.bind(orders[0], *work), large)
            tests = [typed(client.graph_test.bind(published, i, parts), small) for i, client in enumerate(clients)]
            result = typed(server.graph_result.bind(*tests), small)
        with as_driver_proxy(server):
            self._graph = result.experimental_compile(_submit_timeout=SUBMIT_S, _max_inflight_executions=1)

    def execute(self, order: ExchangeOrder, chunks: Sequence[tuple[Chunk, Exchange] | None]) -> ExchangeResult:
        """The result of the order; `chunks`: one for each client actor, None for those without work.

        Raises `RayTaskError` with an actor's own error, `ResourceError` when a process of Ray has died; after anything
        else the graph is broken.
        """
        alive.check()  # actors and channels outlive a raylet by some seconds: no execution would fail
        ref = self._graph.execute(order, *chunks)
        while True:
            try:
                # any other timeout may be over when the answer has been read, and Ray then drops it
                return ray.cloudpickle.loads(ref.get(timeout=0))  # type: ignore[no-any-return]
            except RayChannelTimeoutError:
                alive.check()
                ref._ray_get_called = False  # a reference may be asked once; nothing was read
                self._graph.dag_output_channels[0].wait(LOOK_S)

    def serves(self, pool: ActorPool, model_bytes: int) -> bool:
        """Whether it is intact, of these actors and for a model of this size."""
        same = self.actors == (pool.server, *pool.clients) and self.model_bytes == model_bytes
        return same and not self._graph.is_teardown

    def close(self) -> None:
        """Wait until every actor has left the graph: one that works ends its work first."""
        self._graph.teardown()


class GraphExecutor(CallsExecutor):
    """An executor (`rounds.Executor`): exchanges in parallel by the graph of the pool's actors, the rest by calls."""

    def __init__(self, pool: ActorPool, experiment: Experiment, facts: dict[str, Any]) -> None:
        super().__init__(pool, experiment, facts)
        self._first: list[ServerCall] = []  # calls that go with the next execution
        self._counts: tuple[Clock, TestCounts] | None = None

    def plan(self, clock: Clock) -> ExchangePlan | None:
        self.pool.welcome()  # before the cohort is cut into runs
        return super().plan(clock)

    def run(self, plan: ExchangePlan, turn: Turn, ahead: Sequence[Clock]) -> TurnResult:
        self._counts = None
        graph = self._graph(plan, turn)
        result = self._execute(graph, plan, turn, ahead) if graph is not None else None
        if result is None:
            if self._plans.get(plan.clock, (None,))[0] is None:  # the server planned it for itself
                self.broadcast(plan.clock, plan.exchange)
            return super().run(plan, turn, ahead)
        self._plans = {clock: (None, plan_ahead) for clock, plan_ahead in zip(ahead, result.plans, strict=False)}
        if result.counts is not None:
            self._counts = (turn.clock.transaction, result.counts)
        return TurnResult(result.rows, result.metrics, result.server_s)

    def _graph(self, plan: ExchangePlan, turn: Turn) -> CompiledGraph | None:
        """The graph for this exchange, of the actors that are there; None: it goes by calls, as does what has shared
        parts, which travel by reference, and work of the server alone."""
        pool, model_bytes = self.pool, 4 * (self.facts["parameters"] + self.facts["buffers"])
        if plan.exchange.order == "sequential" or plan.shared or not 0 < len(turn.chunks) <= len(pool.clients):
            return None
        if pool.graph is None or not pool.graph.serves(pool, model_bytes):
            pool.close_graph()
            try:
                pool.graph = CompiledGraph(pool.server, pool.clients, model_bytes)
            except LOST:
                return None
        return pool.graph

    def _execute(
        self, graph: CompiledGraph, plan: ExchangePlan, turn: Turn, ahead: Sequence[Clock]
    ) -> ExchangeResult | None:
        """None: an actor died before the exchange was finished. Raises an actor's own error."""
        from flray.engine.ray.actors import FreshActorError

        chunks, actors = turn.chunks, len(self.pool.clients)
        stateful = [chunk.clients if self.facts["stateful"] else [] for chunk in chunks]
        order = ExchangeOrder(
            plan,
            to_numpy(turn.cohort),
            [*stateful, *[[]] * (actors - len(chunks))],
            ahead,
            turn.clock.transaction if self._is_due(turn.clock) else None,
            self._first,
        )
        try:
            result = graph.execute(
                order, [*((chunk, plan.exchange) for chunk in chunks), *[None] * (actors - len(chunks))]
            )
            self._first = []
            return result
        except RayTaskError as error:
            self.pool.close_graph()
            reason = cause(error)
            if not isinstance(reason, FreshActorError):
                raise reason from None
        except Exception as error:
            alive.check()
            self.pool.close_graph()
            if not isinstance(error, (*LOST, RayChannelError)):  # no actor's death, which the pool tells of
                what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                warnings.warn(f"the graph of actors broke ({what}); the exchange is repeated by calls", stacklevel=2)
            self.pool.lost_clients()
        except BaseException:  # Ctrl-C: nobody waits for work that will not count
            self.pool.restart_clients()
            self.pool.close_graph()
            raise
        self.pool.retries += 1
        stored_result: ExchangeResult | None = self.pool.wait(self._start(ServerActor.exchange_result, turn.clock))
        return stored_result

    def test(self, clock: Clock) -> TestCounts:
        counts, self._counts = self._counts, None
        return counts[1] if counts is not None and counts[0] == clock else super().test(clock)

    def start(self, method: Callable[Concatenate[Server, P], Any], *args: P.args, **options: P.kwargs) -> None:
        """The call goes with the next execution, and is repeated where that fails."""
        self._first.append(ServerCall(method, args, options))

    def _start(self, method: Callable[..., Any], *args: Any, returns: int = 1, **options: Any) -> Any:
        first, self._first = self._first, []
        for call in first:  # the server carries out its calls in order
            super()._start(ServerActor.call, call.method, *call.args, **call.options)
        return super()._start(method, *args, returns=returns, **options)
