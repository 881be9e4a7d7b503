"""flray from Python: what the command line does, with the same names and defaults.

result = flray.run("configs/quickstart.yaml", "algorithm=fedavg", rounds=10)
result = flray.resume(result.folder, rounds=20)
flray.load("runs/quickstart/fedavg-seed0").rounds  # a DataFrame, one row a round
runs = flray.run("configs/quickstart.yaml", algorithm=["fedavg", "fedsol"], seed=range(5))
flray.compare(runs, against="fedavg")
flray.figure("curves", runs, out="curves.png")
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flray.config.experiment import RESUMABLE, Experiment
from flray.config.launch_context import started_in, working_directory
from flray.config.loader import load_config
from flray.config.overrides import pair, pairs, scalar, several
from flray.config.small import runs_here
from flray.config.suited import cautions, ignored
from flray.core.schema.errors import ConfigError, FlrayError
from flray.log import LOGGER
from flray.results.notebook import Run, Runs, listed_runs, load
from flray.results.readable import warn_left_out
from flray.rundir.folder import RunFolder, repair_swap, unused_folder
from flray.rundir.reader import runs_below
from flray.rundir.uri import is_uri, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flray.engine.ray.cluster import Background
    from flray.engine.simulation import Launch, Simulation
    from flray.results.comparison import Comparison
    from flray.results.report_page import Lead
    from flray.rundir.provenance import Origin
    from flray.rundir.storage import Storage
    from flray.scenario import Scenario
    from flray.tuning.results import SweepResult

__all__ = ["Run", "Runs", "ablate", "close", "compare", "figure", "load", "report", "resume", "run", "sweep"]


def run(
    config: str | Path | Mapping[str, Any] | Experiment,
    *overrides: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    imports: Sequence[str] = (),
    **values: Any,
) -> Run | Any:
    """Run one experiment and return its results, or a grid and return :class:`Runs`. Progress goes to stderr
    (`progress=False`: none).

    `config` is a YAML file, a mapping or an `Experiment`. Overrides are written as on the command line
    (`"algorithm.lr=0.1"`) or by keyword (`rounds=5`; `model=net.Net`, a class of a module of yours). Several values
    make a grid: `seed=range(5)`, `algorithm=["fedavg", "fedsol"]`, `"algorithm.lr=0.1,0.01"`; a second call repeats no
    finished run of it. `out` is the run folder (default `runs/NAME/...`), of a grid the folder that holds the run
    folders (`runs/NAME`). Raises `FlrayError` in one line.
    """
    given: list[str | Mapping[str, Any]] = [*overrides, values]
    try:
        cells = load_config(config, given, imports)
    except ConfigError as error:
        raise _several_values(error, values) from None
    for caution in cautions(cells):
        LOGGER.warning(caution)
    if len(cells) > 1 or _in_lists(values):
        from flray.config.grid import labels
        from flray.tuning.ablate import run_grid

        root = Path(out) if out is not None else Path("runs") / cells[0].name
        run_grid(cells, root, overwrite=overwrite, progress=progress)
        return Runs(root / label for label in labels(cells))
    folder = Path(out) if out is not None else unused_folder(cells[0])
    simulate(cells[0], folder, overwrite=overwrite, progress=progress)
    return load(folder)


def _in_lists(values: Mapping[str, Any]) -> bool:
    """Whether a value is a list of values, also of one: then the result is a list, too."""
    lists = {key: value for key, value in values.items() if isinstance(value, list | tuple | range)}
    return any(several(key, value) != [value] for key, value in lists.items())


def _several_values(error: ConfigError, values: Mapping[str, Any]) -> ConfigError:
    """The error of a configuration; for a list in the place of one value of a key whose kind is not known (an option of
    a network) it says how to write a grid."""
    for key, value in values.items():
        places = f"{key}:", f"{key}.name:", f"option {key.rpartition('.')[2]!r}:"
        if isinstance(value, list | tuple) and value and any(place in str(error) for place in places):
            text = ",".join(map(str, value))
            return ConfigError(f"{error}; several values of this key make a grid as text: '{key}={text}'")
    return error


def ablate(
    config: str | Path,
    *overrides: str,
    out: str | Path | None = None,
    against: str | None = None,
    metric: str = "test/acc",
    concurrency: int | str = "auto",
    overwrite: bool = False,
    progress: bool = True,
    imports: Sequence[str] = (),
    **values: Any,
) -> Comparison:
    """Run every combination of some keys and compare them: `flray.ablate(CONFIG, rho=..., seed=range(5))`.

    Without `against` the reference has the configuration's own values, or is the first run. `out`: the folder of the
    run folders (default `runs/NAME-ablation`); the same call continues where it stopped. Raises `FlrayError` in one
    line.
    """
    from flray.results.comparison import comparison
    from flray.tuning.ablate import run_grid
    from flray.tuning.comparison import plan_ablation, write_ablation

    given: list[str | Mapping[str, Any]] = [*overrides, values]
    plan = plan_ablation(config, given, imports, None if out is None else Path(out), against, metric)
    frame = run_grid(plan.cells, plan.root, concurrency, overwrite=overwrite, progress=progress)
    write_ablation(plan.root, frame, plan.against, metric, plan.swept)
    return comparison(Runs(plan.folders), metric, plan.against)


def sweep(
    source: str | Path | Mapping[str, Any],
    *overrides: str,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    imports: Sequence[str] = (),
    **values: Any,
) -> SweepResult:
    """Search hyper-parameters on a validation split, then compare the best on fresh seeds and the test set.

    `source` is the file of a sweep or its mapping; with `resume` the folder of one, whose budgets may be raised
    (`trials=40`). `out`: its folder (default `runs/NAME`). Raises `FlrayError` in one line.
    """
    from flray.tuning.results import SweepResult
    from flray.tuning.sweep import run_sweep
    from flray.tuning.sweep_file import load_sweep
    from flray.tuning.sweep_folder import CONFIG, check_sweep, default_folder

    if resume and out is not None:
        raise ConfigError("sweep: out: a sweep continues in its own folder; leave out out")
    if resume and isinstance(source, Mapping):
        raise ConfigError("sweep: resume: give the folder of the sweep, not a mapping")
    given = {**{key: scalar(key, text) for key, text in map(pair, overrides)}, **values}
    if resume:
        check_sweep(folder := Path(str(source)))
        new = load_sweep(folder / CONFIG, given, imports)
    else:
        new = load_sweep(source, given, imports)
        folder = Path(out) if out is not None else default_folder(new)
    run_sweep(new, folder, resume=resume, progress=progress)
    return SweepResult(folder)


def compare(
    runs: str | Path | Iterable[Any],
    metric: str = "test/acc",
    against: str | Mapping[str, Any] | None = None,
    at: str | None = None,
    to: str | None = None,
) -> Comparison:
    """Settings over seeds: means, paired differences with intervals, costs, and a sentence. Displayed as a table.

    `runs` are runs, run folders (or URIs), or folders that hold them, in any nesting of lists. `against` is a setting
    (`"fedavg"`, `"rho=0"`, a folder of one of its runs): the differences to it; default: to the best one. `at`
    (`"virtual=3600"`) compares at the same cost, `to` (`"test/acc=0.8"`) by what they take to a target. Raises
    `FlrayError` in one line.
    """
    from flray.results.comparison import comparison

    return comparison(Runs(runs), metric, against, at, to)


def figure(
    kind: str,
    runs: str | Path | Iterable[Any],
    out: str | Path | None = None,
    style: str | None = None,
    **options: Any,
) -> Figure:
    """A picture of runs by its kind (`flray list figures`), as a matplotlib figure; `out` writes it, too.

    `runs` as in :func:`compare`. Options by kind: `metric`, `x` of curves; `mode` of tasks, predicted and drift;
    `metric`, `axis` of ablation and conflict; `rounds`, `models` of regions; `round`, `directions`, `points`, `span` of
    landscape. `style` is `paper` or `talk`. Raises `FlrayError` in one line.
    """
    from flray.results import drawing

    return drawing.figure(kind, Runs(runs, sound_only=True), out, style, **options)[0]


def report(
    runs: str | Path | Iterable[Any],
    out: str | Path = "report.html",
    metric: str | None = None,
    against: str | None = None,
) -> Path:
    """One self-contained page about runs, grids, ablations or sweeps; returns its path. It ends on .html, .md or .json.

    `runs` as in :func:`compare`. Raises `FlrayError` in one line.
    """
    from flray.results.report_page import gather, write

    form = Path(out).suffix.removeprefix(".") or "html"
    folders = listed_runs(runs)
    page = gather(folders, metric, against, drawn=form == "html", lead=sweep_lead(folders, form == "html"))
    warn_left_out(page.broken, page.notes)
    return write(page, out, form)


def sweep_lead(folders: Iterable[Any], drawn: bool) -> Lead | None:
    """What a report says of the trials of those folders that are sweeps; None: there is none."""
    from flray.results.report_page import Lead

    places = [Path(folder) for folder in folders if isinstance(folder, str | Path)]
    lead = [_trials(folder, drawn) for folder in places if (folder / "sweep.yaml").exists()]
    return Lead(*(tuple(chain.from_iterable(parts)) for parts in zip(*lead, strict=True))) if lead else None


def _trials(folder: Path, drawn: bool) -> Lead:
    """What a report says of a sweep's trials; nothing, and a warning, if its studies cannot be read."""
    from flray.results.report_page import Lead
    from flray.tuning.trials_page import trials_lead

    try:
        return trials_lead(folder, drawn)
    except FlrayError as error:
        if runs_below(folder):  # a folder without runs has its own warning
            LOGGER.warning(f"left out: the trials of {folder}: {error}")
        return Lead()


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
        return f"{shown} is a sweep; continue with: flray sweep {shown} --resume"
    inside = [Path(run) for run in runs_below(folder)]
    if not inside:
        return f"{shown} is not a run folder: it has no config.yaml; start one with flray run CONFIG --out {shown}"
    left = [run for run in inside if not Run(run).status.startswith(("finished", "diverged"))]
    names = [str(Path(shown) / run.relative_to(folder)) for run in left or inside]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    which = f"{len(left)} of them not finished" if left else "all finished"
    return (
        f"{shown} holds {len(inside)} runs, {which} ({', '.join(names[:3])}{more}); resume one of them: flray resume "
        f"{names[0]}, or repeat the command that started them: it continues each where it stopped"
    )


