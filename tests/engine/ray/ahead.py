"""FedAvg that asks for other clients, or fails, in one round; and one that tells which batches lay ready."""

from __future__ import annotations

from typing import Any, Literal

from flray.algorithms import ALGORITHMS
from flray.algorithms.fedavg import FedAvg
from flray.core.messages import Batch
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.exchange import Exchange
from flray.core.schema.hp import hp


class Otherwise(FedAvg, frozen=True):
    """In round 4 every client with data of the task trains, or the cohort in an exchange of another name."""

    change: Literal["who", "name"] = hp("who", doc="what is another there")

    def next_exchange(self, ctx: Context, state: Any) -> Exchange | None:
        exchange = super().next_exchange(ctx, state)
        if exchange is None or ctx.clock.phase != "round" or ctx.clock.round != 3:
            return exchange
        return exchange._replace(who="task") if self.change == "who" else exchange._replace(name="other")


class Breaks(FedAvg, frozen=True):
    """Every client fails in round `round`, from 0."""

    round: int = hp(3, doc="when")

    def step(self, ctx: ClientContext, broadcast: Any, client: Any, local: Any, batch: Batch) -> Any:
        if ctx.clock.round == self.round:
            raise RuntimeError("as asked")
        return super().step(ctx, broadcast, client, local, batch)


class Tells(FedAvg, frozen=True):
    """A client's row says whether its batches were gathered before it began."""

    def begin(self, ctx: ClientContext, broadcast: Any, client: Any, data: Any) -> Any:
        gathered = data.gathered  # None: a client that is alone
        READY[ctx.client] = gathered is not None and gathered.args[0]._batches is not None
        return super().begin(ctx, broadcast, client, data)

    def report(self, ctx: ClientContext, local: Any) -> dict[str, Any]:
        return {**super().report(ctx, local), "ready": float(READY[ctx.client])}


class Works(FedAvg, frozen=True):
    """In round 3, the first that is foreseen, clients do work of the algorithm's own, which reads no list."""

    def next_exchange(self, ctx: Context, state: Any) -> Exchange | None:
        exchange = super().next_exchange(ctx, state)
        if exchange is None or ctx.clock.phase != "round" or ctx.clock.round != 2:
            return exchange
        return exchange._replace(name="own", client=self.work)

    def work(self, ctx: ClientContext, broadcast: Any, client: Any, data: Any) -> tuple[Any, Any, dict[str, Any]]:
        local = self.begin(ctx, broadcast, client, data)
        for batch in data.batches(self.batch_size, epochs=self.local_epochs):
            local = self.step(ctx, broadcast, client, local, batch)
        update, after = self.end(ctx, broadcast, client, local, data)
        return update, after, {}


READY: dict[int, bool] = {}  # by client, of this process
ALGORITHMS.add("tells", Tells)
ALGORITHMS.add("works", Works)
ALGORITHMS.add("otherwise", Otherwise)
ALGORITHMS.add("breaks", Breaks)
