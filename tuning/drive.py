"""Runs trials on the cluster: how many at a time, the call of Ray Tune, their display; given experiments as trials."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # a trial is a run folder, which has all that and more
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "86400")  # a resume does not read Ray Tune's own state
# the new one prints its configuration and paths at any verbosity
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")  # a trial that failed or diverged has no value
os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")

import ray
from ray import tune
from ray.tune import (
    Callback,
    CheckpointConfig,
    FailureConfig,
    PlacementGroupFactory,
    ProgressReporter,
    RunConfig,
    TuneConfig,
    Tuner,
)
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import FIFOScheduler, HyperBandScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.search import Searcher

from flray.config.experiment import Experiment
from flray.core.schema.errors import CheckpointError, ResourceError
from flray.engine.progress import stage
from flray.engine.ray import leases
from flray.engine.ray.capacity import cpus_needed, in_parts
from flray.engine.ray.cluster import Background, connect, left, own_handlers, started
from flray.engine.ray.versions import CHANGED, fall_back
from flray.log import LOGGER, quieter
from flray.tuning.display import Display
from flray.tuning.trainable import Job, Trial

WAIT_S = 30.0  # a trial starts within seconds where its share of the cluster is free
LOST = 3  # restarts of a trial after its processes were lost
SCRATCH = ".flray-tune"  # Ray Tune's own folder; no run has this name
# of Ray Tune about its own folder: where it is, that it holds no results, and a traceback where it finds no room
WORDS = {
    "ray.tune.tune": logging.WARNING,
    "ray.tune.analysis.experiment_analysis": logging.ERROR,
    "ray.tune.execution.experiment_state": logging.CRITICAL,
}
_driving = threading.Lock()
NOTHING = {"memory": float(2**20)}  # a bundle that takes no CPU and no GPU must take something


class Placement(NamedTuple):
    """The resources of a trial, the number of trials at a time, and the reason for it."""

    group: PlacementGroupFactory
    at_once: int
    why: str


def place(
    experiment: Experiment, concurrency: int | str, nodes: Sequence[Mapping[str, float]] | None = None
) -> Placement:
    """One bundle for the trial's driver, one for its server actor, one for each client actor. `nodes`: what each node
    has, `{"CPU": 16, "GPU": 8, "memory": BYTES}`; None: those of the connected cluster.

    `resources.client_actors: auto` gives each of `concurrency` trials an equal share of the cluster, and 1 actor if
    that is auto too: many small trials use a cluster better than few large ones. Raises `ResourceError` if no trial
    fits.
    """
    resources = experiment.resources
    if resources.client.num_gpus == "auto":
        raise ResourceError(
            "resources.client.num_gpus: auto is measured by a run of its own; run one experiment, and write what it "
            "took"
        )
    client = _bundle(resources.client.num_cpus, resources.client.num_gpus)
    server = _bundle(resources.server.num_cpus, resources.server.num_gpus)
    if nodes is None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    have = {name: sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
    actors = 1 if experiment.algorithm.centralized else resources.client_actors  # its one worker in a trial
    if actors == "auto":
        actors, most = 1, _most_actors(experiment, client, have)
        trials = 0 if concurrency == "auto" else int(concurrency)
        while trials and actors < most and _fit(nodes, [NOTHING, server, *[client] * (actors + 1)], trials) == trials:
            actors += 1
    bundles = [NOTHING, server, *[client] * int(actors)]
    fits = _fit(nodes, bundles)
    if all(bundle == NOTHING for bundle in bundles):
        fits = min(fits, max(int(have["CPU"]), 1))  # trials that reserve nothing still compute
    cluster = (
        f"the cluster has {have['CPU']:g} CPUs and {have['GPU']:g} GPUs on {len(nodes)} "
        f"node{'s' if len(nodes) > 1 else ''}"
    )
    needs = (
        f"a trial takes a server actor ({_words(server)}) and {actors} client actor{'s' if actors != 1 else ''} "
        f"({_words(client)} each)"
    )
    if fits < 1:
        raise ResourceError(f"no trial fits: {needs}, and {cluster}; lower resources.client_actors or resources.client")
    at_once = fits if concurrency == "auto" else min(fits, int(concurrency))
    limit = "" if concurrency == "auto" else f"; concurrency: {concurrency}"
    return Placement(
        PlacementGroupFactory(bundles, strategy="PACK"), at_once, f"{at_once} at a time: {needs}; {cluster}{limit}"
    )


def _most_actors(experiment: Experiment, client: dict[str, float], have: dict[str, float]) -> int:
    """The most client actors that a trial can use: one for each client of the cohort."""
    cohort, population = experiment.cohort, experiment.partition.clients
    limits = [cohort.count(population)] if population is not None else [cohort.size] if cohort.size is not None else []
    if client == NOTHING:
        limits.append(max(int(have["CPU"]), 1))
    return min(limits, default=10_000)


def _bundle(cpus: float, gpus: float) -> dict[str, float]:
    return {name: value for name, value in (("CPU", cpus), ("GPU", gpus)) if value} or NOTHING


def _words(bundle: dict[str, float]) -> str:
    return " and ".join(f"{value:g} {name}" for name, value in bundle.items() if name != "memory") or "no CPU"


def _fit(nodes: Sequence[Mapping[str, float]], bundles: list[dict[str, float]], most: int = 10_000) -> int:
    """How many trials the nodes hold at once, each bundle on the first node with room for it."""
    free = [(dict(node), [1.0] * int(node.get("GPU", 0))) for node in nodes]
    for count in range(most):
        for bundle in bundles:
            if not any(_take(node, gpus, bundle) for node, gpus in free):
                return count
    return most


def _take(node: dict[str, float], gpus: list[float], bundle: dict[str, float]) -> bool:
    """Reserves a bundle on a node if there is room; a fraction of a GPU comes from a single GPU."""
    number = bundle.get("GPU", 0)
    share, count = min(number, 1.0), math.ceil(number)
    homes = [gpu for gpu, room in enumerate(gpus) if in_parts(room) >= in_parts(share)][:count]
    if len(homes) < count or any(in_parts(node.get(name, 0)) < in_parts(value) for name, value in bundle.items()):
        return False
    for name, value in bundle.items():
        node[name] -= value
    for gpu in homes:
        gpus[gpu] -= share
    return True


class Show(Display, Callback):
    """`with Show("sweep", 12, {"val/acc": "max"}) as show`; then a callback for Ray Tune."""

    def __init__(self, label: str, total: int, done: int, objectives: Mapping[str, str], enabled: bool = True) -> None:
        Display.__init__(self, label, total, done, objectives, enabled)
        self._ran_at, self._waiting = time.monotonic(), False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bar": None, "_cell": None, "_task": None}  # Ray Tune pickles its callbacks

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Says for what the trials wait when none has run for a while: others hold the cluster."""
        if not trials or any(trial.status != TuneTrial.PENDING for trial in trials if not trial.is_finished()):
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


