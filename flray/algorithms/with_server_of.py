"""An algorithm whose server half and states are those of another one, its `base`. Not an algorithm by itself.

FedSOL has those of the method of L_p."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from torch import Tensor

from flray.algorithms.fedavg import FedAvg, SGDState
from flray.core.messages import Cohort, Metrics, ServerState
from flray.core.protocol.algorithm_section import ServerRule
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData


class WithServerOf(FedAvg[ServerState, Any, Any, Any], frozen=True):
    """Between `begin` and `end` of the `base` the local steps are the algorithm's own.

    Any: the messages are those of the base, another class for each.
    """

    server_rule: ClassVar[ServerRule] = "any"  # `fitting_rules` says which the base has

    def fitting_rules(self) -> tuple[ServerRule, str]:
        return self.base.fitting_rules()

    @property
    @abstractmethod
    def base(self) -> FedAvg[ServerState, Any, Any, Any]:
        """The method whose server half and states are used."""

    def init_server(self, ctx: Context, w: Tensor, b: Tensor) -> ServerState:
        return self.base.init_server(ctx, w, b)

    def broadcast(self, ctx: Context, state: ServerState) -> Any:
        return self.base.broadcast(ctx, state)

    def aggregate(self, ctx: Context, state: ServerState, updates: object, cohort: Cohort) -> tuple[Any, Metrics]:
        return self.base.aggregate(ctx, state, updates, cohort)

    def init_client(self, ctx: Context) -> Any:
        return self.base.init_client(ctx)

    def begin(self, ctx: ClientContext, broadcast: object, client: object, data: ClientData) -> SGDState:
        return self.base.begin(ctx, broadcast, client, data)

    def end(
        self, ctx: ClientContext, broadcast: object, client: object, local: SGDState, data: ClientData
    ) -> tuple[Any, Any]:
        return self.base.end(ctx, broadcast, client, local, data)
