"""One step of the round protocol, as the algorithm names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

Who = Literal["cohort", "task", "stateful"] | int


class Exchange(NamedTuple):
    """Broadcast -> client work -> finish. A round, the beginning and the end of a task are any number of exchanges.

    `broadcast(ctx, state)` and `finish(ctx, state, updates, cohort)` are bound methods of the algorithm.
    `client` is None for local training (`begin`, `step` for every batch, `end`), which the engine runs, or one function
    `work(ctx, down, client, data)` that returns (update, client state, metrics).
    `who` does it: the `cohort` (outside rounds: every client with data of the task), the clients with data of the
    `task`, those that have a state (`stateful`), or so many drawn from the clients with data.
    What `finish` gets of the clients' updates is declared by the fields of the update (`core/fields.py`).
    `order="sequential"`: one client after the other, in the order of their numbers; after each hop `finish` runs with
    that update, and the broadcast is asked anew.
    """

    name: str
    broadcast: Callable[..., Any]
    finish: Callable[..., Any]
    client: Callable[..., Any] | None = None
    who: Who = "cohort"
    order: Literal["parallel", "sequential"] = "parallel"
