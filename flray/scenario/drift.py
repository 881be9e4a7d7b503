"""The section `drift` of a configuration: the classes that vanish from clients' training data, and the rounds.

Rounds are numbered as in the column `done` of `rounds/`: from 1, over all tasks. A drift is active in the rounds
`from_round <= round < to_round`; in `to_round` all samples are back. Test sets never drift. `Drifting` applies it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from flray.core.protocol.clock import Clock
from flray.core.protocol.generators import process_wide
from flray.core.protocol.seeding import Address, rng
from flray.core.schema.errors import ConfigError, DataError, nearest, shown
from flray.core.schema.own import check_results
from flray.core.schema.registry import Registry
from flray.core.schema.section import Section
from flray.data.cache import Array
from flray.files import array_checksum, checksum
from flray.scenario.tables import read_table

DRIFTS = Registry(
    "drift",
    {
        "remove_classes": "flray.scenario.drift:RemoveClasses",
        "gradual": "flray.scenario.drift:Gradual",
        "glue": "flray.scenario.drift:Glue",
        "table": "flray.scenario.drift:DriftTable",
    },
    base="flray.scenario.drift:Drift",
)


class World:
    """The population, and generators addressed by the run's seed, for the draws of a drift."""

    def __init__(self, seed: int, population: int, num_classes: int) -> None:
        self.seed, self.population, self.num_classes = seed, population, num_classes
        self._some: dict[float, frozenset[int]] = {}

    def rng(self, *address: Address) -> np.random.Generator:
        """The generator of an address, the same in every round."""
        return rng(self.seed, "drift", *address)

    def some_clients(self, fraction: float) -> frozenset[int]:
        """A random share of all clients, at least one, the same in every round. A larger share contains a smaller."""
        if fraction not in self._some:
            count = max(1, int(fraction * self.population + 1e-9))
            self._some[fraction] = frozenset(self.rng("clients").permutation(self.population)[:count].tolist())
        return self._some[fraction]


class Now:
    """A round (from 1, over all tasks) as a drift sees it.

    `selected`: the sampled clients of the round, ascending; at a task's beginning and end all its clients with samples.
    It raises `ConfigError` where the clock chooses them: under `devices.availability` and `coordination: buffered`.
    """

    def __init__(self, round: int, world: World, draw: Callable[[], Array]) -> None:
        self.round, self.world, self._draw = round, world, draw
        self._selected: list[int] | None = None

    @property
    def selected(self) -> list[int]:
        if self._selected is None:
            self._selected = sorted(self._draw().tolist())
        return self._selected


class Drift(Section, ABC, frozen=True):
    """The share of each class that is missing from a client's data.

    A drift of your own is a subclass with :meth:`gone`, under a name in `DRIFTS`.
    """

    shorthand: ClassVar[Mapping[type, str]] = {str: "name"}

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        check_results(cls, _RETURNS)

    @abstractmethod
    def gone(self, now: Now, client: int) -> Mapping[int, float]:
        """The share (0 to 1) of the client's samples of each class that is gone in a round; complete classes may be
        absent.

        Of n samples the first floor(share n + 1e-9) of a random order are gone. Each client and class has one order for
        all rounds, so a larger share removes the same samples and more.
        """

    def active(self, round: int) -> bool:
        """Whether the drift may remove samples in a round (from 1, over all tasks)."""
        return True

    def of(self, groups: Sequence[Array]) -> Drift:
        """The drift for data whose sources have these classes (int64, ascending) of their own: a union of text."""
        return self

    def check(self, num_classes: int, population: int) -> None:
        """Raises `ConfigError` for a class or a client that the data do not have."""

    def about(self) -> str:
        """The drift in words, for `flray doctor`."""
        return type(self).__name__

    def written(self) -> Any:
        """All that decides which samples are gone, as JSON. The run's fingerprints contain its checksum."""
        return self.model_dump(mode="json")