def close() -> None:
    """End the processes that flray keeps in this process for its next run, and the Ray that flray has started.

    Without it they end with this process. A Ray that flray did not start goes on; a run gives its CPUs back when it
    ends. Raises `ResourceError` in one line while a run of this process is not finished.
    """
    if "flray.engine.ray.leases" in sys.modules:
        from flray.engine.ray import leases

        leases.close()


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

    trackers.check(experiment)
    with working_directory():
        home = RunFolder.claim(folder, resume=resume, overwrite=overwrite)
        try:
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
            scenario = build_scenario(experiment, data[0], data[2])
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


def _executors(experiment: Experiment, progress: bool) -> tuple[Background | None, Launch]:
    """(Ray while it starts, None if the run needs none; the function that makes the run's executor)."""
    if runs_here(experiment):
        from flray.engine.local_executor import launch

        if progress and experiment.resources.executor == "auto":
            LOGGER.info("a small run: in this process, without Ray (resources.executor=calls: on Ray's actors)")
        return None, launch
    from flray.engine.ray.capacity import cpus_needed
    from flray.engine.ray.cluster import Background, connect, ray
    from flray.engine.ray.launch import launch as launch_actors

    needed, insecure = cpus_needed(experiment), experiment.resources.insecure_ray
    if ray.is_initialized():
        connect(experiment.address, needed, insecure=insecure)
        return None, launch_actors
    # Ray takes seconds to start
    return Background(lambda: connect(experiment.address, needed, insecure=insecure)), launch_actors
