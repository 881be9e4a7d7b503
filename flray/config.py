"""From a YAML file and overrides to experiments: presets, switches of algorithm or model, grids.

experiments = load_config("configs/quickstart.yaml", ["algorithm=fedavg,feddf", "seed=0..4", "algorithm.lr=0.1"])
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from flray.algorithms import ALGORITHMS
from flray.core.errors import ConfigError, nearest, unknown
from flray.core.validation import one_line
from flray.experiment import Experiment

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where libyaml is built in


def load_config(
    source: str | Path | Mapping[str, Any] | Experiment, overrides: Iterable[str] | Mapping[str, Any] = (), imports: Sequence[str] = ()
) -> list[Experiment]:
    """Experiments of a YAML file (or mapping) and overrides `key.sub=value`; commas and `a..b` ranges make a grid.

    Order: the file that it `extends`, the file, its `preset`, what its tables `algorithms`, `models`, `partitions`
    say of the chosen ones, the overrides.
    Raises `ConfigError` in one line.
    """
    raw = _read(source)
    pairs = list(overrides.items()) if isinstance(overrides, Mapping) else [pair(text) for text in overrides]
    _import(raw, imports)
    axes = [[(key, value) for value in several(key, text)] for key, text in pairs]
    return [_build(raw, cell) for cell in itertools.product(*axes)]


def self_contained(
    source: Mapping[str, Any] | Experiment, overrides: Mapping[str, Any], imports: Sequence[str] = (), folder: Path = Path()
) -> dict[str, Any]:
    """One configuration as values that need no other file: what it `extends` (from `folder`), its preset and the overrides are laid in.

    The tables `algorithms`, `models`, `partitions` stay, less what an override says otherwise: an experiment made of the result with
    `load_config(..., {"algorithm": NAME})` is the one that all of it would have made. Raises `ConfigError`.
    """
    raw = _read(source, folder)
    _import(raw, imports)
    cell = list(overrides.items())
    values = _start(raw, cell)
    for key, value in cell:
        if key in (*NAMED, "preset"):
            continue
        _assign(values, key.split("."), value, key)
        section, _, option = key.partition(".")
        for entry in (values.get(f"{section}s") or {}).values() if section in NAMED else ():
            (entry or {}).pop(option, None)  # an override goes before the tables
    return values


def _import(raw: dict[str, Any], imports: Sequence[str]) -> None:
    for module in (*imports, *raw.get("imports", ())):
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"--import {module}: {error}; is it on PYTHONPATH?") from error
    if imports:
        raw["imports"] = list(dict.fromkeys([*raw.get("imports", ()), *imports]))


def _read(source: str | Path | Mapping[str, Any] | Experiment, folder: Path = Path()) -> dict[str, Any]:
    if isinstance(source, Experiment):
        return source.dump()
    if isinstance(source, Mapping):
        return _extended(dict(source), folder, ())
    return _read_file(Path(source), ())


def _read_file(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    return _extended(read_yaml(path), path.parent, (*below, path.resolve()))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds. Raises `ConfigError`, with the nearest file for one that is not there."""
    try:
        raw = yaml.load(path.read_text(), Loader=LOADER)
    except FileNotFoundError:
        near = nearest(path.stem, [p.stem for p in path.parent.glob("*.yaml")]) if path.parent.is_dir() else ""
        raise ConfigError(f"no configuration file {path}{near}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a configuration file: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} holds {type(raw).__name__}, not a mapping of keys to values")
    return raw


def _extended(raw: dict[str, Any], folder: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    """`raw` over the file that it `extends` (relative to its own folder); `below` are the files that led here."""
    parent = raw.pop("extends", None)
    if parent is None:
        return raw
    path = folder / str(parent)
    if path.resolve() in below:
        raise ConfigError(f"extends: {path} extends itself, by way of {below[-1]}")
    values = _read_file(path, below)
    _overlay(values, raw)
    return values


def count_cells(overrides: Iterable[str]) -> int:
    """How many experiments the overrides make of a file, without making one."""
    return math.prod(len(several(*pair(text))) for text in overrides)


def pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"override {text!r}: write key=value, for example algorithm.lr=0.1")
    return key.strip(), value


