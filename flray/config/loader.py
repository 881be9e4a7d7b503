"""From a YAML file and overrides to experiments, in three steps: read, resolve, validate.

experiments = load_config("configs/quickstart.yaml", ["algorithm=fedavg,feddf", "seed=0..4", "algorithm.lr=0.1"])
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment
from flray.config.launch_context import find_modules
from flray.config.overrides import Overrides, axes_of, check_distinct, refuse_objects
from flray.config.read import read_layers
from flray.config.resolve import resolve, resolve_tables
from flray.config.validate import validate
from flray.core.schema.errors import ConfigError, shown
from flray.core.schema.registry import imported


def load_config(
    source: str | Path | Mapping[str, Any] | Experiment, overrides: Overrides = (), imports: Sequence[str] = ()
) -> list[Experiment]:
    """From a YAML file (or a mapping) and overrides `key.sub=value` to experiments.

    `imports` are modules to import first: the user's own algorithms, models, sources. An override with commas or a
    range `a..b` makes a grid; the experiments are in the order written. In `preset` slashes make the grid, and commas
    combine presets. Raises `ConfigError` in one line: what is wrong, where, and what to write.
    """
    if isinstance(source, Mapping):
        refuse_objects(source)
    layers = read_layers(source)
    if isinstance(source, str | Path):
        find_modules(Path(source).parent)  # of a run folder
    axes = axes_of(overrides)
    layers += _import(layers, axes.pop("imports", []), imports)
    cells = resolve(layers, axes)
    return [validate(values) for values in cells]


def self_contained(
    source: Mapping[str, Any] | Experiment,
    overrides: Mapping[str, Any],
    imports: Sequence[str] = (),
    folder: Path = Path(),
) -> dict[str, Any]:
    """One configuration as values that need no other file.

    The files that it `extends` (relative to `folder`), its presets and the overrides are merged. The tables
    `algorithms`, `models` and `partitions` stay, so that `load_config(values, {"algorithm": NAME})` gives the same
    experiment as the configuration with these overrides and this algorithm. Raises `ConfigError`.
    """
    layers, overrides = read_layers(source, folder), dict(overrides)
    layers += _import(layers, [overrides.pop("imports", None)], imports)
    check_distinct({key: [value] for key, value in overrides.items()})
    return resolve_tables(layers, overrides)


def _import(layers: Sequence[Mapping[str, Any]], *more: Sequence[Any]) -> list[dict[str, Any]]:
    """Import the modules that the configuration, its overrides and the command line name.

    Returns a layer with all their names, or no layer.
    """
    modules: dict[str, None] = {}
    written = [layer["imports"] for layer in layers if "imports" in layer][-1:]
    for named in (*written, *itertools.chain(*more)):
        for module in named if isinstance(named, list | tuple) else [] if named is None else [named]:
            if not isinstance(module, str):
                raise ConfigError(f"imports: {shown(module)} is not the name of a module; write imports: [my_module]")
            imported(module, f"--import {module}")
            modules[module] = None
    return [{"imports": list(modules)}] if modules else []
