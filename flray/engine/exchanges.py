"""What driver, server and clients hand to each other in an exchange."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from flray.core.messages import Cohort, Message, equal
from flray.core.protocol.batching import ListedBatches
from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.ops.pooling import PartialUpdates
from flray.scenario import Shares

ProbeRow = tuple[str, dict[str, Any]]  # (name of the probe, what it observed)


class Aged(NamedTuple):
    """The `versions` of a step's updates in cohort order, the weights `s` of their ages, and the versions that are
    `held` for clients at work after the step."""

    versions: tuple[int, ...]
    s: tuple[float, ...]
    held: tuple[int, ...]


class ExchangePlan(NamedTuple):
    """One exchange at one moment.

    `down_bytes`: the bytes of the broadcast for one client, by field. `shared`: the hashes of the broadcast's shared
    parts, whose bytes `finish` counts. `uplink`: what the transforms of `uplink` send down, by address. `even_empty`:
    `finish` runs without clients too, because a private run adds its noise in every round. `aged`: that of the turn.
    """

    clock: Clock
    exchange: Exchange
    down_bytes: dict[str, int]
    shared: tuple[str, ...] = ()
    uplink: Mapping[str, Any] = {}
    even_empty: bool = False
    aged: Aged | None = None

    @property
    def kind(self) -> tuple[Any, ...] | None:
        """What a client's work and its turn depend on, beside clock and broadcast; None: on values of this plan."""
        name, _, _, client, who, order = self.exchange
        if self.shared or self.uplink or self.even_empty or self.aged is not None:
            return None
        return (name, who, order) if client is None and who == "cohort" and order == "parallel" else None


class Chunk(NamedTuple):
    """A contiguous part of an exchange's participants, from position `first` on, that one actor trains.

    `weights`: their aggregation weights. `shares`: their samples. `previous`: their samples in the stage before, for an
    algorithm that may read them (`ClientData.previous`). `taken`: the local steps that each takes (None: all that are
    planned). `listed`: the batches of each client that a file lists; None: drawn. `uplink`: that of the plan.
    `version`: the server step whose broadcast the clients have; None: the plan's.
    """

    clock: Clock
    first: int
    weights: tuple[float, ...]
    shares: Shares
    previous: Shares | None = None
    taken: tuple[int, ...] | None = None
    listed: tuple[ListedBatches, ...] | None = None
    uplink: Mapping[str, Any] = {}
    version: int | None = None

    @property
    def clients(self) -> list[int]:
        clients: list[int] = self.shares.clients.tolist()
        return clients

    def samples(self, i: int) -> np.ndarray:
        """Sample numbers of the i-th client of the chunk."""
        return self.shares.of(i)

    def same_as(self, other: Chunk) -> bool:
        return equal(_unnamed(self), _unnamed(other))


def _unnamed(value: Any) -> Any:
    """Named tuples, at any depth, as tuples."""
    return tuple(map(_unnamed, value)) if isinstance(value, tuple) else value


class ChunkResult(NamedTuple):
    """A chunk's answer: its updates, pooled as far as possible; each client's new state (None: it was left out) and
    steps; the rows of the head that a client's gradients reached, bool `[C]` (None: no row is frozen); by address how
    many clients sent a one to a transform of `uplink`."""

    sent: PartialUpdates
    states: list[Message]
    steps: list[int]
    rows: np.ndarray | None = None
    bits: Mapping[str, int] = {}


class ClientReport(NamedTuple):
    """A client's row of `clients/`; rows of its probes; traces of the profiler by the name of their file."""

    row: dict[str, Any]
    probes: list[ProbeRow]
    traces: list[tuple[str, bytes]]


class ServerReport(NamedTuple):
    """What the server half of an exchange tells the driver.

    `metrics`: the algorithm's, as values of a table. `clients_skipped`: the number of clients left out. `up_bytes`:
    that the others sent, by field. `shared_bytes`: of shared parts that went to clients. `diverged`: the model is not
    finite. `probes`: rows of the server's probes.
    """

    metrics: dict[str, float | list[float]]
    clients_skipped: int
    up_bytes: dict[str, int]
    shared_bytes: int
    diverged: bool
    probes: list[ProbeRow]


class Turn(NamedTuple):
    """The clients that work at one moment, the chunks into which they are cut, and the ages of their updates (None: all
    have the present model). `runs`: the numbers of neighbouring chunks that one actor trains; (): each alone."""

    clock: Clock
    cohort: Cohort
    chunks: list[Chunk]
    aged: Aged | None = None
    runs: tuple[int, ...] = ()

    @property
    def by_actor(self) -> list[list[Chunk]]:
        """The chunks of each run."""
        chunks = iter(self.chunks)
        return [list(itertools.islice(chunks, count)) for count in self.runs or [1] * len(self.chunks)]
