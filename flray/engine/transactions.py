"""One transaction of a run and its rows: a round, or the beginning or the end of a task; its tests and its probes."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import Clock, Position
from flray.core.schema.errors import AlgorithmError
from flray.engine import cohort as cohorts
from flray.engine.counts import Tally, with_sums
from flray.engine.evaluate import evaluate_personal, personal_epochs, spread
from flray.engine.flops import StepFlops, kind, largest
from flray.engine.progress import Progress
from flray.engine.rounds import Executor, add_sent, transact
from flray.engine.server import Plan, Server
from flray.rundir import tested
from flray.rundir.recorder import Recorder
from flray.scenario import Scenario


class ExchangeWarning(UserWarning):
    """An exchange whose server half does not run, because no client takes part."""


class Transactions:
    """The transactions of a run whose executor is ready; everything that they tell goes to the recorder."""

    experiment: Experiment
    scenario: Scenario
    executor: Executor
    recorder: Recorder | None
    _looks_at_rounds: bool  # whether a probe looks at whole transactions
    _flops: dict[tuple[Any, ...], StepFlops]  # of a local step, by its kind

    def _round(self, clock: Clock, ahead: Clock | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """(the round's row, those of its clients); `ahead`: the round after it, which is planned on the way."""
        started = time.perf_counter()
        sampled, clients = cohorts.draw(self.experiment, clock, self.scenario.members(clock.task))
        row = self._blank(clock, len(sampled))
        if self.experiment.cohort.dropout:
            row["clients_dropped"] = len(sampled) - len(clients)
        client_rows = self._transact(clock, clients, row, len(sampled) - len(clients), ahead)
        row.setdefault("clients_skipped", 0)
        row.setdefault("diverged", False)
        if self.experiment.evaluate.due(clock.round, self.experiment.rounds):
            self._test(clock, row)
        row["time/client_s"] = float(sum(c["time/client_s"] for c in client_rows))
        row["time/round_s"] = time.perf_counter() - started
        return row, client_rows

    def _task(self, clock: Clock, show: Progress) -> dict[str, Any]:
        """The row of a task's beginning or end, over the clients that its exchanges name, with the personalised test at
        its end.

        Without `exchanges` in the row nothing has changed.
        """
        assert self.recorder is not None
        row: dict[str, Any] = {"done": clock.done, "task": clock.task, "phase": clock.phase, **self._costs()}
        started = time.perf_counter()
        show.note(str(clock))  # a server that makes data may take minutes
        client_rows = self._transact(clock, None, row)
        if "exchanges" in row or (clock.phase == "task_end" and self.scenario.stages[clock.task].tells_tasks_apart):
            self._test(clock, row)
        if clock.phase == "task_end" and personal_epochs(self.experiment):
            show.note("testing every client on its own data")
            began = time.perf_counter()
            people = evaluate_personal(self.executor, self.experiment, self.scenario, clock)
            row.update(spread(people), **{"time/personal_s": time.perf_counter() - began})
            self.recorder.clients_tested(
                [{"done": clock.done, "task": clock.task, "phase": clock.phase, **p} for p in people]
            )
        if clock.phase == "task_end" and self.experiment.algorithm.keeps:
            row.update(self.executor.call(Server.stored_sizes))
        row[f"time/{clock.phase}_s"] = time.perf_counter() - started
        if clock.phase == "task_end" or "exchanges" in row:
            self.recorder.task(row, client_rows)
        return row

    def _transact(
        self, clock: Clock, cohort: np.ndarray | None, row: dict[str, Any], dropped: int = 0, ahead: Clock | None = None
    ) -> list[dict[str, Any]]:
        """All exchanges of a transaction, added up in `row`; the clients' rows.

        The `dropped` got the cohort's first broadcast and are gone.

        `cohort`: who was drawn; None: every client with samples in the task.
        """
        members = self.scenario.members(clock.task)

        def turns(plan: Plan, now: Clock) -> list[cohorts.Turn]:
            exchange = plan.exchange
            drawn = np.asarray(members, dtype=np.int64) if cohort is None else cohort
            stateful = functools.partial(self.executor.call, Server.stateful)
            clients = cohorts.participants(exchange, now, drawn, members, stateful, self.experiment.seed)
            found, empty = cohorts.turns(
                self.scenario, self.experiment.algorithm, clients, now, exchange, self.executor.num_chunks
            )
            if empty:
                row["clients_empty"] = row.get("clients_empty", 0) + empty
            if not found:
                self._skipped(plan, clients, row)
            elif exchange.client is None and found[0].chunks:
                self._count_flops(plan, found[0])
            return found

        client_rows: list[dict[str, Any]] = []
        for exchanged in transact(self.executor, clock, turns, ahead):
            if dropped and exchanged.plan.exchange.who == "cohort":
                add_sent(row, "down", {name: size * dropped for name, size in exchanged.plan.down_bytes.items()})
                dropped = 0
            exchanged.add_to(row)
            if exchanged.plan.exchange.client is None and exchanged.rows:
                row["client_flops"] += self._flops[kind(exchanged.plan)].of(exchanged.rows)
            client_rows += exchanged.rows
            self._probed(clock, exchanged.probed)
        if self._looks_at_rounds:
            self._probed(clock, self.executor.call(Server.observe, clock))
        return client_rows

    def _skipped(self, plan: Plan, clients: np.ndarray, row: dict[str, Any]) -> None:
        """An exchange that none of its `clients` can take part in: the row names it.

        A warning says so, but of the cohort's: the round's row counts who is empty or drops out, and a drift that
        empties a cohort is announced before the run.
        """
        name, who = plan.exchange.name, plan.exchange.who
        row["exchanges_skipped"] = " ".join([*row.get("exchanges_skipped", "").split(), name])
        if who != "cohort":
            why = "no client has a state yet" if who == "stateful" else f"none of {len(clients)} clients holds a sample"
            warnings.warn(f"{plan.clock}: exchange {name!r} is skipped, {why}", ExchangeWarning, stacklevel=2)

    def _count_flops(self, plan: Plan, turn: cohorts.Turn) -> None:
        """What a step of this kind computes, where no step of it has been counted since the run began or went on."""
        which = kind(plan)
        if which not in self._flops:
            try:
                self._flops[which] = self.executor.call(Server.step_flops, plan.exchange, largest(turn.chunks))
            except AlgorithmError as error:  # the run itself may well go on
                self._flops[which] = StepFlops(math.nan, math.nan)
                why = str(error).partition("\n")[0]
                warnings.warn(f"client_flops of {turn.clock} are not counted: {why}", stacklevel=2)

    def _probed(self, clock: Clock, rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """What probes reported into their tables, below `diagnostics/`."""
        assert self.recorder is not None
        at = clock.complete
        when = {"done": at.done, "task": at.task, "round": at.round, "phase": at.phase}
        self.recorder.diagnosed([(name, {**when, **row}) for name, row in rows])

    def _blank(self, clock: Clock, cohort_size: int) -> dict[str, Any]:
        """A round's row before anything is known."""
        row: dict[str, Any] = {"done": clock.done + 1, "task": clock.task, "round": clock.round + 1}
        row.update(**self._untested(), **{"train/loss": None}, cohort_size=cohort_size)
        return {**row, **self._costs(), "proxy_examples": 0.0}

    @staticmethod
    def _costs() -> dict[str, float]:
        return {"comm/up_bytes": 0, "comm/down_bytes": 0, "client_steps": 0, "client_flops": 0.0, "time/server_s": 0.0}

    def _untested(self) -> dict[str, None]:
        names = ("acc", "loss", *(["acc_sources"] if self.scenario.stages[0].by_source else []))
        return {f"{self.experiment.evaluate.split}/{name}": None for name in names}

    def _test(self, clock: Clock, row: dict[str, Any]) -> None:
        """Test the global model on the test set or the validation split, where the algorithm has one."""
        if self.experiment.algorithm.global_model:
            began = time.perf_counter()
            self._tested(self.executor.test(clock), clock.complete, row)
            row["time/evaluate_s"] = time.perf_counter() - began

    def _tested(self, tally: Tally, at: Position, row: dict[str, Any]) -> None:
        """The counts of a test into `tests/`, and what the first test set and mode make of them into `row`."""
        assert self.recorder is not None
        tally = with_sums(self.scenario.stages[at.task].tests, tally)
        self.recorder.tested(
            tested.rows(tally, {"done": at.done, "task": at.task, "round": at.round, "phase": at.phase})
        )
        (name, mode), first = next(iter(tally.items()))
        numbers, stage = [first.accuracy, first.loss], self.scenario.stages[at.task]
        if stage.by_source:
            numbers.append(fmean(tally[part, mode].accuracy for part in stage.tests[name].parts))
        row.update(zip(self._untested(), numbers, strict=True))