def several(key: str, value: Any) -> list[Any]:
    """One value, or several: `a,b,c` and `0..4` outside brackets."""
    if not isinstance(value, str):
        return [value]
    if value.strip().startswith(("[", "{", "'", '"')):
        return [scalar(key, value)]
    found: list[Any] = []
    for part in value.split(","):
        low, dots, high = part.partition("..")
        if dots and low.strip().lstrip("-").isdigit() and high.strip().lstrip("-").isdigit():
            found.extend(range(int(low), int(high) + 1))
        elif part.strip() or "," not in value:
            found.append(scalar(key, part))
    if not found:
        raise ConfigError(f"override {key}={value}: no value")
    return found


def scalar(key: str, text: str) -> Any:
    """The YAML value of an override's text."""
    try:
        return yaml.load(text, Loader=LOADER)
    except yaml.YAMLError:
        raise ConfigError(f"override {key}={text}: not a YAML value; quote it") from None


def _start(raw: Mapping[str, Any], cell: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A copy of `raw` with its preset, and the algorithm, model and partition that the overrides name."""
    values = _copy(raw)
    presets = values.pop("presets", {})
    preset = dict(cell).get("preset", values.pop("preset", None))
    if preset is not None:
        if preset not in presets:
            raise unknown("preset", str(preset), presets, "this configuration")
        _overlay(values, presets[preset])
    for key, value in cell:
        if key in NAMED:  # before the keys inside it, wherever it stands on the command line
            values[key] = value if isinstance(value, dict) else switch(key, values.get(key), str(value))
    return values


def _build(raw: Mapping[str, Any], cell: Sequence[tuple[str, Any]]) -> Experiment:
    values = _start(raw, cell)
    for section in NAMED:
        _choose(values, section, values.pop(f"{section}s", {}))
    for key, value in cell:
        if key not in ("preset", *NAMED):
            _assign(values, key.split("."), value, key)
    root = (values.get("data") or {}).get("root") if isinstance(values.get("data"), dict) else None
    if root is not None and isinstance(values.get("proxy"), dict):
        values["proxy"].setdefault("root", root)
        if values["proxy"]["root"] is None:
            values["proxy"]["root"] = root
    with one_line("", Experiment):
        return Experiment(**values)


NAMED = ("algorithm", "model", "partition")  # sections of a name and its own options
KINDS = {**dict.fromkeys(NAMED, "name"), "augment": "preset"}  # what a section written as one word means by it


def _choose(values: dict[str, Any], section: str, table: Mapping[str, Any]) -> None:
    """Lay what the table `algorithms: {NAME: {...}}` (or `models`, `partitions`) says of the chosen name over its section."""
    if section == "algorithm":
        for name in table:
            ALGORITHMS.get(name)  # a typo is an error, not an entry that nobody reads
    current = values.get(section)
    name = current if isinstance(current, str) else (current or {}).get("name")
    if table.get(name):
        values[section] = {**({"name": name} if isinstance(current, str) else current), **table[name]}


def _overlay(values: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Lay `other` over `values`; a section that names another algorithm, model or partition switches to it first."""
    for key, section in other.items():
        if key in NAMED and isinstance(section, Mapping) and "name" in section:
            values[key] = switch(key, values.get(key), section["name"])
        _merge(values, {key: section})


def switch(section: str, current: Any, name: str) -> dict[str, Any]:
    """`algorithm=NAME`, `model=NAME`, `partition=NAME`: another one, with what the file says and both read."""
    old = {"name": current} if isinstance(current, str) else dict(current or {})
    if old.get("name") == name:
        return old
    if section == "algorithm":
        new, before = ALGORITHMS.get(name), ALGORITHMS.get(old["name"]) if "name" in old else None
        # a key that neither knows is a typo in the file: kept, so that it is reported
        kept = {k: v for k, v in old.items() if k != "name" and (before is None or k not in before.model_fields or _shared(k, new, before))}
    else:
        kept = {k: old[k] for k in ("clients", "seed") if k in old and section == "partition"}
    return {"name": name, **kept}


def _shared(key: str, new: type[BaseModel], old: type[BaseModel]) -> bool:
    """Whether both algorithms have `key` from a common base: FedProj's `alpha` is not FedDyn's, and `local` has no `weighting`."""
    return key in new.model_fields and any(key in vars(base).get("__annotations__", {}) for base in new.__mro__ if base in old.__mro__)


def _assign(values: dict[str, Any], path: list[str], value: Any, key: str) -> None:
    for depth, part in enumerate(path[:-1]):
        inner = values.get(part)
        if isinstance(inner, str) and part in KINDS:
            inner = {KINDS[part]: inner}
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"override {key}: {'.'.join(path[: depth + 1])} is a value, not a section")
        values[part] = inner
        values = inner
    values[path[-1]] = value


def _merge(values: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value
