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
from flray.engine.counts import TestCounts
from flray.engine.exchanges import Chunk, ClientReport, ExchangePlan, ProbeRow, ServerReport, Turn
from flray.engine.server import Server
from flray.engine.summary import summarise
from flray.rundir.run_store import RunStore

P = ParamSpec("P")
T = TypeVar("T")


class TurnResult(NamedTuple):
    """The result of one turn: a report a client, in order of position, and the server half's report and seconds."""

    clients: list[ClientReport]
    server: ServerReport
    server_s: float


class Executor(Protocol):
    """Runs exchanges and tests, to the same bits in this process (`local_executor.py`) and in Ray's actors
    (`ray/calls.py`)."""

    facts: dict[str, Any]  # about the model, the data and the processes; see `Server.facts`
    meanwhile: Callable[[], object]  # called while clients work, if they do so beside this process
    # the turn of the next round, if that has one exchange, of this kind; its clients may begin before it is planned
    foresee: Callable[[ExchangePlan], Turn | None]

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

    def call_store(self, method: Callable[Concatenate[RunStore, P], T], *args: P.args, **options: P.kwargs) -> T:
        """The result of a method that reads or writes the server's files: `call_store(RunStore.save, last)`."""

    def show(self, row: Mapping[str, Any]) -> None:
        """Export a row of `rounds/` as gauges, where a cluster has a place for them."""

    def kill(self) -> None:
        """End the processes, where there are some."""

    def close(self, busy: bool) -> None:
        """The run has ended: give the processes back. `busy`: they may still compute what nobody waits for."""

    def translate_errors(self, folder: Path) -> AbstractContextManager[None]:
        """A context around the run in `folder`. It re-raises failures caused by a dead Ray as `ResourceError`."""


class FinishedExchange(NamedTuple):
    """A finished exchange: its plan, and by turn who worked, the bytes sent to each client by field, and the result."""

    plan: ExchangePlan
    turns: list[Turn]
    down_bytes: list[dict[str, int]]
    results: list[TurnResult]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [report.row for result in self.results for report in result.clients]

    @property
    def probe_rows(self) -> list[ProbeRow]:
        """What probes observed, turn by turn: at the clients, then at the server."""
        rows = list[ProbeRow]()
        for result in self.results:
            for client in result.clients:
                rows += client.probes
            rows += result.server.probes
        return rows

    @property
    def traces(self) -> list[tuple[str, bytes]]:
        """The profiler's traces of clients, by the name of their file."""
        return [trace for result in self.results for report in result.clients for trace in report.traces]

    @property
    def metrics(self) -> dict[str, Any]:
        """The algorithm's metrics of its server half; in a sequential exchange a list with a number a turn."""
        reported = [result.server.metrics for result in self.results]
        by_name = {name: [each[name] for each in reported if name in each] for each in reported for name in each}
        sequential = self.plan.exchange.order == "sequential"
        return {name: values if sequential else values[0] for name, values in by_name.items()}

    def add_to(self, row: dict[str, Any]) -> None:
        rows, servers = self.rows, [result.server for result in self.results]
        row["exchanges"] = self.plan.clock.exchange + 1
        down_bytes: Counter[str] = Counter()
        for each, turn in zip(self.down_bytes, self.turns, strict=True):
            down_bytes.update({name: size * len(turn.cohort.client_ids) for name, size in each.items()})
        down_bytes["shared"] += sum(report.shared_bytes for report in servers)
        add_sent(row, "down", down_bytes)
        row["client_steps"] += sum(c["num_steps"] for c in rows)
        row["time/server_s"] += sum(result.server_s for result in self.results)
        add_sent(row, "up", sum((Counter(report.up_bytes) for report in servers), Counter()))
        row["clients_skipped"] = row.get("clients_skipped", 0) + sum(report.clients_skipped for report in servers)
        skipped = [str(c["client"]) for c in rows if c["skipped"]]
        if skipped:
            row["skipped_clients"] = " ".join([*row.get("skipped_clients", "").split(), *skipped])
        row.update(self.metrics)
        if servers:
            row["diverged"] = any(report.diverged for report in servers)
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


def orders(
    executor: Executor, exchange: FinishedExchange, ahead: list[Clock]
) -> Iterator[tuple[ExchangePlan, Turn, list[Clock]]]:
    """Yields the arguments of :meth:`Executor.run` for every turn of an exchange; the caller adds the results to it.

    `ahead`: the next moments, which the server plans with the last turn.
    """
    for turn in exchange.turns:
        now = exchange.plan if not turn.clock.turn else executor.broadcast(turn.clock, exchange.plan.exchange)
        exchange.down_bytes.append(now.down_bytes)
        yield now._replace(aged=turn.aged), turn, ahead if turn is exchange.turns[-1] else []


def transact(
    executor: Executor, clock: Clock, turns: Callable[[ExchangePlan], list[Turn]]
) -> Iterator[FinishedExchange]:
    """Yields every exchange of the transaction that begins at `clock`, when it is finished.

    `turns(plan)`: the turns of a planned exchange, in order.
    """
    while (plan := executor.plan(clock)) is not None:
        exchange = FinishedExchange(plan, turns(plan), [], [])
        clock = clock._replace(exchange=clock.exchange + 1)
        exchange.results.extend(executor.run(*order) for order in orders(executor, exchange, [clock]))
        yield exchange
