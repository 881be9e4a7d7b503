"""Local training (FedSOL Table 9, spec 7.7): every client trains alone from the common initial parameters; nothing is
sent.

| paper | field | FedSOL |
|---|---|---|
| gamma | `lr` | 0.01 |
| decay per epoch | `lr_decay`, per round | 0.99 |
| m, weight decay | `momentum`, `weight_decay` | 0.9, 1e-5 |
| epochs | rounds x `local_epochs` | 200 x 1 |

One optimiser over all rounds: its momentum (or Adam's moments) and its count of steps stay on the client. With
`local_epochs: 1` and every client in every cohort, R rounds are R epochs of one optimiser whose rate falls after each,
as in FedSOL's code.
There is no global model: nothing to average, test or save; read the personalised evaluation, whose predictor is the
client's own model (the initial one where it never took part), with further fine-tuning by a new optimiser where that is
asked for.
Down: 0 numbers (the initial parameters are known from the seed). Up: 0. State: P + Q on each client, and P more for
momentum, 2 P for Adam. Cost per step: 1 FedAvg step. Known failure: clients outside a round's cohort do not train in
it, while `lr_decay` goes on.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from flray.algorithms.lasting import Lasting
from flray.core.algorithm import Predictor
from flray.core.context import Context
from flray.core.messages import Cohort, Metrics
from flray.core.samples import FineTuning


class Local(Lasting, frozen=True):
    global_model: ClassVar[bool] = False

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> Any:
        return ()

    def broadcast(self, ctx: Context, state: Any) -> Any:
        return ()

    def aggregate(self, ctx: Context, state: Any, updates: Any, cohort: Cohort) -> tuple[Any, Metrics]:
        return state, {}

    def predict(self, ctx: Context, published: Any, x: Tensor) -> Tensor:
        raise RuntimeError("algorithm local has no global model to predict with: each client has its own (personalize)")

    # client -----------------------------------------------------------------------------------
    def init_client(self, ctx: Context) -> Any:
        return self.untrained(ctx)

    # personalised evaluation ------------------------------------------------------------------
    def personalize(self, ctx: Context, down: Any, client: Any, batches: FineTuning) -> Predictor:
        return ctx.objective.at(*self.finetune(ctx, client.w, client.b, batches))
