"""Exemplars of older classes, chosen by herding when a task ends and mixed into the batches of later tasks (iCaRL; Dong
et al. 2022, section 3.2). A base of GLFC and LGA, not an algorithm by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from flray.algorithms.fedavg import Down, FedAvg, Local, LocalStatistics, State
from flray.core.messages import Batch, Broadcast, Cohort, Metrics, Record, fields
from flray.core.protocol.algorithm import Received, Sent
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp
from flray.ops.exemplars import exemplars_per_class, extract_features, herding, places_by_class


class ExemplarClient(LocalStatistics):
    """`exemplars`: by class number the sample numbers `[m]` (int64), in the order of herding."""

    exemplars: dict[str, Tensor]


class ExemplarCount(Record):
    """The number of exemplars that clients store, summed over the cohort."""

    exemplars: Tensor = fields.sum()


ExemplarClientT = TypeVar("ExemplarClientT", bound=ExemplarClient, default=ExemplarClient)


class HerdedExemplars(FedAvg[State, Down, Sent, ExemplarClientT, Local, Received], frozen=True):
    keeps_exemplars: ClassVar[bool] = True

    memory_size: int = hp(2000, choice=(200, 1000, 2000), ge=0, doc="exemplars of a client, over all classes (M)")
    replay: Literal["every_round", "first_round"] = hp(
        "every_round",
        choice=("every_round", "first_round"),
        doc="rounds of a task whose batches hold exemplars: all, or the first alone (FedProTIP's code)",
    )

    def next_exchange(self, ctx: Context, state: State) -> Exchange | None:
        """When a task ends, each client with samples of it chooses exemplars by features of the new model."""
        if (ctx.clock.phase, ctx.clock.exchange) == ("task_end", 0):
            exchange = Exchange(
                "exemplars", self.broadcast_model, self.count_exemplars, self.choose_exemplars, who="task"
            )
            return exchange
        return super().next_exchange(ctx, state)

    # server -----------------------------------------------------------------------------------
    def broadcast_model(self, ctx: Context, state: State) -> Broadcast:
        return Broadcast(state.w, state.b)

    def count_exemplars(
        self, ctx: Context, state: State, updates: ExemplarCount, cohort: Cohort
    ) -> tuple[State, Metrics]:
        return state, {"exemplars/kept": updates.exemplars}

    # client -----------------------------------------------------------------------------------
    def num_exemplars(self, client: ExemplarClientT) -> int:
        return sum(map(len, client.exemplars.values()))

    def batches(
        self, ctx: ClientContext, broadcast: Down, client: ExemplarClientT, local: Local, data: ClientData
    ) -> Iterable[Batch]:
        if client.exemplars and (self.replay == "every_round" or ctx.clock.round == 0):
            # a client without samples of the last task did not choose again: it stores more of each class
            m = exemplars_per_class(self.memory_size, len(ctx.in_use.old))
            data = data.with_samples(torch.cat([numbers[:m] for numbers in client.exemplars.values()]).cpu().numpy())
        return data.batches(self.batch_size, epochs=self.local_epochs)

    def choose_exemplars(
        self, ctx: Context, broadcast: Broadcast, client: ExemplarClientT, data: ClientData
    ) -> tuple[ExemplarCount, ExemplarClientT, Metrics]:
        """The client with exemplars of the task's classes that it holds, and fewer of each older class (m = M /
        classes)."""
        m = exemplars_per_class(self.memory_size, len(ctx.in_use.seen))
        chosen = {c: numbers[:m] for c, numbers in client.exemplars.items()}
        z, y = extract_features(ctx.objective.at(broadcast.w, broadcast.b), data.plain)
        numbers = torch.from_numpy(data.numbers.astype(np.int64)).to(z.device)
        for c, places in places_by_class(y).items():
            chosen[str(c)] = numbers[places][herding(z[places], m)]
        after = client.replace(exemplars=chosen)
        return ExemplarCount(torch.tensor(float(self.num_exemplars(after)))), after, {}
