"""One round as data flows: pick the cohort, broadcast, client work, aggregate, test. The driver holds references only."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from flray.core.messages import to_numpy
from flray.engine import cohort as cohorts
from flray.engine.counts import Tally
from flray.engine.evaluate import evaluate_global
from flray.engine.ray.pool import ObjectLostError, Piece, Pool
from flray.engine.server_actor import Plan
from flray.engine.summary import summarise
from flray.engine.workbench import Assignment, Moment
from flray.experiment import Experiment
from flray.rundir import tested
from flray.rundir.recorder import Recorder
from flray.scenario import Partition

LOST_RESULTS = 3  # times that one exchange is computed


class Rounds:
    """The rounds of a run whose actors are set up."""

    experiment: Experiment
    partition: Partition
    population: int
    pool: Pool
    facts: dict[str, Any]  # of the actors, see `launch`
    recorder: Recorder | None = None
    _ahead: tuple[Moment, Any, Any] | None = None  # a message down, and its plan, that came with the aggregation before it

    def _round(self, task: int, round: int, done: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        started = time.perf_counter()
        config, seed = self.experiment.cohort, self.experiment.seed
        sampled = cohorts.sample(config, seed, task, round, self.population)
        clients = cohorts.delivering(config, seed, task, round, sampled)
        row = self._blank(task, round, done, len(sampled))
        if config.dropout:
            row["clients_dropped"] = len(sampled) - len(clients)
        client_rows = self._exchanges(task, round, False, clients, row, len(sampled))
        if not len(clients):
            row.update(clients_skipped=0, diverged=False)
        if self.experiment.evaluate.due(round, self.experiment.rounds):
            self._test(self._moment(task, round, len(sampled)), row)
        row["time/client_s"] = float(sum(c["time/client_s"] for c in client_rows))
        row["time/round_s"] = time.perf_counter() - started
        return row, client_rows

    def _blank(self, task: int, round: int, done: int, cohort_size: int) -> dict[str, Any]:
        """A round's row before anything is known."""
        row: dict[str, Any] = {"done": done, "task": task, "round": round + 1, **self._untested(), "train/loss": None}
        row.update({"cohort_size": cohort_size, "comm/up_bytes": 0, "comm/down_bytes": 0, "client_steps": 0, "proxy_examples": 0.0})
        return {**row, "time/server_s": 0.0}

    def _untested(self) -> dict[str, None]:
        return {f"{self.experiment.evaluate.split}/{name}": None for name in ("acc", "loss")}

    def _test(self, moment: Moment, row: dict[str, Any]) -> None:
        """Test the global model on the test set or the validation split, where the algorithm has one."""
        if self.experiment.algorithm.global_model:
            began = time.perf_counter()
            phase = "task_end" if moment.task_end else "round"
            when = {"done": row["done"], "task": moment.task, "round": row.get("round", moment.round), "phase": phase}
            self._tested(evaluate_global(self.pool, self.experiment, moment), when, row)
            row["time/evaluate_s"] = time.perf_counter() - began

    def _tested(self, tally: Tally, when: dict[str, Any], row: dict[str, Any]) -> None:
        """The counts of a test into `tests/`, and what the first test set and mode make of them into `row`."""
        assert self.recorder is not None
        self.recorder.tested(tested.rows(tally, when))
        first = next(iter(tally.values()))
        row.update(zip(self._untested(), (first.accuracy, first.loss), strict=True))

    def _moment(self, task: int, round: int, cohort_size: int, exchange: int = 0, task_end: bool = False) -> Moment:
        return Moment(task, round, exchange, task_end, self.population, cohort_size, len(self.partition.indices))

    def _exchanges(
        self, task: int, round: int, task_end: bool, clients: np.ndarray, row: dict[str, Any], sampled: int
    ) -> list[dict[str, Any]]:
        """All exchanges of a round (or of a task's end), added up in `row`; the clients' rows. Of the `sampled` ones who are not in
        `clients` got the first message and are gone."""
        client_rows: list[dict[str, Any]] = []
        exchange, last = 0, False
        while not last:
            moment = self._moment(task, round, sampled, exchange, task_end)
            down, plan = self._planned(moment)
            if plan is None:
                break
            row["comm/down_bytes"] += plan.down_bytes * (0 if exchange else sampled - len(clients))
            for number, group in enumerate(cohorts.groups(clients, plan.exchange.order)):
                if number:  # sequential: each client sees what the last one added
                    down, plan = self._planned(moment)
                assert plan is not None
                client_rows += self._exchange(moment, plan, down, group, row)
            exchange, last = exchange + 1, plan.last
            row["exchanges"] = exchange
        return client_rows

    def _planned(self, moment: Moment) -> tuple[Any, Plan | None]:
        """(reference to the message down, the plan), which may have come with the aggregation before it."""
        if self._ahead is not None and self._ahead[0] == moment:
            _, down, plan = self._ahead
        else:
            down, asked = self.pool.start("plan", moment, returns=2)
            plan = self.pool.wait(asked)
        self._ahead = None
        return down, plan

    def _exchange(self, moment: Moment, plan: Plan, down: Any, clients: np.ndarray, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Broadcast, client work, aggregate; adds bytes, steps and metrics to `row`. Lost results are computed again."""
        cohort, jobs = cohorts.work(self.partition, self.experiment.algorithm, clients, moment, len(self.pool.clients))
        for attempt in range(LOST_RESULTS):
            try:
                results = self.pool.execute([self._training(job, plan, down) for job in jobs])
                began = time.perf_counter()
                ahead = None
                if plan.last and not moment.task_end and moment.round + 1 < self.experiment.rounds:
                    ahead = moment._replace(round=moment.round + 1, exchange=0)
                payloads = [payload for payload, _ in results]
                next_down, report = self.pool.start("aggregate", moment, plan.exchange, to_numpy(cohort), ahead, *payloads, returns=2)
                metrics, next_plan = self.pool.wait(report)
                self._ahead = None if ahead is None else (ahead, next_down, next_plan)
                break
            except ObjectLostError:  # a node went away with results that no one had fetched
                if attempt == LOST_RESULTS - 1:
                    raise
                down, _ = self._planned(moment)
        row["time/server_s"] += time.perf_counter() - began
        client_rows = [client for _, rows in results for client in rows]
        row["comm/down_bytes"] += plan.down_bytes * len(clients)
        row["client_steps"] += int(sum(c["num_steps"] for c in client_rows))
        for name in ("comm/up_bytes", "clients_skipped"):
            row[name] = row.get(name, 0) + metrics.pop(name)
        skipped = [str(c["client"]) for c in client_rows if c["skipped"]]
        if skipped:
            row["skipped_clients"] = " ".join([*row.get("skipped_clients", "").split(), *skipped])
        row.update(metrics)
        row.update(summarise(client_rows, dict(zip(clients.tolist(), cohort.weights.tolist(), strict=True))))
        return client_rows

    def _training(self, job: Assignment, plan: Plan, down: Any) -> Piece:
        states = self.pool.start("states", job.clients) if self.facts["stateful"] else None
        return lambda actor: actor.train.options(num_returns=2).remote(job, plan.exchange, down, states)
