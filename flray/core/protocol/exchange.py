"""One step of the round protocol, as the algorithm names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from flray.core.messages import Metrics, Record

Who = Literal["cohort", "task", "stateful", "nobody"] | int
ServerWork = Callable[..., tuple[Any, Metrics]]  # (ctx, state) -> (the next server state, metrics)


class Exchange(NamedTuple):
    """Broadcast -> client work -> finish. A round, the beginning and the end of a task are any number of exchanges.

    `broadcast(ctx, state)` and `finish(ctx, state, updates, cohort)` are bound methods of the algorithm.
    `client` is None for local training (`begin`, `step` for every batch, `end`), which the engine runs, or one function
    `work(ctx, broadcast, client, data)` that returns (update, client state, metrics).
    `who` does it: the `cohort` (outside rounds: every client with data of the task), the clients with data of the
    `task`, those that have a state (`stateful`), or so many drawn from the clients with data. `nobody`: the server
    works alone, see :meth:`on_server`.
    An exchange with clients is skipped where none of them holds a sample at that moment; the run warns then.
    What `finish` gets of the clients' updates is declared by the fields of the update (`core/messages/fields.py`).
    `order="sequential"`: one client after the other, in the order of their numbers; after each turn `finish` runs with
    that update, and the broadcast is asked anew.
    """

    name: str
    broadcast: Callable[..., Any]
    finish: Callable[..., Any]
    client: Callable[..., Any] | None = None
    who: Who = "cohort"
    order: Literal["parallel", "sequential"] = "parallel"

    @classmethod
    def on_server(cls, name: str, work: ServerWork) -> Exchange:
        """Work of the server alone: `work(ctx, state)` returns (the next server state, metrics).

        No client takes part, nothing is sent, and it is never skipped.
        """
        return cls(name, _nothing, work, who="nobody")


def _nothing(ctx: Any, state: Any) -> Record:
    """The broadcast of an exchange without clients."""
    return Record()