def _shares_problem(shares: Any, now: Now, client: int) -> str:
    """What is wrong with the shares that a drift of one's own returned for a client, as what to return; "": nothing."""
    if not isinstance(shares, Mapping):
        return "return a dict of shares by class, {} for none, for example {0: 0.5}"
    classes = now.world.num_classes
    for label, share in shares.items():
        if not isinstance(label, int | np.integer) or not 0 <= label < classes:
            return f"classes are the integers 0 to {classes - 1}, and {shown(label)} is none"
        try:
            fits = 0 <= float(share) <= 1
        except (TypeError, ValueError):
            fits = False
        if not fits:
            return f"a share is a number from 0 to 1, and that of class {label} is {shown(share)}"
    return ""


def _json_problem(written: Any) -> str:
    try:
        json.dumps(written)
    except (TypeError, ValueError) as error:
        return f"return what JSON can hold ({error})"
    return ""


_RETURNS: dict[str, Callable[..., str]] = {  # of a drift's methods
    "gone": _shares_problem,
    "active": lambda given, round: "" if isinstance(given, bool | np.bool_) else "return True or False",
    "of": lambda given, groups: "" if isinstance(given, Drift) else "return a Drift, for example self",
    "check": lambda given, *data: "" if given is None else "return nothing; raise ConfigError for data that do not fit",
    "about": lambda given: "" if isinstance(given, str) else "return text",
    "written": _json_problem,
}


class WindowDrift(Drift, frozen=True):
    """A drift of some classes from one round to another."""

    classes: tuple[Annotated[int, Field(ge=0)], ...] = Field(description="class numbers that drift")
    from_round: int = Field(ge=1, description="first round of the drift, from 1, over all tasks (done in rounds/)")
    to_round: int | None = Field(None, description="first round with all data again; none: never, long-term")

    @model_validator(mode="after")
    def _in_order(self) -> WindowDrift:
        if self.to_round is not None and self.to_round <= self.from_round:
            raise ConfigError(
                f"drift.to_round: {self.to_round} is not after from_round {self.from_round}; set it higher, or null"
            )
        if not self.classes:
            raise ConfigError("drift.classes: the list is empty; name classes, or leave the section out")
        return self

    def active(self, round: int) -> bool:
        return self.from_round <= round and (self.to_round is None or round < self.to_round)

    def check(self, num_classes: int, population: int) -> None:
        known_classes("drift.classes", self.classes, num_classes)

    def about(self) -> str:
        last = "to the end" if self.to_round is None else f"to {self.to_round - 1}"
        return f"classes {' '.join(map(str, self.classes))} in rounds {self.from_round} {last}"


class RemoveClasses(WindowDrift, frozen=True):
    """All samples of the classes are gone from every client (FedMemo, full drop)."""

    classes: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0, 1, 2, 3, 4), description="class numbers that are removed from every client"
    )

    def gone(self, now: Now, client: int) -> Mapping[int, float]:
        return dict.fromkeys(self.classes, 1.0)

    def about(self) -> str:
        return f"every client loses {super().about()}"


