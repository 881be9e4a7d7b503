"""Step 2 of 3, resolve: layers and overrides become the values of one experiment, or of each cell of a grid.

A later entry of this list overrides an earlier one: the layers in their order; the presets in the order listed; the
entries of the tables `algorithms`, `aggregations`, `models`, `partitions` for the chosen names; the overrides, a
section before the keys inside it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS
from flray.config.experiment import Experiment
from flray.config.overrides import pairs, scalar
from flray.core.schema.errors import ConfigError, shown, unknown, warn
from flray.core.schema.plain import plain
from flray.core.schema.registry import IMPORT_PATH
from flray.core.schema.section import expand_shorthand, section_of
from flray.models import MODELS
from flray.scenario import DRIFTS, PARTITIONS
from flray.uplink.chain import assign, entries

# sections of a name and its own options
NAMED = {
    "algorithm": ALGORITHMS,
    "aggregation": AGGREGATIONS,
    "model": MODELS,
    "partition": PARTITIONS,
    "drift": DRIFTS,
}
TABLES = tuple(f"{section}s" for section in NAMED)  # options by name
OPTIONAL = ("aggregation", "drift")  # of these, `none` takes the section out


def resolve(layers: Sequence[Mapping[str, Any]], axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The values of each cell of the grid, in the order written. `axes`: the values of each override.

    Raises `ConfigError`.
    """
    base = _merge_layers(layers)
    for key, several in axes.items():
        if key.partition(".")[0] in TABLES and len(several) > 1:
            raise ConfigError(
                f"override {key}: an entry of a table has one value, because cells of other names would be equal; take "
                "one, or make a grid of the section's own key"
            )
    cells = itertools.product(*axes.values())
    return [_cell(*copy.deepcopy((base, dict(zip(axes, cell, strict=True))))) for cell in cells]


