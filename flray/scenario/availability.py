"""When clients are there: windows, on and off times, or a file."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, DataError
from flray.core.schema.section import Section
from flray.data.cache import Array
from flray.files import array_checksum
from flray.scenario.tables import integers, numbers, read_table

OWN: dict[str, tuple[str, ...]] = {
    "always": (), "windows": ("period", "share"), "markov": ("on", "off"), "trace": ("file",)
}  # fmt: skip
"""The options that each kind needs."""
DRAWN = 64  # times at once


class Availability(Section):
    """When a client can be sent a model. Times are virtual seconds from the start of the run.

    `windows`: it is there for `share` of each `period`, from a moment of the period that it draws. `markov`: times on
    and off are exponential with these means; at the start it is there with the probability on / (on + off). `trace`: a
    file with a row for each time that a client is there, `client,start,end`.
    """

    shorthand: ClassVar = {str: "name"}
    name: Literal["always", "windows", "markov", "trace"] = Field("always", description="when clients are there")
    period: float | None = Field(None, gt=0, description="windows: virtual seconds")
    share: float | None = Field(None, gt=0, lt=1, description="windows: part of the period in which a client is there")
    on: float | None = Field(None, gt=0, description="markov: mean virtual seconds that a client is there")
    off: float | None = Field(None, gt=0, description="markov: mean virtual seconds that it is away")
    file: str | None = Field(None, description="trace: CSV, Parquet or JSON")
    leaving: Literal["finish", "lose"] = Field(
        "finish", description="a client that leaves at work delivers all the same, or its update is lost"
    )

    @model_validator(mode="after")
    def _own(self) -> Availability:
        for option in ("period", "share", "on", "off", "file"):
            given, reads = getattr(self, option) is not None, option in OWN[self.name]
            if given and not reads:
                owner = next(name for name, options in OWN.items() if option in options)
                raise ConfigError(
                    f"devices.availability: {option} is read by {owner}, not by {self.name}; leave it out"
                )
            if reads and not given:
                raise ConfigError(f"devices.availability: {self.name} needs {option}; add it")
        return self


class Presence:
    """When the clients of a run are there. Memory grows with the clients that are asked for."""

    def __init__(self, config: Availability, seed: int) -> None:
        """Raises `DataError` for a trace that cannot be read."""
        self._config, self._seed = config, seed
        self._switches: dict[int, Array] = {}  # of markov: when a client comes, goes, comes ...
        self._trace = None if config.file is None else _Trace(config.file)

    @property
    def hash(self) -> str:
        """Of the content of the trace; "" without one."""
        return "" if self._trace is None else self._trace.hash

    def check(self, population: int) -> None:
        """Raises `DataError` for a trace with other clients than 0 ... population - 1 that lacks one of these, as one
        that counts from 1. A client without a row is never there."""
        if self._trace is None:
            return
        listed = self._trace.clients
        missing = next((client for client in range(population) if client not in listed), None)
        if missing is not None and max(listed) >= population:
            raise DataError(
                f"{self._trace.what} has client {max(listed)} and no row of client {missing}; the clients are 0 to "
                f"{population - 1}"
            )

    @property
    def loses(self) -> bool:
        """Whether the update of a client that leaves at work is lost."""
        return self._config.leaving == "lose"

    def spans(self, clients: Array, at: float) -> tuple[Array, Array]:
        """(begin, end) of the time in which each client is there: the one with the moment `at`, or the next one after
        it; float64 `[K]` each. A client that never comes again begins at infinity."""
        config = self._config
        if config.name == "always":
            return np.full(len(clients), -np.inf), np.full(len(clients), np.inf)
        if config.period is not None and config.share is not None:
            draws = [rng(self._seed, "device", "availability", client).random() for client in clients.tolist()]
            phases = config.period * np.array(draws, dtype=np.float64)
            begins = phases + np.floor((at - phases) / config.period) * config.period
            begins = np.where(at < begins + config.share * config.period, begins, begins + config.period)
            return begins, begins + config.share * config.period
        of = self._times if self._trace is None else self._trace.of
        found = [self._span(of(client, at), at) for client in clients.tolist()]
        begins, ends = np.array(found, dtype=np.float64).reshape(-1, 2).T
        return begins, ends

    @staticmethod
    def _span(times: Array, at: float) -> tuple[float, float]:
        """Of the alternating `times` at which a client comes and goes."""
        place = int(np.searchsorted(times, at, side="right"))  # before it are the times up to `at`
        place -= place % 2  # odd: it is there, since the time before
        return (float(times[place]), float(times[place + 1])) if place < len(times) else (np.inf, np.inf)

    def _times(self, client: int, at: float) -> Array:
        """Times of a `markov` client, at least two after `at`; the first is 0 if it is there at the start."""
        config = self._config
        assert config.on is not None and config.off is not None
        times = self._switches.get(client, np.zeros(0))
        while not len(times) or times[-2] <= at:
            draws = rng(self._seed, "device", "availability", client, len(times) // DRAWN)
            begins_on = not len(times) and draws.random() < config.on / (config.on + config.off)
            lengths = draws.exponential(1.0, DRAWN) * np.resize([config.off, config.on], DRAWN)
            lengths[0] *= not begins_on
            last = times[-1] if len(times) else 0.0
            times = np.concatenate([times, last + np.cumsum(lengths)])
        self._switches[client] = times
        return times


class _Trace:
    """When clients come and go, from a file."""

    def __init__(self, file: str) -> None:
        what, asked = f"devices.availability.file: {file}", ("client", "start", "end")
        table = read_table(what, file, ",".join(asked), asked)
        clients = integers(what, table, "client")
        start, end = (numbers(what, table, name, "virtual seconds") for name in ("start", "end"))
        wrong = np.flatnonzero(~(np.isfinite(start) & np.isfinite(end) & (start < end)))
        if wrong.size:
            row = wrong[0]
            raise DataError(f"{what}: row {row + 1} has start {start[row]} and end {end[row]}; write start < end")
        order = np.lexsort((start, clients))
        clients, start, end = clients[order], start[order], end[order]
        same = np.flatnonzero((clients[1:] == clients[:-1]) & (start[1:] <= end[:-1]))
        if same.size:
            row = same[0] + 1
            raise DataError(
                f"{what}: client {clients[row]} comes at {start[row]} before it goes at {end[row - 1]}; join the rows"
            )
        self.what = what
        ids, first = np.unique(clients, return_index=True)
        both = np.stack([start, end], axis=1)
        self._times = dict(zip(ids.tolist(), (part.ravel() for part in np.split(both, first[1:])), strict=True))
        self.hash = array_checksum(clients, start, end)

    @property
    def clients(self) -> Collection[int]:
        """The clients with a row."""
        return self._times.keys()

    def of(self, client: int, at: float) -> Array:
        """The alternating times of a client; none for one without a row."""
        times: Array = self._times.get(client, np.zeros(0))
        return times