class Gradual(WindowDrift, frozen=True):
    """A growing share of the classes' samples is gone from some clients (FedMemo, gradual drop).

    The share in round r is p(r) = min(rate_max, rate + rate_step (r - from_round)). Affected are the first `of_cohort`
    clients of the round's cohort by id, or the set `clients`, or a fixed random share `fraction` of all clients.
    """

    classes: tuple[Annotated[int, Field(ge=0)], ...] = Field((1, 5), description="class numbers that fade")
    rate: float = Field(0.30, ge=0, le=1, description="share that is gone in the first round")
    rate_step: float = Field(0.02, ge=0, le=1, description="increase of the share in each round")
    rate_max: float = Field(0.9, ge=0, le=1, description="the largest share")
    of_cohort: int | None = Field(
        None,
        ge=1,
        description="number of affected clients of each cohort, the first by id; 3 if no clients are chosen",
    )
    clients: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(None, description="ids of the affected clients")
    fraction: float | None = Field(
        None, gt=0, le=1, description="a random share of all clients, the same in all rounds"
    )

    @model_validator(mode="before")
    @classmethod
    def _default(cls, data: Any) -> Any:
        chosen = ("of_cohort", "clients", "fraction")
        given = isinstance(data, dict) and any(data.get(name) is not None for name in chosen)
        return data if given or not isinstance(data, dict) else {**data, "of_cohort": 3}

    @model_validator(mode="after")
    def _one_way(self) -> Gradual:
        given = [name for name in ("of_cohort", "clients", "fraction") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"drift.{given[1]}: {given[0]} also chooses the affected clients; keep one of the two")
        if self.clients == ():
            raise ConfigError("drift.clients: the list is empty; name clients, or leave the section out")
        return self

    def check(self, num_classes: int, population: int) -> None:
        super().check(num_classes, population)
        over = [client for client in self.clients or () if client >= population]
        if over:
            raise ConfigError(f"drift.clients: there is no client {over[0]}; choose from 0 to {population - 1}")

    def affects(self, now: Now, client: int) -> bool:
        """Whether a client loses samples in this round."""
        if self.clients is not None:
            return client in self.clients
        if self.fraction is not None:
            return client in now.world.some_clients(self.fraction)
        return client in now.selected[: self.of_cohort]

    def share(self, round: int) -> float:
        """p of a round in which the drift is active."""
        return min(self.rate_max, self.rate + self.rate_step * (round - self.from_round))

    def gone(self, now: Now, client: int) -> Mapping[int, float]:
        return dict.fromkeys(self.classes, self.share(now.round)) if self.affects(now, client) else {}

    def about(self) -> str:
        if self.clients is not None:
            who = f"clients {' '.join(map(str, self.clients))}"
        elif self.fraction is not None:
            who = f"a random {self.fraction:.0%} of the clients"
        else:
            who = f"the first {self.of_cohort} of every cohort"
        rate = f"{self.rate:g}, then {self.rate_step:g} more every round up to {self.rate_max:g}"
        return f"{who} lose {super().about()}: a share of {rate}"


class Glue(WindowDrift, frozen=True):
    """A class of each task fades from a fixed random share of the clients (FedMemo, GLUE).

    In a union of text `classes` are labels within each task: 1 is the second class of each task. In other data they are
    class numbers. Each affected client draws its share uniformly from [low, high]. `gradual`: all have the same share,
    which grows linearly from low in the first round to high in `ramp` rounds, and then stays.
    """

    classes: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (1,), description="labels in each task of a union of text; of other data class numbers"
    )
    from_round: int = Field(25, ge=1, description="first round of the drift, from 1, over all tasks (done in rounds/)")
    to_round: int | None = Field(35, description="first round with all data again; 50: the paper's long-term setting")
    fraction: float = Field(0.4, gt=0, le=1, description="share of the clients that lose samples")
    low: float = Field(0.3, ge=0, le=1, description="smallest share of the samples that is gone")
    high: float = Field(0.7, ge=0, le=1, description="largest share")
    gradual: bool = Field(False, description="one share for all, growing from low to high")
    ramp: int = Field(10, ge=2, description="gradual: rounds from low to high, both among them")

    @model_validator(mode="after")
    def _bounds(self) -> Glue:
        if self.high < self.low:
            raise ConfigError(f"drift.high: {self.high:g} is below low, {self.low:g}; exchange them")
        return self

    def of(self, groups: Sequence[Array]) -> Drift:
        if not groups:
            return self
        most = max(map(len, groups))
        over = [label for label in self.classes if label >= most]
        if over:
            raise ConfigError(f"drift.classes: no task has a label {over[0]}; choose from 0 to {most - 1}")
        numbers = [int(group[label]) for group in groups for label in self.classes if label < len(group)]
        return self.model_copy(update={"classes": tuple(numbers)})

    def share(self, now: Now, client: int) -> float:
        """The share that is gone of an affected client's samples."""
        if self.gradual:
            return min(self.high, self.low + (self.high - self.low) * (now.round - self.from_round) / (self.ramp - 1))
        return float(now.world.rng("share", client).uniform(self.low, self.high))

    def gone(self, now: Now, client: int) -> Mapping[int, float]:
        affected = client in now.world.some_clients(self.fraction)
        return dict.fromkeys(self.classes, self.share(now, client)) if affected else {}

    def about(self) -> str:
        how = (
            f"growing from {self.low:g} to {self.high:g} in {self.ramp} rounds" if self.gradual else "its own for each"
        )
        share = how if self.gradual else f"uniform in [{self.low:g}, {self.high:g}], {how}"
        return f"a random {self.fraction:.0%} of the clients lose {super().about()}: a share {share}"


