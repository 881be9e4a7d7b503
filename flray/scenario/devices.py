"""The virtual clock: how fast each client's device computes and sends, when it is there, and whom the server waits for.

Devices are addressed draws, or come from a file. The server waits for all clients of a round, those in time, the first
ones, or any K of those at work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from flray.core.protocol.seeding import rng
from flray.core.schema.errors import ConfigError, DataError, warn
from flray.core.schema.section import Section
from flray.core.schema.shares import floor_share
from flray.data.cache import Array
from flray.files import array_checksum
from flray.scenario.tables import integers, numbers, read_table

if TYPE_CHECKING:
    import pyarrow

DRAWN = 64  # times at once


def check_own(key: str, section: Any, needs: Mapping[str, str], reads: Mapping[str, str] | None = None) -> None:
    """Raises `ConfigError` for an option that only a section of another name has, and without one that its own needs.

    `needs`, `reads`: the name of the section that needs an option, or reads it if it is there.
    """
    for option, owner in {**needs, **(reads or {})}.items():
        given = getattr(section, option) is not None
        if given and section.name != owner:
            raise ConfigError(f"{key}: {option} is read by {owner}, not by {section.name}; leave it out")
        if option in needs and section.name == owner and not given:
            raise ConfigError(f"{key}: {owner} needs {option}; add it")


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
        needs = {"period": "windows", "share": "windows", "on": "markov", "off": "markov", "file": "trace"}
        check_own("devices.availability", self, needs)
        return self


class Presence:
    """When the clients of a run are there. Memory grows with the clients that are asked for."""

    def __init__(self, config: Availability, seed: int) -> None:
        """Raises `DataError` for a trace that cannot be read."""
        self._config, self._seed = config, seed
        self._switches: dict[int, Array] = {}  # of markov: when a client comes, goes, comes ...
        self._trace = None if config.file is None else _PresenceTrace(config.file)

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


class _PresenceTrace:
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


class Distribution(Section):
    """How a speed is spread over clients. Each draws once, by its id, for the whole run.

    `equal`: all have the reference. `lognormal`: the reference times exp(sigma z), z of a normal distribution.
    `two_classes`: a client is slow with the probability `share`, and then has the reference divided by `factor`.
    `trace`: a file has a row a client, and no reference is read.
    """

    reference: ClassVar[tuple[str, ...]]  # the fields that it multiplies, which a trace does not read
    shorthand: ClassVar = {str: "name"}
    name: Literal["equal", "lognormal", "two_classes", "trace"] = Field("equal", description="the distribution")
    sigma: float | None = Field(None, ge=0, description="lognormal: standard deviation of the logarithm")
    share: float | None = Field(None, ge=0, le=1, description="two_classes: probability that a client is slow")
    factor: float | None = Field(None, gt=0, description="two_classes: how many times slower a slow client is")
    file: str | None = Field(None, description="trace: CSV, Parquet or JSON")

    @model_validator(mode="after")
    def _own(self) -> Distribution:
        needs = {"sigma": "lognormal", "share": "two_classes", "factor": "two_classes", "file": "trace"}
        check_own("devices", self, needs)
        for option in self.reference if self.file is not None else ():
            # a stored configuration has the defaults, or what an earlier flray was given and did not read: no error
            if getattr(self, option) != type(self).model_fields[option].default:
                warn(f"devices: trace has its own {option}, so the given one is not read; leave it out")
        return self


class Speed(Distribution):
    """FLOPs a second that a client's device computes. A trace has the columns `client` and `flops_per_second`."""

    reference: ClassVar = ("flops_per_second",)
    flops_per_second: float = Field(1e9, gt=0, description="the reference; a trace has its own")


class Bandwidth(Distribution):
    """Bytes a second that a client receives and sends. A trace has the columns `client`, `down` and `up`."""

    reference: ClassVar = ("down", "up")
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


class Staleness(Section):
    """The weight s of an update by its age d, the server steps since its broadcast (Xie et al. 2019, section 5.2).

    `constant`: 1. `polynomial`: (d + 1)^-a; FedBuff has a = 1/2. `hinge`: 1 up to the age b, then 1 / (a (d - b) + 1).
    """

    shorthand: ClassVar = {str: "name"}
    name: Literal["constant", "polynomial", "hinge"] = Field("polynomial", description="how the weight falls with age")
    a: float | None = Field(None, gt=0, description="polynomial: the exponent, default 0.5; hinge: the slope")
    b: int | None = Field(None, ge=0, description="hinge: the age up to which the weight is 1")

    @model_validator(mode="after")
    def _own(self) -> Staleness:
        needs = {"constant": (), "polynomial": (), "hinge": ("a", "b")}[self.name]
        reads = ("a",) if self.name == "polynomial" else needs
        for option in ("a", "b"):
            given = getattr(self, option) is not None
            if given and option not in reads:
                raise ConfigError(f"coordination.staleness: {self.name} does not read {option}; leave it out")
            if option in needs and not given:
                raise ConfigError(f"coordination.staleness: hinge needs {option}; add it")
        return self

    def weights(self, ages: Array) -> Array:
        """s `[K]` of updates of these ages `[K]`, float64; 1 at age 0."""
        ages = np.asarray(ages, dtype=np.float64)
        if self.name == "hinge":
            assert self.a is not None and self.b is not None
            return np.where(ages <= self.b, 1.0, 1 / (self.a * np.maximum(ages - self.b, 0) + 1))
        return np.ones_like(ages) if self.name == "constant" else (ages + 1) ** -(self.a or 0.5)


