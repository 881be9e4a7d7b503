"""The compiled Ray graph of a server actor and its client actors.

One generic graph: server (broadcast) -> clients (work) -> server (finish, plan ahead) -> clients (test, if one is due)
-> server (answer). Exchange, chunks, states and test are data; an execution without an order does nothing.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from ray.dag import InputNode
from ray.exceptions import RayChannelTimeoutError

from flray.core.protocol.exchange import Exchange
from flray.engine.exchanges import Chunk
from flray.engine.ray import Actor
from flray.engine.ray.cluster import ray
from flray.engine.ray.nodes import ActorGraph, ExchangeOrder, ExchangeResult
from flray.engine.ray.pool import ActorPool
from flray.engine.ray.private.channel import LOOK_S, ChannelType, as_driver_proxy

BROADCAST_MODELS = 3  # models that a channel has room for: a broadcast, or states
DELIVERY_MODELS = 12  # the same for a run's partial sums, 2 log2 of its clients
MAX_MODEL_BYTES = 2**24  # of one channel's models; what is larger goes through the object store
EXTRA_BYTES = 2**17  # of a channel beside its models
TRY_S = 120.0  # for an execution that does nothing, by processes that have just begun
LOST_S = 4.0  # for what has begun to end after a death of Ray's own processes: a checkpoint follows (`calls.SAVE_S`)
SUBMIT_S = 300.0  # until the actors have read what is sent to them; Ray's 10 s are little for processes that just began

# it tells of every dead actor with a traceback; the pool has a line for it
logging.getLogger("ray.dag.compiled_dag_node").setLevel(logging.CRITICAL)


_compiling = threading.Lock()  # Ray's own settings are changed meanwhile (`as_driver_proxy`, `ChannelType`)


class CompiledGraph(ActorGraph):
    """The graph of a server actor and its client actors; they work in it until it is closed."""

    executing = False

    def __init__(self, pool: ActorPool, model_bytes: int) -> None:
        """Takes about 0.1 s, and tries one execution.

        Raises one of `LOST` or `RayChannelError` when an actor is gone; anything else: this Ray's graph does not work.
        """
        self._pool, server, clients, parts = pool, pool.server, list(pool.clients), len(pool.clients)
        self.actors, self.model_bytes = (server, *clients), model_bytes
        name, broadcast_bytes = uuid.uuid4().hex, min(BROADCAST_MODELS * model_bytes, MAX_MODEL_BYTES)
        small, large = ChannelType(EXTRA_BYTES, name), ChannelType(EXTRA_BYTES + broadcast_bytes, name)
        sums = ChannelType(EXTRA_BYTES + min(DELIVERY_MODELS * model_bytes, MAX_MODEL_BYTES), name)

        def typed(node: Any, channel_type: ChannelType) -> Any:  # Any: Ray's nodes have no public type
            node.type_hint = channel_type
            return node

        there = pool.wait(server.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
        with _compiling, as_driver_proxy(server, there):
            with InputNode() as inputs:
                orders = [typed(inputs[i], small) for i in range(1 + parts)]
                broadcast, *states = server.graph_broadcast.options(num_returns=1 + parts).bind(orders[0], parts)
                typed(broadcast.class_method_call, large)
                runs = zip(clients, orders[1:], states, strict=True)
                work = [typed(client.graph_work.bind(order, broadcast, state), sums) for client, order, state in runs]
                published = typed(server.graph_finish.bind(orders[0], *work), large)
                tests = [typed(client.graph_test.bind(published, i, parts), small) for i, client in enumerate(clients)]
                result = typed(server.graph_result.bind(*tests), small)
            self._graph = result.experimental_compile(_submit_timeout=SUBMIT_S, _max_inflight_executions=1)
        try:
            self._run(None, [None] * parts, TRY_S)
        except BaseException:
            self.close()
            raise

    def execute(
        self,
        order: ExchangeOrder,
        chunks: Sequence[tuple[Chunk, Exchange] | None],
        meanwhile: Callable[[], object],
    ) -> ExchangeResult:
        result: ExchangeResult = self._run(order, chunks, math.inf, meanwhile)
        return result

    def _run(
        self,
        order: ExchangeOrder | None,
        chunks: Sequence[tuple[Chunk, Exchange] | None],
        seconds: float,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Any:
        self._pool.look()  # actors and channels outlive a raylet by some seconds: no execution would fail
        self.executing = True
        ref, until = self._graph.execute(order, *chunks), time.monotonic() + seconds
        meanwhile()
        with self._pool.patient(LOST_S):
            while True:
                try:
                    # any other timeout may be over when the answer has been read, and Ray then drops it
                    result = ray.cloudpickle.loads(ref.get(timeout=0))
                except RayChannelTimeoutError:
                    self._pool.look()
                    if time.monotonic() > until:
                        raise TimeoutError(f"no answer within {seconds:.0f} s") from None
                    ref._ray_get_called = False  # a reference may be asked once; nothing was read
                    self._graph.dag_output_channels[0].wait(LOOK_S)
                else:
                    self.executing = False
                    return result

    def serves(self, actors: tuple[Actor, ...], model_bytes: int) -> bool:
        return self.actors == actors and self.model_bytes == model_bytes and not self._graph.is_teardown

    def close(self) -> None:
        self._graph.teardown()
