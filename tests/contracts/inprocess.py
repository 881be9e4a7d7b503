"""The rounds of an experiment in this process, without Ray: the engine's `Server` and `Workbench`, driven step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flray.core.messages import Record, flatten, to_numpy, to_torch
from flray.engine import cohort as cohorts
from flray.engine.prepare import build_data, build_partition
from flray.engine.server_actor import Server
from flray.engine.workbench import PERSONAL, Moment


class Local:
    """A server, a workbench for the clients, and what travelled between them."""

    def __init__(self, experiment: Any, folder: Path, watch: Callable[..., Any] | None = None) -> None:
        self.experiment = experiment
        dataset, _, private = build_data(experiment)
        self.partition = build_partition(experiment, dataset, private)
        self.server = Server(experiment, folder, "cpu")
        self.watch = watch or (lambda name, function, *arguments: function(*arguments))
        self.rows: list[dict[str, Any]] = []
        self.sent: list[dict[str, int]] = []

    @property
    def state(self) -> Any:
        return self.server.state

    def play(self, rounds: int) -> Any:
        for _ in range(rounds):
            round = len(self.rows)
            population = self.partition.num_clients
            config, seed = self.experiment.cohort, self.experiment.seed
            clients = cohorts.delivering(config, seed, 0, round, cohorts.sample(config, seed, 0, round, population))
            self.exchanges(clients, round, False)
        return self.state

    def task_end(self) -> Any:
        self.exchanges(np.arange(self.partition.num_clients), len(self.rows), True)
        return self.state

    def exchanges(self, clients: np.ndarray, round: int, task_end: bool) -> None:
        number, last, row, sent = 0, False, {"up": 0, "down": 0}, {"up": 0, "down": 0}
        while not last:
            population = self.partition.num_clients
            sampled = population if task_end else self.experiment.cohort.count(population)
            moment = Moment(0, round, number, task_end, population, sampled, len(self.partition.indices))
            down, plan = self.server.plan(moment)
            if plan is None:
                break
            together = plan.exchange.order == "parallel" and len(clients)
            groups = [clients] if together else [clients[i : i + 1] for i in range(len(clients))]
            for i, group in enumerate(groups):
                if i:
                    down, plan = self.server.plan(moment)
                self.exchange(moment, plan, down, group, row, sent)
            number, last = number + 1, plan.last
        self.rows.append(row)
        self.sent.append(sent)

    def exchange(self, moment: Moment, plan: Any, down: Any, clients: np.ndarray, row: dict[str, Any], sent: dict[str, int]) -> None:
        bench = self.server.bench
        cohort, (job,) = cohorts.work(self.partition, self.experiment.algorithm, clients, moment, 1)
        sent["down"] += sum(array.nbytes for array in flatten(down).values()) * len(clients)

        def client(ctx: Any, message: Any, state: Any, batches: Any) -> Any:
            update, state, metrics = self.watch("client", plan.exchange.client, ctx, message, state, batches)
            sent["up"] += sum(array.nbytes for array in flatten(update).values())
            return update, state, metrics

        watched = plan.exchange._replace(client=client, server=lambda *a: self.watch("server", plan.exchange.server, *a))
        states = self.server.states(job.clients)
        delivery, _ = bench.train_run(job, watched, down, states)
        metrics = self.server.aggregate(moment, watched, to_numpy(cohort), delivery)
        row["down"] += plan.down_bytes * len(clients)
        row["up"] += metrics["comm/up_bytes"]
        row.update({name: value for name, value in metrics.items() if name != "comm/up_bytes"})

    def personal(self, finetune_epochs: int = 1) -> Any:
        """Scores of every client's own predictor on the whole test set, `[N, n, C]`, as the engine's personalised evaluation makes it."""
        bench, clients = self.server.bench, np.arange(self.partition.num_clients)
        moment = Moment(0, len(self.rows), PERSONAL, False, len(clients), len(clients), len(self.partition.indices))
        (job,) = cohorts.work(self.partition, self.experiment.algorithm, clients, moment, 1).jobs
        down, _ = self.server.plan(moment._replace(exchange=0))
        x, scores = torch.from_numpy(np.array(bench.dataset.test.x)), []
        for client, stored in enumerate(self.server.states(job.clients)):
            indices = self.partition.client(client)
            ctx, batches = bench.client_context(job, client, job.weights[client], indices, finetune_epochs)
            state = bench.client_state(job, client, stored)
            predictor = self.watch("personalize", self.experiment.algorithm.personalize, ctx, to_torch(down), state, batches)
            with torch.no_grad():
                scores.append(predictor(x))
        return torch.stack(scores)

    def client_states(self) -> dict[int, Any]:
        everyone = range(self.partition.num_clients)
        return {k: to_torch(s) for k, s in zip(everyone, self.server.store.gather(everyone), strict=True) if isinstance(s, Record)}


def bits(message: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """A message as comparable bytes, by field; NaN and -0.0 are their own bits."""
    return {name: (str(a.dtype), a.shape, a.tobytes()) for name, a in flatten(message).items()}
