"""What can be wrong with a command and is found without torch, Ray or data: files, folders, locks.

A configuration's keys, names and ranges are checked by `declared.check_declared`. Each check raises the error that the
run itself would raise later.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from flray.config.experiment import Experiment
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
    from flray.scenario.drift import DriftTable

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
