"""The trials of a sweep as Optuna studies.

A suggestion's randomness is addressed by (seed, study, trials before it). So a sweep that was killed and resumed
suggests the same trials as an uninterrupted one, if trials run one at a time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import re
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.exceptions import DuplicatedStudyError
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from flray.core.protocol.seeding import torch_seed
from flray.core.schema.errors import CheckpointError, ConfigError, FlrayError, described, message_of
from flray.log import LOGGER, quieter
from flray.rundir.folder import to_resume_sweep
from flray.rundir.lock import Owner, holder
from flray.tuning.beginning import ATTRIBUTE, Beginning, read_beginning
from flray.tuning.config import Sweep

JOURNAL = "study.journal"
# a trial's attribute -> in its results
FACTS = {"round": "round", "seeds": "seeds", "client_steps": "spent", "seconds": "seconds"}
MOST_WAITING = 8  # trials for whose parameters others are trained
MOST_REPEATED = 100  # trials that repeat the parameters of a space that has no others
BUSY_S = 60.0  # for which SQLite waits for another process that writes
OPENINGS = 20  # attempts to open a database that other processes are making
RACES = ("already exists", "unique constraint", "duplicate", "locked")
DIRECTIONS = {"max": StudyDirection.MAXIMIZE, "min": StudyDirection.MINIMIZE}
DRIVER = "flray.driver"  # user attribute of a study in a database: who writes to it
WAIT_S = 3.0  # for the record of a study that another process has just made
POLL_S = 0.1
NEVER = "never started"  # the status of a trial that the driver was killed in the middle of asking for


def open_storage(url: str | None, folder: Path) -> BaseStorage:
    """The journal in the folder, or the database at `url`. Raises `CheckpointError` when it cannot be used."""
    with _one_line(url, folder):
        if url is not None:
            return _open_database(url)
        # absolute: Optuna's lock is a link to the journal, and never breaks one of a killed process that leads nowhere
        return JournalStorage(JournalFileBackend(str((folder / JOURNAL).absolute())))


def _open_database(url: str) -> RDBStorage:
    """Optuna looks whether its tables are there and then makes them. Where another process does so at the same moment,
    the second look finds them."""
    waits = {"connect_args": {"timeout": BUSY_S}} if url.startswith("sqlite") else None
    for _ in range(OPENINGS - 1):
        try:
            return RDBStorage(url, engine_kwargs=waits)
        except Exception as error:  # whatever the database's own driver raises
            if not any(words in str(error).lower() for words in RACES):
                raise
            time.sleep(random.uniform(0.1, 0.5))
    return RDBStorage(url, engine_kwargs=waits)


def place_of(url: str | None, folder: Path) -> str:
    """A study's storage in words, without the password of a database."""
    if url is None:
        return str(folder / JOURNAL)
    try:
        parts = make_url(url)
    except ArgumentError:
        return url
    return url if parts.password is None else parts.render_as_string(hide_password=True)


@contextlib.contextmanager
def _one_line(url: str | None, folder: Path) -> Iterator[None]:
    try:
        yield
    except FlrayError:
        raise
    except Exception as error:  # whatever the database's own driver raises
        if _of_sampler(error):
            raise FlrayError(
                f"sampler: it failed ({described(error)}); start again with another, such as tpe or random"
            ) from error
        hint = f"; free some space and run: {to_resume_sweep(folder)}" if disk_full(error) else ""
        raise CheckpointError(f"study: {place_of(url, folder)} cannot be used: {_reason(error)}{hint}") from error


def _of_sampler(error: BaseException) -> bool:
    """Whether a sampler of Optuna raised it, and not the storage that it reads."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(name.startswith("optuna.samplers") for name in modules) and not any(
        name.startswith("optuna.storages") for name in modules
    )


def _reason(error: BaseException) -> str:
    """What a database's driver says, without the statement, its values and links, which SQLAlchemy adds."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DBAPIError):
            return " ".join(str(cause.orig).split())
        cause = cause.__cause__
    return message_of(error)


def make_sampler(name: str, seed: int, sequence: int) -> BaseSampler:
    """Optuna's sampler of this name for the next trial. Quasi-random numbers are one `sequence`, which has one seed for
    all trials. gp and qmc draw what only some of the algorithms have at random."""
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


