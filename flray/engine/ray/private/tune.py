"""Ray Tune beyond its public API: trials without an environment of their own, a population that is searched."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from ray.air.execution._internal import actor_manager, event_manager
from ray.tune.execution import class_cache
from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.schedulers.pbt import _PBTTrialState

from flray.core.protocol.generators import process_wide


def no_environment() -> AbstractContextManager[None]:
    """Trials that start in this block get no variables of their own, for which Ray would start a new process each.

    Raises `AttributeError` at once where this Ray Tune gives them in another way.
    """
    before = class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE

    @contextlib.contextmanager
    def changed() -> Iterator[None]:
        class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE = {}, set()
        try:
            yield
        finally:
            class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE = before

    return changed()


def own_draws() -> AbstractContextManager[None]:
    """Ray Tune shuffles what it waits for: in this block by a generator of its own, not by this process's one.

    Raises `AttributeError` at once where this Ray does it elsewhere.
    """
    before = [(module, module.random) for module in (actor_manager, event_manager)]

    @contextlib.contextmanager
    def changed() -> Iterator[None]:
        for module, _ in before:
            module.random = random.Random()
        try:
            yield
        finally:
            for module, generator in before:
                module.random = generator

    return changed()


class SearchedPopulation(PopulationBasedTraining):
    """Population-based training of trials that a searcher has given their numbers.

    `adapt(trial, config)` is the trial's configuration after it copied a better trial's, whose changed one is `config`.
    `note(trial, config)` is told of it afterwards. What is drawn for a trial at a round is addressed by them and the
    `seed`.
    """

    _explored = PopulationBasedTraining._get_new_config  # raises AttributeError where this Ray Tune has no such method

    def __init__(
        self,
        adapt: Callable[[Trial, dict[str, Any]], dict[str, Any]],
        note: Callable[[Trial, dict[str, Any]], None],
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._adapt, self._note, self._seed = adapt, note, seed
        self._adapted: list[tuple[Trial, dict[str, Any]]] = []

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Ray Tune's own refuses trials of a searcher, because it would draw the numbers itself; these bring theirs."""
        self._trial_state[trial] = _PBTTrialState(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        with process_wide(self._seed, "pbt", trial.config["key"], int(result.get("round", 0))):
            decision = str(super().on_trial_result(tune_controller, trial, result))
        while self._adapted:  # not above: it may wait for the storage, and the generators are held there
            self._note(*self._adapted.pop(0))
        return decision

    def _get_new_config(self, trial: Trial, trial_to_clone: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
        config, changes = self._explored(trial, trial_to_clone)
        config = self._adapt(trial, config)
        self._adapted.append((trial, config))
        return config, changes
