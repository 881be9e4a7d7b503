"""Commands that train: `flray run | pretrain | resume`.

`pretrain` makes starting weights: the model of a configuration, trained in one place on all its training samples. They
are stored in flray's cache under the configuration's name, with a card: `model.weights=cache://NAME`.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from flray.cli.arguments import Imports, Overrides, complete_override, is_sweep, own_modules
from flray.cli.checks import check_cells, check_experiment
from flray.cli.finished import report, report_grid
from flray.cli.interrupts import interruptible, same_command
from flray.cli.output import print_rows, suggest, write
from flray.config.experiment import RESUMABLE, Experiment, algorithm_name
from flray.config.grid import cell_status, dotted
from flray.config.loader import load_config
from flray.config.overrides import pairs
from flray.core.schema.errors import ConfigError, FlrayError
from flray.engine import early_fork
from flray.engine.early_fork import Interpreter
from flray.engine.progress import stage
from flray.files import atomic_folder, file_checksum, quoted, results_folder, with_checksum, writing
from flray.log import LOGGER
from flray.models.model_config import ModelConfig
from flray.models.weight_files import CACHED, CARD, FILE, cached_weights
from flray.scenario.partition_config import PartitionConfig

# set by `flray.cli.main`: the command is the whole process, not a call of a test or a notebook
own_process: Interpreter | None = None
# replaces what the configuration says about clients; the optimiser's hyper-parameters stay
CENTRAL: Mapping[str, Any] = {
    "algorithm": "centralized",
    "partition": {"name": "iid", "clients": 1},
    "proxy": None,
    "cohort": {},
    "evaluate.finetune_epochs": [],
}


def run(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="run folder (a grid: the folder that holds the run folders)")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run that is already in the folder")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="run nothing; print what differs from file and defaults, and the configuration"),
    ] = False,
    imports: Imports = None,
) -> None:
    """Run an experiment, or a grid of them.

    `flray run configs/quickstart.yaml algorithm=fedavg,feddf seed=0..4 algorithm.lr=0.1`
    """
    own_modules()
    from flray.config.declared import check_declared
    from flray.config.keys import grid_notes
    from flray.config.overrides import count_cells
    from flray.config.suited import cautions
    from flray.rundir.folder import check_new, default_folder, grid_rows, unused_folder

    def check() -> None:
        cells = load_config(config, overrides or [], imports or [])
        if len(cells) > 1:
            grid_rows(cells, out or Path("runs") / cells[0].name, overwrite)
        elif not dry_run:
            check_new(out or default_folder(cells[0]), overwrite)
        if not dry_run:
            check_cells(cells)

    count = count_cells(overrides or []) if config.is_file() else 0
    with stage(f"a grid of {count:,} cells", count > 1):
        check_declared(check)
    for note in grid_notes(overrides or []):
        LOGGER.info(f"note: {note}")
    with nullcontext() if dry_run else starting(config, overrides or [], imports=imports or []):
        from flray.running import simulate

        cells = load_config(config, overrides or [], imports or [])
    for caution in cautions(cells):
        LOGGER.warning(caution)
    if dry_run:
        return _show(cells, config, imports or [], out, overwrite)
    if len(cells) > 1:
        root = results_folder(out or Path("runs") / cells[0].name, cells[0].storage)
        from flray.tuning.ablate import run_grid

        with interruptible(root, same_command(overwrite)):
            frame = run_grid(cells, root, overwrite=overwrite)
        report_grid(frame, root)
        return
    folder = results_folder(out or unused_folder(cells[0]), cells[0].storage)
    with interruptible(folder):
        simulate(cells[0], folder, overwrite=overwrite, progress=True)
    report(folder)


def _show(cells: list[Experiment], config: Path, imports: list[str], out: Path | None, overwrite: bool) -> None:
    """What a run would be: its folder, the keys that differ from the file and from the defaults as comments, and the
    complete configuration; of a grid its cells."""
    from flray.rundir.folder import default_folder, grid_rows

    if len(cells) > 1:
        root = results_folder(out or Path("runs") / cells[0].name, cells[0].storage)
        print_rows(grid_rows(cells, root, overwrite), f"{len(cells)} cells")
        return
    folder = results_folder(out or default_folder(cells[0]), cells[0].storage)
    parts = {
        f"differs from {config}": from_file(cells[0], config, imports),
        "differs from the defaults": from_defaults(cells[0]),
    }
    write(f"# {folder}")
    for title, lines in parts.items():
        write("\n".join([f"# {title}:", *(f"#   {line}" for line in lines)] if lines else [f"# nothing {title}"]))
    write(cells[0].yaml(), end="")


def from_file(experiment: Experiment, file: Path, imports: list[str]) -> list[str]:
    """`key: value (file: value)` for each key that differs from the file's own, that the file has as a section, or
    that it does not have and that is not the default. Nothing if the file alone is a grid or no complete
    configuration."""
    try:
        cells = load_config(file, [], imports)
    except ConfigError:
        return []
    if len(cells) != 1:
        return []
    here, there = dotted(experiment.dump()), dotted(cells[0].dump())
    defaults = dict(_declared(experiment))
    lines = []
    for key, value in here.items():
        if key in there and value != there[key]:
            lines.append(f"{key}: {_text(value)} (file: {_text(there[key])})")
        elif key not in there and any(other.startswith(f"{key}.") for other in there):
            lines.append(f"{key}: {_text(value)} (file: a section)")
        elif key not in there and value != defaults.get(key):
            lines.append(f"{key}: {_text(value)} (file: no such key)")
    return lines


def from_defaults(experiment: Experiment) -> list[str]:
    """`key: value (default: value)` for each key that is not the default; a key without a default is named alone."""
    defaults = dict(_declared(experiment))
    lines = []
    for key, value in dotted(experiment.dump()).items():
        default = defaults.get(key, PydanticUndefined)
        if value != default:
            known = "" if default is PydanticUndefined else f" (default: {_text(default)})"
            lines.append(f"{key}: {_text(value)}{known}")
    return lines


def _declared(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, default as `dump` writes it) of each key of a section and of those inside it."""
    if isinstance(section, ModelConfig | PartitionConfig):
        yield from ((f"{prefix}{key}", default) for key, default in _filled_in(section))
        return
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{field.alias or name}", getattr(section, name)
        if isinstance(value, BaseModel):
            if name in ("algorithm", "drift"):
                yield f"{key}.name", PydanticUndefined
            yield from _declared(value, f"{key}.")
        else:
            default = field.get_default(call_default_factory=True)
            yield key, list(default) if isinstance(default, tuple) else default


