"""The trials of a sweep as Optuna studies.

A suggestion's randomness is addressed by (seed, study, trials before it). So a sweep that was killed and resumed
suggests the same trials as an uninterrupted one, if trials run one at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from flray.core.protocol.seeding import torch_seed
from flray.core.schema.errors import CheckpointError, FlrayError
from flray.tuning.config import Sweep

JOURNAL = "study.journal"
# a trial's attribute -> in its results
FACTS = {"round": "round", "seeds": "seeds", "client_steps": "spent", "seconds": "seconds"}
DIRECTIONS = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}
NEVER = "never started"  # the status of a trial that the driver was killed in the middle of asking for

optuna.logging.set_verbosity(optuna.logging.WARNING)


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """The journal in the folder, or the database at `url`. Raises `CheckpointError` when it cannot be used."""
    with _one_line(url, folder):
        if url is not None:
            return RDBStorage(url)
        # absolute: Optuna's lock is a link to the journal, and never breaks one of a killed process that leads nowhere
        return JournalStorage(JournalFileBackend(str((folder / JOURNAL).absolute())))


@contextlib.contextmanager
def _one_line(url: str | None, folder: Path) -> Iterator[None]:
    try:
        yield
    except FlrayError:
        raise
    except Exception as error:  # whatever the database's own driver raises
        hint = f"; free some space and run: flray sweep {folder} --resume" if disk_full(error) else ""
        raise CheckpointError(
            f"study: {url or folder / JOURNAL} cannot be used: {' '.join(str(error).split())}{hint}"
        ) from error


def make_sampler(name: str, seed: int, sequence: int) -> BaseSampler:
    """Optuna's sampler of this name for the next trial.

    Quasi-random numbers are one `sequence`, which has one seed for all trials.

    gp and qmc draw what only some of the algorithms have at random.
    """
    samplers = optuna.samplers
    kinds: dict[str, Callable[[], BaseSampler]] = {
        "tpe": lambda: samplers.TPESampler(seed=seed),
        "random": lambda: samplers.RandomSampler(seed=seed),
        "qmc": lambda: samplers.QMCSampler(
            seed=sequence,
            scramble=True,
            independent_sampler=samplers.RandomSampler(seed=seed),
            warn_independent_sampling=False,
        ),
        "gp": lambda: samplers.GPSampler(seed=seed, warn_independent_sampling=False),
        "nsga2": lambda: samplers.NSGAIISampler(seed=seed),
        "nsga3": lambda: samplers.NSGAIIISampler(seed=seed),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return kinds[name]()


def disk_full(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, says that there is no space left."""
    while error is not None:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "the disk is full" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _trial_runs(folder: Path) -> list[str]:
    """The trials with a run in a sweep's folder, by folder name: `0003`, `fedprox-0003`."""
    names = (path.name for path in (folder / "trials").glob("*"))
    matches = (re.fullmatch(r"(?!\.)(.*?\d{4,})(-seed\d+)?(\.new)?", name) for name in names)
    return sorted({match[1] for match in matches if match})


def _lost(study: str | Path, folder: Path, missing: list[str], runs: list[str]) -> CheckpointError:
    one = f"trials/{missing[0]}"
    if len(missing) == len(runs):
        return CheckpointError(
            f"{study} knows none of the {len(runs)} trials in {folder}/trials: it was emptied, or is another one; "
            "bring it back, or start again with another --out"
        )
    return CheckpointError(
        f"{study} does not know {one}: it lost its end; bring it back, or move {folder}/{one}* away to train it again"
    )


def _mend(journal: Path) -> None:
    """Drops a half-written last line of a lost machine: Optuna would append to it and then read neither line."""
    text = journal.read_bytes() if journal.exists() else b""
    if text and not text.endswith(b"\n"):
        os.truncate(journal, text.rfind(b"\n") + 1)


