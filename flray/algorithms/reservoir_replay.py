"""Replay of a reservoir of samples: the base of ER, DER and Fed+SCR, not an algorithm by itself.

A client's reservoir sees its samples once a task, before its first local step of the task, in a drawn order (Vitter
1985, algorithm R). Each local step reads a batch of the task and one of the reservoir.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from flray.algorithms.fedavg import FedAvg, LocalStatistics, SGDState, State
from flray.core.messages import Batch, Broadcast, Update
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.exemplars import reservoir


class ReservoirClient(LocalStatistics):
    """The reservoir: sample `numbers [m]` (int64), how many samples it has `seen`, and the `task` of the last ones."""

    numbers: Tensor
    seen: int
    task: int


class ReplayLocalState(SGDState):
    """FedAvg's local state, the client with its new reservoir, and the reservoir's samples `x [m, ...]`, `y [m]`."""

    client: ReservoirClient
    x: Tensor
    y: Tensor


ReservoirClientT = TypeVar("ReservoirClientT", bound=ReservoirClient, default=ReservoirClient)
ReplayLocalT = TypeVar("ReplayLocalT", bound=ReplayLocalState, default=ReplayLocalState)


class ReservoirReplay(FedAvg[State, Broadcast, Update, ReservoirClientT, ReplayLocalT], frozen=True):
    keeps_exemplars: ClassVar[bool] = True

    memory_size: int = hp(2000, choice=(200, 500, 1000, 2000), ge=1, doc="samples in a client's reservoir (M)")
    memory_batch: int = hp(50, choice=(10, 50, 100), ge=0, doc="samples of the reservoir in a local step; 0: no replay")

    def step_cost(self) -> float:
        return 1 + self.memory_batch / self.batch_size

    def init_client(self, ctx: Context) -> ReservoirClientT:
        none = torch.zeros(0, dtype=torch.int64, device=ctx.device)
        return ReservoirClient.of(  # type: ignore[return-value]  # another ReservoirClientT: overridden
            self.own_statistics(ctx.objective.initial()[1]), numbers=none, seen=0, task=-1
        )

    def num_exemplars(self, client: ReservoirClientT) -> int:
        return len(client.numbers)

    def begin(
        self, ctx: ClientContext, broadcast: Broadcast, client: ReservoirClientT, data: ClientData
    ) -> ReplayLocalT:
        client, numbers = self.update_reservoir(ctx, client, client.numbers.cpu().numpy(), data)
        return self.with_memory(ctx, broadcast, client, numbers, data)

    def with_memory(
        self, ctx: ClientContext, broadcast: Broadcast, client: ReservoirClientT, numbers: np.ndarray, data: ClientData
    ) -> ReplayLocalT:
        """The local state with the samples of the reservoir `numbers [m]`."""
        x, y = samples(data.only(numbers))
        base = super().begin(ctx, broadcast, client, data)
        return ReplayLocalState.of(base, client=client, x=x, y=y)  # type: ignore[return-value]

    def update_reservoir(
        self, ctx: Context, client: ReservoirClientT, stored: np.ndarray, data: ClientData
    ) -> tuple[ReservoirClientT, np.ndarray]:
        """(the client, the sample numbers `[m]` in its reservoir) after it has seen its samples; `stored [m]`: those
        before. A sample that stays keeps its place."""
        if client.task == ctx.clock.task:
            return client, stored
        stream = ctx.rng("stream").permutation(data.numbers)
        numbers = reservoir(stored, stream, client.seen, self.memory_size, ctx.rng("reservoir"))
        there = torch.from_numpy(numbers).to(ctx.device)
        return client.replace(numbers=there, seen=client.seen + len(stream), task=ctx.clock.task), numbers

    def batches(
        self, ctx: ClientContext, broadcast: Broadcast, client: ReservoirClientT, local: ReplayLocalT, data: ClientData
    ) -> Iterable[Batch]:
        draws, size = ctx.rng("memory"), min(self.memory_batch, len(local.y))
        for batch in data.batches(self.batch_size, steps=ctx.num_steps):
            chosen = torch.from_numpy(draws.choice(len(local.y), size, replace=False)).to(ctx.device)
            yield Batch(torch.cat([batch.x, local.x[chosen]]), torch.cat([batch.y, local.y[chosen]]))

    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: ReservoirClientT, local: ReplayLocalT, data: ClientData
    ) -> tuple[Update, ReservoirClientT]:
        after = local.client.replace(b=self.own_statistics(local.b).b)
        return Update(local.w, local.b), after  # type: ignore[return-value]


def samples(data: ClientData) -> tuple[Tensor, Tensor]:
    """All samples of a client `x [n, ...]`, `y [n]`, without augmentation."""
    x, y = zip(*((batch.x, batch.y) for batch in data.plain), strict=True)
    return torch.cat(x), torch.cat(y)
