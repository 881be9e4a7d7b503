"""A run on all data in one place: the rounds of `simulation.py`, computed by `Learner`s. No Ray in here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flray.config.experiment import Experiment
from flray.core.protocol.clock import START, Clock, schedule
from flray.core.schema.errors import ConfigError, NonFiniteError
from flray.engine.learner import Learner
from flray.engine.local_executor import LocalExecutor
from flray.engine.rounds import Executor
from flray.engine.simulation import Attempt, Simulation
from flray.engine.this_process import compute
from flray.scenario import Scenario


class CentralizedRounds(Simulation):
    """One run of an algorithm that is `centralized`. A subclass computes a round."""

    def _computed(self, run: Attempt, clock: Clock) -> dict[str, Any]:
        """The row of a round, as `Learner.recorded_round` gives it; the server has the state after it."""
        raise NotImplementedError

    def training_samples(self) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
        """(each task's samples, what a drift leaves of them by `done`). Raises `ConfigError` for `on_nonfinite:
        skip`."""
        if self.experiment.on_nonfinite == "skip":
            raise ConfigError(
                "on_nonfinite: skip leaves a client out, and centralized training has none; set stop or fail"
            )
        samples = [np.unique(part.indices) for part in self.scenario.partitions]
        clocks = schedule(START, self.experiment.rounds, len(self.scenario.stages))
        return samples, _drifted_samples(self.scenario, samples, clocks)

    def _round(self, run: Attempt, clock: Clock, ahead: Clock | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        result = self._computed(run, clock)
        row = self._empty_row(clock, len(self.scenario.members(clock.task)))
        del row["client_flops"]  # a step of the workers is not counted
        counts = result.pop("counts", None)
        row.update(result)
        if counts is not None:
            self._record_test(run, counts, clock.complete, row)
        if row["diverged"] and self.experiment.on_nonfinite == "fail":
            raise NonFiniteError(
                f"round {clock.round + 1}: the parameters are not finite; lower algorithm.lr, or set on_nonfinite: stop"
            )
        return row, []

    # Any: the arguments of `Simulation._transact`, which are not read
    def _transact(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """Without clients there is no exchange at the beginning or at the end of a task."""
        return []


class LocalCentralized(CentralizedRounds):
    """The same in this process: one learner beside the server of `LocalExecutor`, with the bits of any number."""

    learner: Learner
    executor: LocalExecutor

    def _launch(self) -> tuple[Executor, Experiment]:
        samples, drifted = self.training_samples()
        executor, experiment = super()._launch()
        assert isinstance(executor, LocalExecutor)
        self.executor, self.learner = executor, Learner(executor.server.runtime, samples, drifted=drifted)
        return executor, experiment

    def _computed(self, run: Attempt, clock: Clock) -> dict[str, Any]:
        server = self.executor.server
        learned = compute(self.executor.client_threads, lambda: self.learner.recorded_round(server.state, clock))
        server.state, row = learned
        return row


def _drifted_samples(
    scenario: Scenario, samples: Sequence[np.ndarray], clocks: Iterable[Clock]
) -> dict[int, np.ndarray]:
    """What all clients together hold in the rounds in which a drift takes something away, by `done`."""
    remaining: dict[int, np.ndarray] = {}
    for clock in clocks if scenario.drift is not None else ():
        assert scenario.drift is not None
        if clock.phase == "round" and scenario.drift.drift.active(clock.done + 1):
            everyone = np.asarray(scenario.members(clock.task), dtype=np.int64)
            left, before = np.unique(scenario.shares(clock, everyone).indices), remaining.get(clock.done - 1)
            if len(left) < len(samples[clock.task]):
                # rounds alike share one array, which is sent once
                remaining[clock.done] = before if before is not None and np.array_equal(before, left) else left
    return remaining
