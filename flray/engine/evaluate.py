"""Tests over the actors: the global model on the whole test set, and every client's own model on its own share of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flray.engine import cohort as cohorts
from flray.engine.counts import Tally, merged
from flray.engine.ray.pool import Piece, Pool
from flray.engine.workbench import PERSONAL, Moment
from flray.experiment import Experiment
from flray.scenario import Partition

PIECES = 4  # of the personalised evaluation per actor: unequal clients even out


def evaluate_global(pool: Pool, experiment: Experiment, moment: Moment) -> Tally:
    """The counts of every test set in every inference mode; those of its blocks are added in order, whoever computed them."""
    if experiment.evaluate.on == "server" or not pool.clients:
        found: Tally = pool.call("evaluate", moment)
        return found
    published, parts = pool.start("published", moment), len(pool.clients)
    work: list[Piece] = [
        lambda actor, part=part: actor.evaluate.options(num_returns=2).remote(published, moment, part, parts)  # type: ignore[misc]
        for part in range(parts)
    ]
    return merged(report for _, report in pool.execute(work))


def personal_epochs(experiment: Experiment) -> tuple[int, ...]:
    """E_ft of the personalised evaluation; an algorithm without a global model has no other test."""
    return experiment.evaluate.finetune_epochs or (() if experiment.algorithm.global_model else (0,))


def evaluate_personal(pool: Pool, experiment: Experiment, partition: Partition, moment: Moment) -> list[dict[str, Any]]:
    """One row per client and number of fine-tuning epochs: samples, size of its local test share, accuracy on it (spec 6.9, 11)."""
    count = min(experiment.evaluate.personal_clients or partition.num_clients, partition.num_clients)
    down, planned = pool.start("plan", moment._replace(exchange=0), returns=2)
    pool.wait(planned)
    moment = moment._replace(exchange=PERSONAL)
    jobs = cohorts.work(partition, experiment.algorithm, np.arange(count), moment, PIECES * len(pool.clients)).jobs
    epochs = personal_epochs(experiment)
    work: list[Piece] = [
        lambda actor, job=job: actor.personal.options(num_returns=2).remote(job, down, pool.start("states", job.clients), epochs)
        for job in jobs  # type: ignore[misc]
    ]
    return [row for _, rows in pool.execute(work) for row in rows]


def spread(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """`personal/ftE/acc_mean`, `acc_std` (over clients, ddof 0), `acc_p10` for every E; a client without test samples does not count."""
    found: dict[str, float] = {}
    for epochs in dict.fromkeys(row["finetune_epochs"] for row in rows):
        values = [row["test/acc"] for row in rows if row["finetune_epochs"] == epochs and row["num_test"]]
        if values:
            name = f"personal/ft{epochs}"
            found |= {f"{name}/acc_mean": float(np.mean(values)), f"{name}/acc_std": float(np.std(values))}
            found[f"{name}/acc_p10"] = float(np.percentile(values, 10))
    return found
