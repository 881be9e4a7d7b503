"""What the actors do as nodes of a compiled graph: one execution is one exchange (`graph.py` says how they are wired).

Nodes run in their own thread, beside the actor's ordinary calls; during an execution the driver makes none but
`ClientActor.graph_next`, which stores a value. A node's inputs are views of a channel's buffer, which is free for the
next message only when nothing refers to it. So a node copies what it stores.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from ray import cloudpickle

from flray.core.messages import Cohort, Message
from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.engine.client import Client
from flray.engine.counts import TestCounts, merge_counts
from flray.engine.exchanges import Chunk, ChunkResult, ClientReport, ExchangePlan
from flray.engine.ray import Actor
from flray.engine.rounds import TurnResult
from flray.engine.server import Server
from flray.scenario import Shares

Work = tuple[ChunkResult, list[ClientReport]]


class ExchangeOrder(NamedTuple):
    """The request for an exchange.

    `clients`: by actor, the clients whose states the server sends. `ahead`: the next moments, to be planned until one
    has a plan. `test`: the clock of the test that is due if the first of them has none; None: no test. `first`: calls
    to execute before the exchange.
    """

    plan: ExchangePlan
    cohort: Cohort
    clients: list[list[int]]
    ahead: Sequence[Clock]
    test: Clock | None
    first: Sequence[ServerCall]


class ServerCall(NamedTuple):
    """A call of a method of :class:`Server` whose result is not used."""

    method: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


class ExchangeResult(NamedTuple):
    """The result of an exchange: its one turn's, the plans of the next moments, and the counts of the test."""

    clock: Clock
    turn: TurnResult
    plans: list[ExchangePlan | None]
    counts: TestCounts | None = None


class ActorGraph(Protocol):
    """The compiled graph of a server actor and its client actors."""

    executing: bool  # an execution has begun, and its result is not here

    def execute(
        self,
        order: ExchangeOrder,
        chunks: Sequence[tuple[Chunk, Exchange] | None],
        meanwhile: Callable[[], object],
    ) -> ExchangeResult:
        """The result of the order; `chunks`: one for each client actor, None for those without work.

        `meanwhile` is called while they work.

        Raises `RayTaskError` with an actor's own error, `ResourceError` when a process of Ray has died; after anything
        else the graph is broken.
        """

    def serves(self, actors: tuple[Actor, ...], model_bytes: int) -> bool:
        """Whether it is intact, of these actors (server first) and for a model of this size."""

    def close(self) -> None:
        """Wait until every actor has left the graph: one that works ends its work first."""


class ServerNodes:
    """The server's nodes: broadcast, finish, answer."""

    _server: Server | None = None
    _result: ExchangeResult | None = None
    _ahead: tuple[Clock, Any, Any] | None = None  # a moment, the state in which it was planned, its broadcast
    _threads = 1

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def graph_broadcast(self, order: ExchangeOrder | None, parts: int) -> tuple[Any, ...]:
        """(the broadcast, by actor the states of its clients); nothing without an order."""
        torch.set_num_threads(self._threads)  # a setting of each thread
        if order is None:
            return (None,) * (1 + parts)
        for call in order.first:
            call.method(self.server, *call.args, **call.options)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == order.plan.clock and ahead[1] is self.server.state:
            broadcast = ahead[2]
        else:
            broadcast, _ = self.server.broadcast(order.plan.clock, order.plan.exchange)
        return (broadcast, *[self.server.states(clients) if clients else None for clients in order.clients])

    def graph_finish(self, order: ExchangeOrder | None, *work: Work | None) -> Any:
        """Finish the exchange. Returns the message to test; None: no test is due."""
        if order is None:
            return None
        began = time.perf_counter()
        results = [done[0] for done in work if done is not None]
        clients = [report for done in work if done is not None for report in done[1]]
        report = self.server.finish(order.plan, order.cohort, *results)
        broadcast, plans = self.plans(order.ahead)
        if broadcast is not None:
            self._ahead = (order.ahead[len(plans) - 1], self.server.state, broadcast)
        turn = TurnResult(clients, report, time.perf_counter() - began)
        self._result = ExchangeResult(order.plan.clock, turn, plans)
        if order.test is None or plans[:1] != [None]:
            return None
        return order.test, self.server.published(order.test)

    def graph_result(self, *parts: TestCounts | None) -> bytes:
        """All of it, pickled: arrays in it are the driver's own. None before the first order."""
        tested = [counts for counts in parts if counts is not None]
        result = self._result and self._result._replace(counts=merge_counts(tested) if tested else None)
        pickled: bytes = cloudpickle.dumps(result)
        return pickled

    def exchange_result(self, clock: Clock) -> ExchangeResult | None:
        """The result of an exchange, without its test, that did not reach the driver; None: it is not finished."""
        same = self._result is not None and self._result.clock == clock
        return self._result if same and self.server.finished(clock) else None

    def plans(self, ahead: Sequence[Clock]) -> tuple[Message, list[ExchangePlan | None]]:
        """(broadcast of the first of these moments that has a plan, the plans up to it)."""
        broadcast, plans = None, []
        for moment in ahead:
            broadcast, plan = self.server.plan(moment)
            plans.append(plan)
            if plan is not None:
                break
        return broadcast, plans


class ClientNodes(ABC):
    """A client actor's nodes: work, test."""

    _threads = 1
    _next: Chunk | None = None

    @property
    @abstractmethod
    def client(self) -> Client:
        """The actor's clients, once it is set up."""

    def graph_work(
        self, order: tuple[Chunk, Exchange] | None, broadcast: Message, states: Sequence[Message] | None
    ) -> Work | None:
        """The chunk's result and rows; None: there is no chunk for this actor."""
        torch.set_num_threads(self._threads)
        if order is None:
            return None
        chunk, exchange = order
        chunk = chunk._replace(
            shares=_copy_shares(chunk.shares), previous=None if chunk.previous is None else _copy_shares(chunk.previous)
        )
        try:
            result = self.client.work(chunk, exchange, broadcast, states)
        finally:  # it has come meanwhile, and belongs to this run
            ahead, self._next = self._next, None
        if ahead is not None and ahead.clock != chunk.clock:  # else it has come too late
            from flray.engine.ray.private.channel import before_waiting

            before_waiting(functools.partial(self.prepare_ahead, ahead))
        return result

    @abstractmethod
    def prepare_ahead(self, chunk: Chunk) -> None:
        """Make ready for the work of a chunk; whatever fails here fails again, and is told, in that work."""

    def graph_test(self, asked: tuple[Clock, Any] | None, part: int, parts: int) -> TestCounts | None:
        """One of `parts` parts of all tests, if any is due."""
        if asked is None:
            return None
        clock, published = asked
        runtime = self.client.runtime
        return runtime.evaluate(published, runtime.context(clock), part, parts)


def _copy_shares(shares: Shares) -> Shares:
    copied: Any = (np.array(part) if isinstance(part, np.ndarray) else part for part in shares)
    return Shares(*copied)
