"""Rounds over data in memory: the engine's own protocol on its local executor, with batches in the order of the data.

What differs from a run is where samples and networks come from, and that nothing is shuffled, so that a plain loop over
the same tensors is the same experiment.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flray.config.experiment import CohortConfig, EvaluateConfig, Experiment
from flray.config.schedule import Version
from flray.contracts.played import ObservedClient
from flray.core.messages import Batch, map_tensors
from flray.core.network.objective import Objective
from flray.core.protocol.clock import Clock
from flray.core.protocol.context import Context
from flray.core.protocol.exchange import Exchange
from flray.data import Normalizer
from flray.data.client_data import ClientSamples
from flray.data.data_config import Augment, DataConfig
from flray.data.dataset import Dataset
from flray.data.splits import Split
from flray.engine import cohort as cohorts
from flray.engine.client import ClientResult
from flray.engine.counts import Evaluator
from flray.engine.exchanges import Chunk, ExchangePlan
from flray.engine.local_executor import LocalExecutor
from flray.engine.rounds import FinishedExchange, transact
from flray.engine.runtime import Runtime, TaskSummary
from flray.engine.server import Server
from flray.rundir.run_store import RunStore
from flray.scenario import Scenario
from flray.scenario.partition import from_lists
from flray.uplink import Uplink

Data = Sequence[tuple[Tensor, Tensor]]  # (x, y) of every client


def batches_of(x: Tensor, y: Tensor, size: int, epochs: int) -> list[Batch]:
    """In the order of the data, the last batch kept."""
    return [Batch(x[i : i + size], y[i : i + size]) for _ in range(epochs) for i in range(0, len(x), size)]


def held(x: Tensor, y: Tensor, batch_size: int = 4) -> ClientSamples:
    """`core.samples.ClientData` of one client that holds all of it; `plain` comes in batches of `batch_size`."""
    split, normalizer = Split(x.numpy(), y.numpy()), Normalizer((), ())
    return ClientSamples(split, np.arange(len(x)), None, normalizer, None, "keep", plain_batch=batch_size)


class GivenRuntime(Runtime):
    """A runtime whose data set and network are given."""

    def __init__(
        self, experiment: Experiment, summary: TaskSummary, objective: Objective, split: Split, proxy: Any
    ) -> None:
        self.experiment, self.summary, self.algorithm = experiment, summary, experiment.algorithm
        self.objective, self.net, self.proxy, self.evaluation_batch = objective, {}, proxy, 100
        self.probes, self.uplink = experiment.probes(), Uplink(experiment.uplink)
        classes = tuple(str(label) for label in range(int(split.y.max()) + 1))
        self.dataset = Dataset("memory", split, split, classes, (), (), "", Augment())
        self.normalizer = Normalizer((), ())
        self.evaluator = Evaluator(self.algorithm, self.dataset, self.normalizer, self.evaluation_batch)
        self._versions = (Version(1, experiment.algorithm),)
        self._classes, self.inputs, self.starts_from = [], None, None
        self.frozen, self._objectives = frozenset(), {}

    def client_data(self, ctx: Context, numbers: np.ndarray, previous: np.ndarray | None = None) -> ClientSamples:
        return replace(super().client_data(ctx, numbers, previous), rng=None)


class Watched(ObservedClient):
    """Clients whose updates and metrics are kept; what the (round, client) in `lost` send never arrives."""

    def __init__(self, runtime: Runtime, lost: Collection[tuple[int, int]]) -> None:
        super().__init__(runtime)
        self.lost, self.updates, self.reports = lost, [], []

    def exchange(self, work: Any, *arguments: Any) -> ClientResult:
        done = super().exchange(work, *arguments)
        self.updates.append(map_tensors(torch.clone, done.update))
        self.reports.append({name: float(value) for name, value in done.metrics.items()})
        return done

    def run_client(self, chunk: Chunk, i: int, exchange: Exchange, broadcast: Any, stored: Any, made: Any) -> Any:
        run = super().run_client(chunk, i, exchange, broadcast, stored, made)
        if (chunk.clock.round, chunk.clients[i]) not in self.lost:
            return run
        return run._replace(update=None, report=run.report._replace(row={**run.report.row, "skipped": True}))


class Federation:
    """An algorithm, a network, the clients' data, and what happened so far.

    `states`: of the server, the first one before round 1; `updates`: by round, those of its cohort; `reports`: the
    metrics of the last round's clients; `exchanged`: the last round as the engine records it.
    """

    def __init__(
        self,
        algorithm: Any,
        objective: Objective,
        data: Data,
        proxy: Any = None,
        cohort_size: int | None = None,
        lost: Collection[tuple[int, int]] = (),
    ) -> None:
        ends = np.cumsum([len(x) for x, _ in data])
        numbers = np.split(np.arange(ends[-1]), ends[:-1])
        split = Split(torch.cat([x for x, _ in data]).numpy(), torch.cat([y for _, y in data]).numpy())
        self.scenario = Scenario.ordinary(from_lists(numbers), int(split.y.max()) + 1)
        evaluate = EvaluateConfig(clients=False)
        self.experiment = Experiment.model_construct(
            algorithm=algorithm, cohort=CohortConfig(size=cohort_size), evaluate=evaluate, data=DataConfig(source="x")
        )
        self.server = Server(GivenRuntime(self.experiment, TaskSummary.of(self.scenario), objective, split, proxy))
        self.executor = LocalExecutor(self.server, RunStore(self.experiment, Path()))
        self.executor.client = self.clients = Watched(self.server.runtime, lost)
        self.states: list[Any] = [self.server.state]
        self.updates: list[list[Any]] = []
        self.reports: list[dict[str, float]] = []
        self.exchanged: list[FinishedExchange] = []

    def round(self, clients: Sequence[int] | None = None) -> None:
        """The next round, of these clients in this order; None: of all."""
        done = len(self.states) - 1
        drawn = np.arange(self.scenario.population) if clients is None else np.array(clients)
        clock, members = Clock(round=done, done=done), self.scenario.members(0)

        def turns(plan: ExchangePlan) -> list[cohorts.Turn]:
            exchange, now = plan.exchange, plan.clock
            who = cohorts.participants(exchange, now, drawn, members, self.server.stateful, self.experiment.seed)
            return cohorts.turns(self.scenario, self.experiment.algorithm, who, now, exchange)[0]

        self.clients.updates, self.clients.reports = [], []
        self.exchanged = list(transact(self.executor, clock, turns))
        self.server.commit(clock.complete)
        self.states.append(self.server.state)
        self.updates.append(self.clients.updates)
        self.reports = self.clients.reports

    @property
    def kept(self) -> list[Any]:
        """Every client's state: the stored one, or the first one of a client that never took part."""
        everyone = range(self.scenario.population)
        return [
            self.clients.state(self.clients.context(Clock(), k, 1.0, np.zeros(0, np.int64)), stored)
            for k, stored in zip(everyone, self.server.states(everyone), strict=True)
        ]


