"""After a divergence: a local learning rate that was seen to work, in runs beside it or in flray's configurations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import flray
from flray.core.schema.errors import CheckpointError
from flray.results.tables import compare, settings
from flray.rundir.folder import is_run
from flray.rundir.reader import Run

MOST = 200  # runs beside it that are looked at
LR = "algorithm.lr"
SAME = (
    "algorithm.name", "algorithm.optimizer", "data.source", "model.name", "partition.name", "partition.alpha",
)  # fmt: skip


class WorkingRate(NamedTuple):
    """A learning rate, and where it worked."""

    lr: float
    where: str


def working_rate(run: Run) -> WorkingRate | None:
    """The rate below the diverged run's own that gave the best accuracy: of the finished runs beside it with the same
    algorithm, optimiser, data, partition and model; else that of flray's own configuration of the data. None if there
    is neither.
    """
    try:
        config = settings(run)
    except CheckpointError:
        return None
    own = config.get(LR)
    if not isinstance(own, int | float):
        return None
    return _beside(run, config, own) or _shipped(config, own)


def _beside(run: Run, config: Mapping[str, Any], own: float) -> WorkingRate | None:
    alike = [other for other in _readable(run.folder.absolute()) if _is_alike(settings(other), config, own)]
    if not alike:
        return None
    table = compare(alike)
    done = table[table["status"] == "finished"].dropna(subset="test/acc")
    if done.empty:
        return None
    best = max(done.to_dict("records"), key=lambda row: float(row["test/acc"]))
    lr = float(settings(Run(best["folder"]))[LR])
    return WorkingRate(lr, f"{best['test/acc']:.2%} in {best['folder']}")


def _readable(folder: Path) -> Iterator[Run]:
    beside = [path for path in sorted(folder.parent.iterdir()) if path != folder and is_run(path)]
    for place in beside[:MOST]:
        try:
            settings(Run(place))
        except CheckpointError:
            continue
        yield Run(place)


def _is_alike(other: Mapping[str, Any], config: Mapping[str, Any], own: float) -> bool:
    rate = other.get(LR, math.inf)
    return all(other.get(key) == config.get(key) for key in SAME) and isinstance(rate, int | float) and rate < own


def _shipped(config: Mapping[str, Any], own: float) -> WorkingRate | None:
    """Of the configurations in `configs/` that name their data, algorithm and rate themselves."""
    root = Path(flray.__file__).parent / "configs"
    for path in sorted(root.glob("*.yaml")) + sorted(root.glob("*/*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        algorithm = content.get("algorithm") if isinstance(content, dict) else None
        data = content.get("data") if isinstance(content, dict) else None
        if not isinstance(algorithm, dict) or not isinstance(data, dict) or data.get("source") != config["data.source"]:
            continue
        rate, optimizer = algorithm.get("lr"), algorithm.get("optimizer", "sgd")
        if isinstance(rate, int | float) and rate < own and optimizer == config.get("algorithm.optimizer", "sgd"):
            return WorkingRate(float(rate), f"the rate of configs/{path.relative_to(root)}")
    return None
