"""Local training (FedSOL Table 9): every client trains alone from the common initial parameters and sends nothing."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from flray.algorithms.persistent_optimizer import ModelWithOptimizer, PersistentOptimizer
from flray.core.messages import Cohort, Metrics
from flray.core.protocol.algorithm import Predictor
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import FineTuning


class Local(PersistentOptimizer, frozen=True):
    server_reason: ClassVar[str] = "there is no global model"
    global_model: ClassVar[bool] = False

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        return ()

    def broadcast(self, ctx: Context, state: tuple[()]) -> Any:
        return ()

    def aggregate(self, ctx: Context, state: tuple[()], updates: object, cohort: Cohort) -> tuple[Any, Metrics]:
        return state, {}

    def predict(self, ctx: Context, published: object, x: Tensor) -> Tensor:
        raise RuntimeError("algorithm local has no global model to predict with: each client has its own (personalize)")

    # client -----------------------------------------------------------------------------------
    def init_client(self, ctx: Context) -> ModelWithOptimizer:
        return self.initial_model(ctx)

    def personalize(
        self, ctx: ClientContext, broadcast: object, client: ModelWithOptimizer, batches: FineTuning
    ) -> Predictor:
        return ctx.objective.at(*self.finetune(ctx, client.w, client.b, batches))
