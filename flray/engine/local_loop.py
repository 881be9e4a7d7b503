"""A client's local training: `begin`, `step` for every batch, `end`.

The engine owns this loop, so that probes can look in.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flray.core.algorithm import Algorithm, ClientData, Context
from flray.core.messages import Metrics


class Trained(NamedTuple):
    """What local training gives; `steps` and `examples` were really taken and read, whatever was planned."""

    update: Any
    client: Any
    metrics: Metrics
    steps: int
    examples: int


def train(algorithm: Algorithm, ctx: Context, down: Any, client: Any, data: ClientData) -> Trained:
    """One client's local training from the broadcast `down` and its state `client`.

    The update may hold scratch tensors of the objective, which the next client overwrites.
    """
    carry = algorithm.begin(ctx, down, client, data)
    steps = examples = 0
    for batch in algorithm.batches(ctx, down, client, carry, data):
        carry = algorithm.step(ctx, down, client, carry, batch)
        steps += 1
        examples += len(batch.y)
    update, client = algorithm.end(ctx, down, client, carry, data)
    return Trained(update, client, algorithm.report(ctx, carry), steps, examples)
