"""The devices of clients: how fast each computes and sends, as addressed draws or from a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, DataError
from flray.core.schema.section import Section
from flray.data.cache import Array
from flray.files import array_checksum
from flray.scenario.availability import Availability, Presence
from flray.scenario.tables import integers, numbers, read_table

if TYPE_CHECKING:
    import pyarrow


OWN: dict[str, tuple[str, ...]] = {
    "equal": (), "lognormal": ("sigma",), "two_classes": ("share", "factor"), "trace": ("file",)
}  # fmt: skip
"""The options that each distribution needs, besides its reference."""


class Distribution(Section):
    """How a speed is spread over clients. Each draws once, by its id, for the whole run.

    `equal`: all have the reference. `lognormal`: the reference times exp(sigma z), z of a normal distribution.
    `two_classes`: a client is slow with the probability `share`, and then has the reference divided by `factor`.
    `trace`: a file has a row a client.
    """

    shorthand: ClassVar = {str: "name"}
    name: Literal["equal", "lognormal", "two_classes", "trace"] = Field("equal", description="the distribution")
    sigma: float | None = Field(None, ge=0, description="lognormal: standard deviation of the logarithm")
    share: float | None = Field(None, ge=0, le=1, description="two_classes: probability that a client is slow")
    factor: float | None = Field(None, gt=0, description="two_classes: how many times slower a slow client is")
    file: str | None = Field(None, description="trace: CSV, Parquet or JSON")

    @model_validator(mode="after")
    def _own(self) -> Distribution:
        for option in ("sigma", "share", "factor", "file"):
            given, reads = getattr(self, option) is not None, option in OWN[self.name]
            if given and not reads:
                owner = next(name for name, options in OWN.items() if option in options)
                raise ConfigError(f"devices: {option} is read by {owner}, not by {self.name}; leave it out")
            if reads and not given:
                raise ConfigError(f"devices: {self.name} needs {option}; add it")
        return self


class Speed(Distribution):
    """FLOPs a second that a client's device computes. A trace has the columns `client` and `flops_per_second`."""

    flops_per_second: float = Field(1e9, gt=0, description="the reference; a trace has its own")


class Bandwidth(Distribution):
    """Bytes a second that a client receives and sends. A trace has the columns `client`, `down` and `up`."""

    down: float = Field(1e7, gt=0, description="the reference, in bytes a second that a client receives")
    up: float = Field(1e6, gt=0, description="the reference, in bytes a second that a client sends")


class DevicesConfig(Section):
    """The clients' devices on the virtual clock. None of it changes how long the simulation itself takes."""

    speed: Speed = Field(Speed(), description="FLOPs a second")
    bandwidth: Bandwidth | None = Field(None, description="bytes a second; none: messages take no time")
    availability: Availability = Field(Availability(), description="when clients are there")


class Work(NamedTuple):
    """What a round's training asks of a client: FLOPs of a local step and of a sample in it, bytes down and up.

    Planned: fixed for the run by its configuration, whatever the state, so that who is late is known before training.
    """

    step: float
    sample: float
    down: int
    up: int


