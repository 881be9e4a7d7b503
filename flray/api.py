"""flray from Python: what the command line does, with the same names and defaults.

run = flray.run("configs/quickstart.yaml", "algorithm=fedavg", rounds=10)
run.rounds  # a DataFrame, one row a round
runs = flray.run("configs/quickstart.yaml", algorithm=["fedavg", "fedsol"], seed=range(5))
flray.compare(runs, against="fedavg")
flray.figure("curves", runs, out="curves.png")
"""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from flray.config.declared import declared_only
from flray.config.experiment import Experiment
from flray.config.launch_context import working_folder
from flray.config.loader import load_config
from flray.config.overrides import pair, scalar, several
from flray.config.suited import cautions
from flray.core.schema.errors import ConfigError, FlrayError
from flray.core.schema.plain import plain
from flray.log import LOGGER
from flray.results.notebook import Run, Runs, listed_runs, load
from flray.results.readable import warn_left_out
from flray.rundir.folder import holds_sweep, unused_folder
from flray.rundir.reader import runs_below
from flray.running import close, play, resume, simulate, start_ray, starts_ray

# what lies below, for who builds on flray
__all__ = ["Run", "Runs", "close", "load", "play", "resume", "simulate"]
__all__ += ["ablate", "compare", "figure", "report", "run", "sweep"]

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flray.results.comparison import Comparison
    from flray.results.report_page import Lead
    from flray.tuning.results import SweepResult


P = ParamSpec("P")
T = TypeVar("T")
OneValue = str | int | float | Mapping[str, Any] | Callable[..., Any] | None  # of a key: it makes no grid


