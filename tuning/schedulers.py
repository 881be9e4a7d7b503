"""Which trials are stopped early, by name: ASHA, Hyperband and population-based training of Ray Tune, and the pruners of Optuna."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, HyperBandScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from flray.core.errors import CheckpointError
from tuning.config import SchedulerConfig, Sweep
from tuning.search import Studies

RUNGS = "rungs.json"


def make_scheduler(sweep: Sweep, studies: Studies, folder: Path, rounds: int) -> TrialScheduler:
    """The scheduler that a sweep names, for trials of at most `rounds` rounds."""
    rule = sweep.scheduler
    (name, mode), *_ = sweep.objective.items()
    if rule.name == "none":
        return FIFOScheduler()
    if rule.name == "hyperband":
        return HyperBandScheduler(time_attr="round", metric=name, mode=mode, max_t=rounds, reduction_factor=rule.reduction or 3)
    assert rule.grace is not None
    if rule.name == "asha":
        return Asha(folder / RUNGS, [at for at, _ in rungs(rule, rounds)[:-1]], name, mode, rule.reduction or 3)
    if rule.name == "pbt":
        return _population_based(sweep, rule.grace, name, mode)
    return Pruner(make_pruner(rule), studies)


def rungs(rule: SchedulerConfig, rounds: int) -> list[tuple[int, int]]:
    """(round, seeds over which a trial is judged there) of every rung of ASHA, and of the last round."""
    found, at = [], float(rule.grace or rounds)
    while rule.name == "asha" and at < rounds:
        found.append(round(at))
        at *= rule.reduction or 3
    seeds = rule.seeds or (1,)
    return [(at, seeds[min(rung, len(seeds) - 1)]) for rung, at in enumerate([*found, rounds])]


class Asha(ASHAScheduler):
    """ASHA (Li et al. 2020, the stopping variant of Ray Tune) whose rungs are on disk: `rungs.json` survives the driver.

    `Tuner.restore` begins with empty rungs (ray#30838), so a resumed sweep would judge its trials by other numbers. The trials of each
    algorithm of a sweep with `budget_per: algorithm` have rungs of their own.
    """

    def __init__(self, path: Path, milestones: list[int], metric: str, mode: str, reduction: float) -> None:
        super().__init__(time_attr="round", metric=metric, mode=mode, max_t=2**60, grace_period=1, reduction_factor=reduction)
        self._path, self._milestones, self._factor = path, milestones, reduction
        self._groups: dict[str, Any] = {}
        self._number: dict[str, str] = {}  # Ray Tune's id of a trial -> its key in the sweep
        self._saved, self.stopped = _read_rungs(path, milestones)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        key = trial.config["key"]
        self._number[trial.trial_id] = key
        group = key.rpartition("/")[0]
        if group not in self._groups:
            bracket = _Bracket(1, 1, self._factor, 0)
            bracket._rungs = [(at, {}) for at in reversed(self._milestones)]
            for at, recorded in bracket._rungs:
                recorded.update({k: v for k, v in self._saved.get(at, {}).items() if k.rpartition("/")[0] == group})
            self._groups[group] = bracket
        for _, recorded in self._groups[group]._rungs:  # it goes on under another id
            if key in recorded:
                recorded[trial.trial_id] = recorded.pop(key)
        self._trial_info[trial.trial_id] = self._groups[group]

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        decision: str = super().on_trial_result(tune_controller, trial, result)
        if decision == TrialScheduler.STOP:
            self.stopped.add(self._number[trial.trial_id])
        self._save()
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        super().on_trial_complete(tune_controller, trial, result)
        self._save()

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._trial_info.pop(trial.trial_id, None)

    def _save(self) -> None:
        found: dict[int, dict[str, float]] = {at: {} for at in self._milestones}
        for bracket in self._groups.values():
            for at, recorded in bracket._rungs:
                found[at].update({self._number.get(name, name): value for name, value in recorded.items()})
        text = json.dumps({"rungs": [[at, values] for at, values in found.items()], "stopped": sorted(self.stopped)}, indent=1)
        aside = self._path.with_name(f".{self._path.name}.tmp")
        aside.write_text(text + "\n")
        aside.replace(self._path)


def _read_rungs(path: Path, milestones: list[int]) -> tuple[dict[int, dict[str, float]], set[str]]:
    """(values of the trials at each milestone, "larger is better"; trials that were stopped)."""
    if not path.exists():
        return {}, set()
    try:
        found = json.loads(path.read_text())
        return {int(at): dict(values) for at, values in found["rungs"] if int(at) in milestones}, set(found["stopped"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); delete it to go on with empty rungs") from error


class Pruner(FIFOScheduler):  # type: ignore[misc]
    """A pruner of Optuna: it reads the values that the studies hold, so it survives a resume by itself."""

    def __init__(self, pruner: optuna.pruners.BasePruner, studies: Studies) -> None:
        super().__init__()
        self._pruner, self._studies = pruner, studies

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str:
        key = trial.config["key"]
        self._studies.report(key, result)
        asked = self._studies.trial(key)
        frozen = asked.storage.get_trial(asked._trial_id)
        return str(TrialScheduler.STOP if self._pruner.prune(asked.study, frozen) else TrialScheduler.CONTINUE)


def make_pruner(rule: SchedulerConfig) -> optuna.pruners.BasePruner:
    """Optuna's pruner of this name; `grace` is its first round."""
    pruners = optuna.pruners
    grace = rule.grace or 1
    kinds: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "median": lambda: pruners.MedianPruner(n_startup_trials=rule.startup or 0, n_warmup_steps=grace - 1),
        "percentile": lambda: pruners.PercentilePruner(
            rule.percentile or 25.0, n_startup_trials=rule.startup or 0, n_warmup_steps=grace - 1
        ),
        "successive_halving": lambda: pruners.SuccessiveHalvingPruner(min_resource=grace, reduction_factor=int(rule.reduction or 4)),
    }
    return kinds[rule.name]()


def _population_based(sweep: Sweep, interval: int, name: str, mode: str) -> TrialScheduler:
    """Population-based training (Jaderberg et al. 2017): every `interval` rounds the worst quarter go on from a copy of one of the best,
    with changed numbers, which stay inside the space."""
    from ray import tune

    (algorithm,) = sweep.search_space.algorithms
    keys = {p.name: p.key for p in sweep.search_space.parameters[algorithm]}
    numbers = {keys[parameter]: values for parameter, values in sweep.search_space.mutations(algorithm).items()}
    space: dict[str, Any] = {}
    for key, values in numbers.items():
        if isinstance(values, list):
            space[key] = values
        else:
            low, high, log = values
            whole = isinstance(low, int) and isinstance(high, int)
            kind = (tune.lograndint if log else tune.randint) if whole else (tune.loguniform if log else tune.uniform)
            space[key] = kind(low, high + 1 if whole else high)

    def inside(config: dict[str, Any]) -> dict[str, Any]:
        for key, values in numbers.items():
            if not isinstance(values, list):
                low, high, _ = values
                value = min(max(config["values"][key], low), high)
                config["values"][key] = round(value) if isinstance(low, int) and isinstance(high, int) else value
        return config

    return PopulationBasedTraining(
        time_attr="round",
        metric=name,
        mode=mode,
        perturbation_interval=interval,
        hyperparam_mutations={"values": space},
        custom_explore_fn=inside,
        synch=False,
    )
