"""Which trials are stopped early, by name: ASHA, Hyperband and population-based training of Ray Tune, and the pruners
of Optuna."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, HyperBandScheduler, TrialScheduler

from flray.core.schema.errors import CheckpointError, ConfigError
from flray.engine.ray.versions import CHANGED, LAST_TESTED
from flray.files import write_text
from flray.tuning.config import SchedulerConfig, Sweep
from flray.tuning.studies import FACTS, Studies

RUNGS = "rungs.json"
TIMED = "time/virtual_s"  # the `time_attr` whose rungs are moments of the virtual clock
Keeping = Callable[[], contextlib.AbstractContextManager[None]]


def make_scheduler(sweep: Sweep, studies: Studies, folder: Path, rounds: int) -> TrialScheduler:
    """The scheduler that a sweep names, for trials of at most `rounds` rounds."""
    rule = sweep.scheduler
    options = rule.model_dump()  # complete: those that the scheduler reads are set
    (name, mode), *_ = sweep.objective.items()
    if rule.name == "none":
        return FIFOScheduler()
    if rule.name == "hyperband":
        return HyperBandScheduler(
            time_attr="round",
            metric=name,
            mode=mode,
            max_t=rounds,
            reduction_factor=options["reduction"],
            stop_last_trials=False,  # a bracket's survivors train to the last round, which its milestones may miss
        )
    if rule.name == "asha":
        if rule.time_attr == TIMED:
            at = _milestones(rule, sweep.virtual_end or 0.0)
            return TimedAsha(folder / RUNGS, at, name, mode, options["reduction"], studies.keeping)
        at = [round for round, _ in rungs(rule, rounds)[:-1]]
        return Asha(folder / RUNGS, at, name, mode, options["reduction"], studies.keeping)
    if rule.name == "pbt":
        return _population_based(sweep, studies, options["grace"], name, mode)
    return Pruner(make_pruner(rule), studies)


def rungs(rule: SchedulerConfig, rounds: int) -> list[tuple[int, int]]:
    """(round, seeds over which a trial is judged there) of every rung of ASHA, and of the last round."""
    if rule.name != "asha" or rule.time_attr == TIMED:
        return [(rounds, 1)]
    seeds = rule.seeds or (1,)
    # 100 * 1.1 is a little more than 110
    milestones = dict.fromkeys([*(math.ceil(at - 1e-9) for at in _milestones(rule, rounds)), rounds])
    return [(at, seeds[min(rung, len(seeds) - 1)]) for rung, at in enumerate(milestones)]


def _milestones(rule: SchedulerConfig, end: float) -> list[float]:
    """The rungs of ASHA before the end."""
    assert rule.grace is not None and rule.reduction is not None
    milestones, at = list[float](), float(rule.grace)
    while at < end * (1 - 1e-9):  # a product that is the end but for rounding
        milestones.append(at)
        at *= rule.reduction
    return milestones


class Asha(FIFOScheduler):
    """ASHA (Li et al. 2020, the stopping variant, as in Ray Tune) whose rungs are in `rungs.json`, which a resumed
    sweep reads.

    `Tuner.restore` begins with empty rungs (ray#30838), so a resumed sweep would compare its trials with other numbers.
    With `budget_per: algorithm` the trials of each algorithm have their own rungs.

    A rung compares trials after the same training (Li et al. 2020, Algorithm 1). A trial that is not tested at a rung's
    round is judged there by its first value after it, among the trials whose value there is of the same round. A report
    that goes past several rungs counts for the last of them; those before it are passed, and never judged later. Ray
    Tune judges them at the next report, by the value of a later round; Optuna judges each of them by one value.
    """

    def __init__(
        self,
        path: Path,
        milestones: Sequence[float],
        metric: str,
        mode: str,
        reduction: float,
        keeping: Keeping = contextlib.nullcontext,
    ) -> None:
        """`keeping()` is around what is written while Ray Tune runs: it keeps errors for later."""
        super().__init__()
        self.objective, self._sign = metric, 1.0 if mode == "max" else -1.0
        self._path, self._milestones, self._reduction, self._keeping = path, milestones, reduction, keeping
        self._groups: dict[str, list[tuple[float, dict[str, float]]]] = {}
        # rung -> the later rounds of values in it
        self._late: dict[float, dict[str, int]] = {at: {} for at in milestones}
        self.stopped: dict[str, dict[str, Any]] = {}  # trials that were stopped -> `FACTS` of their last result
        self._last: dict[str, tuple[float, float]] = {}  # where rungs are moments: first test and last value
        if path.exists():
            try:
                self._read(json.loads(path.read_text()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise CheckpointError(
                    f"{path} is damaged ({type(error).__name__}: {error}); delete it to go on with empty rungs"
                ) from error

    def _read(self, content: Mapping[str, Any]) -> None:
        """What :meth:`_save` has written."""
        late = {float(at): dict(rounds) for at, rounds in content.get("late", [])}
        for at, values in content["rungs"]:
            if at in self._late:
                self._late[at] = {str(key): int(round) for key, round in late.get(at, {}).items()}
                for key, value in dict(values).items():
                    dict(self.rungs_of(key))[at][key] = float(value)
        self.stopped = {str(key): dict(facts) for key, facts in content["stopped"].items()}
        last = dict(content.get("last", {}))
        self._last = {str(key): (float(at), float(value)) for key, (at, value) in last.items()}

    def rungs_of(self, key: str) -> list[tuple[float, dict[str, float]]]:
        """(milestone, value by key of each trial that reached it), the last milestone first, of the trials that are
        compared with this one."""
        name = key.rpartition("/")[0]
        return self._groups.setdefault(name, [(at, {}) for at in reversed(self._milestones)])

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        stop = self._record(trial.config["key"], result)
        if stop:
            self.stopped[trial.config["key"]] = {name: result[name] for name in FACTS.values() if name in result}
        self._save()
        return str(TrialScheduler.STOP if stop else TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._record(trial.config["key"], result)
        self._save()

    def _record(self, key: str, result: Mapping[str, Any]) -> bool:
        """Record the trial's value at the last rung that it has reached; whether it is below the cutoff there."""
        if "round" not in result or self.objective not in result:
            return False
        value, round = self._sign * result[self.objective], int(result["round"])
        at, values = next(((at, values) for at, values in self.rungs_of(key) if round >= at), (0, {}))
        if not at or key in values:
            return False
        late = self._late[at]
        others = [other for name, other in values.items() if late.get(name, at) == round]
        values[key] = value
        if round > at:
            late[key] = round
        return self._below(value, others)

    def _below(self, value: float, others: list[float]) -> bool:
        """Whether a trial with this value at a rung is not among the best there."""
        return bool(others) and bool(value < np.nanpercentile(others, (1 - 1 / self._reduction) * 100))

    def _save(self) -> None:
        reports: dict[float, dict[str, float]] = {at: {} for at in self._milestones}
        for group in self._groups.values():
            for at, values in group:
                reports[at].update(values)
        stopped = dict(sorted(self.stopped.items()))
        content: dict[str, Any] = {"rungs": [[at, values] for at, values in reports.items()], "stopped": stopped}
        if late := [[at, rounds] for at, rounds in self._late.items() if rounds]:
            content["late"] = late
        if self._last:
            content["last"] = self._last
        text = json.dumps(content, indent=1)
        with self._keeping():
            write_text(self._path, text + "\n")


class TimedAsha(Asha):
    """ASHA whose rungs are moments of the virtual clock: which trial is better after the same time.

    A trial's value at a rung is that of its last test by then. A report that goes past several rungs counts for each of
    them, and a trial that has finished for those that are left. Rungs before a trial's first test are passed, and it is
    never judged there.
    """

    def _record(self, key: str, result: Mapping[str, Any]) -> bool:
        now = result.get(TIMED)
        if now is None or self.objective not in result:
            return False
        value, below = self._sign * result[self.objective], False
        first, before = self._last.get(key, (now, value))
        for at, values in reversed(self.rungs_of(key)):
            there = math.isclose(now, at, rel_tol=1e-9)
            if key not in values and (there or first < at < now):
                reached = value if there else before
                below = self._below(reached, list(values.values())) or below
                values[key] = reached
        self._last[key] = first, value
        return below

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        key = trial.config["key"]
        self._record(key, result)
        finished = str(result.get("status", "finished")).startswith("finished") and not result.get("diverged")
        if key in self._last and key not in self.stopped and finished:
            first, value = self._last[key]
            for at, values in self.rungs_of(key):
                if at > first:
                    values.setdefault(key, value)
        self._save()


class Pruner(FIFOScheduler):
    """A pruner of Optuna. It reads the values in the studies, so it needs no state of its own after a resume."""

    def __init__(self, pruner: optuna.pruners.BasePruner, studies: Studies) -> None:
        super().__init__()
        self._pruner, self._studies = pruner, studies

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: Mapping[str, Any]) -> str:
        key = trial.config["key"]
        prunes = False
        if self._studies.error is None:
            with self._studies.keeping():
                self._studies.report(key, result)
                prunes = self._studies.prunes(key, self._pruner)
        return str(TrialScheduler.STOP if prunes else TrialScheduler.CONTINUE)


