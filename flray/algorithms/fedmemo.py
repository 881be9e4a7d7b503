"""FedMemo: detect the latent forgetting of classes that vanish from the clients, and repair it with proxy data.

Client: FedAvg. Server: step 1 is FedAvg's, w' = sum_i N_i w_i / sum_i N_i. WV = Var(w' - w) over the parameters falls
when classes vanish. The detector (`ops/detect.py`) compares its moving mean with that of earlier rounds. During an
alarm comes step 2, with w_p: w' after training on proxy data:

    w'' = (1 - gamma) w' + gamma w_p,   gamma = N_p / (sum_i N_i + N_p)

The server half is a rule of aggregation (`flray/aggregations/fedmemo.py`), which other algorithms can have as well.
What changes clients stands here: `client_exchange: piggyback`, where they train on proxy samples beside the real data
of the next round, from w.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from torch import Tensor

from flray.aggregations import fedmemo
from flray.aggregations.fedmemo import MemoDown, MemoState
from flray.algorithms.fedavg import FedAvg, OwnStatistics, SGDState
from flray.core.messages import Broadcast, Cohort, Metrics, ServerState, Update
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.hp import hp

RENAMED = {  # keys of options before the sections detector and proxy
    **{
        key: f"detector.{key}"
        for key in (
            *("layers", "last", "W", "m", "rho", "rho_off", "guard", "warmup", "confirm"),
            *("tranad_threshold", "tranad_level"),
        )
    },
    **{
        key: f"proxy.{key.removeprefix('proxy_')}"
        for key in (
            *("proxy_data", "proxy_labels", "proxy_size", "proxy_refresh", "gan_epochs", "gan_batch_size", "gan_lr"),
            *("labeller_epochs", "generator_steps", "generator_lr", "label_noise", "one_step"),
            *("proxy_lr", "proxy_batch_size", "proxy_epochs", "proxy_bn"),
        )
    },
}


class MemoUpdate(Update):
    """Of `piggyback`: the client's model after training on real data, and another after training on proxy data."""

    w_proxy: Tensor
    b_proxy: Tensor


class FedMemo(fedmemo.FedMemo, FedAvg, frozen=True):
    server_reason: ClassVar[str] = "it is fedavg with the rule of that name"
    float32_only: ClassVar[str] = "its detector"
    adds_update_noise: ClassVar[bool] = True
    keeps: ClassVar[str] = "on the server a held-out labelled set (mode: server), or a generator; clients keep nothing"

    renamed: ClassVar[Mapping[str, str]] = RENAMED
    elsewhere: ClassVar[Mapping[str, str]] = {
        **FedAvg.elsewhere,
        "privacy": "write uplink: [{name: clip, norm: 1.0}, {name: gaussian, where: client, epsilon: 8}]",
    }

    client_exchange: Literal["two_phase", "piggyback"] = hp(
        "two_phase",
        doc="client: step 2 in a second exchange of the round, from w'; or in the next round's training, from w",
    )

    # server -----------------------------------------------------------------------------------
    def asks_again(self, own: MemoState) -> bool:
        return self.client_exchange == "two_phase" and super().asks_again(own)

    def broadcast(self, ctx: Context, state: ServerState) -> Broadcast:
        piggyback = self.client_exchange == "piggyback" and super().asks_again(state.rule)
        return self.broadcast_again(ctx, state) if piggyback else super().broadcast(ctx, state)

    def aggregate(
        self, ctx: Context, state: ServerState, updates: Update, cohort: Cohort
    ) -> tuple[ServerState, Metrics]:
        state, metrics = super().aggregate(ctx, state, updates, cohort)
        if not isinstance(updates, MemoUpdate):
            return state, metrics
        proxy = Update(updates.w_proxy, updates.b_proxy)
        after = self.mix(state.rule, state, proxy, state.rule.examples, self.buffers, metrics)
        return state.replace(w=after.w, b=after.b), after.metrics

    # client -----------------------------------------------------------------------------------
    def end(
        self, ctx: ClientContext, broadcast: Broadcast, client: OwnStatistics, local: SGDState, data: ClientData
    ) -> tuple[Update, OwnStatistics]:
        update, client = super().end(ctx, broadcast, client, local, data)
        if not isinstance(broadcast, MemoDown):
            return update, client
        w, b = self.proxy_model(ctx, broadcast, data)
        return MemoUpdate.of(update, w_proxy=w, b_proxy=b), client
