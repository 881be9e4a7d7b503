"""The personalised test: every client's own model on its own share of the test set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import Clock
from flray.engine import cohort as cohorts
from flray.engine.rounds import Executor
from flray.metrics import fairness
from flray.scenario import Scenario

CHUNKS_PER_ACTOR = 4  # of the personalised evaluation per actor: unequal clients even out


def evaluate_personal(
    executor: Executor, experiment: Experiment, scenario: Scenario, clock: Clock
) -> list[dict[str, Any]]:
    """A row a client and number of fine-tuning epochs: samples, size of the local test share, accuracy on it (FedSOL,
    Section 4.4, Table 9)."""
    members = scenario.members(clock.task)
    clients = np.asarray(members[: experiment.evaluate.personal_clients], dtype=np.int64)
    algorithm, now, num_chunks = (
        experiment.algorithm,
        clock._replace(phase="personal"),
        CHUNKS_PER_ACTOR * executor.num_chunks,
    )
    return [
        row
        for turn in cohorts.turns(scenario, algorithm, clients, now, algorithm.training, num_chunks)[0]
        for row in executor.personal(turn.clock, turn.chunks, experiment.personal_epochs)
    ]


def personal_columns(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The columns `personal/ftE/acc_mean`, `acc_std` (over clients, ddof 0), `acc_p10`, `acc_worst` and `gini` for
    every E, over the clients with test samples."""
    columns: dict[str, float] = {}
    for epochs in dict.fromkeys(row["finetune_epochs"] for row in rows):
        values = [row["test/acc"] for row in rows if row["finetune_epochs"] == epochs and row["num_test"]]
        if values:
            spread = fairness.spread(values)
            names = {"acc_mean": spread.mean, "acc_std": spread.std, "acc_p10": spread.p10, "acc_worst": spread.worst}
            columns |= {f"personal/ft{epochs}/{name}": value for name, value in (names | {"gini": spread.gini}).items()}
    return columns