@contextlib.contextmanager
def usual_modes() -> Iterator[None]:
    """A block in which a sampler or a pruner computes: with gradients ("gp"), and NumPy's own treatment of underflow.

    These modes are this thread's, so it takes no turn: a run of another thread does not wait while the storage waits.
    """
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():  # leaving it also resets what else autograd has for this thread
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        yield


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

    `new`: they must not be there yet. Raises `CheckpointError` when they are, when the storage cannot be read or
    written, or when it lost trials whose runs are in the folder. `check` raises when the folder is no longer this
    process's; it is asked before anything is written. `began`: what the sweep began with; `known`: this is the folder's
    record, else one that the folder lost may be in the studies (the attribute `began` is the one that holds).
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        *,
        new: bool = False,
        check: Callable[[], None] = lambda: None,
        began: Beginning | None = None,
        known: bool = False,
    ) -> None:
        self.sweep, self.folder, self._check = sweep, folder, check
        self.error: FlrayError | None = None  # why no trial may go on
        self.place = place_of(sweep.study, folder)
        runs = _trial_runs(folder)
        if sweep.study is None:
            with _one_line(None, folder):
                _mend(folder / JOURNAL)
                # opening it would make an empty one
                if runs and not ((folder / JOURNAL).exists() and (folder / JOURNAL).stat().st_size):
                    raise _lost(folder / JOURNAL, folder, runs, runs)
        storage = open_storage(sweep.study, folder)
        with _one_line(sweep.study, folder):
            self.groups = self._studies(storage, new)
            known_folders = {
                t.user_attrs.get("folder") for study in self.groups.values() for t in study.get_trials(deepcopy=False)
            }
        if missing := [run for run in runs if f"trials/{run}" not in known_folders]:
            raise _lost(self.place, folder, missing, runs)
        self.began = began
        self._owned: list[Callable[[], None]] = []  # raise once another process took over a study in a database
        if began is not None:
            with _one_line(sweep.study, folder):
                self._record(began, new, known)
        self._waiting: dict[str, str] = {}  # of these, those that another with their parameters is trained for
        self.on_reuse: Callable[[str, int], None] = lambda key, number: None
        self._open: dict[str, optuna.Trial] = {}  # trials of this process that have begun and not ended
        self._reported: dict[str, dict[int, float]] = {}  # round -> value

    def _studies(self, storage: BaseStorage, new: bool) -> dict[str | None, optuna.Study]:
        """The studies by group, which are made if they are not there."""
        space, name = self.sweep.search_space, self.sweep.name
        groups: list[str | None] = list(space.algorithms) if self.sweep.budget_per == "algorithm" else [None]
        names = {group: name if group is None else f"{name}/{group}" for group in groups}
        directions = [DIRECTIONS[way] for way in self.sweep.objective.values()]
        try:
            missing = set(names.values()) - (set() if new else set(optuna.get_all_study_names(storage)))
            create(storage, missing, directions)
        except DuplicatedStudyError:
            if new:
                raise taken(storage, names.values(), self.sweep, self.place) from None
        return {group: optuna.load_study(study_name=name, storage=storage) for group, name in names.items()}

    def _record(self, began: Beginning, new: bool, known: bool) -> None:
        """Writes the record into new studies, or holds it against that of the studies; takes a database's over."""
        for study in self.groups.values():
            if new:
                study.set_user_attr(ATTRIBUTE, began._asdict())
            else:
                began = join(study, self.sweep, began, known, self.place)
        self.began = began
        if self.sweep.study is not None:
            self._owned = [drive(study, self.folder, began, self.place) for study in self.groups.values()]

    # writing ----------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with _one_line(self.sweep.study, self.folder):
            self._check()
            for owned in self._owned:
                owned()
            yield

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """A context for code that Ray Tune calls, where an error would become a traceback of Ray: stores the first
        `FlrayError` as `error`, which ends the sweep."""
        try:
            yield
        except FlrayError as error:
            self.error = self.error or error

    # asking -----------------------------------------------------------------------------------
    def counted(self, group: str | None) -> list[FrozenTrial]:
        """The trials that count for the budget: those that have begun, and not those that somebody has enqueued."""
        trials = self.groups[group].get_trials(deepcopy=False)
        return [t for t in trials if t.state != TrialState.WAITING and t.user_attrs.get("status") != NEVER]

    def next(self, spent: Collection[str | None] = ()) -> tuple[str, dict[str, Any], Path] | None:
        """(key, overrides, run folder) of a trial that has begun and not ended, else of a new one; None if there is
        none, or none before one ends for which others wait (:meth:`waits`). Skips the studies in `spent`."""
        with self._writing():
            return self._next(spent)

    def _next(self, spent: Collection[str | None]) -> tuple[str, dict[str, Any], Path] | None:
        groups = {group: study for group, study in self.groups.items() if group not in spent}
        for group, study in groups.items():
            for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                key = self.key(group, frozen.number)
                if key in self._open and self._waiting.get(key, key) in self._open:
                    continue
                if "folder" not in frozen.user_attrs or not self.sweep.search_space.contains(frozen.params, group):
                    study._storage.set_trial_user_attr(frozen._trial_id, "status", NEVER)
                    study.tell(frozen.number, state=TrialState.FAIL)
                    continue
                return self._give(group, optuna.Trial(study, frozen._trial_id))
        while True:
            remaining = self._remaining(groups)
            group = max(remaining, key=remaining.__getitem__, default=None)  # the algorithms take turns
            if remaining.get(group, 0) < 1 or len(self._waiting) >= MOST_WAITING:
                return None
            trial = self._ask(group)
            if trial is not None:
                return self._give(group, trial)

    def _remaining(self, groups: Iterable[str | None]) -> dict[str | None, int]:
        """The trials that these studies may still ask for; a study without another configuration is left out."""
        return {group: self.sweep.trials - len(self.counted(group)) for group in groups if not self._exhausted(group)}

    def over(self, spent: Collection[str | None]) -> bool:
        """Whether no study may ask for another trial; the budget of those in `spent` is used up."""
        remaining = self._remaining(group for group in self.groups if group not in spent)
        return max(remaining.values(), default=0) < 1

    def busy(self) -> bool:
        """Whether a trial has begun and not ended. One that waits for another does not count: this one may have failed
        when the budget was used up."""
        return not self._open.keys() <= self._waiting.keys()

    def _give(self, group: str | None, trial: optuna.Trial) -> tuple[str, dict[str, Any], Path]:
        key, frozen = self.key(group, trial.number), trial.storage.get_trial(trial._trial_id)
        self._open[key] = trial
        self._waiting.pop(key, None)
        overrides = self.sweep.search_space.overrides(frozen.params, group) | frozen.user_attrs.get("values", {})
        return key, overrides, self.folder / frozen.user_attrs["folder"]

    def _ask(self, group: str | None) -> optuna.Trial | None:
        """A trial that has begun; None: one that was enqueued in Optuna, and is not of the space, has failed."""
        study = self.groups[group]
        seed = torch_seed(self.sweep.seed, "sweep", study.study_name, len(self.counted(group))) % 2**32
        sequence = torch_seed(self.sweep.seed, "sweep", study.study_name) % 2**32
        study.sampler = make_sampler(self.sweep.sampler, seed, sequence)
        with usual_modes():
            trial = study.ask()
        enqueued = trial.storage.get_trial(trial._trial_id).system_attrs.get("fixed_params", {})
        try:
            self.sweep.search_space.check_enqueued(enqueued, group)
        except ConfigError as error:
            LOGGER.warning(f"{self.sweep.name}  trial {self.key(group, trial.number)}  failed: {error}")
            trial.set_user_attr("status", f"failed: {error}")
            study.tell(trial, state=TrialState.FAIL)
            return None
        with usual_modes():
            self.sweep.search_space.suggest(trial, group)
        trial.set_user_attr("folder", f"trials/{self.key(group, trial.number).replace('/', '-')}")
        return trial

    # equal parameters -------------------------------------------------------------------------
    def spared(self, key: str) -> bool:
        """Whether a trial of :meth:`next` need not be trained: it has got the value of another with its parameters, or
        waits for one that is being trained.

        Equal parameters, seed and rounds are the same bits, so a completed trial's value holds for all of them.
        Hyperband and population-based training compare trials that train at the same time: all are trained.
        """
        trial = self._open[key]
        frozen = trial.storage.get_trial(trial._trial_id)
        begun = (self.folder / frozen.user_attrs["folder"]).exists()
        if begun or self.sweep.scheduler.name in ("hyperband", "pbt"):
            return False
        configuration = _configuration(frozen)
        with self._writing():
            for other in trial.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
                if "reused" not in other.user_attrs and _configuration(other) == configuration:
                    self._reuse(key, other)
                    return True
        for name, running in self._open.items():
            trained = name != key and name not in self._waiting and running.study.study_name == trial.study.study_name
            if trained and _configuration(running.storage.get_trial(running._trial_id)) == configuration:
                self._waiting[key] = name
                return True
        return False

    def _reuse(self, key: str, other: FrozenTrial) -> None:
        """The end of a trial with the parameters of a completed one: its values, and the run that they come from."""
        trial = self._open.pop(key)
        self._waiting.pop(key, None)
        facts = {name: other.user_attrs[name] for name in ("folder", *FACTS) if name in other.user_attrs}
        _set(trial, {**facts, "reused": other.number, "status": "finished"})
        trial.study.tell(trial, other.values)
        self.on_reuse(key, other.number)

    def waits(self) -> bool:
        """Whether a trial has begun that is not trained until another with its parameters ends."""
        return any(other in self._open for other in self._waiting.values())

    def reused(self) -> int:
        """The number of trials that have the value of another with their parameters."""
        return sum("reused" in trial.user_attrs for _, trial in self.ended())

    def _exhausted(self, group: str | None) -> bool:
        """Whether more trials of a study would only repeat its parameters. With `trials` alone as the budget up to
        `MOST_REPEATED` are repeated, for the count."""
        size = self.sweep.search_space.size(group)
        if size is None:
            return False
        # one that was enqueued and refused has no folder
        trials = [t for t in self.counted(group) if t.state.is_finished() and "folder" in t.user_attrs]
        if len({_configuration(trial) for trial in trials}) < size:
            return False
        timed = self.sweep.hours is not None or self.sweep.client_steps is not None
        return timed or len(trials) - size >= MOST_REPEATED

    def exhausted(self) -> str:
        """That the space has no further configuration, in words; empty: it has."""
        if not all(map(self._exhausted, self.groups)):
            return ""
        size = sum(self.sweep.search_space.size(group) or 0 for group in self.groups)
        return f"space: all {size} configurations have been tried" if size > 1 else "space: it has one configuration"

    def key(self, group: str | None, number: int) -> str:
        """`0003`, or `fedprox/0003`."""
        return f"{number:04d}" if group is None else f"{group}/{number:04d}"

    # telling ----------------------------------------------------------------------------------
    def report(self, key: str, result: Mapping[str, Any]) -> None:
        """Records an intermediate value for pruners and figures; Optuna stores none for several objectives. A repeated
        round gets its last value, as in the run's own table, and so does one that the trial took from another's
        checkpoint (`before`)."""
        (name, *more), trial = self.sweep.objective, self._open[key]
        if more:
            return
        with self._writing():
            reported = self._reported.setdefault(
                key, dict(trial.storage.get_trial(trial._trial_id).intermediate_values)
            )
            told = {int(at): value for at, value in result.get("before", ()) if at in reported}
            if name in result:
                told[int(result["round"])] = result[name]
            for round, value in told.items():
                if reported.get(round) != value:
                    reported[round] = float(value)
                    # Trial.report ignores a second value
                    trial.storage.set_trial_intermediate_value(trial._trial_id, round, reported[round])

    def trial(self, key: str) -> optuna.Trial:
        """A trial that has begun and not ended."""
        return self._open[key]

    def prunes(self, key: str, pruner: BasePruner) -> bool:
        """Whether a pruner of Optuna ends a trial that has begun."""
        trial = self._open[key]
        with self._writing(), usual_modes():
            return pruner.prune(trial.study, trial.storage.get_trial(trial._trial_id))

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
            _set(trial, {**_facts(result), "status": status})
            trial.study.tell(trial, values if state == TrialState.COMPLETE else None, state=state)
            if state == TrialState.COMPLETE:
                ended = trial.storage.get_trial(trial._trial_id)
                for waiting in [name for name, other in self._waiting.items() if other == key]:
                    self._reuse(waiting, ended)

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


