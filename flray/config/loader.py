"""From a YAML file and overrides to experiments, in three steps: read, resolve, validate.

experiments = load_config("configs/quickstart.yaml", ["algorithm=fedavg,feddf", "seed=0..4", "algorithm.lr=0.1"])
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import Experiment
from flray.config.keys import places_of
from flray.config.launch_context import find_modules
from flray.config.overrides import Overrides, axes_of, check_distinct
from flray.config.read import read_layers
from flray.config.resolve import resolve, resolve_tables
from flray.core.schema.errors import ConfigError, shown
from flray.core.schema.registry import imported
from flray.core.schema.section import one_line
from flray.files import quoted


def load_config(
    source: str | Path | Mapping[str, Any] | Experiment, overrides: Overrides = (), imports: Sequence[str] = ()
) -> list[Experiment]:
    """From a YAML file (or a mapping) and overrides `key.sub=value` to experiments.

    `imports` are modules to import first: the user's own algorithms, models, sources. An override with commas or a
    range `a..b` makes a grid; the experiments are in the order written. In `preset` slashes make the grid, and commas
    combine presets. Raises `ConfigError` in one line: what is wrong, where, and what to write.
    """
    return [validate(values) for values in resolve(*_read(source, overrides, imports))]


def first_cell(source: str | Path, overrides: Overrides = (), imports: Sequence[str] = ()) -> Experiment:
    """The first experiment of :func:`load_config`; the others of a grid are not made."""
    layers, axes = _read(source, overrides, imports)
    return validate(resolve(layers, {key: values[:1] for key, values in axes.items()})[0])


def with_values(source: Mapping[str, Any] | Experiment, values: Mapping[str, Any]) -> Experiment:
    """The experiment of a configuration with each key of `values` set to its value as it is: nothing makes a grid."""
    axes, layers = {key: [value] for key, value in values.items()}, read_layers(source)
    check_distinct(axes)
    return validate(resolve([*layers, *_import(layers)], axes)[0])


def _read(
    source: str | Path | Mapping[str, Any] | Experiment, overrides: Overrides, imports: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """(the layers of a configuration, the values of each key that is overridden), their modules imported."""
    layers, imports = list(read_layers(source)), [imports] if isinstance(imports, str) else imports
    if isinstance(source, str | Path):
        find_modules(Path(source).parent)  # of a run folder
    if isinstance(layers[-1].get("experiment"), Mapping):
        file = isinstance(source, str | Path)
        way = (
            f"{source} is a sweep; give: flray sweep {quoted(source)}" if file else "this is a sweep; call flray.sweep"
        )
        raise ConfigError(f"{way}, or take what stands below `experiment`")
    axes = axes_of(overrides)
    layers += _import(layers, axes.pop("imports", []), imports)
    return layers, axes


def validate(values: Mapping[str, Any]) -> Experiment:
    """Step 3 of 3, validate: the experiment of these values, checked and complete.

    Raises `ConfigError` in one line: the key, the problem, the nearest valid key.
    """
    for key in values:
        places = [] if key in Experiment.model_fields else places_of(key, values)
        if places:  # `hidden=64`
            raise ConfigError(f"{key}: this key belongs in a section; write {' or '.join(places)}")
    with one_line("", Experiment):
        return Experiment.model_validate(values)


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
