"""FedBABU (Oh et al., ICLR 2022, Algorithm 1): clients train and share only the body; the head keeps its initial
values.

body_k: SGD on L_k(body, head_0);   body <- sum_k p_k body_k;   after training each client fine-tunes body and head
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Broadcast, Cohort, Metrics, Record, ServerState
from flray.core.network.layout import Entry
from flray.core.network.objective import Objective
from flray.core.protocol.algorithm import Predictor
from flray.core.protocol.algorithm_section import of_fine_tuned_models
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData, FineTuning


class BodyMessage(Record):
    """Broadcast and update: the parameters outside the head `body [P - P_head]`, without gaps, and the statistics
    `b [Q]`."""

    body: Tensor
    b: Tensor


class FedBABU(FedAvg[ServerState, Any, BodyMessage], frozen=True):
    cautions = (of_fine_tuned_models,)
    server_reason: ClassVar[str] = "its clients send the body without the head"

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> ServerState:
        ctx.mask("body")  # raises ConfigError if the model declares no head
        return ServerState(w, b)

    def broadcast(self, ctx: Context, state: ServerState) -> BodyMessage:
        return BodyMessage(body_of(ctx.objective, state.w), state.b)

    def aggregate(
        self, ctx: Context, state: ServerState, updates: BodyMessage, cohort: Cohort
    ) -> tuple[ServerState, Metrics]:
        return state.replace(w=self.with_initial_head(ctx, updates.body), b=self.statistics(state, updates.b)), {}

    # client -----------------------------------------------------------------------------------
    def with_initial_head(self, ctx: Context, body: Tensor) -> Tensor:
        """All parameters `[P]`: `body [P - P_head]` and the initial head, which every process has."""
        w, _ = ctx.objective.initial()
        entries = entries_of(ctx.objective, head=False)
        for entry, part in zip(entries, torch.split(body, [e.numel for e in entries]), strict=True):
            w.narrow(0, entry.offset, entry.numel).copy_(part)
        return w

    def model_of(self, ctx: Context, message: object) -> tuple[Tensor, Tensor] | None:
        return super().model_of(ctx, self.model_in(ctx, message) if isinstance(message, BodyMessage) else message)

    def model_in(self, ctx: Context, message: BodyMessage) -> Broadcast:
        """The model of a message, with the initial head."""
        return Broadcast(self.with_initial_head(ctx, message.body), message.b)

    def begin(self, ctx: ClientContext, broadcast: BodyMessage, client: OwnStatistics, data: ClientData) -> SGDState:
        return super().begin(ctx, self.model_in(ctx, broadcast), client, data)

    def direction(self, ctx: ClientContext, broadcast: BodyMessage, local: SGDState, g: Tensor) -> Tensor:
        v = super().direction(ctx, broadcast, local, g)
        for entry in entries_of(ctx.objective, head=True):
            v.narrow(0, entry.offset, entry.numel).zero_()
        return v

    def end(
        self, ctx: ClientContext, broadcast: BodyMessage, client: OwnStatistics, local: SGDState, data: ClientData
    ) -> tuple[BodyMessage, OwnStatistics]:
        _, client = super().end(ctx, broadcast, client, local, data)
        return BodyMessage(body_of(ctx.objective, local.w), local.b), client

    def personalize(
        self, ctx: ClientContext, broadcast: BodyMessage, client: OwnStatistics, batches: FineTuning
    ) -> Predictor:
        # fine-tuning trains the head too
        return super().personalize(ctx, self.model_in(ctx, broadcast), client, batches)


def entries_of(objective: Objective, head: bool) -> list[Entry]:
    """The entries of `w` in the head, or outside it, in their order."""
    return [entry for entry, inside in zip(objective.layout.entries, objective.in_head, strict=True) if inside is head]


def body_of(objective: Objective, w: Tensor) -> Tensor:
    """A new vector `[P - P_head]` of the parameters of `w [P]` outside the head, tensor after tensor."""
    return torch.cat([w.narrow(0, entry.offset, entry.numel) for entry in entries_of(objective, head=False)])
