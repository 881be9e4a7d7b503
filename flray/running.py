"""Run and resume an experiment: what the command line, Python, sweeps and benchmarks begin with."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.config.experiment import RESUMABLE, Experiment
from flray.config.launch_context import started_in, working_directory, working_folder
from flray.config.loader import load_config
from flray.config.overrides import pairs
from flray.config.small import runs_here
from flray.config.suited import ignored
from flray.core.schema.errors import ConfigError
from flray.engine.threads import cores
from flray.files import quoted, results_folder
from flray.log import LOGGER
from flray.results.notebook import Run, load
from flray.rundir.folder import RunFolder, check_inputs, holds_sweep, repair_swap, sweep_of, to_resume_sweep
from flray.rundir.reader import runs_below
from flray.rundir.uri import is_uri, split

if TYPE_CHECKING:
    from flray.engine.ray.cluster import Background
    from flray.engine.simulation import Launch, Simulation
    from flray.rundir.provenance import Origin
    from flray.rundir.storage import Storage
    from flray.scenario import Scenario


def resume(
    folder: str | Path,
    *overrides: str,
    out: str | Path | None = None,
    accept: Sequence[str] = (),
    progress: bool = True,
    **values: Any,
) -> Run:
    """Continue a run from its last good checkpoint; only `rounds`, `resources`, `address`, `checkpoint`, `storage`,
    `track`, `profile` may change.

    Any other change since the run began (an edited config.yaml, data, starting weights, the source of your own modules)
    is an error, unless `accept` names it; `environment.json` records accepted changes.
    A run in a storage, given by its URI, is downloaded to `out/NAME` first (default `runs/NAME`). Raises `FlrayError`
    in one line.
    """
    from flray.rundir.download import download

    given: list[str | Mapping[str, Any]] = [*overrides, values]
    changes = pairs(given)
    if is_uri(folder):
        changes.setdefault("storage", json.dumps(split(str(folder))[0]))  # quoted: its commas make no grid
        folder = download(str(folder), out or "runs")
    elif out is not None:
        raise ConfigError(
            f"resume: out is only for a run from a storage; {folder} is continued in its folder: leave it out"
        )
    experiment, home = resumed(Path(folder), changes), Path(folder).absolute()
    if sentence := ignored(experiment):
        LOGGER.warning(sentence)
    with started_in(home):  # relative paths in its configuration are those of that folder
        simulate(experiment, home, resume=True, accept=accept, progress=progress)
    return load(folder)


def resumed(shown: Path, changes: Mapping[str, Any]) -> Experiment:
    """The experiment with which a resume continues the run folder `shown`. Raises `ConfigError` for other changes than
    `RESUMABLE`."""
    working_folder()  # below, a path is relative to it
    folder = shown.absolute()
    repair_swap(folder)
    if not (folder / "config.yaml").exists():
        raise ConfigError(_no_run(folder, shown))
    check_resumable(changes)
    with started_in(folder):
        cells = load_config(folder / "config.yaml", changes)
    if len(cells) != 1:
        raise ConfigError("resume continues one run: give one value for each key")
    return cells[0]


def check_resumable(changes: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a key that would make a run another experiment."""
    wrong = [k for k in changes if k.split(".")[0] not in RESUMABLE or k == "resources.store"]
    if wrong:
        raise ConfigError(
            f"resume: {wrong[0]} would make it another experiment; only {', '.join(RESUMABLE)} may change"
        )


def _no_run(folder: Path, shown: str | Path) -> str:
    """The error for a folder without a run: the reason, and what to write instead."""
    if (folder / "sweep.yaml").exists():
        return f"{shown} is a sweep; continue with: {to_resume_sweep(shown)}"
    inside = list(dict.fromkeys(sweep_of(run, folder) or Path(run) for run in runs_below(folder)))
    if inside == [folder]:
        return f"{shown} has no config.yaml: restore it from a copy, or run its command again with --overwrite"
    if not inside:
        return (
            f"{shown} is not a run folder: it has no config.yaml; start one with flray run CONFIG --out {quoted(shown)}"
        )
    left = [run for run in inside if not Run(run).status.startswith(("finished", "diverged"))]
    names = [str(Path(shown) / run.relative_to(folder)) for run in left or inside]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    which = f"{len(left)} of them not finished" if left else "all finished"
    is_sweep = holds_sweep((left or inside)[0])
    again = to_resume_sweep(names[0]) if is_sweep else f"flray resume {quoted(names[0])}"
    return (
        f"{shown} holds {len(inside)} runs, {which} ({', '.join(names[:3])}{more}); resume one of them: {again}, or "
        "repeat the command that started them: it continues each where it stopped"
    )


def close() -> None:
    """End the processes that flray keeps in this process for its next run, and the Ray that flray has started.

    Without it they end with this process. A Ray that flray did not start goes on; a run gives its CPUs back when it
    ends. Raises `ResourceError` in one line while a run of this process is not finished.
    """
    if "flray.engine.ray.leases" in sys.modules:
        from flray.engine.ray import leases

        leases.close()
    if "flray.engine.forked" in sys.modules:
        from flray.engine import forked

        forked.close()