def known_classes(key: str, classes: Sequence[int], num_classes: int) -> None:
    """Raises `ConfigError` for a class that the data set does not have."""
    over = [label for label in classes if label >= num_classes]
    if over:
        raise ConfigError(f"{key}: the data set has no class {over[0]}; choose from 0 to {num_classes - 1}")


class DriftWarning(UserWarning):
    """A drift that removes no sample, or all of a cohort's samples."""


# draws the cohort of a round from the clients that hold samples in its task
Draw = Callable[[Clock, range | Array], Array]


def round_of(clock: Clock) -> int:
    """The round (from 1, over all tasks) whose data a clock sees: at a task's beginning the next, at its end the
    last."""
    return clock.done + 1 if clock.phase in ("round", "task_begin") else max(clock.done, 1)


class Drifting:
    """Applies a drift to the samples of a data set with `labels` [n] and `population` clients."""

    def __init__(
        self,
        drift: Drift,
        labels: Array,
        num_classes: int,
        population: int,
        seed: int,
        draw: Draw,
        groups: Sequence[Array] = (),
        chosen_by: str = "",
        unchanged: Callable[[Drift, str], contextlib.AbstractContextManager[None]] | None = None,
    ) -> None:
        """`seed` is the run's. `groups`: the classes of each source, if no two sources share a class (a union of text).
        `unchanged(drift, when)`: a context in which a drift of the user's own keeps nothing.

        `chosen_by`: the section that chooses a round's clients instead of `draw`, which then draws as many of all, as
        an example; "": none does. Raises `ConfigError` if the drift does not fit the data.
        """
        drift = drift.of(groups)
        drift.check(num_classes, population)
        self.drift, self.labels, self.draw, self.chosen_by = drift, labels, draw, chosen_by
        self.unchanged = unchanged
        self.world = World(seed, population, num_classes)

    def remaining(
        self, clock: Clock, members: range | Array, clients: Sequence[int], samples: Sequence[Array]
    ) -> list[Array]:
        """The `samples` of each client (each [n_k], of the stage's partition) that the drift leaves, in their order.

        `members`: the clients that have samples in the task. Raises `ConfigError` for a drift that reads the cohort of
        a round which `draw` does not know.
        """
        round = round_of(clock)
        if not self.drift.active(round):
            return list(samples)
        draw = functools.partial(self._cohort, clock, members) if clock.phase == "round" else None
        now = Now(round, self.world, draw or (lambda: np.asarray(members)))
        held = self.unchanged(self.drift, f"in gone of round {round}") if self.unchanged else contextlib.nullcontext()
        with held:
            return [self._of(now, clock.task, *pair) for pair in zip(clients, samples, strict=True)]

    def _cohort(self, clock: Clock, members: range | Array) -> Array:
        if self.chosen_by:
            raise ConfigError(
                f"drift: {self.chosen_by} chooses the clients of a round after the drift, which reads them (of_cohort, "
                "now.selected); write drift.clients or drift.fraction, or now.world.some_clients(fraction) in your own"
            )
        return self.draw(clock, members)

    def _of(self, now: Now, task: int, client: int, samples: Array) -> Array:
        stays = np.ones(len(samples), bool)
        labels = self.labels[samples]
        with self._generators(now, client):
            gone = self.drift.gone(now, client)
        for label, share in gone.items():
            places = np.flatnonzero(labels == label)
            stays[places[self.order(client, label, task, len(places))[: vanished(share, len(places))]]] = False
        return samples if stays.all() else samples[stays]

    def _generators(self, now: Now, client: int) -> contextlib.AbstractContextManager[None]:
        """Addresses for the process's own generators, from which a user's drift may draw."""
        own = not type(self.drift).__module__.startswith("flray.")
        return process_wide(self.world.seed, "drift", now.round, client) if own else contextlib.nullcontext()

    def order(self, client: int, label: int, task: int, count: int) -> Array:
        """The order in which a client's `count` samples of a class vanish: places among them, int64 `[count]`."""
        return self.world.rng(client, label, *([task] if task else [])).permutation(count)

    @property
    def fingerprint(self) -> str:
        """Checksum of the schedule: the section, the table that it names, the seed."""
        written = json.dumps([type(self.drift).__name__, self.drift.written(), self.world.seed], sort_keys=True)
        return checksum(written.encode())


