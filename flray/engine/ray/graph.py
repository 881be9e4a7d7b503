"""The executor by a compiled Ray graph: an exchange is one execution, whose messages go from actor to actor.

`private/compiled.py` has the graph. What does not fit goes by ordinary calls, and so does what a failure left undone,
and everything on a Ray whose graph does not work: the bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate

from ray.exceptions import RayChannelError, RayTaskError

from flray.config.experiment import Experiment
from flray.core.messages import to_numpy
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import ResourceError, ServerLostError, warn
from flray.engine.counts import TestCounts
from flray.engine.exchanges import ExchangePlan, Turn
from flray.engine.ray import alive, combiners
from flray.engine.ray.actors import ClientActor, ServerActor
from flray.engine.ray.calls import CallsExecutor
from flray.engine.ray.nodes import ActorGraph, ExchangeOrder, ExchangeResult, ServerCall
from flray.engine.ray.pool import LOST, ActorPool, cause
from flray.engine.ray.versions import fall_back
from flray.engine.rounds import P, TurnResult
from flray.engine.server import Server


class GraphExecutor(CallsExecutor):
    """An executor (`rounds.Executor`): exchanges in parallel by the graph of the pool's actors, the rest by calls."""

    works = True  # False: it was tried in this process, and this Ray's does not

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
        self._finished(plan, result.plans)
        if result.counts is not None:
            self._counts = (turn.clock.transaction, result.counts)
        return result.turn

    def _tell_next(self, plan: ExchangePlan) -> None:
        """Give each actor its chunk of the next round, which it prepares when it has nothing else to do."""
        if (following := self._next_turn(plan)) is not None and len(following.chunks) <= len(self.pool.clients):
            self._send_next(following, ClientActor.graph_next)

    def _may_begin(self, *_: Any) -> bool:
        """They may not: the next round may go by the graph."""
        return False

    def _graph(self, plan: ExchangePlan, turn: Turn) -> ActorGraph | None:
        """The graph for this exchange, of the actors that are there; None: it goes by calls, as does what has shared
        parts, which travel by reference, what combiners are worth it for, and work of the server alone."""
        pool, model_bytes = self.pool, 4 * (self.facts["parameters"] + self.facts["buffers"])
        if (
            not GraphExecutor.works
            or plan.exchange.order == "sequential"
            or plan.shared
            or not 0 < len(turn.chunks) <= len(pool.clients)
            or combiners.worth_it(turn.chunks, model_bytes)
        ):
            return None
        if pool.graph is None or not pool.graph.serves((pool.server, *pool.clients), model_bytes):
            pool.close_graph()
            pool.graph = self._compiled(model_bytes)
        return pool.graph

    def _compiled(self, model_bytes: int) -> ActorGraph | None:
        """A graph that has carried out one execution; None: an actor died, or this Ray's graph does not work."""
        try:
            from flray.engine.ray.private.compiled import CompiledGraph

            return CompiledGraph(self.pool, model_bytes)
        except (*LOST, RayChannelError):
            return None
        except (ResourceError, ServerLostError):
            raise
        except Exception as error:
            alive.check(alive.NOTICE_S)
            GraphExecutor.works = False
            fall_back("graph", "using calls, same bits", error)
        return None

    def _execute(
        self, graph: ActorGraph, plan: ExchangePlan, turn: Turn, ahead: Sequence[Clock]
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
        work = [*((chunk, plan.exchange) for chunk in chunks), *[None] * (actors - len(chunks))]
        try:
            result = graph.execute(order, work, lambda: self._tell_next(plan))
            self._first = []
            return result
        except RayTaskError as error:
            self.pool.close_graph()
            reason = cause(error)
            if not isinstance(reason, FreshActorError):
                raise reason from None
        except Exception as error:
            self.pool.look()
            self.pool.close_graph()
            if not isinstance(error, (*LOST, RayChannelError)):  # no actor's death, which the pool tells of
                what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                warn(f"the graph of actors broke ({what}); the exchange is repeated by calls")
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

    # arguments are Any: see `ActorPool.call`
    def _start(self, method: Callable[..., Any], *args: Any, returns: int = 1, task: str | None = None) -> Any:
        first, self._first = self._first, []
        for call in first:  # the server carries out its calls in order
            super()._start(ServerActor.call, call.method, call.args, call.options)
        return super()._start(method, *args, returns=returns, task=task)
