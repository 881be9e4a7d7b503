"""Clients whose every exchange goes through one method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flray.core.protocol.exchange import Exchange
from flray.engine.client import Client, ClientResult
from flray.engine.exchanges import Chunk


class ObservedClient(Client):
    """Both kinds of work, local training and an exchange's own, are called as `exchange(work, ctx, exchange, broadcast,
    client state, data)`."""

    def exchange(self, work: Callable[..., ClientResult], *arguments: Any) -> ClientResult:
        return work(*arguments)

    def run_client(self, chunk: Chunk, i: int, exchange: Exchange, *others: Any) -> Any:
        self.running = exchange
        return super().run_client(chunk, i, exchange, *others)

    def train(self, algorithm: Any, ctx: Any, broadcast: Any, client: Any, data: Any, *others: Any) -> ClientResult:
        def work(ctx: Any, _: Exchange, broadcast: Any, client: Any, data: Any) -> ClientResult:
            return Client.train(algorithm, ctx, broadcast, client, data, *others)

        return self.exchange(work, ctx, self.running, broadcast, client, data)

    def own_work(self, own: Any, ctx: Any, broadcast: Any, client: Any, data: Any) -> ClientResult:
        def work(ctx: Any, _: Exchange, *others: Any) -> ClientResult:
            return Client.own_work(self, own, ctx, *others)

        return self.exchange(work, ctx, self.running, broadcast, client, data)