def vanished(share: float, count: int) -> int:
    """How many of `count` samples are gone: floor(share count + 1e-9)."""
    return int(share * count + 1e-9)


# the drift of a table ----------------------------------------------------------------------------
COLUMNS = ("round", "client", "class", "kept", "to_round")
NEEDED = ("round", "kept")
ALSO = {"share": "kept", "share_kept": "kept", "share kept": "kept", "label": "class"}  # other headers


class Rows(NamedTuple):
    """The table by column, in the order of the rounds: int64 `[n]`, with -1 for all clients or classes; `kept` float64
    `[n]`; `to_round` int64 `[n]`, with the largest int64 for no end."""

    round: np.ndarray
    client: np.ndarray
    label: np.ndarray
    kept: np.ndarray
    to_round: np.ndarray


class DriftTable(Drift, frozen=True):
    """A schedule written by the user.

    A row gives the share of its samples of a class that a client keeps from a round on (1: all). It ends with a later
    row for the same client and class, or in the round `to_round`: then all these samples are back, also if an earlier
    row removed some. A row without a client is for all clients, one without a class for all classes. Of rows for the
    same round the last one counts.
    """

    rows: tuple[tuple[int | float | None, ...], ...] = Field(
        (), description="[round, client, class, kept] or [round, client, class, kept, to_round]; null: all, no end"
    )
    file: str | None = Field(
        None,
        description="the rows as CSV or Parquet with the columns round, client, class, kept and (optional) to_round",
    )

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, data: Any) -> Any:
        """Rows that are written as mappings become lists."""
        if not isinstance(data, dict) or not isinstance(data.get("rows"), list | tuple):
            return data
        return {**data, "rows": [_listed(row, number) for number, row in enumerate(data["rows"], 1)]}

    @model_validator(mode="after")
    def _one_source(self) -> DriftTable:
        if bool(self.rows) == (self.file is not None):
            raise ConfigError("drift: table needs either rows or file; give one of the two")
        _rows(self.rows, "drift.rows")
        return self

    @functools.cached_property
    def table(self) -> Rows:
        """The rows, read from `file` where there is one. Raises `DataError` for a file that cannot be read."""
        return _rows(self.rows, "drift.rows") if self.file is None else _rows(_read(self.file), self.file)

    def check(self, num_classes: int, population: int) -> None:
        known_classes(self.file or "drift.rows", tuple(self.table.label.tolist()), num_classes)
        over = self.table.client[self.table.client >= population]
        if len(over):
            where = self.file or "drift.rows"
            raise ConfigError(f"{where}: there is no client {over[0]}; choose from 0 to {population - 1}")

    def active(self, round: int) -> bool:
        return bool((self.table.round <= round).any())

    def gone(self, now: Now, client: int) -> Mapping[int, float]:
        rows = self.table
        holds = (rows.round <= now.round) & ((rows.client == client) | (rows.client == -1))
        shares: dict[int, float] = {}
        for place in np.flatnonzero(holds).tolist():  # a later row overrides an earlier one
            over = now.round >= rows.to_round[place]
            label, share = int(rows.label[place]), 0.0 if over else 1.0 - float(rows.kept[place])
            shares |= dict.fromkeys(range(now.world.num_classes), share) if label == -1 else {label: share}
        return shares

    def written(self) -> Any:
        return array_checksum(*self.table)

    def about(self) -> str:
        first, last = int(self.table.round.min()), int(self.table.round.max())
        return f"{self.file or 'a table'} of {len(self.table.round)} rows for rounds {first} to {last}"


