"""Probes: they observe training at certain places, and change no bit of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import model_validator
from torch import Tensor

from flray.core.messages import Cohort, Record, map_tensors, sendable
from flray.core.protocol import seeding
from flray.core.protocol.context import ClientContext, Context
from flray.core.protocol.generators import preserve_globals, seed_globals
from flray.core.protocol.samples import ClientData
from flray.core.schema.errors import AlgorithmError, ConfigError, kind_of, named, nearest, shown
from flray.core.schema.own import errors_of_own
from flray.core.schema.section import Section

Place = Literal["start", "step", "end", "finish", "round"]
Read = Literal["tests", "clients", "proxy", "proxy_labels"]
Reads = frozenset[Read]
ENGINES = ("done", "task", "round", "phase", "exchange", "place")  # columns of a probe's table that the engine writes
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

    @model_validator(mode="after")
    def _declared(self) -> Self:
        """Raises `ConfigError` for a probe without a place, and for places and data that do not exist."""
        for what, names, valid in (("at", self.at, get_args(Place)), ("reads", self.reads, get_args(Read))):
            kind, example = type(self).__name__, "frozenset({'round'})" if what == "at" else "frozenset({'tests'})"
            if not isinstance(names, frozenset | set | tuple | list):
                raise ConfigError(f"diagnostic {kind}: {what} is {kind_of(names)}; write {what} = {example}")
            wrong = sorted(map(str, set(names) - set(valid)))
            if wrong:
                raise ConfigError(f"diagnostic {kind}: {what} has {wrong[0]!r}{nearest(wrong[0], valid)}")
        if not self.at:
            raise ConfigError(
                f"diagnostic {type(self).__name__} observes no place; write at: ClassVar[frozenset[Place]] = "
                f"frozenset({{'round'}}), of {', '.join(get_args(Place))}"
            )
        return self

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
    """A context that restores scratch tensors and the generators that modules draw from."""
    with preserve_globals(ctx.device), ctx.objective.preserve_scratch():
        seed_globals(seeding.torch_seed(ctx.seed, "probe", *ctx.address), ctx.device)
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
                with errors_of_own(f"diagnostic {name}: {named(probe.observe)}", f" in {ctx.clock}"):
                    answer = probe.observe(seen, copied, self.memory.get(name))
            where: dict[str, Any] = {"exchange": ctx.clock.exchange, "place": view.place}
            if isinstance(ctx, ClientContext):
                where["client"] = ctx.client
            rows, self.memory[name] = _observed(name, probe, answer, where)
            self.rows += [(name, {**where, **row}) for row in rows]


def _observed(name: str, probe: Probe, answer: Any, where: Mapping[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """(the rows with plain values, the memory) that a probe returned for a view at `where`.

    Raises `AlgorithmError`, which names its method, for anything else.
    """
    label, form = f"diagnostic {name}: {named(probe.observe)}", "return ([{'name': number}, ...], memory)"
    if type(answer) is not tuple or len(answer) != 2:
        raise AlgorithmError(f"{label} returned {kind_of(answer)}; {form}")
    rows, memory = answer
    if isinstance(rows, Mapping | str) or not isinstance(rows, Iterable) or hasattr(rows, "columns"):
        raise AlgorithmError(f"{label} returned {kind_of(rows)} as rows; {form}")
    rows = [_row(label, row, where) for row in rows]
    if "client" not in where:  # the server's memory is stored in checkpoints
        map_tensors(lambda tensor: tensor, memory, f"{label}: its memory")
        memory = sendable(memory, probe.observe, "memory", stored=True)
    return rows, memory


def _row(label: str, row: Any, where: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise AlgorithmError(f"{label} returned {kind_of(row)} as a row; a row is a dict of numbers by name")
    for column in row:
        if not isinstance(column, str) or not column or not column.isprintable():
            raise AlgorithmError(f"{label} returned a row with the name {shown(column)}; a name is printable text")
        if column in ENGINES or (column in where and row[column] != where[column]):
            raise AlgorithmError(f"{label} returned a row with {column!r}, which flray writes; give it another name")
    return {column: _plain(label, column, value) for column, value in row.items()}


def _plain(label: str, column: str, value: Any) -> Any:
    """A number, text, None, or a list of numbers."""
    if hasattr(value, "tolist") and hasattr(value, "dtype"):  # of torch and NumPy
        value = value.tolist()
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise AlgorithmError(
                f"{label} returned {column!r} as {shown(number)}, an integer of more than 64 bits with its sign; give "
                "float(x), or text"
            )
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(number, bool | int | float) for number in value):
        return list(value)
    raise AlgorithmError(f"{label} returned {column!r} as {shown(value)}; give a number, text, None or a vector")


def _copied(part: Any) -> Any:
    """A message with copies of its tensors and arrays; a function, a client's data and a count are what they are."""
    if not isinstance(part, Tensor | Record | dict | tuple):
        return part
    return map_tensors(lambda value: value.clone() if isinstance(value, Tensor) else value.copy(), part)
