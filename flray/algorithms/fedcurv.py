"""FedCurv (Shoham et al. 2019, "Overcoming forgetting in federated learning on non-IID data", Eq. 3): EWC between
clients.

Client k, after its local epochs: F_k, the Fisher diagonal of its samples at its model w_k; it sends w_k, F_k, F_k w_k.
Server: FedAvg, and the sums u = sum_k F_k, v = sum_k F_k w_k over the cohort.
Client s, in the next round: CE(w) + lambda sum_{k != s} sum_i F_ki (w_i - w_ki)^2, from u - F_s and v - F_s w_s.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from flray.algorithms.fedavg import LocalStatistics, SGDState
from flray.algorithms.fisher_penalty import FisherPenalty, PenaltyLocalState
from flray.core.messages import Broadcast, Cohort, Metrics, ServerState, Update, fields
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData


class CurvState(ServerState):
    """The global model; u `fisher [P]` and v `anchor [P]` of the last round, of which `since` rounds had been done;
    `since` -1: there was none."""

    fisher: Tensor
    anchor: Tensor
    since: int


class CurvDown(Broadcast):
    """The global model and the sums, as in `CurvState`."""

    fisher: Tensor
    anchor: Tensor
    since: int


class CurvUpdate(Update):
    """The local model, F_k and F_k w_k, of which the server gets the sums over the cohort."""

    fisher: Tensor = fields.sum()
    anchor: Tensor = fields.sum()


class CurvClient(LocalStatistics):
    """The client's own F_k `fisher [P]` and F_k w_k `anchor [P]`, and the number of rounds done before, `since`."""

    fisher: Tensor | None
    anchor: Tensor | None
    since: int


class FedCurv(FisherPenalty[CurvState, CurvDown, CurvUpdate, CurvClient, PenaltyLocalState], frozen=True):
    server_reason: ClassVar[str] = "the sums of Fisher information are those of the averaged models"
    factor: ClassVar[float] = 2.0

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> CurvState:
        return CurvState(w, b, torch.zeros_like(w), torch.zeros_like(w), -1)

    def broadcast(self, ctx: Context, state: CurvState) -> CurvDown:
        return CurvDown(state.w, state.b, state.fisher, state.anchor, state.since)

    def aggregate(
        self, ctx: Context, state: CurvState, updates: CurvUpdate, cohort: Cohort
    ) -> tuple[CurvState, Metrics]:
        b = self.statistics(state, updates.b)
        trace = updates.fisher.sum() / len(cohort.client_ids)
        new = CurvState(updates.w, b, updates.fisher, updates.anchor, ctx.clock.done)
        return new, {"fedcurv/fisher_trace": trace}

    # client -----------------------------------------------------------------------------------
    def step_cost(self) -> float:
        return 1 + 1 / self.local_epochs

    def init_client(self, ctx: Context) -> CurvClient:
        return CurvClient.of(self.own_statistics(ctx.objective.initial()[1]), fisher=None, anchor=None, since=-1)

    def begin(self, ctx: ClientContext, broadcast: CurvDown, client: CurvClient, data: ClientData) -> PenaltyLocalState:
        base: SGDState = super().begin(ctx, broadcast, client, data)
        if broadcast.since < 0:
            return PenaltyLocalState.of(base, fisher=None, anchor=None)
        fisher, anchor = broadcast.fisher, broadcast.anchor
        if client.fisher is not None and client.anchor is not None and client.since == broadcast.since:
            fisher = torch.sub(fisher, client.fisher, out=ctx.objective.scratch("others' Fisher", base.w))
            anchor = torch.sub(anchor, client.anchor, out=ctx.objective.scratch("others' anchor", base.w))
        return PenaltyLocalState.of(base, fisher=fisher, anchor=anchor)

    def end(
        self, ctx: ClientContext, broadcast: CurvDown, client: CurvClient, local: PenaltyLocalState, data: ClientData
    ) -> tuple[CurvUpdate, CurvClient]:
        fisher = self.fisher(ctx, local.w, local.b, data)
        anchor = fisher * local.w
        after = CurvClient.of(self.own_statistics(local.b), fisher=fisher, anchor=anchor, since=ctx.clock.done)
        return CurvUpdate(local.w, local.b, fisher, anchor), after
