"""What can be wrong with a command and is found without torch, Ray or data: files, folders, locks.

A configuration's keys, names and ranges are checked by `declared.check_declared`. Each check raises the error that the
run itself would raise later.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from flray.config.experiment import Experiment
from flray.core.schema.errors import ConfigError
from flray.data import DataConfig
from flray.data.data_config import DRAWN


def check_cells(cells: Sequence[Experiment]) -> None:
    """Raises as :func:`check_experiment`, for every cell of a grid; what several cells name is looked at once."""
    known: set[str] = set()
    for cell in cells:
        parts = (cell.data, cell.proxy, cell.model, cell.drift, cell.track, cell.address)
        named = "\n".join(part.model_dump_json() if isinstance(part, BaseModel) else repr(part) for part in parts)
        if named not in known:
            known.add(named)
            check_experiment(cell)


def check_experiment(experiment: Experiment) -> None:
    """Raises `DataError` or `ConfigError` for data, weights or tables that are not on this machine.

    A cluster elsewhere reads its own disks, so nothing is checked for a run with an `address`.
    """
    from flray.models.weight_files import check_weights, is_weights_file
    from flray.scenario.drift_rows import DriftTable

    if experiment.address is not None:
        return
    _check_data(experiment.data)
    if experiment.proxy is not None and experiment.needs_proxy and experiment.proxy.source not in DRAWN:
        _check_data(experiment.proxy)
    weights = experiment.model.start.get("weights")
    if weights is not None:
        check_weights(weights)
    pretrained = experiment.model.options.get("pretrained")
    if isinstance(pretrained, str) and is_weights_file(pretrained):  # else a network of the Hugging Face hub
        check_weights(pretrained, "model.pretrained")
    drift = experiment.drift
    if isinstance(drift, DriftTable) and drift.file is not None and not Path(drift.file).is_file():
        _ = drift.table  # raises
    if experiment.track:
        from flray.rundir import trackers

        trackers.check(experiment)


def _check_data(config: DataConfig) -> None:
    from flray.data.sources import at_hand, load_splits
    from flray.data.sources.union import sets_of

    for data in sets_of(config).values() if config.source == "union" else [config]:
        if not data.download and not at_hand(data):
            load_splits(data)  # raises, with the places that it searched


def check_resume(folder: Path, overrides: list[str]) -> None:
    """Raises the error of `flray resume` on a folder of this machine."""
    from flray.config.launch_context import started_in
    from flray.config.overrides import pairs
    from flray.rundir.lock import check_unused
    from flray.running import resumed

    experiment = resumed(folder, pairs(overrides))
    check_unused(folder)
    with started_in(folder.absolute()):
        check_experiment(experiment)


def check_resume_uri(uri: str, overrides: list[str], out: Path | None) -> None:
    """Raises the error of `flray resume` on a run in a storage: its URI, the keys that may change, whether it is there
    or was downloaded before."""
    from flray.config.overrides import pairs
    from flray.rundir.download import existing
    from flray.rundir.uri import split
    from flray.running import check_resumable

    check_resumable(pairs(overrides))
    if not ((out or Path("runs")) / split(uri)[1] / "config.yaml").exists():
        existing(uri)


def check_ablation(
    config: Path,
    overrides: list[str],
    imports: list[str],
    out: Path | None,
    against: str | None,
    metric: str,
    overwrite: bool,
) -> None:
    """Raises the error of `flray ablate`: its configuration, the folders of its cells, its reference, files."""
    from flray.rundir.folder import grid_rows
    from flray.tuning.comparison import plan_ablation

    plan = plan_ablation(config, overrides, imports, out, against, metric)
    grid_rows(plan.cells, plan.root, overwrite)
    check_cells(plan.cells)


def check_replay(folder: Path, round: int | None) -> None:
    """Raises the error of `flray replay`: the folder is no run, its run has no clients or no
    such round."""
    from flray.rundir.reader import load_federated

    experiment = load_federated(folder).experiment
    if round is not None and not 1 <= round <= experiment.total_rounds:
        raise ConfigError(f"--round {round}: the run has rounds 1 to {experiment.total_rounds}")


def check_sweep(source: Path, overrides: list[str], imports: list[str], out: Path | None, resume: bool) -> None:
    """Raises the error of `flray sweep`: its file, its experiment, its folder."""
    from flray.tuning.sweep_file import load_sweep
    from flray.tuning.sweep_folder import CONFIG, check_folder, check_sweep as check_stored, default_folder

    if resume:
        check_stored(source)
    sweep = load_sweep(source / CONFIG if resume else source, overrides, imports)
    check_folder(source if resume else out or default_folder(sweep), sweep, resume)
    check_experiment(sweep.experiment(sweep.search_space.example()))
