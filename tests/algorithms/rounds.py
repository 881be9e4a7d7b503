"""Rounds by hand, without the engine: every client trains on given batches, the server half runs on the pooled
updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flray.core.algorithm import Context
from flray.core.clock import Clock
from flray.core.messages import Batch, Cohort, map_tensors
from flray.core.objective import Objective
from flray.engine import local_loop
from flray.ops.pooling import Collector, pooled

Data = Sequence[tuple[Tensor, Tensor]]  # (x, y) of every client


def batches_of(x: Tensor, y: Tensor, size: int, epochs: int) -> list[Batch]:
    """In the order of the data, the last batch kept."""
    return [Batch(x[i : i + size], y[i : i + size]) for _ in range(epochs) for i in range(0, len(x), size)]


class Given(list[Batch]):
    """A client's data (`core.algorithm.ClientData`) whose batches are these, whatever is asked for."""

    def batches(self, batch_size: int, epochs: int | None = None, steps: int | None = None) -> Given:
        return self


def train(algorithm: Any, ctx: Context, down: Any, client: Any, batches: Sequence[Batch]) -> tuple[Any, Any, Any]:
    """(update, client state, metrics) of the engine's own local loop on given batches."""
    done = local_loop.train(algorithm, ctx, down, client, Given(batches))  # type: ignore[arg-type]
    return done.update, done.client, done.metrics


def contexts(
    objective: Objective, round: int, data: Data, weights: Tensor, steps: Sequence[int], proxy: Any, seed: int = 0
) -> list[Context]:
    return [
        Context(
            objective, seed, Clock(round=round), len(data), len(data), proxy=proxy,
            client=k, num_steps=steps[k], num_examples=len(data[k][0]), weight=float(weights[k]),
        )
        for k in range(len(data))
    ]  # fmt: skip


def play(
    algorithm: Any, objective: Objective, data: Data, rounds: int, proxy: Any = None
) -> tuple[list[Any], list[list[Any]], list[dict[str, float]]]:
    """(server states, one more than rounds; every round's updates; the clients' metrics of the last round)."""
    server = Context(objective, 0, Clock(), len(data), len(data), proxy=proxy)
    state = algorithm.init_server(server, *objective.initial())
    kept: list[Any] = [algorithm.init_client(server) for _ in data]
    sizes = torch.tensor([len(x) for x, _ in data])
    weights = algorithm.weights(sizes)
    states, updates_of, reports = [state], [], []
    for round in range(rounds):
        server = Context(objective, 0, Clock(round=round), len(data), len(data), proxy=proxy)
        down = algorithm.broadcast(server, state)
        steps = algorithm.local_steps(sizes.numpy()).tolist()
        batches = [batches_of(x, y, *algorithm.local_batches)[:n] for (x, y), n in zip(data, steps, strict=True)]
        updates, reports, sent = [], [], Collector()
        for k, ctx in enumerate(contexts(objective, round, data, weights, [len(b) for b in batches], proxy)):
            update, kept[k], metrics = train(algorithm, ctx, down, kept[k], batches[k])
            updates.append(map_tensors(torch.clone, update))
            sent.add(k, update, float(weights[k]))
            reports.append({name: float(value) for name, value in metrics.items()})
        cohort = Cohort(torch.arange(len(data)), sizes, torch.tensor([len(b) for b in batches]), weights)
        state, _ = algorithm.aggregate(server, state, pooled([sent.sent()]), cohort)
        states.append(state)
        updates_of.append(updates)
    return states, updates_of, reports
