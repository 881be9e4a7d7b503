"""FedAvg (McMahan et al., AISTATS 2017, Algorithm 1): several local epochs, then weighted averaging. The base class of
all other algorithms.

Client: w_k = w_g after E local epochs of w <- w - eta g(w), g the gradient of the cross-entropy on a batch.
Server: w_g <- sum_k p_k w_k, p_k = n_k / n over the sampled clients.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self, cast

import torch
from pydantic import field_serializer, field_validator, model_validator
from torch import Tensor
from typing_extensions import TypeVar

from flray.aggregations.mean import Mean
from flray.core.messages import (
    Batch,
    Broadcast,
    ClientState,
    Cohort,
    HasModel,
    LocalState,
    Metrics,
    ServerState,
    Update,
    sendable,
)
from flray.core.protocol.aggregation import Aggregated, Aggregation, Combine
from flray.core.protocol.algorithm import Algorithm, Predictor, Received, Sent
from flray.core.protocol.algorithm_section import ServerRule
from flray.core.protocol.batching import FULL, BatchSize
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.returned import check_model
from flray.core.protocol.samples import ClientData, FineTuning
from flray.core.schema.errors import AlgorithmError, ConfigError
from flray.core.schema.hp import hp
from flray.core.schema.own import returned
from flray.ops.losses import cross_entropy
from flray.ops.optim import Moments, adam_direction_, decay_, sgd_direction_

MEAN = Mean()


class SGDState(LocalState):
    """The local state: parameters `w [P]`, statistics `b [Q]`, scratch `grad [P]`, the optimiser's moments, and the sum
    of the losses (0-dim)."""

    grad: Tensor
    moments: Moments
    loss: Tensor


class LocalStatistics(ClientState):
    """The client's own batch-norm statistics `b [Q]` with `buffers: local`, else None. Client states with more fields
    inherit from it."""

    b: Tensor | None


OwnStatistics = LocalStatistics | tuple[()]  # the client state of methods that need no other

State = TypeVar("State", bound=ServerState, default=ServerState)
Down = TypeVar("Down", bound=HasModel, default=Broadcast)
Stored = TypeVar("Stored", default=OwnStatistics)
Local = TypeVar("Local", bound=SGDState, default=SGDState)


class FedAvg(Algorithm[State, Down, Sent, Stored, Local, Received], frozen=True):
    server_rule: ClassVar[ServerRule] = "any"
    capturable: ClassVar[bool] = True
    sends_once: ClassVar[bool] = True  # with a rule that asks for no second exchange
    changes_midrun: ClassVar[frozenset[str]] = frozenset({"lr", "lr_decay", "optimizer", "momentum", "weight_decay"})

    lr: float = hp(0.01, log=(1e-4, 1.0), gt=0, doc="local learning rate (eta)")
    lr_decay: float = hp(1.0, linear=(0.95, 1.0), gt=0, le=1, doc="factor of the local learning rate per round")
    optimizer: Literal["sgd", "adam"] = hp("sgd", choice=("sgd", "adam"), doc="local optimiser, new every round")
    momentum: float = hp(0.9, choice=(0.0, 0.5, 0.9), ge=0, lt=1, doc="momentum of SGD; Adam does not read it")
    weight_decay: float = hp(0.0, log=(1e-6, 1e-2), ge=0, doc="weight decay, added to the gradient")
    local_epochs: int = hp(5, choice=(1, 2, 5, 10, 20), ge=1, doc="local epochs per round (E)")
    batch_size: BatchSize = hp(
        50, choice=(10, 32, 50, 64, 128, 256), doc="local batch size (B), 1 or more; full: all of a client's samples"
    )
    weighting: Literal["examples", "uniform"] = hp(
        "examples", doc="aggregation weights: n_k over the cohort's sum, or equal"
    )
    buffers: Literal["average", "keep", "local"] = hp(
        "average", doc="batch-norm statistics: averaged like parameters, kept at the initial ones, or each client's own"
    )

    @field_validator("batch_size")
    @classmethod
    def _read(cls, value: int | str) -> int:
        return FULL if isinstance(value, str) else value

    @field_serializer("batch_size")
    def _written(self, value: int) -> int | str:
        return "full" if value == FULL else value

    @model_validator(mode="after")
    def _batch_size_is_a_number(self) -> Self:
        if self.batch_size == FULL and (reader := self.reads_batch_size()):
            raise ConfigError(f"algorithm.batch_size: full is no number, and {reader} reads one; write the number")
        return self

    def reads_batch_size(self) -> str:
        """What besides local batches takes `batch_size` as a number; "": nothing."""
        return ""

    # server -----------------------------------------------------------------------------------
    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> State:
        rule = self.aggregation_rule(ctx).initial(ctx, w, b)
        return ServerState(w, b, rule=rule)  # type: ignore[return-value]  # another State: overridden

    def broadcast(self, ctx: Context, state: State) -> Down:
        return Broadcast(state.w, state.b)  # type: ignore[return-value]  # another Down: overridden

    def weights(self, num_examples: Tensor) -> Tensor:
        if self.weighting == "uniform":
            return torch.full((len(num_examples),), 1.0 / len(num_examples), dtype=torch.float64)
        return super().weights(num_examples)

    def aggregate(self, ctx: Context, state: State, updates: Received, cohort: Cohort) -> tuple[State, Metrics]:
        return self._combined(self.aggregation_rule(ctx).combine, ctx, state, cast(HasModel, updates), cohort)

    def aggregate_again(self, ctx: Context, state: State, updates: HasModel, cohort: Cohort) -> tuple[State, Metrics]:
        """The server half of the exchange that a rule adds after training."""
        return self._combined(self.aggregation_rule(ctx).combine_again, ctx, state, updates, cohort)

    def _combined(
        self, combine: Combine, ctx: Context, state: State, updates: HasModel, cohort: Cohort
    ) -> tuple[State, Metrics]:
        pooled = Update(updates.w, updates.b)  # a rule gets the model alone
        after = combine(ctx, state.rule, state, pooled, cohort, self.buffers)
        if not isinstance(after, Aggregated):
            raise AlgorithmError(returned(combine, after, "return Aggregated(w, b)"))
        b = self.statistics(state, after.b)
        check_model((after.w, b), ctx.objective, combine, "next model")
        return state.replace(w=after.w, b=b, rule=sendable(after.own, combine, "state")), after.metrics

    def next_exchange(self, ctx: Context, state: State) -> Exchange[State, Any, Any, Stored, Any] | None:
        if ctx.clock.phase == "round" and ctx.clock.exchange == 1:
            return self.exchange_of_rule(ctx, state)
        return super().next_exchange(ctx, state)

    def exchange_of_rule(self, ctx: Context, state: State) -> Exchange[State, Any, Any, Stored, Any] | None:
        """The exchange that the rule of aggregation adds after the training of this round; None: it adds none."""
        rule = self.aggregation_rule(ctx)
        if not isinstance(state, ServerState) or not rule.asks_again(state.rule):
            return None
        return Exchange("proxy", rule.broadcast_again, self.aggregate_again, rule.client_work)

    # Any: each rule has its own state, which only the rule reads
    def aggregation_rule(self, ctx: Context) -> Aggregation[Any]:
        """The rule of aggregation: the method itself where it is one, else the experiment's, by default the mean."""
        if isinstance(self, Aggregation):
            return self
        return MEAN if ctx.aggregation is None else cast(Aggregation[Any], ctx.aggregation)

    def statistics(self, state: ServerState, averaged: Tensor) -> Tensor:
        """The global model's next batch-norm statistics under the policy `buffers`."""
        return state.b if self.buffers == "keep" else averaged

    def predict(self, ctx: Context, published: Any, x: Tensor) -> Tensor:  # Any: the record of `published`, by method
        return ctx.objective.at(published.w, published.b)(x)

    # client -----------------------------------------------------------------------------------
    @property
    def local_batches(self) -> tuple[int, int]:
        return self.batch_size, self.local_epochs

    def init_client(self, ctx: Context) -> Stored:
        return self.own_statistics(ctx.objective.initial()[1]) if self.buffers == "local" else ()  # type: ignore[return-value]

    def begin(self, ctx: ClientContext, broadcast: Down, client: Stored, data: ClientData) -> Local:
        return self.local_state(ctx, broadcast.w, self.statistics_before(broadcast, client))

    def statistics_before(self, broadcast: HasModel, client: Stored) -> Tensor:
        """Batch-norm statistics `[Q]` at the first step: the client's own with `buffers: local`, else the global."""
        return cast(HasModel, client).b if self.buffers == "local" else broadcast.b

    def own_statistics(self, b: Tensor) -> LocalStatistics:
        """The client state with a copy of the statistics `b [Q]` with `buffers: local`, else with None."""
        return LocalStatistics(b.clone() if self.buffers == "local" else None)

    def local_state(self, ctx: Context, w: Tensor, b: Tensor) -> Local:
        """The local state at scratch copies of `(w [P], b [Q])`, with a new optimiser."""
        ctx.objective.reached()  # starts anew: only tensors that this client's gradients reach will decay
        w = ctx.objective.scratch("w", w).copy_(w)
        b = ctx.objective.scratch("b", b).copy_(b)
        first, second = ctx.objective.scratch("first moment", w), w[:0]
        if self.optimizer == "adam":
            first, second = first.zero_(), ctx.objective.scratch("second moment", w).zero_()
        return SGDState(  # type: ignore[return-value]
            w, b, ctx.objective.scratch("gradient", w), Moments(first, second, 0), w.new_zeros(())
        )

    def gradient(
        self, ctx: ClientContext, broadcast: Down, client: Stored, local: Local, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        return self.local_gradient(ctx, local, batch)

    def local_gradient(self, ctx: Context, local: SGDState, batch: Batch) -> tuple[Tensor, Tensor]:
        """(cross-entropy, its gradient `[P]`, scratch), without the terms that a method adds."""
        return ctx.objective.value_and_grad(
            lambda f: cross_entropy(f(batch.x), batch.y, ctx.classes),
            local.w,
            local.b,
            # a method of the user's own may ask for two gradients in a step and keep both
            out=None if has_own_gradient(type(self)) else local.grad,
        )

    def step(self, ctx: ClientContext, broadcast: Down, client: Stored, local: Local, batch: Batch) -> Local:
        loss, g = self.gradient(ctx, broadcast, client, local, batch)
        return self.descend(ctx, broadcast, local, loss, g)

    def descend(self, ctx: ClientContext, broadcast: Down, local: Local, loss: Tensor, g: Tensor) -> Local:
        """w <- w - lr v, with v the direction of the gradient `g [P]`, which is overwritten."""
        local.loss.add_(loss)
        v = self.direction(ctx, broadcast, local, g)
        local.w.add_(v, alpha=-self.learning_rate(ctx))
        return local.replace(moments=local.moments.replace(steps=local.moments.steps + 1))

    def direction(self, ctx: ClientContext, broadcast: Down, local: Local, g: Tensor) -> Tensor:
        """v `[P]`: the optimiser's direction of g + weight_decay w; overwrites `g`. Tensors that no gradient reached do
        not decay."""
        decay_(g, local.w, self.weight_decay, ctx.objective.reached())
        return self.optimizer_direction(local, g)

    def optimizer_direction(self, local: SGDState, g: Tensor) -> Tensor:
        """The direction `[P]` of SGD or Adam for a gradient that contains the weight decay; overwrites `g`."""
        if self.optimizer == "adam":
            return adam_direction_(local.w, g, local.moments, 0.0)
        return sgd_direction_(local.w, g, local.moments, self.momentum, 0.0)

    @property
    def reads_step_number(self) -> bool:
        return self.optimizer == "adam"  # its corrections

    def learning_rate(self, ctx: Context) -> float:
        # a constant one reads no clock: a recorded step lasts longer than a round (`engine/captured.py`)
        return self.lr if self.lr_decay == 1 else float(self.lr * self.lr_decay**ctx.clock.round)

    def end(
        self, ctx: ClientContext, broadcast: Down, client: Stored, local: Local, data: ClientData
    ) -> tuple[Sent, Stored]:
        after = self.own_statistics(local.b) if self.buffers == "local" else client
        return Update(local.w, local.b), after  # type: ignore[return-value]

    # personalised evaluation ------------------------------------------------------------------
    def personalize(self, ctx: ClientContext, broadcast: Down, client: Stored, batches: FineTuning) -> Predictor:
        w, b = self.finetune(ctx, broadcast.w, self.statistics_before(broadcast, client), batches)
        return ctx.objective.at(w, b)

    def finetune(self, ctx: ClientContext, w: Tensor, b: Tensor, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """Scratch `(w [P], b [Q])` after plain steps on the cross-entropy from `(w, b)`, with a new optimiser, whatever
        the method's own client does (FedSOL section 4.4)."""
        local = self.local_state(ctx, w, b)
        for batch in batches:
            _, g = self.local_gradient(ctx, local, batch)
            decay_(g, local.w, self.weight_decay, ctx.objective.reached())
            local.w.add_(self.optimizer_direction(local, g), alpha=-self.learning_rate(ctx))
            local = local.replace(moments=local.moments.replace(steps=local.moments.steps + 1))
        return local.w, local.b

    def continued(self, ctx: ClientContext, w: Tensor, b: Tensor, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """Scratch `(w [P], b [Q])` after the method's own local steps from `(w, b)`: `finetune` of methods that do not
        train on the cross-entropy."""
        local = self.local_state(ctx, w, b)
        for batch in batches:
            local = self.step(ctx, None, (), local, batch)  # type: ignore[arg-type]  # its step reads neither
        return local.w, local.b

    def report(self, ctx: ClientContext, local: Local) -> Metrics:
        """Raises `AlgorithmError` if an own step used Adam's moments and counted no step, which corrects their bias."""
        if steps := local.moments.steps:
            return {"train/loss": local.loss / steps}
        if self.optimizer == "adam" and bool(local.moments.second.any()):
            raise AlgorithmError(
                f"{type(self).__name__}.step: Adam corrects its moments by the number of steps, and none was counted; "
                "call self.descend, or return "
                "local.replace(moments=local.moments.replace(steps=local.moments.steps + 1))"
            )
        return {}


@functools.cache
def has_own_gradient(kind: type) -> bool:
    """Whether a class of the user's own defines `gradient` or `step`."""
    own = [parent for parent in kind.__mro__ if not parent.__module__.startswith("flray.")]
    return any(name in vars(parent) for parent in own for name in ("gradient", "step"))