# whose study it is ---------------------------------------------------------------------------------
# A database can be shared by many sweeps. Optuna gives a study's name out once (a unique column, or the order of the
# journal's lines), so of two sweeps that begin at the same moment one gets an error and feeds nothing.
def create(storage: BaseStorage, names: Collection[str], directions: Sequence[StudyDirection]) -> None:
    """The studies of a new sweep. Raises `DuplicatedStudyError` if one of them exists; then none is made."""
    made: list[Study] = []
    try:
        for name in sorted(names):
            with quieter({"optuna": logging.WARNING}):
                made.append(optuna.create_study(study_name=name, storage=storage, directions=directions))
    except Exception:
        for study in made:
            with contextlib.suppress(Exception):
                optuna.delete_study(study_name=study.study_name, storage=storage)
        raise


def taken(storage: BaseStorage, names: Collection[str], sweep: Sweep, place: str) -> CheckpointError:
    """The error of a sweep whose study's name is taken; `place`: the storage, in words."""
    name = min(set(optuna.get_all_study_names(storage)) & set(names))
    text = f"study: {place} already holds {name}; give this sweep another name, or resume that one"
    record = recorded(optuna.load_study(study_name=name, storage=storage), wait=True)
    if record is None:
        return CheckpointError(text)
    return CheckpointError(f"{text} ({record.difference(sweep) or 'it has the same configuration'})")


