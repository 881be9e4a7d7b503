"""`flray sweep`: tune on a validation split, then compare the best configurations on fresh seeds and the test set."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from flray.config.experiment import Experiment
from flray.core.schema.errors import CheckpointError, ConfigError, FlrayError, first_line
from flray.engine.prepare import Data, build_data, build_scenario
from flray.engine.progress import stage
from flray.engine.ray.capacity import cpus_needed
from flray.engine.ray.cluster import Background, connect, left
from flray.files import remove, write_text
from flray.log import LOGGER
from flray.models.weight_files import weights_fingerprint
from flray.rundir.folder import is_run, to_resume_sweep
from flray.rundir.lock import FolderLock, check as check_lock
from flray.rundir.provenance import module_fingerprints
from flray.rundir.recorder import write_status
from flray.rundir.uri import join
from flray.scenario import Scenario
from flray.tuning.ablate import run_cells
from flray.tuning.beginning import NAME, Beginning, alternatives, read_beginning, write_beginning
from flray.tuning.config import Sweep
from flray.tuning.drive import Show, Stateless, drive, place
from flray.tuning.report import MADE, noted_runs, write_final_table, write_report, write_table
from flray.tuning.schedulers import Asha, make_scheduler, rungs
from flray.tuning.studies import Studies
from flray.tuning.sweep_file import load_sweep
from flray.tuning.sweep_folder import CONFIG, check_sweep, take_folder
from flray.tuning.trainable import Job
from flray.tuning.trials import state

# sections and options that may read files
OF_DATA = ("data", "data.source", "data.options", "data.root", "proxy", "proxy.source", "proxy.options", "proxy.root")
OF_SCENARIO = ("partition", "partition.name", "partition.file", "cohort", "cohort.from", "drift", "drift.file")
OF_MODEL = ("model", "model.name", "model.weights")


class Budget:
    """When no further trial starts: after some hours of this call, some local steps (of each algorithm, if each has
    its budget), or an error that concerns every trial."""

    def __init__(self, sweep: Sweep, studies: Studies) -> None:
        self._sweep, self._studies, self._began = sweep, studies, time.monotonic()
        self._spent = {  # local steps by trial
            studies.key(group, trial.number): float(trial.user_attrs.get("client_steps", 0))
            for group in studies.groups
            for trial in studies.counted(group)
            if "reused" not in trial.user_attrs
        }
        self._groups = list(studies.groups)

    def note(self, result: Mapping[str, Any]) -> None:
        """A trial's report: its local steps, those of all its seeds at the last rung included."""
        key = result["key"]
        self._spent[key] = max(self._spent.get(key, 0.0), float(result.get("spent", 0)))
        if result.get("everyone") and self._studies.error is None:
            text = str(result["status"]).removeprefix("failed: ")
            hint = f"{text.partition(';')[0]}; free some space and run: {to_resume_sweep(self._studies.folder)}"
            self._studies.error = ConfigError(text) if text.startswith("objective ") else CheckpointError(hint)

    def steps(self, group: str | None) -> float:
        """Local steps done for an algorithm; None: by the sweep."""
        return sum(steps for key, steps in self._spent.items() if group is None or key.startswith(f"{group}/"))

    def spent(self) -> set[str | None]:
        """The studies whose local steps are used up."""
        most = self._sweep.client_steps
        return set() if most is None else {group for group in self._groups if self.steps(group) >= most}

    def why(self) -> str:
        """The budget that is used up; empty: none."""
        if self._sweep.hours is not None and time.monotonic() - self._began > 3600 * self._sweep.hours:
            return f"hours: {self._sweep.hours:g} are over"
        return f"client_steps: {self.steps(None):.0f} are done" if len(self.spent()) == len(self._groups) else ""

    def reached(self) -> bool:
        return self._studies.error is not None or bool(self.why())