class Silent(ProgressReporter):
    """Reports nothing; :class:`Show` reports. Ray Tune's own reporter for notebooks clears the output of a cell."""

    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        return False


class Stop(tune.Stopper):
    """Ends all trials once `reached()` is true: an error concerns every trial."""

    def __init__(self, reached: Callable[[], bool]) -> None:
        self._reached = reached

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._reached()


def drive(
    folder: Path,
    searcher: Searcher,
    scheduler: TrialScheduler,
    placement: Placement,
    count: int,
    stopping: Callable[[], bool],
    callback: Callback,
) -> None:
    """Runs up to `count` trials of the searcher. Waits for a sweep or a grid of another thread: Ray Tune keeps some of
    its state once in a process. Deletes Ray Tune's own folder at the end."""
    leases.alone("a sweep or a grid")  # actors of this process would hold CPUs that the trials wait for
    scratch = (folder / SCRATCH).absolute()
    shutil.rmtree(scratch, ignore_errors=True)
    # trials that it halts count for Ray Tune's limit
    halts = isinstance(scheduler, HyperBandScheduler | PopulationBasedTraining)
    try:
        pending = count if isinstance(scheduler, HyperBandScheduler) else placement.at_once
        with _turn(folder), own_handlers(), _own_draws(), _as_it_is(), _pending(pending), quieter(WORDS):
            Tuner(
                tune.with_resources(Trial, placement.group),
                tune_config=TuneConfig(
                    search_alg=searcher,
                    scheduler=scheduler,
                    num_samples=count,
                    max_concurrent_trials=None if halts else placement.at_once,
                    reuse_actors=True,
                    trial_name_creator=lambda trial: str(trial.config["key"]).replace("/", "-"),
                    trial_dirname_creator=lambda trial: str(trial.config["key"]).replace("/", "-"),
                ),
                run_config=RunConfig(
                    name=SCRATCH,
                    storage_path=str(scratch),
                    verbose=0,
                    progress_reporter=Silent(),
                    stop=Stop(stopping),
                    callbacks=[callback],
                    failure_config=FailureConfig(max_failures=LOST),
                    checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_frequency=0, checkpoint_at_end=False),
                ),
            ).fit()
    except OSError as error:
        raise CheckpointError(
            f"cannot write {scratch}: {error.strerror or error}; free some space and try again"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    if not _driving.acquire(blocking=False):
        LOGGER.info(f"{folder} waits for another sweep or grid of this process")
        _driving.acquire()
    try:
        yield
    finally:
        _driving.release()


def _own_draws() -> contextlib.AbstractContextManager[None]:
    """No draw of Ray Tune moves the generator of this process, from which a user draws, or a run of another thread."""
    try:
        from flray.engine.ray.private.tune import own_draws

        return own_draws()
    except CHANGED as error:
        fall_back("a generator of Ray Tune's own", "Ray Tune draws from Python's", error)
        return contextlib.nullcontext()


def _as_it_is() -> contextlib.AbstractContextManager[None]:
    """Gives trials no runtime environment in a Ray that this process started, whose environment is the same. With
    one, Ray would start new processes for each trial and its actors instead of using existing ones."""
    if started():
        try:
            from flray.engine.ray.private.tune import no_environment

            return no_environment()
        except CHANGED as error:
            fall_back("a process for several trials", "Ray starts new ones for each", error)
    return contextlib.nullcontext()


@contextlib.contextmanager
def _pending(count: int) -> Iterator[None]:
    """How many trials Ray Tune creates before they can start: each costs a placement group, but Hyperband needs
    complete brackets."""
    name = "TUNE_MAX_PENDING_TRIALS_PG"
    before = {name: os.environ[name]} if name in os.environ else {}
    os.environ[name] = str(count)
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update(before)


class Stateless(Searcher):
    """A searcher of Ray Tune that has nothing to save: studies and run folders are on disk."""

    def save(self, checkpoint_path: str) -> None:
        """Does nothing."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing."""


class Cells(Stateless):
    """A list of jobs as a searcher of Ray Tune."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        super().__init__()
        self._jobs = list(jobs)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:  # FINISHED is a word
        return self._jobs.pop(0).config() if self._jobs else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Does nothing: the list does not depend on results."""


def on_cluster(
    cells: Sequence[tuple[Experiment, Path]],
    concurrency: int | str,
    overwrite: bool,
    label: str,
    done: int,
    progress: bool,
) -> Show:
    """Runs each experiment into its folder; `done` others had ended before. Returns what was shown. Raises
    `KeyboardInterrupt` after Ctrl-C."""
    first = cells[0][0]
    with stage("starting Ray", progress):
        needed = max(cpus_needed(cell) for cell, _ in cells)
        Background(lambda: connect(first.address, needed, trials=1, insecure=first.resources.insecure_ray)).join()
    groups: dict[Any, list[tuple[Experiment, Path]]] = {}
    for cell, folder in cells:  # those that take other actors come after one another
        groups.setdefault((cell.resources, cell.algorithm.centralized), []).append((cell, folder))
    with contextlib.ExitStack() as after, Show(label, done + len(cells), done, {}, progress) as show:
        after.callback(left)  # SIGTERM is the caller's again
        for members in groups.values():
            placement = place(members[0][0], concurrency)
            jobs = [
                Job.of(folder.name, folder, cell, (), [(cell.total_rounds, 1)], overwrite) for cell, folder in members
            ]
            drive(members[0][1].parent, Cells(jobs), FIFOScheduler(), placement, len(jobs), lambda: False, show)
    if len(show.ended) < len(cells):
        raise KeyboardInterrupt  # Ray Tune keeps it to itself
    return show