class Devices:
    """The devices of a run's clients. Memory and time grow with the clients asked for, or with the rows of a trace."""

    def __init__(self, config: DevicesConfig, seed: int) -> None:
        """Raises `DataError` for a trace that cannot be read."""
        self._config, self._seed = config, seed
        columns = {"speed": ("flops_per_second",), "bandwidth": ("down", "up")}
        files = {key: getattr(getattr(config, key), "file", None) for key in columns}
        both = files["speed"] == files["bandwidth"]  # one file may have the columns of both
        self._traces = {
            key: _Trace(f"devices.{key}.file: {file}", file, columns[key], sum(columns.values(), ()) if both else ())
            for key, file in files.items()
            if file is not None
        }
        always = config.availability.name == "always"
        self._drawn: dict[tuple[str, int], float] = {}
        self.presence = None if always else Presence(config.availability, seed)  # None: all are there always

    @property
    def hash(self) -> str:
        """Of the content of the traces; "" without one."""
        hashes = [trace.hash for trace in self._traces.values()]
        return ",".join(filter(None, [*hashes, self.presence.hash if self.presence else ""]))

    def check(self, population: int) -> None:
        """Raises `DataError` for a trace of other clients than 0 ... population - 1."""
        for trace in self._traces.values():
            trace.of(np.arange(population))
        if self.presence is not None:
            self.presence.check(population)

    def speeds(self, clients: Array) -> Array:
        """FLOPs a second, float64 `[K]`."""
        if (trace := self._traces.get("speed")) is not None:
            return trace.of(clients)[0]
        config = self._config.speed
        return config.flops_per_second * self._factors("speed", config, clients)

    def bandwidths(self, clients: Array) -> tuple[Array, Array]:
        """Bytes a second (down, up), float64 `[K]` each. Without a bandwidth both are infinite."""
        if (trace := self._traces.get("bandwidth")) is not None:
            down, up = trace.of(clients)
            return down, up
        config = self._config.bandwidth
        if config is None:
            return np.full(len(clients), np.inf), np.full(len(clients), np.inf)
        factors = self._factors("bandwidth", config, clients)
        return config.down * factors, config.up * factors

    def seconds(self, clients: Array, steps: Array, batches: Array, work: Work) -> Array:
        """Virtual seconds from a broadcast to each client's update, float64 `[K]`: down, `steps` on full batches of
        `batches` samples, up."""
        down, up = self.bandwidths(clients)
        computing = steps * (work.step + work.sample * batches) / self.speeds(clients)
        seconds: Array = computing + work.down / down + work.up / up
        return seconds

    def steps_within(self, limit: float, clients: Array, batches: Array, work: Work) -> Array:
        """The most local steps `[K]` after which a client's :meth:`seconds` are at most `limit`; 0: none, or steps that
        take no time."""
        none = np.zeros(len(clients), dtype=np.int64)
        sending = self.seconds(clients, none, batches, work)
        step = self.seconds(clients, none + 1, batches, work) - sending
        left = np.maximum(limit - sending, 0)
        steps: Array = np.divide(left, step, out=np.zeros(len(clients)), where=step > 0).astype(np.int64)
        # the division may round to either side of a whole number
        steps += self.seconds(clients, steps + 1, batches, work) <= limit
        steps -= self.seconds(clients, steps, batches, work) > limit
        found: Array = np.maximum(steps, 0)
        return found

    def _factors(self, what: str, config: Distribution, clients: Array) -> Array:
        """What a client's reference is multiplied with, float64 `[K]`."""
        if config.sigma is not None:
            return np.exp(config.sigma * self._draws(what, clients, "standard_normal"))
        if config.share is not None and config.factor is not None:
            slow = self._draws(what, clients, "random") < config.share
            return np.where(slow, 1 / config.factor, 1.0)
        return np.ones(len(clients))

    def _draws(self, what: str, clients: Array, distribution: str) -> Array:
        """Each client's draw, float64 `[K]`. It is kept: a server that does not wait asks for one client at a time."""
        asked = clients.tolist()
        for client in asked:
            if (what, client) not in self._drawn:
                draw: float = getattr(rng(self._seed, "device", what, client), distribution)()
                self._drawn[what, client] = draw
        return np.array([self._drawn[what, client] for client in asked], dtype=np.float64)


class _Trace:
    """The columns of a trace, positive numbers by client."""

    def __init__(self, what: str, file: str, columns: tuple[str, ...], others: tuple[str, ...]) -> None:
        asked = ("client", *columns)
        table = read_table(what, file, ",".join(asked), asked, others)
        clients = integers(what, table, "client")
        order = np.argsort(clients, kind="stable")
        self._what, self._clients = what, clients[order]
        if (twice := np.flatnonzero(np.diff(self._clients) == 0)).size:
            raise DataError(f"{what} has client {self._clients[twice[0]]} twice; keep one of its rows")
        self._columns = [_positive(what, table, name)[order] for name in columns]
        self.hash = array_checksum(self._clients, *self._columns)

    def of(self, clients: Array) -> list[Array]:
        """The columns of these clients. Raises `DataError` for one without a row."""
        places = np.searchsorted(self._clients, clients)
        found = places < len(self._clients)
        found[found] = self._clients[places[found]] == clients[found]
        if not found.all():
            raise DataError(f"{self._what} has no row of client {clients[~found][0]}; add it")
        return [column[places] for column in self._columns]


def _positive(what: str, table: pyarrow.Table, name: str) -> Array:
    """A column as float64. Raises `DataError` that names the first row without a positive finite number."""
    values = numbers(what, table, name, "numbers above 0")
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if wrong.size:
        raise DataError(f"{what}: row {wrong[0] + 1} has {name} {values[wrong[0]]:g}; write a number above 0")
    return values
