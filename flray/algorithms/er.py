"""ER, experience replay (Chaudhry et al. 2019, "On tiny episodic memories in continual learning", Algorithm 1),
federated: every client replays a reservoir of its own samples.

Client: a step takes the cross-entropy of a batch of the task and a batch of the reservoir together, among all classes
seen so far. Server: FedAvg.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from flray.algorithms.reservoir_replay import ReplayLocalState, ReservoirClient, ReservoirReplay
from flray.core.messages import Batch, Broadcast, ServerState
from flray.core.protocol.context import ClientContext
from flray.ops.losses import cross_entropy


class ER(ReservoirReplay[ServerState, ReservoirClient, ReplayLocalState], frozen=True):
    keeps: ClassVar[str] = "samples of all tasks on the clients"

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: ReservoirClient, local: ReplayLocalState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        classes = ctx.in_use.seen if self.memory_batch else ctx.classes
        return ctx.objective.value_and_grad(
            lambda f: cross_entropy(f(batch.x), batch.y, classes), local.w, local.b, out=local.grad
        )
