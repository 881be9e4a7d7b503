"""Bytes of an experiment's messages in its first round, counted: one client makes one step, nothing is trained."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from flray.core.messages import Record, equal, map_tensors, nbytes, nbytes_by_field, to_numpy
from flray.core.messages.fields import pools
from flray.core.protocol.clock import Clock
from flray.core.schema.errors import AlgorithmError
from flray.engine.blame import Note, find_writer, write_error
from flray.engine.encoded import new_state, travelled
from flray.engine.workbench import Workbench
from flray.scenario import Scenario


class MessageSizes(NamedTuple):
    """`cohort`: the largest of the tasks. `vector`: bytes of the trained parameters. `broadcast`: to one client.

    `update`: that one client sends, by field, encoded where there is an encoding. `single`: of its decoded fields that
    the server receives from every client; `summed_bytes`: of a partial sum of the other ones, which are decoded before
    they are added. `state`: of a client that trained.
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


def message_sizes(bench: Workbench, scenario: Scenario, cohort: int | None = None) -> MessageSizes:
    """The sizes of the training exchange of so many clients (None: the configured cohort).

    Raises `AlgorithmError` if a client's method writes into the broadcast.
    """
    algorithm, experiment, clock = bench.algorithm, bench.experiment, Clock()
    tasks = range(len(scenario.stages))
    cohort = cohort or max(experiment.cohort.count(len(scenario.members(task))) for task in tasks)
    state = algorithm.init_server(bench.context(clock), *bench.objective.initial())
    broadcast = algorithm.broadcast(bench.context(clock), state)
    return MessageSizes(
        cohort, bench.objective.layout.size * 4, nbytes(broadcast), *_client(bench, broadcast, scenario)
    )


def _client(bench: Workbench, broadcast: Any, scenario: Scenario) -> tuple[dict[str, int], dict[str, int], int, int]:
    """`MessageSizes`' `update`, `single`, `summed_bytes` and `state`."""
    algorithm, clock = bench.algorithm, Clock()
    if algorithm.centralized:
        return {}, {}, 0, 0
    shares = scenario.drifting(None).shares(clock, np.array([scenario.members(0)[0]]))
    ctx = bench.client_context(clock, int(shares.clients[0]), num_steps=1, num_examples=len(shares.indices), weight=1.0)
    client, data = algorithm.init_client(ctx), bench.client_data(ctx, shares.indices)
    sent, ended = to_numpy(map_tensors(torch.clone, broadcast)), []

    def run(note: Note) -> None:
        note(algorithm.begin)
        local = algorithm.begin(ctx, broadcast, client, data)
        note(algorithm.batches)
        for batch in algorithm.batches(ctx, broadcast, client, local, data):
            if len(batch.y) > 1:  # else batch norm cannot train on it
                note(algorithm.step)
                local = algorithm.step(ctx, broadcast, client, local, batch)
            break
        note(algorithm.end)
        ended.append(algorithm.end(ctx, broadcast, client, local, data))

    if method := find_writer(run, lambda: equal(sent, to_numpy(broadcast))):
        raise AlgorithmError(write_error(method))
    ((update, after),) = ended
    how = pools(type(update)) if isinstance(update, Record) else {}
    decoded = nbytes_by_field(update)
    single = {name: decoded[name] for name, pool in how.items() if pool == "each"}
    encoded = travelled(ctx, algorithm, bench.experiment.encoding, broadcast, update, None)
    summed = sum(decoded.values()) - sum(single.values())
    return {**decoded, **encoded.nbytes}, single, summed, nbytes(new_state(None, after, encoded.residual))
