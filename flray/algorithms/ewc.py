"""EWC, elastic weight consolidation (Kirkpatrick et al., PNAS 2017, Eq. 3), federated: every client consolidates the
global model of each task on its own samples.

Client, when task t ends: F_t, the Fisher diagonal of its samples at the global model w_t. In later tasks:
CE(w) + lambda / 2 sum_t sum_i F_ti (w_i - w_ti)^2, a penalty for each task that it held samples of. Server: FedAvg.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from flray.algorithms.fedavg import LocalStatistics, SGDState
from flray.algorithms.fisher_penalty import FisherPenalty, PenaltyLocalState
from flray.core.messages import Broadcast, Cohort, Metrics, Record, ServerState, Update
from flray.core.protocol.algorithm_section import of_tasks_alone
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp


class EWCClient(LocalStatistics):
    """The sums over the client's tasks of the Fisher diagonals, `fisher [P]`, and of F_t w_t, `anchor [P]`; None before
    the first one ends."""

    fisher: Tensor | None
    anchor: Tensor | None


class FisherTrace(Record):
    """The trace of the client's Fisher diagonal (0-dim)."""

    trace: Tensor


class EWC(FisherPenalty[ServerState, Broadcast, Update, EWCClient, PenaltyLocalState], frozen=True):
    cautions = (of_tasks_alone,)
    keeps: ClassVar[str] = "Fisher diagonals of each task on the clients; no samples"
    factor: ClassVar[float] = 1.0

    lam: float = hp(100.0, log=(1.0, 1e4), ge=0, doc="weight of the penalty (lambda); 0: FedAvg")

    def next_exchange(self, ctx: Context, state: ServerState) -> Exchange | None:
        """When a task ends, each client with samples of it consolidates the new model."""
        if ctx.clock.phase != "task_end" or ctx.classes is None:
            return super().next_exchange(ctx, state)
        exchange = Exchange("consolidate", self.broadcast, self.finish_consolidation, self.consolidate, who="task")
        return exchange if ctx.clock.exchange == 0 else None

    def finish_consolidation(
        self, ctx: Context, state: ServerState, updates: FisherTrace, cohort: Cohort
    ) -> tuple[ServerState, Metrics]:
        return state, {"ewc/fisher_trace": updates.trace}

    # client -----------------------------------------------------------------------------------
    def init_client(self, ctx: Context) -> EWCClient:
        return EWCClient.of(self.own_statistics(ctx.objective.initial()[1]), fisher=None, anchor=None)

    def begin(self, ctx: ClientContext, broadcast: Broadcast, client: EWCClient, data: ClientData) -> PenaltyLocalState:
        base: SGDState = super().begin(ctx, broadcast, client, data)
        return PenaltyLocalState.of(base, fisher=client.fisher, anchor=client.anchor)

    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: EWCClient, local: PenaltyLocalState, data: ClientData
    ) -> tuple[Update, EWCClient]:
        return Update(local.w, local.b), client.replace(b=self.own_statistics(local.b).b)

    def consolidate(
        self, ctx: Context, broadcast: Broadcast, client: EWCClient, data: ClientData
    ) -> tuple[FisherTrace, EWCClient, Metrics]:
        """The client with the Fisher diagonal of the task, and F w, added to those of the tasks before."""
        fisher = self.fisher(ctx, broadcast.w, self.statistics_before(broadcast, client), data)
        anchor, trace = fisher * broadcast.w, fisher.sum()
        if client.fisher is not None and client.anchor is not None:
            fisher, anchor = client.fisher + fisher, client.anchor + anchor
        return FisherTrace(trace), client.replace(fisher=fisher, anchor=anchor), {}
