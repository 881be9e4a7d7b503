"""What can be wrong with a command and is found without torch, Ray or data: files, folders, locks.

A configuration's keys, names and ranges are checked by `declared.check_declared`. Each check raises the error that the
run itself would raise later.
"""

from __future__ import annotations

from pathlib import Path

from flray.config.experiment import Experiment
from flray.core.schema.errors import ConfigError
from flray.data import DataConfig

DRAWN = ("holdout", "uniform_box")  # proxy data that are made of the data set itself


def check_experiment(experiment: Experiment) -> None:
    """Raises `DataError` or `ConfigError` for data, weights or tables that are not on this machine.

    A cluster elsewhere reads its own disks, so nothing is checked for a run with an `address`.
    """
    from flray.models.weight_files import check_weights
    from flray.scenario.drift_rows import DriftTable

    if experiment.address is not None:
        return
    _check_data(experiment.data)
    if experiment.proxy is not None and experiment.algorithm.needs_proxy and experiment.proxy.source not in DRAWN:
        _check_data(experiment.proxy)
    weights = experiment.model.start.get("weights")
    if weights is not None:
        check_weights(weights)
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
    from flray.api import resumed
    from flray.config.launch_context import started_in
    from flray.config.overrides import pairs
    from flray.rundir.lock import check_unused

    experiment = resumed(folder, pairs(overrides))
    check_unused(folder)
    with started_in(folder.absolute()):
        check_experiment(experiment)


def check_replay(folder: Path, round: int | None) -> None:
    """Raises the error of `flray replay`: the folder is no run, or the run has no such round."""
    from flray.rundir.reader import load

    experiment = load(folder).experiment
    if round is not None and not 1 <= round <= experiment.total_rounds:
        raise ConfigError(f"--round {round}: the run has rounds 1 to {experiment.total_rounds}")


def check_sweep(source: Path, overrides: list[str], imports: list[str], out: Path | None, resume: bool) -> None:
    """Raises the error of `flray sweep`: its file, its experiment, its folder."""
    from flray.tuning.sweep_file import load_sweep
    from flray.tuning.sweep_folder import CONFIG, check_folder, default_folder
    from flray.tuning.sweep_folder import check_sweep as check_stored

    if resume:
        check_stored(source)
    sweep = load_sweep(source / CONFIG if resume else source, overrides, imports)
    check_folder(source if resume else out or default_folder(sweep), sweep, resume)
    check_experiment(sweep.experiment(sweep.search_space.example()))