def _filled_in(section: BaseModel) -> Iterator[tuple[str, Any]]:
    """The same of a section whose defaults depend on its name: what it fills in for a key that is left out."""
    given = section.model_dump(mode="json")
    for key in given:
        rest = {name: value for name, value in given.items() if name != key}
        try:
            yield key, type(section)(**rest).model_dump(mode="json").get(key)
        except (ConfigError, ValidationError):  # it must be given
            yield key, PydanticUndefined


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def pretrain(
    config: Annotated[Path, typer.Argument(help="YAML file")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="overrides of one value", autocompletion=complete_override),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="run folder")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace a run that is already in the folder")] = False,
    imports: Imports = None,
) -> None:
    """Train the configuration's model in one place on all its data: weights to start from.

    `flray pretrain CONFIG data.source=cifar100 name=mine`, then `flray run CONFIG model.weights=cache://mine`. They are
    stored in FLRAY_CACHE under the configuration's name, with a card. The same command continues where it stopped.
    """
    own_modules()
    from flray.config.declared import check_declared
    from flray.rundir.folder import check_new, is_run

    def check() -> None:
        checked = pretraining(config, overrides or [], imports or [])
        cached_weights(checked.name)
        folder = out or folder_of(checked)
        if overwrite or not is_run(folder):
            check_new(folder, overwrite)
        check_experiment(checked)

    check_declared(check)
    with starting(config, overrides or [], imports=imports or []):
        from flray.running import simulate

        experiment = pretraining(config, overrides or [], imports or [])
    folder = results_folder(out or folder_of(experiment), experiment.storage)
    state = cell_status(experiment, folder, overwrite)
    if state != "finished":
        with interruptible(folder, same_command(overwrite)):
            simulate(experiment, folder, overwrite=overwrite, resume=state == "resumed", progress=True)
    report(folder)
    card = store(folder, ["flray", "pretrain", str(config), *(overrides or [])])
    name = f"{CACHED}{card['name']}"
    write(f"weights: {name}, {cached_weights(card['name']) / FILE}, checksum {card['weights']}")
    suggest([f"flray run {quoted(config)} model.weights={name}   (for other classes: model.weights_head=fresh)"])


def pretraining(
    config: str | Path | Mapping[str, Any] | Experiment, overrides: Iterable[str] = (), imports: Sequence[str] = ()
) -> Experiment:
    """The experiment that trains the weights, from random ones unless an override names `model.weights`. Raises
    `ConfigError` in one line."""
    changes = pairs(overrides)
    cells = load_config(config, {**CENTRAL, **changes}, imports)
    if len(cells) != 1:
        raise ConfigError(f"pretrain trains one model, these overrides make {len(cells)}; give one value for each key")
    experiment = cells[0]
    if not experiment.algorithm.centralized:
        raise ConfigError(
            f"pretrain trains in one place, algorithm {algorithm_name(experiment.algorithm)} does not; leave algorithm "
            "out"
        )
    if experiment.model.start and "model.weights" not in changes:
        model = type(experiment.model)(name=experiment.model.name, **experiment.model.options)
        experiment = experiment.model_copy(update={"model": model})
    return experiment


def folder_of(experiment: Experiment) -> Path:
    """The run folder of a pretraining without `--out`; the same command continues the run in it."""
    return Path("runs") / experiment.name / f"{algorithm_name(experiment.algorithm)}-seed{experiment.seed}"