def make_pruner(rule: SchedulerConfig) -> optuna.pruners.BasePruner:
    """Optuna's pruner of this name; `grace` is its first round."""
    options, pruners = rule.model_dump(), optuna.pruners
    waits = {"n_startup_trials": options["startup"], "n_warmup_steps": options["grace"]}
    kinds: dict[str, Callable[[], optuna.pruners.BasePruner]] = {
        "median": lambda: pruners.MedianPruner(**waits),
        "percentile": lambda: pruners.PercentilePruner(options["percentile"], **waits),
        "successive_halving": lambda: pruners.SuccessiveHalvingPruner(
            min_resource=options["grace"], reduction_factor=int(options["reduction"])
        ),
    }
    return kinds[rule.name]()


def _population_based(sweep: Sweep, studies: Studies, interval: int, name: str, mode: str) -> TrialScheduler:
    """Population-based training (Jaderberg et al. 2017). Every `interval` rounds each of the worst quarter continues
    from a copy of one of the best, with numbers changed inside the space. The study stores the changed numbers as the
    trial's attribute `values`. Raises `ConfigError` if this Ray Tune cannot take trials of a searcher."""
    try:
        from flray.engine.ray.private.tune import SearchedPopulation
    except CHANGED as error:
        tested = ".".join(map(str, LAST_TESTED))
        raise ConfigError(
            f"scheduler: pbt is not available with Ray {ray.__version__} ({error}); use asha, or Ray {tested}"
        ) from error
    (algorithm,) = sweep.search_space.algorithms
    keys = {p.name: p.key for p in sweep.search_space.parameters[algorithm]}
    numbers = {keys[parameter]: values for parameter, values in sweep.search_space.mutations(algorithm).items()}
    space: dict[str, Any] = {}
    for key, values in numbers.items():
        if isinstance(values, list):
            space[key] = values
        else:
            low, high, log = values
            integers = isinstance(low, int)
            kinds = (tune.randint, tune.lograndint) if integers else (tune.uniform, tune.loguniform)
            space[key] = kinds[log](low, high + integers)

    def inside(config: dict[str, Any]) -> dict[str, Any]:
        for key, values in numbers.items():
            if not isinstance(values, list):
                low, high, _ = values
                value = min(max(config["values"][key], low), high)
                config["values"][key] = round(value) if isinstance(low, int) else value
        return config

    def adapt(trial: Trial, config: dict[str, Any]) -> dict[str, Any]:
        """The numbers are the other's, the key and the run folder stay the trial's own."""
        return {**trial.config, "values": config["values"]}

    def note(trial: Trial, config: dict[str, Any]) -> None:
        with studies.keeping():
            studies.note(trial.config["key"], "values", config["values"])

    return SearchedPopulation(
        adapt,
        note,
        sweep.seed,
        time_attr="round",
        metric=name,
        mode=mode,
        perturbation_interval=interval,
        hyperparam_mutations={"values": space},
        custom_explore_fn=inside,
        log_config=False,
        require_attrs=False,
    )