class Coordination(Section):
    """When a round ends on the virtual clock (`devices`), and whose updates it then has.

    `synchronous`: with the last update. `deadline` (Nishio and Yonetani, ICC 2019; Bonawitz et al., MLSys 2019): after
    `seconds`, or with the last update before. Who is later is dropped, and its state does not change; with
    `late: partial` it stops in time and delivers the local steps that it has taken (FedProx: Li et al., MLSys 2020,
    section 3.2), and is dropped only if it has taken none. `over_selected`
    (Bonawitz et al., section 2.2): K (1 + share) clients are drawn, rounded up, and the first K to deliver count; of
    two at one moment the first in cohort order. A client that drops out (`cohort.dropout`) never delivers.
    `buffered` (FedBuff: Nguyen et al., AISTATS 2022): `concurrency` clients are at work at any time, each from the
    model of its dispatch; a round is a server step on every `size`-th arrival.
    """

    shorthand: ClassVar = {str: "name"}
    name: Literal["synchronous", "deadline", "over_selected", "buffered"] = Field(
        "synchronous", description="whom a round waits for: all, those in time, the first K, or any K of those at work"
    )
    seconds: float | None = Field(None, gt=0, description="deadline: virtual seconds that a round takes at most")
    late: Literal["drop", "partial"] | None = Field(
        None, description="deadline: late updates are dropped (default), or hold the steps taken in time"
    )
    share: float | None = Field(None, gt=0, description="over_selected: more clients drawn, as a share of K")
    size: int | None = Field(None, ge=1, description="buffered: arrivals that make a server step (K)")
    concurrency: int | None = Field(None, ge=1, description="buffered: clients at work; default: the cohort")
    staleness: Staleness | None = Field(None, description="buffered: weight by age; default: polynomial with 0.5")
    max_staleness: int | None = Field(None, ge=0, description="buffered: updates of a greater age are dropped")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        """Writes out the default of a deadline, so that the saved configuration is complete."""
        late = isinstance(data, dict) and data.get("name") == "deadline" and data.get("late") is None
        return {**data, "late": "drop"} if late else data

    @model_validator(mode="after")
    def _own(self) -> Coordination:
        needs = {"seconds": "deadline", "share": "over_selected", "size": "buffered"}
        buffered = ("concurrency", "staleness", "max_staleness")
        check_own("coordination", self, needs, {"late": "deadline", **dict.fromkeys(buffered, "buffered")})
        return self

    @property
    def age_weights(self) -> Staleness:
        """The weight of an update by its age."""
        return self.staleness or Staleness()

    def asked(self, size: int) -> int:
        """The number of clients that are to be drawn for a cohort of `size`."""
        return size if self.share is None else size - floor_share(-self.share, size)

    def drawn(self, size: int, population: int) -> int:
        """The number of clients that are drawn for a cohort of `size` among `population`."""
        return min(self.asked(size), population)

    def delivered(self, seconds: Array, size: int, missing: int = 0) -> Arrivals:
        """Who delivers, of the clients whose updates arrive after these `seconds` `[M]`, in cohort order.

        `size`: K. Infinite seconds: it never does. `missing`: the number of clients that drop out, stop early or leave,
        for which a deadline is waited.
        """
        if self.seconds is not None:
            within = seconds <= self.seconds
            waits = bool(missing) or not within.all()
            return Arrivals(within, self.seconds if waits else float(seconds.max(initial=0.0)))
        within = np.isfinite(seconds)
        if self.share is not None and len(seconds) > size:
            within[np.argsort(seconds, kind="stable")[size:]] = False
        return Arrivals(within, float(seconds[within].max(initial=0.0)))


class Until(Section):
    """An end of the run before its last round."""

    virtual_s: float = Field(
        gt=0, description="the run ends with the last round that ends by then on the virtual clock"
    )


class Arrivals(NamedTuple):
    """`within`: bool `[M]`, whose updates the round has. `seconds`: how long the round takes on the virtual clock."""

    within: Array
    seconds: float