def play(
    algorithm: Any, objective: Objective, data: Data, rounds: int, proxy: Any = None
) -> tuple[list[Any], list[list[Any]], list[dict[str, float]]]:
    """(server states, one more than rounds; every round's updates; the clients' metrics of the last round)."""
    federation = Federation(algorithm, objective, data, proxy)
    for _ in range(rounds):
        federation.round()
    return federation.states, federation.updates, federation.reports


def play_sampled(
    algorithm: Any,
    objective: Objective,
    data: Data,
    drawn: Sequence[Sequence[int]],
    lost: Collection[tuple[int, int]] = (),
) -> tuple[list[Any], list[Any]]:
    """(server states, client states at the end); a cohort a round, `lost`: the (round, client) that never arrive."""
    federation = Federation(algorithm, objective, data, cohort_size=len(drawn[0]), lost=lost)
    for clients in drawn:
        federation.round(clients)
    return federation.states, federation.kept


def alone(algorithm: Any, objective: Objective, x: Tensor, y: Tensor, rounds: int) -> tuple[list[Any], list[Any]]:
    """(server states, client states), one more than rounds, of a federation of one client."""
    federation = Federation(algorithm, objective, [(x, y)])
    kept = federation.kept
    for _ in range(rounds):
        federation.round()
        kept += federation.kept
    return federation.states, kept