def recorded(study: Study, wait: bool = False) -> Beginning | None:
    """What a study's sweep began with; None: the study has no record. `wait`: for a moment, in which the process that
    made the study may write it. Raises `CheckpointError` for a damaged one."""
    until = time.monotonic() + WAIT_S
    while (values := study.user_attrs.get(ATTRIBUTE)) is None and wait and time.monotonic() < until:
        time.sleep(POLL_S)
    if values is None:
        return None
    try:
        return Beginning.read(values)
    except ValueError:
        raise CheckpointError(
            f"study {study.study_name}: its attribute {ATTRIBUTE} is damaged; bring the study back from a copy, or "
            "start again with another --out and another name"
        ) from None


def join(study: Study, sweep: Sweep, began: Beginning, known: bool, place: str) -> Beginning:
    """The record of the study of a sweep that goes on. `known`: `began` is the record of the sweep's folder. Raises
    `CheckpointError` if the study is another sweep's."""
    record = recorded(study, wait=known and not study.get_trials(deepcopy=False))
    if record is None:
        if study.get_trials(deepcopy=False):
            what = f"{place} is not the one that this sweep began with: {study.study_name} has trials and no record"
            what = what if known else f"{study.study_name} has trials, and neither it nor the folder has a record"
            raise CheckpointError(f"study: {what}; bring it back from a copy, or give another --out and another name")
        study.set_user_attr(ATTRIBUTE, began._asdict())  # a kill came before it
        return began
    if known and record.id != began.id:
        why = record.difference(sweep) or "it began apart, with the same configuration"
        raise CheckpointError(
            f"study: {place} holds another sweep under the name {study.study_name}: {why}; give this one another name "
            "and --out, or resume that one"
        )
    record.check(sweep, f"study: {place}")
    return record


