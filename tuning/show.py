"""The display of trials as a callback of Ray Tune."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.tune import Callback
from ray.tune.experiment import Trial

from flray.tuning.display import Display

WAIT_S = 30.0  # a trial starts within seconds where its share of the cluster is free


class Show(Display, Callback):
    """`with Show("sweep", 12, {"val/acc": "max"}) as show`; then a callback for Ray Tune."""

    def __init__(self, label: str, total: int, done: int, objectives: Mapping[str, str], enabled: bool = True) -> None:
        Display.__init__(self, label, total, done, objectives, enabled)
        self._ran_at, self._waiting = time.monotonic(), False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bar": None, "_cell": None, "_task": None}  # Ray Tune pickles its callbacks

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Says for what the trials wait when none has run for a while: others hold the cluster."""
        if not trials or any(trial.status != Trial.PENDING for trial in trials if not trial.is_finished()):
            self._ran_at, self._waiting = time.monotonic(), False
        elif not self._waiting and time.monotonic() - self._ran_at > WAIT_S:
            self._waiting = True
            free, have = ray.available_resources(), ray.cluster_resources()
            names = [name for name in ("CPU", "GPU") if name in have]
            share = ", ".join(f"{free.get(name, 0):g} of {have[name]:g} {name}s" for name in names)
            words = f"no trial has started for {WAIT_S:g} s: others hold the cluster ({share} are free)"
            self.say(f"{self.label}  {words}")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if "round" in result:
            self.progressed(result["key"], int(result["round"]), int(result["rounds"]))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.ended_with(trial.config["key"], trial.last_result or {})

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.lost(trial.config["key"], str(trial.get_error()))
