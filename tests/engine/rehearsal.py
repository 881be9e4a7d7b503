"""An algorithm of a user's own that keeps exemplars: at the beginning of a task every client chooses some of what it
held in the stage before, by number, and trains on them beside its own samples."""

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Batch, ClientState, Cohort, Metrics, Update
from flray.core.messages.fields import each
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.ops.losses import cross_entropy


class Kept(ClientState):
    numbers: Tensor  # [m], int64


class Chosen(Update):
    w: Tensor
    b: Tensor
    count: int = each()


class Rehearsal(FedAvg, frozen=True):
    keeps_exemplars: ClassVar[bool] = True

    def init_client(self, ctx: Context) -> Any:
        return Kept(torch.zeros(0, dtype=torch.int64))

    def next_exchange(self, ctx: Context, state: Any) -> Exchange | None:
        if ctx.clock.phase == "task_begin" and ctx.clock.exchange == 0:
            return Exchange("choose", self.broadcast, self.note, self.choose)
        return super().next_exchange(ctx, state)

    def choose(self, ctx: Context, broadcast: Any, client: Any, data: ClientData) -> tuple[Any, Any, Metrics]:
        """Five of the stage before, drawn, behind those of earlier stages."""
        held = np.zeros(0, np.int64) if data.previous is None else data.previous.numbers
        drawn = ctx.rng("exemplars").permutation(held)[:5].astype(np.int64)
        kept = torch.cat([client.numbers, torch.from_numpy(drawn)])
        return Chosen(broadcast.w, broadcast.b, len(kept)), Kept(kept), {"kept": len(kept)}

    def note(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        return state, {"kept": sum(updates.count)}

    def batches(self, ctx: Context, broadcast: Any, client: Any, local: Any, data: ClientData) -> Iterable[Batch]:
        return data.with_samples(client.numbers.numpy()).batches(self.batch_size, self.local_epochs)

    def gradient(self, ctx: Context, broadcast: Any, client: Any, local: Any, batch: Batch) -> tuple[Tensor, Tensor]:
        seen = None if ctx.classes is None else ctx.classes.seen
        return ctx.objective.value_and_grad(
            lambda f: cross_entropy(f(batch.x), batch.y, seen), local.w, local.b, out=local.grad
        )


ALGORITHMS.add("rehearsal", Rehearsal)
