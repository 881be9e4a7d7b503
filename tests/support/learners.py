"""Rounds of one learner in this process, played by hand."""

from typing import Any

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import Clock
from flray.engine.learner import Learner
from flray.engine.prepare import build_data, build_scenario
from flray.engine.runtime import Runtime, TaskSummary


def rounds_by_hand(experiment: Experiment, rounds: int = 4) -> tuple[Any, list[tuple[float, int, float, float]]]:
    """(the state after so many rounds; of each the training loss, steps, accuracy and loss of the test)."""
    data = build_data(experiment)
    assert data.private is not None
    summary = TaskSummary.of(build_scenario(experiment, data))
    worker = Learner(Runtime(experiment, summary), [np.sort(data.private)])
    state, rows = worker.algorithm.init_server(worker.context(Clock()), *worker.runtime.objective.initial()), []
    for clock in (Clock(0, round, done=round) for round in range(rounds)):
        state, metrics, steps = worker.round(state, clock)
        (counts,) = worker.test(state, clock).values()
        rows.append((float(metrics["train/loss"]), steps, counts.accuracy, counts.loss))
    return state, rows