def _listed(row: Any, number: int) -> Any:
    if not isinstance(row, Mapping):
        return row
    named = {ALSO.get(str(name), str(name)): value for name, value in row.items()}
    wrong = [name for name in named if name not in COLUMNS]
    if wrong:
        raise ConfigError(f"drift.rows: row {number} has no column {wrong[0]!r}{nearest(wrong[0], COLUMNS)}")
    if len(named) < len(row):
        raise ConfigError(f"drift.rows: row {number} is {shown(dict(row))}, with one column twice; keep one of them")
    return [named.get(name) for name in COLUMNS]


def _rows(rows: Any, where: str) -> Rows:
    """The rows by column, in the order of the rounds. Raises `ConfigError` that names the wrong row."""
    complete = []
    for number, row in enumerate(rows, 1):
        if not 4 <= len(row) <= 5:
            raise ConfigError(f"{where}: row {number} is {shown(list(row))}; write [round, client, class, kept]")
        values = dict(zip(COLUMNS, (*row, None)[:5], strict=True))
        for name in ("round", "client", "class", "to_round"):
            value, least = values[name], 1 if "round" in name else 0
            valid = value is None or (math.isfinite(value) and value == int(value) and value >= least)
            if not valid or (value is None and name == "round"):
                raise ConfigError(f"{where}: row {number}: {name} is {shown(value)}; write a whole number >= {least}")
        share = values["kept"]
        if share is None or not 0 <= share <= 1:
            raise ConfigError(f"{where}: row {number}: kept is {shown(share)}; write the remaining share, 0 to 1")
        if values["to_round"] is not None and values["to_round"] <= values["round"]:
            raise ConfigError(f"{where}: row {number}: to_round {values['to_round']} is not after {values['round']}")
        complete.append([-1 if value is None else value for value in values.values()])
    table = np.array(complete, np.float64).reshape(-1, 5)
    table = table[np.argsort(table[:, 0], kind="stable")]
    first, client, label, until = (table[:, place].astype(np.int64) for place in (0, 1, 2, 4))
    return Rows(first, client, label, table[:, 3], np.where(until < 0, np.iinfo(np.int64).max, until))


def _read(file: str) -> list[list[Any]]:
    """The rows of a file. Raises `DataError`."""
    what = f"drift.file: {file}"
    table = read_table(what, file, "round,client,class,kept (and to_round)", (), (*COLUMNS, *ALSO))
    table = table.rename_columns([ALSO.get(name, name) for name in table.column_names])
    have = table.column_names
    twice = next((name for name in have if have.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{what} has two columns for {twice!r}; keep one of them")
    missing = [name for name in NEEDED if name not in table.column_names]
    if missing:
        raise DataError(f"{what} has no column {missing[0]!r}, but {', '.join(table.column_names)}")
    columns = {name: _numbers(what, name, table.column(name)) for name in COLUMNS if name in table.column_names}
    nothing = [None] * len(table)
    return [list(row) for row in zip(*(columns.get(name, nothing) for name in COLUMNS), strict=True)]


def _numbers(what: str, name: str, column: Any) -> list[float | None]:
    """A column of numbers, with None for nothing: empty or blank, NaN. Raises `DataError` for texts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if pa.types.is_string(column.type):
            trimmed = pc.utf8_trim_whitespace(column)
            column = pc.if_else(pc.equal(trimmed, ""), None, trimmed)
        values = column.cast(pa.float64()).to_pylist()
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{what}: column {name}: {error}; write numbers, nothing for all") from error
    return [None if value is None or math.isnan(value) else value for value in values]