def store(folder: Path, command: Sequence[str]) -> dict[str, Any]:
    """Copy the weights of a finished run into flray's cache, with their card. Returns the card, whose `weights` is the
    checksum of the file. Raises `ConfigError` for a run that did not finish, or whose weights are damaged."""
    from flray.models.weights import read_weights
    from flray.rundir.reader import Run

    run = Run(folder)
    if run.status != "finished":
        raise ConfigError(f"{folder} is {run.status}: its weights are not stored; run the command again")
    try:
        read_weights(str(folder), "pretrain")
    except ConfigError as error:
        raise ConfigError(f"{error}: flray resume {quoted(folder)}, then this command again") from error
    experiment, home = run.experiment, cached_weights(run.experiment.name)
    tested = run.rounds["test/acc"].dropna() if "test/acc" in run.rounds else run.rounds.iloc[:0, 0]
    card = {
        "name": experiment.name,
        "weights": file_checksum(folder / FILE),
        "bytes": (folder / FILE).stat().st_size,
        "model": experiment.model.model_dump(mode="json"),
        "data": experiment.data.source,
        "data_fingerprint": run.environment["fingerprints"]["data"],
        "epochs": experiment.rounds * getattr(experiment.algorithm, "local_epochs", 1),
        "test_accuracy": float(tested.iloc[-1]) if len(tested) else None,
        "seed": experiment.seed,
        "command": shlex.join(command),
        "flray": run.environment["packages"]["flray"],
        "git": run.environment["git"],
    }
    with writing(home, ", or set FLRAY_CACHE, and give the same command again", ConfigError):
        home.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(home, durable=True) as temporary:
            shutil.copyfile(folder / FILE, temporary / FILE)
            (temporary / CARD).write_text(with_checksum(card), encoding="utf-8")
    return card


def resume(
    folder: Annotated[str, typer.Argument(help="run folder, or the URI of a run in a storage")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help=", ".join(RESUMABLE)),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="of a URI: the folder that gets the run folder; default runs")
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="continue although this changed since the run began (the error names it); it is recorded"),
    ] = None,
) -> None:
    """Continue a run from its last good checkpoint, to the same bits as if it had never stopped."""
    own_modules()
    from flray.config.declared import check_declared
    from flray.config.launch_context import started_in
    from flray.rundir.download import existing
    from flray.rundir.lock import check_unused
    from flray.rundir.uri import is_uri, split
    from flray.running import check_resumable, resume as resume_run, resumed

    def check() -> None:
        experiment = resumed(Path(folder), pairs(overrides or []))
        check_unused(Path(folder))
        with started_in(Path(folder).absolute()):
            check_experiment(experiment)

    if is_uri(folder):
        check_resumable(pairs(overrides or []))
        if not ((out or Path("runs")) / split(folder)[1] / "config.yaml").exists():
            existing(folder)
    elif out is None:
        check_declared(check)
    with starting(Path(folder), overrides or []):
        import torch  # noqa: F401
    with interruptible(Path(out or "runs") / split(folder)[1] if is_uri(folder) else Path(folder)):
        result = resume_run(folder, *(overrides or []), out=out, accept=accept or ())
    report(result.folder)


@contextmanager
def starting(source: Path, overrides: list[str], trials: int = 0, imports: Sequence[str] = ()) -> Iterator[None]:
    """Starts Ray beside the imports of a command, if it will need one here (:func:`ray_for`)."""
    first = None if own_process is None else ray_for(source, overrides, imports, trials)
    with stage("starting Ray and torch" if first else "loading torch"):
        if own_process is not None and first is not None:
            if not os.environ.get("RAY_ADDRESS") and early_fork.may_fork():  # else no Ray starts here
                from flray.engine import forked
                from flray.engine.threads import spin_briefly

                spin_briefly()  # the fork loads torch
                with suppress(OSError):  # no place for a socket, no process left
                    forked.prepared.append(forked.Programs(forked.SHARED, own_process))
            from flray.running import start_ray

            start_ray(first, trials)
        yield


def ray_for(source: Path, overrides: list[str], imports: Sequence[str] = (), trials: int = 0) -> Experiment | None:
    """The experiment (of several the first) that starts a Ray here with as many CPUs as there are; None: it needs none,
    another one, or more. `source`, a configuration or the folder of a run or a sweep, is read without torch."""
    from flray.config.declared import declared_only
    from flray.running import starts_ray

    with declared_only() as stand_ins:
        first = _first(source, overrides, imports) if stand_ins or "torch" in sys.modules else None
    return first if first is not None and starts_ray(first, trials) else None


def _first(source: Path, overrides: list[str], imports: Sequence[str]) -> Experiment | None:
    """None: there is no such file, or the command will say what is wrong with it."""
    from flray.config.loader import first_cell

    file = next((path for path in (source, source / "config.yaml", source / "sweep.yaml") if path.is_file()), None)
    with suppress(FlrayError):
        if file is not None and is_sweep(file):
            from flray.tuning.sweep_file import load_sweep

            sweep = load_sweep(file, overrides, imports)
            return sweep.experiment(sweep.search_space.example())
        if file is not None:
            return first_cell(file, overrides, imports)
    return None
