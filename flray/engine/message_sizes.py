"""Bytes of an experiment's messages in its first round, counted: one client makes one step, nothing is trained."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from flray.core.messages import equal, map_tensors, nbytes, nbytes_by_field, to_numpy
from flray.core.protocol.clock import Clock
from flray.engine.blame import write_error
from flray.engine.cohort import largest_cohort
from flray.engine.runtime import Runtime
from flray.ops.pooling import pooling_of, summed_bytes
from flray.scenario import Scenario
from flray.uplink.travel import new_state, travelled


class MessageSizes(NamedTuple):
    """`cohort`: the most clients that train in a round. `vector`: bytes of the trained parameters. `broadcast`: to one
    client.

    `update`: that one client sends, by field, encoded where there is an encoding. `single`: of its decoded fields that
    the server receives from every client; `summed_bytes`: of a partial sum of the other ones, which are decoded before
    they are added, in the types of sums: int64, and at least float32. `state`: of a client that trained.
    """

    cohort: int
    vector: int
    broadcast: int
    update: dict[str, int]
    single: dict[str, int]
    summed_bytes: int
    state: int

    @property
    def single_bytes(self) -> int:
        """Bytes of one client's fields that are not summed."""
        return sum(self.single.values())

    @property
    def server_bytes(self) -> int:
        """Bytes of the server's parameters, about: four vectors, and what it receives from every client.

        >>> MessageSizes(10, 100, 100, {"w": 100, "logits": 7}, {"logits": 7}, 100, 0).server_bytes
        470
        """
        return 4 * self.vector + self.single_bytes * self.cohort


def message_sizes(runtime: Runtime, scenario: Scenario) -> MessageSizes:
    """The sizes of the training exchange. Raises `AlgorithmError` if a client's method writes into the broadcast."""
    algorithm, experiment, clock = runtime.algorithm, runtime.experiment, Clock()
    broadcast, one = first_broadcast(runtime), (dict[str, int](), dict[str, int](), 0, 0)
    if not algorithm.centralized:
        shares = scenario.drifting(None).shares(clock, np.array([scenario.members(0)[0]]))
        one = client_sizes(runtime, broadcast, int(shares.clients[0]), shares.indices)
    return MessageSizes(
        largest_cohort(experiment, scenario), runtime.objective.layout.size * 4, nbytes(broadcast), *one
    )


def first_broadcast(runtime: Runtime) -> Any:
    """The broadcast of the training exchange in the first round, tensors. Any: the algorithm's own message."""
    state = runtime.initial_state(runtime.context(Clock()))
    return runtime.algorithm.broadcast(runtime.context(Clock()), state)


def client_sizes(
    runtime: Runtime, broadcast: Any, client_id: int, numbers: np.ndarray
) -> tuple[dict[str, int], dict[str, int], int, int]:
    """`MessageSizes`' `update`, `single`, `summed_bytes` and `state`, of a client with these sample `numbers`."""
    algorithm, clock = runtime.algorithm, Clock()
    ctx = runtime.client_context(clock, client_id, num_steps=1, num_examples=len(numbers), weight=1.0)
    client, data = algorithm.init_client(ctx), runtime.client_data(ctx, numbers)
    sent = to_numpy(map_tensors(torch.clone, broadcast))
    local = algorithm.begin(ctx, broadcast, client, data)
    for batch in algorithm.batches(ctx, broadcast, client, local, data):
        if len(batch.y) > 1:  # else batch norm cannot train on it
            local = algorithm.step(ctx, broadcast, client, local, batch)
        break
    update, after = algorithm.end(ctx, broadcast, client, local, data)
    if not equal(sent, to_numpy(broadcast)):
        raise write_error(algorithm, algorithm.training)
    how = pooling_of(update, runtime.rule_of(algorithm.training))
    decoded = nbytes_by_field(update)
    single = {name: decoded[name] for name, pool in how.items() if pool == "each"}
    states = runtime.uplink.broadcast(runtime.first_uplink())
    encoded = travelled(ctx, algorithm, runtime.uplink, broadcast, update, None, states, runtime.summary.population)
    summed, own = summed_bytes(update, runtime.rule_of(algorithm.training)), ctx.objective.state.own()
    return {**decoded, **encoded.nbytes}, single, summed, nbytes(new_state(None, after, encoded.residual, own))
