"""The round protocol, the same in every executor: ask for an exchange, run its clients, finish it, ask again.

A round, the beginning of a task and its end are transactions: any number of exchanges (`Algorithm.next_exchange`),
which the driver commits together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from flray.core.protocol.clock import Clock
from flray.core.protocol.exchange import Exchange
from flray.engine.client import Chunk
from flray.engine.cohort import Turn
from flray.engine.counts import TestCounts
from flray.engine.server import ExchangePlan, Server
from flray.engine.stored_server import StoredServer
from flray.engine.summary import summarise

P = ParamSpec("P")
T = TypeVar("T")


class TurnResult(NamedTuple):
    """The result of one turn: a row a client, in order of position, and the server half's metrics and seconds."""

    rows: list[dict[str, Any]]
    metrics: dict[str, Any]
    server_s: float


class Executor(Protocol):
    """Runs exchanges and tests, to the same bits in this process (`local_executor.py`) and in Ray's actors
    (`ray/calls.py`, `ray/graph.py`)."""

    facts: dict[str, Any]  # about the model, the data and the processes; see `Server.facts`

    @property
    def num_chunks(self) -> int:
        """The number of chunks into which a cohort is cut."""

    @property
    def retries(self) -> int:
        """The number of times that work was repeated because a process died."""

    def plan(self, clock: Clock) -> ExchangePlan | None:
        """The exchange at this moment; None: the transaction is over. :meth:`run` uses its broadcast."""

    def broadcast(self, clock: Clock, exchange: Exchange) -> ExchangePlan:
        """The plan of the same exchange at a later turn, with a new broadcast."""

    def run(self, plan: ExchangePlan, turn: Turn, ahead: Sequence[Clock]) -> TurnResult:
        """Run the clients' work and the server half.

        `ahead`: the next moments. The server plans them in the same call, until one has a plan.
        """

    def test(self, clock: Clock) -> TestCounts:
        """The counts of every test set of the stage in every inference mode.

        Blocks are added in a fixed order, so the result does not depend on the processes.
        """

    def personal(self, clock: Clock, chunks: Sequence[Chunk], finetune_epochs: Sequence[int]) -> list[dict[str, Any]]:
        """A row for every client and number of fine-tuning epochs; see :meth:`Client.personal`."""

    def call(self, method: Callable[Concatenate[Server, P], T], *args: P.args, **options: P.kwargs) -> T:
        """The result of a method of the server: `call(Server.observe, clock)`."""

    def start(self, method: Callable[Concatenate[Server, P], Any], *args: P.args, **options: P.kwargs) -> None:
        """The same without waiting for the result. The server carries out its calls in order."""

    def call_store(self, method: Callable[Concatenate[StoredServer, P], T], *args: P.args, **options: P.kwargs) -> T:
        """The result of a method that reads or writes the server's files: `call_store(StoredServer.save, last)`."""

    def show(self, row: Mapping[str, Any]) -> None:
        """Export a row of `rounds/` as gauges, where a cluster has a place for them."""

    def kill(self) -> None:
        """End the processes, where there are some."""

    def translate_errors(self, folder: Path) -> AbstractContextManager[None]:
        """A context around the run in `folder`. It re-raises failures caused by a dead Ray as `ResourceError`."""


class FinishedExchange(NamedTuple):
    """A finished exchange: its plan, and by turn who worked, the bytes sent to each client by field, and the result."""

    plan: ExchangePlan
    turns: list[Turn]
    down_bytes: list[dict[str, int]]
    results: list[TurnResult]
    probe_rows: list[tuple[str, dict[str, Any]]]  # what probes reported, by their name
    up_bytes: Counter[str]  # bytes by field that all of them sent
    traces: list[tuple[str, bytes]]  # the profiler's: (name of the file, its bytes)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The clients' rows."""
        return [row for result in self.results for row in result.rows]

    @property
    def metrics(self) -> dict[str, Any]:
        """The server half's metrics; a list with a number a turn in a sequential exchange, except sums and flags."""
        pooled: dict[str, Any] = {}
        for name in dict.fromkeys(name for result in self.results for name in result.metrics):
            values = [result.metrics[name] for result in self.results if name in result.metrics]
            if name in ("comm/up_bytes", "comm/shared_bytes", "clients_skipped"):
                pooled[name] = sum(values)
            elif name == "diverged":
                pooled[name] = any(values)
            else:
                pooled[name] = values if self.plan.exchange.order == "sequential" else values[0]
        return pooled

    def add_to(self, row: dict[str, Any]) -> None:
        """Add bytes, steps and metrics to the row of the transaction."""
        rows, metrics = self.rows, self.metrics
        row["exchanges"] = self.plan.clock.exchange + 1
        down_bytes: Counter[str] = Counter()
        for each, turn in zip(self.down_bytes, self.turns, strict=True):
            down_bytes.update({name: size * len(turn.cohort.client_ids) for name, size in each.items()})
        down_bytes["shared"] += metrics.pop("comm/shared_bytes", 0)
        add_sent(row, "down", down_bytes)
        row["client_steps"] += sum(c["num_steps"] for c in rows)
        row["time/server_s"] += sum(result.server_s for result in self.results)
        add_sent(row, "up", self.up_bytes)
        row["clients_skipped"] = row.get("clients_skipped", 0) + metrics.pop("clients_skipped", 0)
        skipped = [str(c["client"]) for c in rows if c["skipped"]]
        if skipped:
            row["skipped_clients"] = " ".join([*row.get("skipped_clients", "").split(), *skipped])
        row.update(metrics)
        pairs = [(turn.cohort.client_ids.tolist(), turn.cohort.weights.tolist()) for turn in self.turns]
        row.update(
            summarise(
                rows, {client: weight for ids, weights in pairs for client, weight in zip(ids, weights, strict=True)}
            )
        )


def add_sent(row: dict[str, Any], way: str, sizes: Mapping[str, int]) -> None:
    """Add bytes by field, sent `way` (up or down), to a row: to their sum and to a column for each field."""
    row[f"comm/{way}_bytes"] = row.get(f"comm/{way}_bytes", 0) + sum(sizes.values())
    for name, size in sizes.items():
        if size:
            row[f"comm/{way}_bytes/{name}"] = row.get(f"comm/{way}_bytes/{name}", 0) + size


def transact(
    executor: Executor, clock: Clock, turns: Callable[[ExchangePlan, Clock], list[Turn]], ahead: Clock | None = None
) -> Iterator[FinishedExchange]:
    """Yields every exchange of the transaction that begins at `clock`, when it is finished.

    `turns(plan, clock)`: the turns of a planned exchange, in order. `ahead`: the next transaction, which the server
    plans with the last exchange of this one; None: it does not.
    """
    while (plan := executor.plan(clock)) is not None:
        after = clock._replace(exchange=clock.exchange + 1)
        exchange = FinishedExchange(plan, turns(plan, clock), [], [], [], Counter(), [])
        for turn in exchange.turns:
            now = plan if not turn.clock.turn else executor.broadcast(turn.clock, plan.exchange)
            coming = [after, *([ahead] if ahead is not None else [])] if turn is exchange.turns[-1] else []
            exchange.down_bytes.append(now.down_bytes)
            result = executor.run(now, turn, coming)
            for reported in (*result.rows, result.metrics):
                exchange.probe_rows.extend(reported.pop("probes", []))
                exchange.traces.extend(reported.pop("traces", []))
            exchange.up_bytes.update(result.metrics.pop("sent", {}))
            exchange.results.append(result)
        yield exchange
        clock = after
