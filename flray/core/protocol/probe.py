"""Probes: they observe training at certain places, and change no bit of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from flray.core.messages import Cohort, Record, map_tensors
from flray.core.protocol import seeding
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.samples import ClientData
from flray.core.schema.section import Section

Place = Literal["start", "step", "end", "finish", "round"]
Reads = frozenset[Literal["tests", "clients", "proxy", "proxy_labels"]]
Row = Mapping[str, Any]
ModelOf = Callable[[Any], tuple[Tensor, Tensor] | None]


class ClientView(NamedTuple):
    """A client at the start of local training, after one of its steps, or at its end. Every tensor is a copy.

    `model_of(message)`: its model `(w [P], b [Q])`, or None (`Algorithm.model_of`). `steps`: steps taken so far, the
    last one on `batch`. `update`: at the end.
    """

    place: Place
    model_of: ModelOf
    broadcast: Any
    client: Any
    local: Any
    data: ClientData
    steps: int
    batch: Any = None
    update: Any = None


class FinishView(NamedTuple):
    """The server half of an exchange: the state before, the pooled update, the state after, and the cohort."""

    place: Place
    model_of: ModelOf
    before: Any
    updates: Any
    after: Any
    cohort: Cohort


class RoundView(NamedTuple):
    """A transaction before its commit, or a stored checkpoint (`before` is None): the states before and after."""

    place: Place
    model_of: ModelOf
    before: Any
    after: Any


class Probe(Section, ABC, frozen=True):
    """A diagnostic: a record of options, whose method reports rows for its own table.

    `at` names its places: a client's `start`, every `step`, its `end`; the server's `finish` of an exchange; after a
    `round` (or a task's beginning or end), also of a stored checkpoint (`Replay.observe`).
    """

    at: ClassVar[frozenset[Place]] = frozenset()

    @property
    def reads(self) -> Reads:
        """The data that the probe reads besides a client's own: the `tests` (`ctx.tests`), the training samples of all
        `clients` (in `ctx.tests` too), the `proxy`, and the `proxy_labels`."""
        return frozenset()

    @abstractmethod
    def observe(self, ctx: Context, view: Any, memory: Any) -> tuple[Sequence[Row], Any]:
        """Returns (rows to report, the probe's next memory) for a view; `memory` is None at first.

        A client's memory lasts from its start to its end. At `finish` and `round` the memory is the server's: a
        message, committed with the round and stored in its checkpoints. `ctx.rng` has the algorithm's addresses: name
        the probe in the purpose.
        """


@contextmanager
def preserve_rng(ctx: Context) -> Iterator[None]:
    """A context that restores scratch tensors and the generator that modules draw from."""
    devices = [ctx.device] if ctx.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), ctx.objective.preserve_scratch():
        seed = seeding.torch_seed(ctx.seed, "probe", *ctx.address)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would format a stack trace for every device
        if devices:
            torch.cuda.manual_seed(seed)
        yield


class Observer:
    """The probes of one client's training, or of one server half, with their memories and rows."""

    def __init__(
        self,
        probes: Mapping[str, Probe],
        reveal: Callable[[Context, Reads], Context],
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        """`reveal(ctx, reads)` returns the context with the data that a probe declares to read."""
        self.probes, self.reveal, self.memory = probes, reveal, dict(memory or {})
        self.rows: list[tuple[str, dict[str, Any]]] = []  # (probe, row)

    def wants(self, place: Place) -> bool:
        """Whether any probe observes this place. If not, nothing is copied."""
        return any(place in probe.at for probe in self.probes.values())

    def observe(self, ctx: Context, view: Any) -> None:
        """Show a view to the probes of its place, on copies of its tensors."""
        for name, probe in self.probes.items():
            if view.place not in probe.at:
                continue
            copied = type(view)(*(_copied(part) for part in view))
            with preserve_rng(ctx):
                seen = self.reveal(ctx, probe.reads)
                rows, self.memory[name] = probe.observe(seen, copied, self.memory.get(name))
            where = {"exchange": ctx.clock.exchange, "place": view.place}
            if isinstance(ctx, ClientContext):
                where["client"] = ctx.client
            self.rows += [(name, {**where, **row}) for row in rows]


def _copied(part: Any) -> Any:
    """A message with copies of its tensors and arrays; a function, a client's data and a count are what they are."""
    if not isinstance(part, Tensor | Record | dict | tuple):
        return part
    return map_tensors(lambda value: value.clone() if isinstance(value, Tensor) else value.copy(), part)