def _in_python(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which needs the working directory, and whose errors name its arguments in place of the options of
    the command line."""

    @functools.wraps(function)
    def call(*args: P.args, **values: P.kwargs) -> T:
        working_folder()
        try:
            return function(*args, **values)
        except FlrayError as error:
            if error.args and isinstance(error.args[0], str):
                text = re.sub(r"\banother --out\b", "another out=", error.args[0])
                text = text.replace("with --import MODULE", "with imports=['MODULE']")
                error.args = (re.sub(r"(add|with) --overwrite\b", r"\1 overwrite=True", text), *error.args[1:])
            raise

    return call


@overload
def run(
    config: str | Path | Mapping[str, Any] | Experiment,
    *overrides: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    imports: Sequence[str] = (),
    **values: OneValue,
) -> Run: ...


@overload
def run(
    config: str | Path | Mapping[str, Any] | Experiment,
    *overrides: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    imports: Sequence[str] = (),
    **values: Any,
) -> Any: ...  # Runs, or a Run where a list is one value, as of uplink


@_in_python
def run(
    config: str | Path | Mapping[str, Any] | Experiment,
    *overrides: str,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: bool = True,
    imports: Sequence[str] = (),
    **values: Any,
) -> Any:
    """Run one experiment and return its results, or a grid and return :class:`Runs`. Progress goes to stderr
    (`progress=False`: none).

    `config` is a YAML file, a mapping or an `Experiment`. Overrides are written as on the command line
    (`"algorithm.lr=0.1"`) or by keyword (`rounds=5`; `model=net.Net`, a class of a module of yours). Several values
    make a grid: `seed=range(5)`, `algorithm=["fedavg", "fedsol"]`, `"algorithm.lr=0.1,0.01"`; a second call repeats no
    finished run of it. `out` is the run folder (default `runs/NAME/...`), of a grid the folder that holds the run
    folders (`runs/NAME`). Raises `FlrayError` in one line.
    """
    given: list[str | Mapping[str, Any]] = [*overrides, values]
    _check_names(run, values)
    imports = list(imports)
    try:
        if out is None or overwrite or not Path(out).exists():  # else the run may be refused
            _start_ray(config, given, imports)
        cells = load_config(config, given, imports)
    except ConfigError as error:
        raise _several_values(error, {**(config if isinstance(config, Mapping) else {}), **values}) from None
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


def _start_ray(config: Any, given: list[str | Mapping[str, Any]], imports: Sequence[str]) -> None:
    """Start Ray before torch is imported, if a run will need one here. Raises the `FlrayError` of a wrong `config`."""
    if isinstance(config, Experiment) or not {"torch", "ray"}.isdisjoint(sys.modules) or os.environ.get("RAY_ADDRESS"):
        return
    with declared_only():
        cells = load_config(config, given, imports)
    if len(cells) == 1 and starts_ray(cells[0]):
        start_ray(cells[0])


def _in_lists(values: Mapping[str, Any]) -> bool:
    """Whether a value is a list of values, also of one: then the result is a list, too."""
    given = {key: plain(value, key) for key, value in values.items() if not isinstance(value, str)}
    return any(several(key, value) != [value] for key, value in given.items() if isinstance(value, list | tuple))


def _several_values(error: ConfigError, values: Mapping[str, Any]) -> ConfigError:
    """The error of a configuration; for a list in the place of one value of a key whose kind is not known (an option of
    a network, a key of a section) it says how to write a grid."""
    for key, value in _leaves(values):
        places = f"{key}:", f"{key}.name:", f"option {key.rpartition('.')[2]!r}:"
        plainly = isinstance(value, list | tuple) and value and all(isinstance(one, str | int | float) for one in value)
        if plainly and any(place in str(error) for place in places):
            text = ",".join(map(str, value))
            return ConfigError(f"{error}; several values of this key make a grid as text: '{key}={text}'")
    return error


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(`section.key`, value) of all values in sections of sections."""
    for key, value in values.items():
        yield from _leaves(value, f"{above}{key}.") if isinstance(value, Mapping) else [(f"{above}{key}", value)]


def _check_names(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a keyword that is nearer to an argument of the function than to any key."""
    arguments = [name for name in inspect.signature(function).parameters if name not in ("overrides", "values")]
    for name in values.keys() - Experiment.model_fields.keys():
        near = difflib.get_close_matches(name, [*Experiment.model_fields, *arguments], n=1)
        if near and near[0] in arguments:
            raise ConfigError(f"{name}: unknown key (did you mean {near[0]}=...?)")


@_in_python
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
    """Run every combination of some keys and compare them: `flray.ablate(CONFIG, algorithm=["fedavg", "fedsol"],
    seed=range(5))`.

    Without `against` the reference has the configuration's own values, or is the first run. `out`: the folder of the
    run folders (default `runs/NAME-ablation`); the same call continues where it stopped. Raises `FlrayError` in one
    line.
    """
    from flray.results.comparison import comparison
    from flray.tuning.ablate import run_grid
    from flray.tuning.comparison import plan_ablation, write_ablation

    given: list[str | Mapping[str, Any]] = [*overrides, values]
    _check_names(ablate, values)
    plan = plan_ablation(config, given, imports, None if out is None else Path(out), against, metric)
    frame = run_grid(plan.cells, plan.root, concurrency, overwrite=overwrite, progress=progress)
    write_ablation(plan.root, frame, plan.against, metric, plan.swept)
    return comparison(Runs(plan.folders), metric, plan.against)


@_in_python
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
    (`trials=40`). `out`: its folder (default `runs/NAME`). Raises `FlrayError` in one line, and `KeyboardInterrupt`
    after Ctrl-C.
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
    if not run_sweep(new, folder, resume=resume, progress=progress):
        raise KeyboardInterrupt
    return SweepResult(folder)


def compare(
    runs: str | Path | Run | Iterable[Any],
    metric: str = "test/acc",
    against: str | Path | Run | Mapping[str, Any] | None = None,
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
    runs: str | Path | Run | Iterable[Any],
    out: str | Path | None = None,
    style: str | None = None,
    **options: Any,
) -> Figure:
    """A picture of runs by its kind (`flray figure --help`), as a matplotlib figure; `out` writes it, too.

    `runs` as in :func:`compare`. Options by kind: `metric`, `x` of curves; `mode` of tasks, predicted and drift;
    `metric`, `axis` of ablation and conflict; `rounds`, `models` of regions; `round`, `directions`, `points`, `span` of
    landscape. `style` is `paper` or `talk`. Raises `FlrayError` in one line.
    """
    from flray.results import drawing

    return drawing.figure(kind, Runs(runs, sound_only=True), out, style, **options)[0]


def report(
    runs: str | Path | Run | Iterable[Any],
    out: str | Path = "report.html",
    metric: str | None = None,
    against: str | Path | Run | Mapping[str, Any] | None = None,
) -> Path:
    """One self-contained page about runs, grids, ablations or sweeps; returns its path. It ends on .html, .md or .json.

    `runs` as in :func:`compare`. Raises `FlrayError` in one line.
    """
    from flray.results.report_page import form_of, gather, write

    form = form_of(out)
    folders = listed_runs(runs)
    page = gather(folders, metric, against, drawn=form == "html", lead=sweep_lead(folders, form == "html"))
    warn_left_out(page.broken, page.notes)
    return write(page, out, form)


def sweep_lead(folders: Iterable[Any], drawn: bool) -> Lead | None:
    """What a report says of the trials of those folders that are sweeps; None: there is none."""
    from flray.results.report_page import Lead

    places = [Path(folder) for folder in folders if isinstance(folder, str | Path)]
    lead = [_trials(folder, drawn) for folder in places if holds_sweep(folder)]
    return Lead(*(tuple(chain.from_iterable(parts)) for parts in zip(*lead, strict=True))) if lead else None


def _trials(folder: Path, drawn: bool) -> Lead:
    """What a report says of a sweep's trials; nothing, and a warning, if its studies cannot be read."""
    from flray.results.report_page import Lead
    from flray.tuning.report import trials_lead

    try:
        return trials_lead(folder, drawn)
    except FlrayError as error:
        if runs_below(folder):  # a folder without runs has its own warning
            LOGGER.warning(f"left out: the trials of {folder}: {error}")
        return Lead()
