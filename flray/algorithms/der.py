"""DER, dark experience replay (Buzzega et al., NeurIPS 2020, Eq. 6), and DER++ (Eq. 7), federated: every client replays
a reservoir of its own samples, stored with logits.

Client, on a batch (x, y) of the task and batches (x', z'), (x'', y'') of the reservoir, with the model h:
CE(h(x), y) + alpha mean (z' - h(x'))^2 + beta CE(h(x''), y''), all among the classes seen so far. The mean is over
samples and classes. z': h of the client at the end of its last training in which it held x'. Server: FedAvg.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flray.algorithms.reservoir_replay import ReplayLocalState, ReservoirClient, ReservoirReplay
from flray.core.messages import Batch, Broadcast, ServerState, Update
from flray.core.network.objective import BoundModel
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.losses import cross_entropy


class DERClient(ReservoirClient):
    """The reservoir, with the `logits [m, C]` of its samples."""

    logits: Tensor


class DERLocalState(ReplayLocalState):
    """The reservoir's samples and `logits [m, C]`; the places (int64) of those that have logits, `known [n]`, and of
    those that the client holds now, `held [l]`."""

    logits: Tensor
    known: Tensor
    held: Tensor


class DER(ReservoirReplay[ServerState, DERClient, DERLocalState], frozen=True):
    keeps: ClassVar[str] = "samples of all tasks and their logits on the clients"

    alpha: float = hp(0.5, choice=(0.1, 0.2, 0.5, 1.0), ge=0, doc="weight of the distance to the stored logits (alpha)")
    beta: float = hp(0.0, choice=(0.5, 1.0), ge=0, doc="weight of the replayed samples' cross-entropy; above 0: DER++")

    def step_cost(self) -> float:
        return 1 + ((self.alpha > 0) + (self.beta > 0)) * self.memory_batch / self.batch_size

    def init_client(self, ctx: Context) -> DERClient:
        none = torch.zeros(0, ctx.in_use.size, device=ctx.device)
        return DERClient.of(super().init_client(ctx), logits=none)

    def begin(self, ctx: ClientContext, broadcast: Broadcast, client: DERClient, data: ClientData) -> DERLocalState:
        stored = client.numbers.cpu().numpy()
        after, numbers = self.update_reservoir(ctx, client, stored, data)
        local = self.with_memory(ctx, broadcast, after, numbers, data)
        logits = broadcast.w.new_zeros(len(numbers), client.logits.shape[1])
        logits[: len(stored)] = client.logits
        known = np.flatnonzero(numbers[: len(stored)] == stored)
        held = np.flatnonzero(np.isin(numbers, data.numbers))
        known_there, held_there = (torch.from_numpy(places).to(ctx.device) for places in (known, held))
        return DERLocalState.of(local, logits=logits, known=known_there, held=held_there)

    def batches(
        self, ctx: ClientContext, broadcast: Broadcast, client: DERClient, local: DERLocalState, data: ClientData
    ) -> Iterable[Batch]:
        return data.batches(self.batch_size, steps=ctx.num_steps)

    def gradient(
        self, ctx: ClientContext, broadcast: Broadcast, client: DERClient, local: DERLocalState, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        if not (self.memory_batch and (self.alpha or self.beta)):
            return super().gradient(ctx, broadcast, client, local, batch)
        seen, step = ctx.in_use.seen, local.moments.steps

        def loss(f: BoundModel) -> Tensor:
            value = cross_entropy(f(batch.x), batch.y, seen)
            if self.alpha and len(local.known):
                chosen = self.draw(ctx, local, "memory", step)
                value = value + self.alpha * F.mse_loss(
                    seen.narrow(f(local.x[chosen])), seen.narrow(local.logits[chosen])
                )
            if self.beta and len(local.known):
                chosen = self.draw(ctx, local, "labelled memory", step)
                value = value + self.beta * cross_entropy(f(local.x[chosen]), local.y[chosen], seen)
            return value

        return ctx.objective.value_and_grad(loss, local.w, local.b, out=local.grad)

    def draw(self, ctx: ClientContext, local: DERLocalState, purpose: str, step: int) -> Tensor:
        """Places `[B]` of a batch of the reservoir's samples with logits."""
        size = min(self.memory_batch, len(local.known))
        chosen = ctx.rng(purpose, step).choice(len(local.known), size, replace=False)
        return local.known[torch.from_numpy(chosen).to(ctx.device)]

    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: DERClient, local: DERLocalState, data: ClientData
    ) -> tuple[Update, DERClient]:
        """The update, and the client with new logits of the stored samples that it holds now."""
        update, after = super().end(ctx, broadcast, client, local, data)
        # as in the steps that compare with them: after a few steps running statistics are far from those of a batch
        model = ctx.objective.at(local.w, local.b, "train_frozen" if len(local.held) > 1 else "eval")
        with torch.no_grad():
            parts = [model(local.x[places]) for places in local.held.tensor_split(-(-len(local.held) // 256) or 1)]
        return update, after.replace(logits=local.logits.index_copy(0, local.held, torch.cat(parts)))
