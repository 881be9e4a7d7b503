"""Rounds by hand of a part of the population, where a client's update may be lost: what `rounds.play` does not have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from flray.core.algorithm import Context
from flray.core.clock import Clock
from flray.core.messages import Cohort
from flray.core.objective import Objective
from flray.ops.pooling import Collector, pooled
from tests.algorithms.rounds import Data, batches_of, train
from tests.core.networks import Mlp, inputs


def clients(count: int = 3) -> Data:
    """Unequal, and with batches of 4 never a batch of 2: batch norm makes +-1 of two samples, and noise of their
    gradient."""
    sizes = (11, 3, 7, 8)[:count]
    x, y = inputs(Mlp, sum(sizes))
    return [((k + 1) * cx, cy) for k, (cx, cy) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True))]


def play_sampled(
    algorithm: Any,
    objective: Objective,
    data: Data,
    cohorts: Sequence[Sequence[int]],
    lost: Collection[tuple[int, int]] = (),
) -> tuple[list[Any], list[Any]]:
    """(server states, client states at the end); one cohort a round, `lost` holds (round, client) that the server
    skips."""
    count = len(data)
    state = algorithm.init_server(Context(objective, 0, Clock(), 0, 0), *objective.initial())
    kept = [algorithm.init_client(Context(objective, 0, Clock(), count, 1, client=k)) for k in range(count)]
    states = [state]
    for round, clients in enumerate(cohorts):
        server = Context(
            objective, 0, Clock(round=round), count, len(clients), total_examples=sum(len(x) for x, _ in data)
        )
        down = algorithm.broadcast(server, state)
        sizes = torch.tensor([len(data[k][0]) for k in clients])
        weights, steps = algorithm.weights(sizes), torch.tensor(algorithm.local_steps(sizes.numpy()))
        sent, arrived = Collector(), torch.tensor([(round, k) not in lost for k in clients])
        for i, k in enumerate(clients):
            batches = batches_of(*data[k], *algorithm.local_batches)
            ctx = replace(
                server, client=k, num_steps=len(batches), num_examples=int(sizes[i]), weight=float(weights[i])
            )
            update, after, _ = train(algorithm, ctx, down, kept[k], batches)
            sent.add(i, update if arrived[i] else None, float(weights[i]))
            kept[k] = after if arrived[i] else kept[k]
        share = float(weights[arrived].sum())
        cohort = Cohort(torch.tensor(clients)[arrived], sizes[arrived], steps[arrived], weights[arrived] / share)
        state, _ = algorithm.aggregate(server, state, pooled([sent.sent()], share), cohort)
        states.append(state)
    return states, kept
