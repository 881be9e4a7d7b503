"""What the data-free continual methods TARGET, LANDER and MFCL share: an old model, and a server that synthesizes data
from it. Not an algorithm by itself.

Before every task but the first, w_old <- w_g, and `synthesize` trains a generator on the old model's outputs. Clients
learn the new classes and distil the old model on synthetic inputs. Without tasks it is FedAvg. The papers synthesize at
the end of a task that is not the last; the model is the same.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn
from typing_extensions import TypeVar

from flray.algorithms.fedavg import Down, FedAvg
from flray.core.messages import Broadcast, Metrics, ServerState
from flray.core.messages.fields import shared
from flray.core.protocol.classes import ClassSet
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.core.protocol.inputs import Inputs
from flray.ops.synthesis import Teacher


class OldState(ServerState):
    """The global model and the old one, `old_w [P]` and `old_b [Q]`; `[0]` in the first task."""

    old_w: Tensor
    old_b: Tensor


class OldDown(Broadcast):
    """The global and the old model. A client gets each old model once."""

    old_w: Tensor = shared()
    old_b: Tensor = shared()


OldStateT = TypeVar("OldStateT", bound=OldState, default=OldState)


class DataFree(FedAvg[OldStateT, Down], frozen=True):
    def networks(self, model: nn.Module, inputs: Inputs) -> dict[str, nn.Module]:
        inputs.require_numbers(f"the generator of {type(self).__name__}")
        return {"generator": self.generator(inputs.shape)}

    @abstractmethod
    def generator(self, shape: tuple[int, ...]) -> nn.Module:
        """The generator for inputs of this shape."""

    def synthesis_due(self, ctx: Context) -> bool:
        """Whether the server synthesizes at this moment."""
        return ctx.clock.phase == "task_begin" and ctx.clock.task > 0

    @abstractmethod
    def synthesize(self, ctx: Context, state: OldStateT, old: Teacher) -> tuple[OldStateT, Metrics]:
        """The state with synthetic data, or their generator, of the classes of the old model, which `state` holds
        already."""

    def next_exchange(self, ctx: Context, state: OldStateT) -> Exchange | None:
        exchanges: list[Exchange[OldStateT]] = (
            [Exchange.on_server("remember", self.take_old_model)] if self.synthesis_due(ctx) else []
        )
        if ctx.clock.phase == "round":
            exchanges.append(self.training)
            if (more := self.exchange_of_rule(ctx, state)) is not None:
                exchanges.append(more)
        return exchanges[ctx.clock.exchange] if ctx.clock.exchange < len(exchanges) else None

    def take_old_model(self, ctx: Context, state: OldStateT) -> tuple[OldStateT, Metrics]:
        old = Teacher(ctx.objective, state.w, state.b, self.learned_classes(ctx))
        return self.synthesize(ctx, state.replace(old_w=state.w, old_b=state.b), old)

    def learned_classes(self, ctx: Context) -> ClassSet | None:
        """The classes that the old model has learned; None: all."""
        return None if ctx.classes is None else ctx.classes.old