def simulate(experiment: Experiment, folder: Path, **options: Any) -> None:
    """Run or resume an experiment in `folder`, with the options of :func:`play`.

    Raises `FlrayError` in one line. The run folder stays readable.
    """
    with _rows(experiment, folder, **options) as rows:
        for _ in rows:
            pass


def play(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    scenario: Scenario | None = None,
    accept: Sequence[str] = (),
) -> Generator[dict[str, Any]]:
    """Yields the row of each round (as in `rounds/`) when the round is done, until the run is finished.

    Closing the iterator earlier pauses the run: it writes a checkpoint and a STATUS that says how to continue.
    `overwrite`: a run in the folder is replaced after the first round of this one. `accept` names the changes since the
    run began that a resume allows (a key of the configuration, `data`, `modules.NAME` ...); `environment.json` records
    them.
    """
    with _rows(experiment, folder, resume, overwrite, progress, scenario, accept) as rows:
        yield from rows


@contextmanager
def _rows(
    experiment: Experiment,
    folder: Path,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    scenario: Scenario | None = None,
    accept: Sequence[str] = (),
) -> Iterator[Iterable[dict[str, Any]]]:
    """A context around the rows of :func:`play`, in which this process holds the folder."""
    from flray.rundir import trackers
    from flray.rundir.provenance import Origin
    from flray.rundir.storage import Storage

    working_folder()  # a run records it
    if not resume:
        results_folder(folder, experiment.storage)
    if overwrite:
        check_inputs([experiment], [folder])
    with working_directory():
        home = RunFolder.claim(folder, resume=resume, overwrite=overwrite)
        try:
            trackers.check(experiment)
            storage = Storage.of(experiment.storage, home.path, home.target.name)
            if storage is not None:
                storage.check(resume=resume, overwrite=overwrite)
            origin = Origin.of(experiment, home.path if resume else None, accept)
            run = _simulation(experiment, home, scenario, storage, origin, resume, progress)
            yield run.go(progress, resume)
            if storage is not None:
                storage.check_complete()
        finally:
            try:
                home.release()
            finally:  # again: a signal during the first call would leave the lock; the second call does nothing
                home.release()


def _simulation(
    experiment: Experiment,
    home: RunFolder,
    scenario: Scenario | None,
    storage: Storage | None,
    origin: Origin,
    resume: bool,
    progress: bool,
) -> Simulation:
    """The run with its data read, connected to Ray where it needs that."""
    from flray.engine.prepare import build_data, build_scenario
    from flray.engine.progress import stage
    from flray.engine.simulation import Simulation

    starting, launch = _executors(experiment, progress)
    with stage(f"reading data: {experiment.data.source}", progress):
        data = build_data(experiment)
        if scenario is None and not resume:
            scenario = build_scenario(experiment, data)
    kind: type[Simulation] = Simulation
    if experiment.algorithm.centralized:
        if experiment.resources.executor == "local":
            from flray.engine.centralized import LocalCentralized as kind
        else:
            from flray.engine.ray.train.driver import CentralizedSimulation as kind
    run = kind(experiment, home, data, scenario, storage, origin, launch)
    if starting is not None:
        with stage("starting Ray", progress and not starting.ready):
            starting.join()
    return run


def starts_ray(experiment: Experiment, trials: int = 0) -> bool:
    """Whether the run starts a Ray here, with as many CPUs as there are. Small runs do only as `trials` of a sweep."""
    resources = experiment.resources
    if experiment.address is not None or (resources.executor == "local" if trials else runs_here(experiment)):
        return False
    actors = resources.client_actors if isinstance(resources.client_actors, int) else 1
    return actors * resources.client.num_cpus + resources.server.num_cpus <= cores()


def start_ray(experiment: Experiment, trials: int = 0) -> Background:
    """Start the Ray of such a run, beside this thread: it takes as long as the imports of a run. `trials`: see
    :func:`~flray.engine.ray.cluster.connect`."""
    from flray.engine.ray.cluster import Background, connect

    insecure = experiment.resources.insecure_ray
    return Background(lambda: connect(None, cores(), trials, insecure))


def _executors(experiment: Experiment, progress: bool) -> tuple[Background | None, Launch]:
    """(Ray while it starts, None if the run needs none; the function that makes the run's executor)."""
    if runs_here(experiment):
        from flray.engine.local_executor import launch

        if progress and experiment.resources.executor == "auto":
            LOGGER.info("a small run: in this process, without Ray (resources.executor=calls: on Ray's actors)")
        return None, launch
    from flray.engine.ray.calls import launch as launch_actors
    from flray.engine.ray.capacity import cpus_needed
    from flray.engine.ray.cluster import Background, connect, ray

    needed, insecure = cpus_needed(experiment), experiment.resources.insecure_ray
    if ray.is_initialized():
        connect(experiment.address, needed, insecure=insecure)
        return None, launch_actors
    # Ray takes seconds to start
    return Background(lambda: connect(experiment.address, needed, insecure=insecure)), launch_actors