class Studies:
    """The studies of one sweep: one, or with `budget_per: algorithm` one for each algorithm.

    `new`: they must not be there yet, since a database can hold those of other sweeps. Raises `CheckpointError` when
    they are, when the storage cannot be read or written, or when it lost trials whose runs are in the folder. `check`
    raises when the folder is no longer this process's; it is asked before anything is written.
    """

    def __init__(
        self, sweep: Sweep, folder: Path, *, new: bool = False, check: Callable[[], None] = lambda: None
    ) -> None:
        self.sweep, self.folder, self._check = sweep, folder, check
        self.error: FlrayError | None = None  # why no trial may go on
        runs = _trial_runs(folder)
        if sweep.study is None:
            with _one_line(None, folder):
                _mend(folder / JOURNAL)
                # opening it would make an empty one
                if runs and not ((folder / JOURNAL).exists() and (folder / JOURNAL).stat().st_size):
                    raise _lost(folder / JOURNAL, folder, runs, runs)
        storage = open_storage(sweep.study, folder)
        groups: list[str | None] = list(sweep.search_space.algorithms) if sweep.budget_per == "algorithm" else [None]
        names = {group: sweep.name if group is None else f"{sweep.name}/{group}" for group in groups}
        directions = [DIRECTIONS[way] for way in sweep.objective.values()]
        with _one_line(sweep.study, folder):
            existing = set(optuna.get_all_study_names(storage)) & set(names.values())
        if new and existing:
            raise CheckpointError(
                f"study: {sweep.study} already holds {min(existing)}; give this sweep another name, or resume that one"
            )
        with _one_line(sweep.study, folder):
            self.groups = {
                group: optuna.create_study(study_name=name, storage=storage, directions=directions, load_if_exists=True)
                for group, name in names.items()
            }
        known = {t.user_attrs.get("folder") for study in self.groups.values() for t in study.get_trials(deepcopy=False)}
        if missing := [run for run in runs if f"trials/{run}" not in known]:
            raise _lost(sweep.study or folder / JOURNAL, folder, missing, runs)
        self._open: dict[str, optuna.Trial] = {}  # trials of this process that have begun and not ended
        self._reported: dict[str, dict[int, float]] = {}  # round -> value

    # writing ----------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with _one_line(self.sweep.study, self.folder):
            self._check()
            yield

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """A context for code that Ray Tune calls: stores the first `FlrayError` as `error`, which ends the sweep.
        Raised there, it would become a traceback of Ray."""
        try:
            yield
        except FlrayError as error:
            self.error = self.error or error

    # asking -----------------------------------------------------------------------------------
    def counted(self, group: str | None) -> list[FrozenTrial]:
        """The trials that count for the budget."""
        return [t for t in self.groups[group].get_trials(deepcopy=False) if t.user_attrs.get("status") != NEVER]

    def next(self, spent: Collection[str | None] = ()) -> tuple[str, dict[str, Any], Path] | None:
        """(key, overrides, run folder) of a trial that has begun and not ended, else of a new one; None if there is
        none.

        Skips the studies in `spent`, whose budget is used up.
        """
        with self._writing():
            return self._next(spent)

    def _next(self, spent: Collection[str | None]) -> tuple[str, dict[str, Any], Path] | None:
        space = self.sweep.search_space
        groups = {group: study for group, study in self.groups.items() if group not in spent}
        for group, study in groups.items():
            for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                key = self.key(group, frozen.number)
                if key in self._open:
                    continue
                if "folder" not in frozen.user_attrs or not space.contains(frozen.params, group):
                    study._storage.set_trial_user_attr(frozen._trial_id, "status", NEVER)
                    study.tell(frozen.number, state=TrialState.FAIL)
                    continue
                self._open[key] = optuna.Trial(study, frozen._trial_id)
                overrides = space.overrides(frozen.params, group) | frozen.user_attrs.get("values", {})
                return key, overrides, self.folder / frozen.user_attrs["folder"]
        remaining = {group: self.sweep.trials - len(self.counted(group)) for group in groups}
        group = max(remaining, key=lambda g: remaining[g], default=None)  # the algorithms take turns
        if remaining.get(group, 0) < 1:
            return None
        return self._ask(group)

    def _ask(self, group: str | None) -> tuple[str, dict[str, Any], Path]:
        study = self.groups[group]
        seed = torch_seed(self.sweep.seed, "sweep", study.study_name, len(self.counted(group))) % 2**32
        sequence = torch_seed(self.sweep.seed, "sweep", study.study_name) % 2**32
        study.sampler = make_sampler(self.sweep.sampler, seed, sequence)
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
        """Records an intermediate value for pruners and figures; Optuna stores none for several objectives.

        A repeated round gets its last value, as in the run's own table: population-based training continues from
        another trial's round, and times differ after a kill.
        """
        (name, *more), round, trial = self.sweep.objective, int(result["round"]), self._open[key]
        if more or name not in result:
            return
        with self._writing():
            reported = self._reported.setdefault(
                key, dict(trial.storage.get_trial(trial._trial_id).intermediate_values)
            )
            if reported.get(round) != result[name]:
                reported[round] = float(result[name])
                # Trial.report ignores a second value
                trial.storage.set_trial_intermediate_value(trial._trial_id, round, reported[round])

    def trial(self, key: str) -> optuna.Trial:
        """A trial that has begun and not ended."""
        return self._open[key]

    def tell(self, key: str, result: Mapping[str, Any]) -> None:
        """The end of a trial: complete, pruned (stopped before its last round, or diverged), or failed."""
        trial = self._open.pop(key)
        values: list[Any] = [result.get(name) for name in self.sweep.objective]
        missing = [name for name, value in zip(self.sweep.objective, values, strict=True) if value is None]
        status, state = result["status"], TrialState.COMPLETE
        if status.startswith("failed"):
            state = TrialState.FAIL
        elif result.get("diverged") or result["round"] < result["rounds"]:
            state = TrialState.PRUNED if len(values) == 1 else TrialState.FAIL  # Optuna prunes by one objective only
            status = "pruned" if status == "running" else status
        elif missing:
            status, state = f"failed: its last round has no finite {missing[0]}", TrialState.FAIL
        with self._writing():
            for name, value in {**_facts(result), "status": status}.items():
                trial.set_user_attr(name, value)
            trial.study.tell(trial, values if state == TrialState.COMPLETE else None, state=state)

    def note(self, key: str, name: str, value: Any) -> None:
        """Sets an attribute of a trial that has begun."""
        with self._writing():
            self._open[key].set_user_attr(name, value)

    def prune(self, stopped: Mapping[str, Mapping[str, Any]]) -> None:
        """Records as pruned the trials that a scheduler had stopped, with `FACTS` of their last result, if the
        driver was killed before it did so."""
        for group, study in self.groups.items():
            for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if (last := stopped.get(self.key(group, frozen.number))) is not None:
                    with self._writing():
                        for name, value in {**_facts(last), "status": "pruned"}.items():
                            study._storage.set_trial_user_attr(frozen._trial_id, name, value)
                        study.tell(frozen.number, state=TrialState.PRUNED)

    def ended(self) -> list[tuple[str | None, FrozenTrial]]:
        """Every trial that has ended, with its study's algorithm."""
        return [(group, trial) for group in self.groups for trial in self.counted(group) if trial.state.is_finished()]


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[source] for name, source in FACTS.items() if source in result}