def drive(study: Study, folder: Path, began: Beginning, place: str) -> Callable[[], None]:
    """Makes this process the only one that writes to a study in a database. Returns a check that raises
    `CheckpointError` once another process took the study over. Raises it if a living process of this machine drives the
    study from another folder, or if this folder is a copy of the one where the sweep goes on."""
    before = study.user_attrs.get(DRIVER)
    if isinstance(before, dict) and isinstance(before.get("folder"), str):
        home = Path(before["folder"])
        other = read_beginning(home)
        if other is not None and other.id == began.id and not _same_folder(home, folder):
            raise CheckpointError(
                f"study: {place} belongs to the sweep in {home}, of which {folder} is a copy: both would feed it; "
                "resume that one, or remove it first"
            )
        writer = holder(home)
        if writer is not None and writer.id == before.get("id") and not _same_folder(home, folder):
            raise CheckpointError(
                f"study: {place} is in use: {writer} writes to it from {home}; wait for it, or stop it"
            )
    mine = Owner.this_process()
    values: dict[str, Any] = {"folder": str(folder.absolute()), "host": mine.host, "id": mine.id}
    study.set_user_attr(DRIVER, values)

    def check() -> None:
        now = study.user_attrs.get(DRIVER)
        if now != values:
            who = f"{now.get('folder')} on {now.get('host')}" if isinstance(now, dict) else "nobody"
            raise CheckpointError(
                f"study: {place} was taken over by {who}; this process stops and writes nothing more to it"
            )

    return check


def _same_folder(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _configuration(trial: FrozenTrial) -> str:
    """A trial's parameters; 1, 1.0 and true differ."""
    return json.dumps({**trial.params, **trial.user_attrs.get("values", {})}, sort_keys=True, default=repr)


def _set(trial: optuna.Trial, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        trial.set_user_attr(name, value)


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[source] for name, source in FACTS.items() if source in result}
