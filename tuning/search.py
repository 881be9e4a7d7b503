"""The trials of a sweep: Optuna studies that are asked and told, and the searcher through which Ray Tune reads them.

A suggestion's randomness is addressed by (seed, study, number of the trial), so a sweep that was killed and resumed suggests what an
uninterrupted one would have, where trials run one at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState
from ray.tune.search import Searcher

from flray.core.errors import CheckpointError
from flray.core.seeding import torch_seed
from tuning.config import Sweep

JOURNAL = "study.journal"
NEVER = "never started"  # the status of a trial that the driver was killed in the middle of asking for

optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """The journal in the folder, or the database at `url`. Raises `CheckpointError` when it cannot be read or written."""
    try:
        if url is not None:
            return RDBStorage(url)
        return JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    except Exception as error:  # whatever the database's own driver raises
        raise CheckpointError(f"study: {url or folder / JOURNAL} cannot be opened: {' '.join(str(error).split())}") from error


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Optuna's sampler of this name."""
    samplers = optuna.samplers
    kinds = {
        "tpe": samplers.TPESampler,
        "random": samplers.RandomSampler,
        "qmc": samplers.QMCSampler,
        "gp": samplers.GPSampler,
        "nsga2": samplers.NSGAIISampler,
        "nsga3": samplers.NSGAIIISampler,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return kinds[name](seed=seed)


class Studies:
    """The studies of one sweep: one, or with `budget_per: algorithm` one for each algorithm."""

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        self.sweep, self.folder = sweep, folder
        storage = open_storage(sweep.study, folder)
        groups: list[str | None] = list(sweep.search_space.algorithms) if sweep.budget_per == "algorithm" else [None]
        directions = [{"max": "maximize", "min": "minimize"}[way] for way in sweep.objective.values()]
        self.groups = {
            group: optuna.create_study(
                study_name=sweep.name if group is None else f"{sweep.name}/{group}",
                storage=storage,
                directions=directions,
                load_if_exists=True,
            )
            for group in groups
        }
        self._open: dict[str, optuna.Trial] = {}  # trials that this process has given out and not told of yet
        self._reported: dict[str, set[int]] = {}

    # asking -----------------------------------------------------------------------------------
    def counted(self, group: str | None) -> list[FrozenTrial]:
        """The trials that count for the budget."""
        return [t for t in self.groups[group].get_trials(deepcopy=False) if t.user_attrs.get("status") != NEVER]

    def next(self) -> tuple[str, dict[str, Any], Path] | None:
        """(key, overrides, run folder) of a trial that was begun and not ended, else of a new one; None: there is no more to do."""
        space = self.sweep.search_space
        for group, study in self.groups.items():
            for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                key = self.key(group, frozen.number)
                if key in self._open:
                    continue
                if "folder" not in frozen.user_attrs or not space.contains(frozen.params, group):
                    study.tell(frozen.number, state=TrialState.FAIL)
                    study._storage.set_trial_user_attr(frozen._trial_id, "status", NEVER)
                    continue
                self._open[key] = optuna.Trial(study, frozen._trial_id)
                return key, space.overrides(frozen.params, group), self.folder / frozen.user_attrs["folder"]
        left = {group: self.sweep.trials - len(self.counted(group)) for group in self.groups}
        group = max(left, key=lambda g: left[g])  # the algorithms take turns
        if left[group] < 1:
            return None
        return self._ask(group)

    def _ask(self, group: str | None) -> tuple[str, dict[str, Any], Path]:
        study = self.groups[group]
        number = len(study.get_trials(deepcopy=False))
        address = ("sweep", study.study_name, *([] if self.sweep.sampler == "qmc" else [number]))  # one sequence has one seed
        study.sampler = make_sampler(self.sweep.sampler, torch_seed(self.sweep.seed, *address) % 2**32)
        trial = study.ask()
        overrides = self.sweep.search_space.suggest(trial, group)
        key = self.key(group, trial.number)
        folder = Path("trials") / key.replace("/", "-")
        trial.set_user_attr("folder", str(folder))
        self._open[key] = trial
        return key, overrides, self.folder / folder

    def key(self, group: str | None, number: int) -> str:
        """`0003`, or `fedprox/0003`."""
        return f"{number:04d}" if group is None else f"{group}/{number:04d}"

    # telling ----------------------------------------------------------------------------------
    def report(self, key: str, result: Mapping[str, Any]) -> None:
        """A value on the way, for pruners and figures; Optuna keeps none for several objectives."""
        (name, *more), round = self.sweep.objective, int(result["round"])
        reported = self._reported.setdefault(key, set(self._open[key].storage.get_trial(self._open[key]._trial_id).intermediate_values))
        if not more and name in result and round not in reported:
            self._open[key].report(float(result[name]), round)
            reported.add(round)

    def trial(self, key: str) -> optuna.Trial:
        """A trial that was given out and not told of yet."""
        return self._open[key]

    def tell(self, key: str, result: Mapping[str, Any]) -> None:
        """The end of a trial: complete, pruned (stopped before its last round, or diverged), or failed."""
        trial = self._open.pop(key)
        facts = {"round": "round", "seeds": "seeds", "client_steps": "spent", "seconds": "seconds", "status": "status"}
        for name, source in facts.items():
            if source in result:
                trial.set_user_attr(name, result[source])
        study, values = trial.study, [result.get(name) for name in self.sweep.objective]
        if str(result["status"]).startswith("failed"):
            study.tell(trial, state=TrialState.FAIL)
        elif result.get("diverged") or result["round"] < result["rounds"]:
            study.tell(trial, state=TrialState.PRUNED if len(values) == 1 else TrialState.FAIL)
        elif any(value is None for value in values):
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, [float(value) for value in values if value is not None])

    def prune(self, keys: set[str]) -> None:
        """Tell of trials that a scheduler had stopped when the driver was killed before it said so."""
        for group, study in self.groups.items():
            for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if self.key(group, frozen.number) in keys:
                    study._storage.set_trial_user_attr(frozen._trial_id, "status", "pruned")
                    study._storage.set_trial_user_attr(frozen._trial_id, "round", max(frozen.intermediate_values, default=0))
                    study.tell(frozen.number, state=TrialState.PRUNED)

    def ended(self) -> list[tuple[str | None, FrozenTrial]]:
        """Every trial that has ended, with its study's algorithm."""
        return [(group, trial) for group in self.groups for trial in self.counted(group) if trial.state.is_finished()]


class StudySearcher(Searcher):
    """Ray Tune's view of the studies. Trials that `stopping()` ended early are not told of: a resume goes on with them."""

    def __init__(
        self, studies: Studies, config: Callable[[str, dict[str, Any], Path], dict[str, Any]], stopping: Callable[[], bool]
    ) -> None:
        super().__init__()
        self.studies, self._config, self._stopping = studies, config, stopping
        self._keys: dict[str, str] = {}  # Ray Tune's id of a trial -> its key

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._stopping():
            return Searcher.FINISHED
        found = self.studies.next()
        if found is None:
            return Searcher.FINISHED
        key, overrides, folder = found
        self._keys[trial_id] = key
        return self._config(key, overrides, folder)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if "round" in result:
            self.studies.report(self._keys[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        key = self._keys[trial_id]
        if error:
            self.studies.tell(key, {"status": "failed: its processes were lost too often", "round": 0, "rounds": 1})
        elif result and "round" in result and (result["done"] or not self._stopping()):
            self.on_trial_result(trial_id, result)
            self.studies.tell(key, result)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the studies are on disk."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: a resume makes a new searcher over the same studies."""
