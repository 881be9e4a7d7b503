"""One step of the round protocol, as an algorithm declares it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, cast

from typing_extensions import TypeVar

from flray.core.messages import Cohort, Metrics, Record
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData

Who = Literal["cohort", "task", "stateful", "nobody"] | int

# the messages of an exchange; `Exchange` without arguments leaves them open
State = TypeVar("State", default=Any)  # the server's state
Down = TypeVar("Down", default=Any)  # the broadcast
Sent = TypeVar("Sent", default=Any)  # a client's update
Stored = TypeVar("Stored", default=Any)  # a client's state
Received = TypeVar("Received", default=Any)  # the clients' updates, pooled as the fields of `Sent` declare

ServerWork = Callable[[Context, State], tuple[State, Metrics]]  # returns (the next server state, metrics)


class Exchange(NamedTuple, Generic[State, Down, Sent, Stored, Received]):
    """Broadcast -> client work -> finish. A round, the beginning and the end of a task are any number of exchanges.

    `broadcast(ctx, state)` and `finish(ctx, state, updates, cohort)` are bound methods of the algorithm.
    `client` is None for local training (`begin`, `step` for every batch, `end`), which the engine runs, or one function
    `work(ctx, broadcast, client, data)` that returns (update, client state, metrics).
    `who` takes part: the `cohort` (outside rounds: every client with data of the task), the clients with data of the
    `task`, those with a state (`stateful`), or so many drawn from the clients with data. `nobody`: the server works
    alone; see :meth:`on_server`.
    An exchange is skipped, with a warning, if none of its clients has a sample at this moment.
    The fields of the update declare how `finish` gets them (`core/messages/fields.py`).
    `order="sequential"`: one client after the other, by ascending id; `finish` runs after each, then `broadcast` again.
    """

    name: str
    broadcast: Callable[[Context, State], Down]
    finish: Callable[[Context, State, Received, Cohort], tuple[State, Metrics]]
    client: Callable[[ClientContext, Down, Stored, ClientData], tuple[Sent, Stored, Metrics]] | None = None
    who: Who = "cohort"
    order: Literal["parallel", "sequential"] = "parallel"

    @classmethod
    def on_server(cls, name: str, work: ServerWork[State]) -> Exchange[State, Record]:
        """Work of the server alone: `work(ctx, state)` returns (the next server state, metrics).

        No client takes part, nothing is sent, and it is never skipped.
        """
        return Exchange(name, _empty, cast(Any, work), who="nobody")  # :attr:`server_work` takes it out again

    @property
    def server_work(self) -> ServerWork[State] | None:
        """The work of an exchange without clients, else None."""
        return cast(ServerWork[State], self.finish) if self.who == "nobody" else None


def _empty(ctx: Context, state: object) -> Record:
    return Record()