class StudySearcher(Stateless):
    """A searcher of Ray Tune that takes trials from the studies of a sweep and reports their results to them."""

    def __init__(
        self,
        studies: Studies,
        config: Callable[[str, dict[str, Any], Path], dict[str, Any]],
        stopping: Callable[[], bool],
        spent: Callable[[], Collection[str | None]] = tuple,
        note: Callable[[dict[str, Any]], None] = lambda result: None,
    ) -> None:
        """`note(result)` is told of each report of a trial."""
        super().__init__()
        self.studies, self._config, self._note = studies, config, note
        self._stopping, self._spent = stopping, spent
        self._keys: dict[str, str] = {}  # Ray Tune's id of a trial -> its key
        self._last: dict[str, dict[str, Any]] = {}  # -> its last result

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # FINISHED is a word
        suggested = None
        with self.studies.keeping():
            suggested = self._next()
        if suggested is None:
            waits = self.studies.waits() and not self._stopping()
            return None if waits else str(Searcher.FINISHED)  # None: Ray Tune asks again
        key, overrides, folder = suggested
        self._keys[trial_id] = key
        return self._config(key, overrides, folder)

    def _next(self) -> tuple[str, dict[str, Any], Path] | None:
        while not self._stopping():
            suggested = self.studies.next(self._spent())
            if suggested is None or not self.studies.spared(suggested[0]):
                return suggested
        return None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._note(result)
        self._last[trial_id] = result
        if self.studies.error is None:
            with self.studies.keeping():
                self.studies.report(self._keys[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        key = self._keys[trial_id]
        if result and not error:
            self.on_trial_result(trial_id, result)
        last = self._last.pop(trial_id, {})  # Hyperband stops trials that are paused: they come without a result
        if error:
            last = {**last, "status": "failed: its processes were lost too often"}
        if last and self.studies.error is None:
            with self.studies.keeping():
                self.studies.tell(key, last)


def run_sweep(sweep: Sweep, folder: Path, *, resume: bool = False, progress: bool = True) -> bool:
    """Runs a sweep into `folder`, or continues the one there. Returns whether it ended: Ray Tune keeps a Ctrl-C to
    itself. Raises `FlrayError`.

    The folder then holds `sweep.parquet`, `figures/`, the run folders of the trials, and `final/` with the best
    configurations on fresh seeds.
    """
    lock = take_folder(folder, sweep, resume)
    try:
        return _run(sweep, folder, lock, resume, progress)
    finally:
        left()  # SIGTERM is the caller's again
        lock.release()
        if not (folder / CONFIG).exists():  # it did not begin
            with contextlib.suppress(OSError):
                folder.rmdir()


def _run(sweep: Sweep, folder: Path, lock: FolderLock, resume: bool, progress: bool) -> bool:
    """Runs a sweep in a folder whose lock this process holds; returns whether it ended."""
    first = sweep.experiment(sweep.search_space.example())
    needed = cpus_needed(first)
    starting = Background(lambda: connect(first.address, needed, trials=1, insecure=first.resources.insecure_ray))
    with stage(f"reading data: {first.data.source}", progress):
        # errors in the data come before anything starts, and this node decodes them once
        data = build_data(first)
        fingerprints = _fingerprints(sweep, data, build_scenario(first, data))
    with stage("starting Ray", progress and not starting.ready):
        starting.join()
    placement = place(first, sweep.concurrency)
    studies = _begin(sweep, folder, lock, resume, fingerprints)
    write_status(folder, f"running: {lock.owner}")
    try:
        spent = _tune(sweep, folder, studies, placement, progress)
        done = f"{len(studies.ended())} of {sweep.trials * len(studies.groups)} trials"
        if reused := studies.reused():
            done += f", {reused} of them reused"
            if progress:
                LOGGER.info(f"{sweep.name}: {len(studies.ended())} trials, {reused} of them reused")
        write_table(folder)
        if spent is None:
            write_report(folder)
            write_status(folder, f"interrupted after {done}; continue with: {to_resume_sweep(folder)}")
            return False
        _final(sweep, folder, studies, progress)
        write_report(folder)
        write_status(folder, _ending(folder, studies, spent, done))
        return True
    except BaseException as error:
        why = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else f"failed: {first_line(error)}"
        # a full disk, or another's folder now: the first error is the one to show
        with contextlib.suppress(CheckpointError):
            lock.check()
            write_status(folder, why if "--resume" in why else f"{why}; continue with: {to_resume_sweep(folder)}")
        raise


def _ending(folder: Path, studies: Studies, spent: str, done: str) -> str:
    """STATUS of a sweep that ended: the budget that was `spent`, and what was `done`."""
    if not spent:
        return "finished"
    more = f"; more with: {to_resume_sweep(folder)} and a larger budget"
    return f"finished with {done} ({spent})" + (more if spent != studies.exhausted() else "")


def _fingerprints(sweep: Sweep, data: Data, scenario: Scenario) -> dict[str, Any]:
    """Of what determines the trials' bits and is not in `sweep.yaml`: of the first trial's data, of those that another
    value of a list reads (`data of data=iris`), and of the user's modules."""
    space = sweep.search_space
    experiments = [sweep.experiment(space.example(algorithm)) for algorithm in space.algorithms]
    fingerprints = _outside(experiments[0], data, scenario)
    for key, label, experiment in alternatives(sweep):
        experiments.append(experiment)
        with contextlib.suppress(FlrayError):  # a value that does not fit the first data, or the first partition
            if key in (*OF_DATA, *OF_SCENARIO):
                own = build_data(experiment) if key in OF_DATA else data
                prints = _outside(experiment, own, build_scenario(experiment, own))
            elif key in OF_MODEL:
                prints = _outside(experiment, data, scenario)
            else:
                continue
            fingerprints |= {f"{name} of {label}": value for name, value in prints.items()}
    for experiment in experiments:
        fingerprints |= module_fingerprints(experiment)
    return fingerprints


def _outside(experiment: Experiment, data: Data, scenario: Scenario) -> dict[str, Any]:
    """The fingerprints of data, of a scenario, and of the weights that an experiment starts from."""
    return {
        "data": data.dataset.fingerprint,
        "partition": scenario.fingerprint,
        "proxy": data.proxy.fingerprint if data.proxy else None,
        "weights": weights_fingerprint(experiment.model.start.get("weights")),
    }


def _begin(sweep: Sweep, folder: Path, lock: FolderLock, resume: bool, fingerprints: Mapping[str, Any]) -> Studies:
    """The studies of a sweep that begins or goes on, with the record of its beginning in them and in the folder."""
    # only the part of the lock that pickles: Ray Tune pickles its scheduler, which writes to the studies
    check = partial(check_lock, folder, lock.owner.id)
    stored = read_beginning(folder) if resume else None
    if stored is not None:
        stored.check_fingerprints(fingerprints, folder)
    began = stored or Beginning.of(sweep, fingerprints)
    try:
        if not resume:
            write_text(folder / CONFIG, sweep.yaml())
            write_beginning(folder, began)
        studies = Studies(sweep, folder, new=not resume, check=check, began=began, known=stored is not None)
    except FlrayError:
        if not resume:  # nothing of the sweep is there yet
            for name in (CONFIG, NAME):
                (folder / name).unlink(missing_ok=True)
        raise
    if resume:
        began = studies.began or began
        began.check_fingerprints(fingerprints, folder)
        write_text(folder / CONFIG, sweep.yaml())
        write_beginning(folder, began)
    return studies


def _tune(sweep: Sweep, folder: Path, studies: Studies, placement: Any, progress: bool) -> str | None:
    """Runs every remaining trial. Returns the budget that was spent before the last one, "" if none was, None after an
    interruption."""
    space, budget = sweep.search_space, Budget(sweep, studies)
    first = space.algorithms[0]
    rounds = max(sweep.lengths(algorithm)[1] for algorithm in space.algorithms)
    scheduler = make_scheduler(sweep, studies, folder, rounds)
    if isinstance(scheduler, Asha):
        studies.prune(scheduler.stopped)
    total, done = sweep.trials * len(studies.groups), len(studies.ended())
    if done >= total:
        return ""

    def config(key: str, overrides: dict[str, Any], run_folder: Path) -> dict[str, Any]:
        experiment = _stored(sweep.experiment(overrides), folder, "trials")
        job = Job.of(
            key, run_folder, experiment, tuple(sweep.objective), rungs(sweep.scheduler, experiment.total_rounds)
        )
        changing = space.mutations() if sweep.scheduler.name == "pbt" else {}
        return job.config({p.key: overrides[p.key] for p in space.parameters[first] if p.name in changing})

    if progress:
        LOGGER.info(f"{sweep.name}: {total} trials, {placement.why}")
    Background(lambda: import_module("matplotlib.figure"))  # for the figures, before they need it
    with Show(sweep.name, total, done, sweep.objective, progress) as show:
        studies.on_reuse = show.reused
        drive(
            folder,
            StudySearcher(studies, config, budget.reached, budget.spent, budget.note),
            scheduler,
            placement,
            total - done,
            lambda: studies.error is not None,  # trials that have begun when a budget is spent go on to their end
            show,
        )
    if studies.error is not None:
        raise studies.error
    check_some_value(studies)
    return _spent(studies, budget, total)


def _spent(studies: Studies, budget: Budget, total: int) -> str | None:
    """What :func:`_tune` returns, after Ray Tune has."""
    if len(studies.ended()) >= total:
        return ""
    if studies.busy():
        return None
    spent = budget.spent()
    each = f"{'client_steps' if spent else 'trials'}: those of some algorithms are done, the others have no more trials"
    return budget.why() or studies.exhausted() or (each if studies.over(spent) else None)


def check_some_value(studies: Studies) -> None:
    """Raises `FlrayError` if every trial failed or diverged, so that none can be compared with another."""
    ended = [trial for _, trial in studies.ended()]
    if ended and all(state(trial) in ("failed", "diverged") for trial in ended):
        reasons = [str(trial.user_attrs.get("status", "")).removeprefix("failed: ") for trial in ended]
        words = "failed" if all(state(trial) == "failed" for trial in ended) else "failed or diverged"
        raise FlrayError(f"all {len(ended)} trials {words}, the last with: {reasons[-1]}")


def _stored(experiment: Experiment, folder: Path, part: str) -> Experiment:
    """A storage URI for the runs of this sweep alone: every sweep has a trial 0003."""
    if experiment.storage is None:
        return experiment
    return experiment.model_copy(update={"storage": join(join(experiment.storage, folder.absolute().name), part)})


# the end -----------------------------------------------------------------------------------------
def _final(sweep: Sweep, folder: Path, studies: Studies, progress: bool) -> None:
    """Runs the best configurations with seeds that tuning never used, with all training data, tested once at the
    end."""
    if sweep.final.top == 0:
        return
    if progress and any(trial.user_attrs.get("values") for _, trial in best(sweep, studies)):
        LOGGER.info("final: the last values of each trial, from the first round on; no trial had them so long")
    cells, homes = [], []
    for group, trial in best(sweep, studies):
        tuned = sweep.experiment(
            {**sweep.search_space.overrides(trial.params, group), **trial.user_attrs.get("values", {})}
        )
        label = f"{trial.params.get('algorithm', group) or sweep.search_space.algorithms[0]}-{trial.number:04d}"
        first = tuned.seed + max(sweep.scheduler.seeds or (1,))
        for seed in range(first, first + sweep.final.seeds):
            evaluate = tuned.evaluate.model_copy(update={"validation": None, "every": 0})
            cells.append(_stored(tuned.model_copy(update={"seed": seed, "evaluate": evaluate}), folder, "final"))
            homes.append(folder / "final" / f"{label}-seed{seed}")
    if not cells:
        return
    names = [home.name for home in homes]
    _drop_others(folder / "final", [*noted_runs(folder / "final"), *names])
    run_cells(cells, homes, sweep.concurrency, progress=progress, label=f"{sweep.name} final")
    _drop_others(folder / "final", names)  # not before there are others: the run may stop
    write_final_table(folder)


def _drop_others(final: Path, names: Sequence[str]) -> None:
    """Removes runs of an earlier, smaller budget that are no longer among the best, and notes the names of the next
    ones in `final/.made`; other files there are the user's and stay."""
    earlier = noted_runs(final)
    there = {path.name for path in final.iterdir()} if earlier else set()  # a damaged note has no name of them
    for name in (there & set(earlier)) - set(names):
        if is_run(final / name):
            remove(final / name)
    if names:
        final.mkdir(parents=True, exist_ok=True)
        write_text(final / MADE, "".join(f"{name}\n" for name in dict.fromkeys(names)))


def best(sweep: Sweep, studies: Studies) -> list[tuple[str | None, Any]]:
    """The `final.top` complete trials of each study by its first objective; of several objectives, of the Pareto front.
    Of trials with equal parameters only the one that was trained."""
    trials = []
    for group, study in studies.groups.items():
        if len(sweep.objective) > 1:
            ended, most = study.best_trials, sweep.final.top
        else:
            ended = [trial for of, trial in studies.ended() if of == group]
            most = 1 if sweep.final.top is None else sweep.final.top
        complete = [t for t in ended if state(t) == "finished" and "reused" not in t.user_attrs]
        mode, *_ = sweep.objective.values()
        sign = -1 if mode == "max" else 1
        complete.sort(key=lambda t: (sign * t.values[0], t.number))
        trials += [(group, trial) for trial in complete[:most]]
    return trials


# the folder --------------------------------------------------------------------------------------
def resume_sweep(folder: Path, overrides: Sequence[str], imports: Sequence[str] = (), *, progress: bool = True) -> bool:
    """:func:`run_sweep` of the sweep in `folder`; `overrides` may raise its budgets (`trials=40 hours=2`)."""
    check_sweep(folder)
    return run_sweep(load_sweep(folder / CONFIG, overrides, imports), folder, resume=True, progress=progress)
