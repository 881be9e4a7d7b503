"""From a YAML file and overrides to experiments: presets, switches of algorithm or model, grids.

experiments = load_config("configs/quickstart.yaml", ["algorithm=fedavg,feddf", "seed=0..4", "algorithm.lr=0.1"])
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from flray.algorithms import ALGORITHMS
from flray.config.experiment import Experiment
from flray.config.keys import places_of
from flray.config.launch_context import find_modules
from flray.config.overrides import axes_of, once, pairs, scalar
from flray.core.schema.errors import ConfigError, nearest, shown, unknown
from flray.core.schema.plain import plain, read
from flray.core.schema.registry import imported
from flray.core.schema.section import one_line, section_at, spelled_out
from flray.models import MODELS
from flray.scenario import DRIFTS, PARTITIONS

# sections of a name and its own options
NAMED = {"algorithm": ALGORITHMS, "model": MODELS, "partition": PARTITIONS, "drift": DRIFTS}
OPTIONAL = ("drift",)  # of these, `none` takes the section out


def load_config(
    source: str | Path | Mapping[str, Any] | Experiment,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    imports: Sequence[str] = (),
) -> list[Experiment]:
    """From a YAML file (or a mapping) and overrides `key.sub=value` to experiments.

    What is said later goes before what is said earlier: the file that it `extends`, the file, its `preset` (or several,
    in the order listed), what its tables `algorithms`, `models`, `partitions` say of the chosen ones, the overrides (a
    section before the keys inside it). `imports` are modules to import first: the user's own algorithms, models,
    sources.

    Returns one experiment, or the cells of a grid in the order written, where an override has commas or a range `a..b`
    (`preset` has slashes: a comma in it lists presets of one experiment).
    Raises `ConfigError`, in one line that says what is wrong, where, and what to write.
    """
    raw = _read(source)
    if isinstance(source, str | Path):
        find_modules(Path(source).parent)  # of a run folder
    modules, axes = axes_of(overrides)
    _import(raw, modules, imports)
    return [_build(raw, dict(zip(axes, cell, strict=True))) for cell in itertools.product(*axes.values())]


def self_contained(
    source: Mapping[str, Any] | Experiment,
    overrides: Mapping[str, Any],
    imports: Sequence[str] = (),
    folder: Path = Path(),
) -> dict[str, Any]:
    """Returns one configuration as values that need no other file.

    What it `extends` (from `folder`), its presets and the overrides are laid in.
    The tables `algorithms`, `models`, `partitions` stay, less what an override says otherwise: an experiment made of
    the result with `load_config(..., {"algorithm": NAME})` is the one that all of it would have made. Raises
    `ConfigError`.
    """
    raw, overrides = _read(source, folder), dict(overrides)
    _import(raw, [overrides.pop("imports", None)], imports)
    once({key: [value] for key, value in overrides.items()})
    values = _start(raw, overrides)
    for key, value in _inside(overrides):
        _assign(values, key, value)
        section, _, option = key.partition(".")
        for entry in _table(values, f"{section}s").values() if section in NAMED else ():
            entry.pop(option, None)  # an override goes before the tables
    return values


def laid_in(raw: Mapping[str, Any], overrides: Iterable[str], root: type[BaseModel]) -> dict[str, Any]:
    """The values of a file of another kind than an experiment's, whose sections are those of `root`.

    Its presets are laid over it, then the overrides `key.sub=value`; commas make no grid. Raises `ConfigError`.
    """
    values: dict[str, Any] = spelled_out(plain(raw, ""), root)
    given = {key: scalar(key, text) for key, text in pairs(overrides).items()}
    for preset in _presets(values, given.pop("preset", values.get("preset"))):
        _merge(values, spelled_out(preset, root))
    for key, value in sorted(given.items(), key=lambda item: item[0].count(".")):
        _assign(values, key, value, root)
    return values


# reading --------------------------------------------------------------------------------------
def _import(raw: dict[str, Any], *more: Sequence[Any]) -> None:
    """Import the modules that `raw`, overrides and the command line name, and write all of them into `raw`."""
    modules: dict[str, None] = {}
    for named in (raw.get("imports"), *itertools.chain(*more)):
        for module in named if isinstance(named, list | tuple) else [] if named is None else [named]:
            if not isinstance(module, str):
                raise ConfigError(f"imports: {shown(module)} is no name of a module; write imports: [my_module]")
            imported(module, f"--import {module}")
            modules[module] = None
    if modules:
        raw["imports"] = list(modules)


def _read(source: str | Path | Mapping[str, Any] | Experiment, folder: Path = Path()) -> dict[str, Any]:
    if isinstance(source, Experiment):
        return source.dump()
    if isinstance(source, Mapping):
        return _extended(plain(source, ""), folder, ())
    return _read_file(Path(source), ())


def _read_file(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    return _extended(read_yaml(path), path.parent, (*below, path))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises `ConfigError`, with the nearest file for one that is not there."""
    try:
        raw = read(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        if "=" in path.name:
            raise ConfigError(
                f"{path} stands where the configuration file belongs: the file comes first, then key=value"
            ) from None
        near = nearest(path.name, [p.name for p in path.parent.glob("*.yaml")]) if path.parent.is_dir() else ""
        raise ConfigError(f"no configuration file {path}{near}") from None
    except IsADirectoryError:
        inside = path / "config.yaml"
        hint = (
            f"a run; write {inside} to repeat it, or go on with it: flray resume {path}"
            if inside.exists()
            else "give a YAML file"
        )
        raise ConfigError(f"{path} is a folder, not a configuration file: {hint}") from None
    except (OSError, ValueError) as error:  # no text; a name with a NUL
        raise ConfigError(f"{path} cannot be read as a configuration file: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds {type(raw).__name__}, not a mapping of keys to values")
    return raw


def _extended(raw: dict[str, Any], folder: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    """`raw` over the file that it `extends` (relative to its own folder); `below` are the files that led here."""
    raw = spelled_out(raw, Experiment)
    parent = raw.pop("extends", None)
    if parent is None:
        return raw
    if not isinstance(parent, str | Path):
        raise ConfigError(f"extends: {shown(parent)} is no file; write the path of a YAML file")
    path = folder / parent
    if any(path.exists() and path.samefile(file) for file in below):
        raise ConfigError(f"extends: {path} extends itself, by way of {below[-1]}")
    values = _read_file(path, below)
    _overlay(values, raw)
    return values


# laying one over the other --------------------------------------------------------------------
def _start(raw: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `raw` with its presets, and the algorithm, model and partition that the overrides name."""
    values: dict[str, Any] = plain(raw, "")
    for preset in _presets(values, cell.get("preset", values.get("preset"))):
        _overlay(values, spelled_out(preset, Experiment))
    for section in NAMED:  # before the keys inside it, wherever it stands on the command line
        if isinstance(cell.get(section), dict):
            values[section] = cell[section]
        for key in (section, f"{section}.name"):
            if key in cell and (key != section or not isinstance(cell[key], dict)):
                out = cell[key] in (None, "none") and section in OPTIONAL
                values[section] = None if out else switch(section, values.get(section), cell[key])
    return values


def _inside(cell: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The overrides besides those of `_start`, a section before the keys inside it."""
    done = ("preset", *NAMED, *(f"{section}.name" for section in NAMED))
    return sorted(((key, value) for key, value in cell.items() if key not in done), key=lambda item: item[0].count("."))


def _build(raw: Mapping[str, Any], cell: Mapping[str, Any]) -> Experiment:
    values = _start(raw, cell)
    for section in NAMED:
        table = _table(values, f"{section}s")
        values.pop(f"{section}s", None)
        _choose(values, section, table)
    for key, value in _inside(cell):
        _assign(values, key, value)
    data, proxy = values.get("data"), values.get("proxy")
    if (
        isinstance(data, dict)
        and isinstance(proxy, dict)
        and proxy.get("root") is None
        and data.get("root") is not None
    ):
        proxy["root"] = data["root"]
    _astray(values)
    with one_line("", Experiment):
        return Experiment.model_validate(values)


def _astray(values: Mapping[str, Any]) -> None:
    """`ConfigError` for a key that belongs into a section and stands outside: `hidden=64`."""
    for key in values:
        places = [] if key in Experiment.model_fields else places_of(key, values)
        if places:
            raise ConfigError(f"{key}: this key belongs into a section; write {' or '.join(places)}")


def _presets(values: dict[str, Any], named: Any) -> list[dict[str, Any]]:
    """The presets that `named` lists, in its order: `official,scratch`, `[official, scratch]`, or None for none.

    Takes the keys `preset` and `presets` out of `values`. Raises `ConfigError` for a name that the file has not, and
    for one that is listed twice.
    """
    presets = _table(values, "presets")
    values.pop("presets", None)
    values.pop("preset", None)
    names = [name.strip() for name in named.split(",")] if isinstance(named, str) else named
    names = [] if names is None else names if isinstance(names, list | tuple) else [names]
    for place, name in enumerate(names):
        if not isinstance(name, str) or name not in presets:
            raise unknown("preset", name if isinstance(name, str) else shown(name), presets, "this configuration")
        if name in names[:place]:
            raise ConfigError(
                f"preset: {shown(name)} is listed twice; a later preset goes over an earlier one: keep one"
            )
    return [presets[name] for name in names]


def _table(values: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """The table `presets`, `algorithms`, `models` or `partitions`: options by name."""
    table = values.get(key)
    table = {} if table is None else table
    if not isinstance(table, dict) or not all(entry is None or isinstance(entry, dict) for entry in table.values()):
        raise ConfigError(
            f"{key}: {shown(table)} is no table; write names with their options, such as {key}: {{NAME: {{OPTION: "
            f"VALUE}}}}"
        )
    return {name: {} if entry is None else entry for name, entry in table.items()}


def _choose(values: dict[str, Any], section: str, table: Mapping[str, dict[str, Any]]) -> None:
    """Lay over a section what the table `algorithms: {NAME: {...}}` (`models`, `partitions`) says of its name."""
    for name in table:
        if ":" not in name:
            NAMED[section].check(name)  # a typo is an error, not an entry that nobody reads
    current = values.get(section)
    if isinstance(current, dict) and isinstance(current.get("name"), str):
        values[section] = {**current, **table.get(current["name"], {})}


def _overlay(values: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Lay `other` over `values`; a section that names another algorithm, model or partition switches to it first."""
    for key, section in other.items():
        if key in NAMED and isinstance(section, Mapping) and isinstance(section.get("name"), str):
            values[key] = switch(key, values.get(key), section["name"])
        _merge(values, {key: section})


def switch(section: str, current: Any, name: Any) -> dict[str, Any]:
    """`algorithm=NAME`, `model=NAME`, `partition=NAME`: another one, with what the file says and both read."""
    if not isinstance(name, str):
        raise ConfigError(f"{section}.name: {shown(name)} is no name; see flray list {section}s")
    old = dict(current) if isinstance(current, dict) else {}
    before = old.pop("name", None)
    if before == name:
        return {"name": name, **old}
    if section == "algorithm":
        new, left = ALGORITHMS.get(name), ALGORITHMS.get(before) if isinstance(before, str) else None
        # a key that neither knows is a typo in the file: kept, so that it is reported
        kept = {k: v for k, v in old.items() if left is None or k not in left.model_fields or _shared(k, new, left)}
    elif section == "drift":
        kept = {k: v for k, v in old.items() if k in DRIFTS.get(name).model_fields}
    else:
        kept = {k: old[k] for k in ("clients", "seed") if k in old and section == "partition"}
    return {"name": name, **kept}


def _shared(key: str, new: type[BaseModel], old: type[BaseModel]) -> bool:
    """Whether both algorithms have `key` from a common base.

    FedProj's `alpha` is not FedDyn's, and `local` has no `weighting`.
    """
    return key in new.model_fields and any(
        key in vars(base).get("__annotations__", {}) for base in new.__mro__ if base in old.__mro__
    )


def _assign(values: dict[str, Any], key: str, value: Any, root: type[BaseModel] = Experiment) -> None:
    *path, last = key.split(".")
    for depth, part in enumerate(path):
        inner = {} if values.get(part) is None else values[part]
        if not isinstance(inner, dict):
            raise ConfigError(f"override {key}: {'.'.join(path[: depth + 1])} is a value, not a section")
        values[part] = inner
        values = inner
    word = spelled_out(value, section_at(root, key.split(".")))
    if word is not value and not isinstance(value, dict):  # `cohort=10` sets a field of the section
        _merge(values, {last: word})
    else:
        values[last] = value if word is value else word


def _merge(values: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        # a preset says all of a section
        if isinstance(value, Mapping) and isinstance(values.get(key), dict) and "preset" not in value:
            _merge(values[key], value)
        else:
            values[key] = value