def resolve_tables(layers: Sequence[Mapping[str, Any]], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The values for one value of each override, with the tables `algorithms`, `models`, `partitions` still in them.

    The algorithm is chosen later. Keys that an override sets are taken out of the tables; those of a whole section
    replace them in the entry of its name. Raises `ConfigError`.
    """
    values = _merge_layers(layers)
    overrides = _without_tables(values, overrides)
    _choose_presets(values, overrides)
    for section in NAMED:
        given = overrides.get(section)
        if isinstance(given, dict):
            entry = _table(values, f"{section}s").get(str(given.get("name")), {})
            _merge(entry, {option: value for option, value in given.items() if option != "name"})
    for key, value in _inside(overrides):
        _assign(values, key, value)
        section, _, option = key.partition(".")
        for entry in _table(values, f"{section}s").values() if section in NAMED else ():
            _drop(entry, option)  # an override goes before the tables
    _check_scheduled(values, overrides)
    return values


def resolve_section(raw: Mapping[str, Any], overrides: Iterable[str], root: type[BaseModel]) -> dict[str, Any]:
    """The values of a file whose sections are those of `root`, not of an experiment.

    Its presets override it, then the overrides `key.sub=value` do. Commas make no grid. Raises `ConfigError`.
    """
    values: dict[str, Any] = expand_shorthand(plain(raw, ""), root)
    given = {key: scalar(key, text) for key, text in pairs(overrides).items()}
    for preset in _presets(values, given.pop("preset", values.get("preset"))):
        _merge(values, expand_shorthand(preset, root))
    for key, value in sorted(given.items(), key=lambda item: item[0].count(".")):
        _assign(values, key, value, root)
    return values


def _merge_layers(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One mapping of all layers; a later layer overrides an earlier one."""
    first, *others = map(_layer, layers)
    values: dict[str, Any] = first
    for layer in others:
        _overlay(values, layer)
    return values


def _layer(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A layer with its shorthands written out; `uplink` is a list."""
    values: dict[str, Any] = expand_shorthand(raw, Experiment)
    if values.get("encoding") is None:  # written by a run of before, which sent plain updates
        values.pop("encoding", None)
    if "uplink" in values:
        values["uplink"] = entries(values["uplink"])
    return values


def _without_tables(values: dict[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    """The overrides but for those of the tables (`aggregations.fedadam.server_lr`), which become entries of them."""
    for key in [key for key in cell if key.partition(".")[0] in TABLES]:
        entry = cell[key]
        for part in reversed(key.split(".")):
            entry = {part: entry}
        _merge(values, entry)
    return {key: value for key, value in cell.items() if key.partition(".")[0] not in TABLES}


def _choose_presets(values: dict[str, Any], cell: Mapping[str, Any]) -> None:
    """Merge the presets into `values`, then set the sections of `NAMED` that overrides name."""
    for preset in _presets(values, cell.get("preset", values.get("preset"))):
        _overlay(values, _layer(preset))
    for section in ("data", "proxy"):
        if isinstance(cell.get(section), dict):
            _say_what_of_data_is_lost(section, values.get(section), cell)
    for section in NAMED:  # before the keys inside it, in any order on the command line
        if isinstance(cell.get(section), dict):
            _say_what_is_lost(section, values.get(section), cell[section])
            values[section] = copy.deepcopy(cell[section])  # the table is merged into it, and not into the override
        for key in (section, f"{section}.name"):
            if key in cell and (key != section or not isinstance(cell[key], dict)):
                out = cell[key] in (None, "none") and section in OPTIONAL
                values[section] = None if out else switch(section, values.get(section), cell[key])


def _inside(cell: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The overrides that `_choose_presets` does not apply, a section before the keys inside it."""
    done = ("preset", *NAMED, *(f"{section}.name" for section in NAMED))
    return sorted(((key, value) for key, value in cell.items() if key not in done), key=lambda item: item[0].count("."))


def _cell(values: dict[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    """The values of one experiment with the overrides `cell`. Edits `values` in place."""
    cell = _without_tables(values, cell)
    _choose_presets(values, cell)
    for section in NAMED:
        table = _table(values, f"{section}s")
        values.pop(f"{section}s", None)
        _choose(values, section, table)
        if isinstance(cell.get(section), dict):  # a section of the command line goes before the tables
            _merge(values, {section: cell[section]})
    for key, value in _inside(cell):
        _assign(values, key, value)
    _check_scheduled(values, cell)
    _weigh_equally(values)
    data, proxy = values.get("data"), values.get("proxy")
    if (
        isinstance(data, dict)
        and isinstance(proxy, dict)
        and proxy.get("root") is None
        and data.get("root") is not None
    ):
        proxy["root"] = data["root"]
    return values


def _check_scheduled(values: Mapping[str, Any], cell: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an override of what the file's schedule sets from round 1 on: no round would have it."""
    schedule, whole = None if "schedule" in cell else values.get("schedule"), cell.get("algorithm")
    given = {key.split(".")[1]: key for key in cell if key.startswith("algorithm.")}
    given |= dict.fromkeys(whole, "algorithm") if isinstance(whole, dict) else {}
    for change in schedule if isinstance(schedule, list | tuple) else [schedule]:
        if not isinstance(change, dict) or str(change.get("from_round")) != "1":
            continue
        inside = change.get("algorithm")
        keys = [key.removeprefix("algorithm.") for key in change if key.startswith("algorithm.")]
        for key in (*keys, *(inside if isinstance(inside, dict) else ())):
            if key in given:
                raise ConfigError(
                    f"override {given[key]}: no round would have this {key}, since the schedule sets it from round 1; "
                    "give schedule, too"
                )


def _weigh_equally(values: dict[str, Any]) -> None:
    """With noise of the server in `uplink` all clients have the same weight, unless `algorithm.weighting` is given."""
    noisy = any(
        isinstance(entry, dict) and entry.get("name") == "gaussian" and entry.get("where", "server") == "server"
        for entry in values.get("uplink") or ()
    )
    algorithm = values.get("algorithm")
    if not noisy or not isinstance(algorithm, dict):
        return
    name = algorithm.get("name")
    if isinstance(name, str) and "weighting" in ALGORITHMS.get(name).model_fields:
        algorithm.setdefault("weighting", "uniform")


def _presets(values: dict[str, Any], named: Any) -> list[dict[str, Any]]:
    """The presets that `named` lists, in order: `official,scratch`, `[official, scratch]`, or None for no preset; then
    those whose name is a list of some of them, `"official,scratch"` in the table, for what differs in combination.

    Removes the keys `preset` and `presets` from `values`. Raises `ConfigError` for an unknown name and for one that is
    listed twice.
    """
    presets = _table(values, "presets")
    values.pop("presets", None)
    values.pop("preset", None)
    listed = [] if named is None else named if isinstance(named, list | tuple) else [named]
    names: list[Any] = []
    for entry in listed:  # `["official,scratch"]` is `[official, scratch]`
        names += [name.strip() for name in entry.split(",")] if isinstance(entry, str) else [entry]
    for place, name in enumerate(names):
        if not isinstance(name, str) or name not in presets:
            raise unknown("preset", name if isinstance(name, str) else shown(name), presets, "this configuration")
        if name in names[:place]:
            raise ConfigError(
                f"preset: {shown(name)} is listed twice; a later preset overrides an earlier one: keep one"
            )
    joint = [name for name in presets if "," in name and {part.strip() for part in name.split(",")} <= {*names}]
    return [presets[name] for name in (*names, *joint)]


def _table(values: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """The options by name of the table `presets`, `algorithms`, `models` or `partitions`."""
    table = values.get(key)
    table = {} if table is None else table
    if not isinstance(table, dict) or not all(entry is None or isinstance(entry, dict) for entry in table.values()):
        raise ConfigError(
            f"{key}: {shown(table)} is not a table; write names with their options, such as {key}: {{NAME: {{OPTION: "
            f"VALUE}}}}"
        )
    return {name: {} if entry is None else entry for name, entry in table.items()}


def _choose(values: dict[str, Any], section: str, table: Mapping[str, dict[str, Any]]) -> None:
    """Merge into a section the entry for its name in the table `algorithms: {NAME: {...}}` (`models`, `partitions`)."""
    for name in table:
        if ":" not in name:
            NAMED[section].check(name)  # a typo is an error, not an entry without effect
    current = values.get(section)
    if isinstance(current, dict) and isinstance(current.get("name"), str):
        _merge(current, table.get(current["name"], {}))


def _overlay(values: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Merge `other` into `values`. A section that names another algorithm, model or partition is switched first."""
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
        options = {k: v for k, v in old.items() if left is None or k not in left.model_fields or _shared(k, new, left)}
    elif section in OPTIONAL:
        options = {k: v for k, v in old.items() if k in NAMED[section].get(name).model_fields}
    else:
        options = {k: old[k] for k in ("clients", "seed") if k in old and section == "partition"}
    return {"name": name, **options}


def _shared(key: str, new: type[BaseModel], old: type[BaseModel]) -> bool:
    """Whether both algorithms inherit `key` from a common base.

    FedProj's `alpha` is not FedDyn's, and `local` has no `weighting`.
    """
    return key in new.model_fields and any(
        key in vars(base).get("__annotations__", {}) for base in new.__mro__ if base in old.__mro__
    )


def _assign(values: dict[str, Any], key: str, value: Any, root: type[BaseModel] = Experiment) -> None:
    if root is Experiment and key.partition(".")[0] == "uplink":
        values["uplink"] = entries(values.get("uplink") if "." in key else value)
        if "." in key:
            assign(values["uplink"], key, value)
        return
    *path, last = key.split(".")
    for depth, part in enumerate(path):
        inner = {} if values.get(part) is None else values[part]
        if not isinstance(inner, dict):
            raise ConfigError(f"override {key}: {'.'.join(path[: depth + 1])} is a value, not a section")
        values[part] = inner
        values = inner
    word = expand_shorthand(value, section_of(root, key.split(".")))
    if word is not value and not isinstance(value, dict):  # `cohort=10` sets a field of the section
        _merge(values, {last: word})
    else:
        values[last] = value if word is value else word


def _say_what_is_lost(key: str, before: Any, section: Any) -> None:
    """Warn of the file's options that a whole section in place of the file's does not have, and a name alone keeps."""
    if not isinstance(before, dict) or not isinstance(name := section.get("name"), str):
        return
    if NAMED[key].has(name) or IMPORT_PATH.fullmatch(name):
        lost = [option for option in switch(key, before, name) if option not in section]
        if lost:
            warn(
                f"{key}: given whole, so it has the defaults of {', '.join(lost)} and not what the file says; to keep "
                f"that, give {key}={name} and each option as {key}.OPTION=VALUE"
            )


def _say_what_of_data_is_lost(key: str, before: Any, cell: Mapping[str, Any]) -> None:
    """Warn of the file's options of data that a whole section, as `from_arrays` gives one, does not have."""
    options = before if isinstance(before, dict) else {}
    given = {"source", *cell[key]}
    if lost := [name for name in options if name not in given and f"{key}.{name}" not in cell]:
        again = " ".join(f"{key}.{option}=VALUE" for option in lost)
        warn(f"{key}: given whole, so it has not the file's {', '.join(lost)}; to keep that, add {again}")


def _drop(values: dict[str, Any], key: str) -> None:
    *path, last = key.split(".")
    for part in path:
        values = values[part] if isinstance(values.get(part), dict) else {}
    values.pop(last, None)


def _merge(values: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        # a section with `preset` replaces the one before
        if isinstance(value, Mapping) and isinstance(values.get(key), dict) and "preset" not in value:
            _merge(values[key], value)
        else:
            values[key] = value
