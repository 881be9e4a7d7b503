"""Overrides `key.sub=value` of a command line, and the grid that several values make.

pairs(["algorithm=fedavg,feddf", "seed=0..4"])  # {"algorithm": "fedavg,feddf", "seed": "0..4"}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flray.config.experiment import Experiment
from flray.core.schema.errors import ConfigError, shown
from flray.core.schema.plain import plain, read
from flray.core.schema.section import expand_shorthand, section_of

CELLS = 10_000  # experiments in a grid; each has a folder
# texts `key=value`, and values by key
Overrides = Mapping[str, Any] | Iterable[str] | Sequence[str | Mapping[str, Any]]


def pairs(overrides: Overrides) -> dict[str, Any]:
    """Overrides by key. Raises `ConfigError` for one without a key, or given twice."""
    by_key: dict[str, Any] = {}
    for given in [overrides] if isinstance(overrides, Mapping) else overrides:
        for key, value in given.items() if isinstance(given, Mapping) else [pair(given)]:
            if not isinstance(key, str) or not all(key.split(".")):
                raise ConfigError(f"override {shown(key)}: no key; write key=value, for example algorithm.lr=0.1")
            plain(key, "an override's key")
            if key in by_key:
                raise ConfigError(f"override {key} is given twice: {shown(by_key[key])} and {shown(value)}; keep one")
            by_key[key] = value
    refuse_objects(by_key)
    return by_key


GIVEN_BY = {  # package of an object in Python -> the function that makes the section `data` of it
    "torch": "from_torch(train, test)", "torchvision": "from_torch(train, test)",
    "datasets": "from_hf(train, test)", "flwr_datasets": "from_flwr(data)",
}  # fmt: skip
ARRAYS = ("ndarray", "Tensor")


def refuse_objects(values: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for data sets and arrays of Python that stand where a section `data` belongs."""
    for key in values.keys() & {"data", "proxy", "data.source", "proxy.source"}:
        value = values[key]
        inside = [value[name] for name in ("source", "train") if name in value] if isinstance(value, Mapping) else []
        for given in (value, *inside):
            if (call := _given_by(given)) is not None:
                section = key.partition(".")[0]
                raise ConfigError(
                    f"{key}: {type(given).__name__} is an object, no section; write {section}=flray.data.{call}"
                )


def _given_by(value: Any) -> str | None:
    """The call for an object: by its package and its base classes' packages, so nothing is imported."""
    first = value
    while isinstance(first, tuple | list) and first:
        first = first[0]
    if any(kind.__name__ in ARRAYS for kind in type(first).__mro__):
        return "from_arrays((x, y), (test_x, test_y))"
    packages = [kind.__module__.partition(".")[0] for kind in type(value).__mro__]
    return next((GIVEN_BY[package] for package in packages if package in GIVEN_BY), None)


def pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"override {shown(text)}: write key=value, for example algorithm.lr=0.1")
    return key.strip(), value


def several(key: str, value: Any) -> list[Any]:
    """The values of an override: `a,b,c` and `0..4` outside brackets are several.

    In `preset` a comma combines presets and a slash separates values: `small/official,scratch` has two values.
    Raises `ConfigError` for more than `CELLS` values.
    """
    if not isinstance(value, str):
        return [plain(value, f"override {key}")]
    if value.strip().startswith(("[", "{", "'", '"')):
        return [scalar(key, value)]
    values: list[Any] = []
    between = "/" if key == "preset" else ","
    for part in value.split(between):
        ends = re.fullmatch(r"\s*(-?[0-9]{1,19})\.\.(-?[0-9]{1,19})\s*", part)
        if between == "/" and "," in part:
            values.append(part)
        elif ends:
            low, high = int(ends[1]), int(ends[2])
            if high - low >= CELLS:
                raise ConfigError(
                    f"override {key}={part.strip()}: {high - low + 1:,} values, and a grid has at most {CELLS:,} "
                    "experiments"
                )
            values.extend(range(low, high + 1))
        elif part.strip() or between not in value:
            values.append(scalar(key, part))
    if not values:
        raise ConfigError(f"override {key}={shown(value)}: no value")
    seen = set[tuple[type, str]]()
    for one in values:
        if (word := (type(one), str(one))) in seen:
            raise ConfigError(f"override {key}={shown(value)}: {shown(one)} is given twice; give each value once")
        seen.add(word)
    return values


def scalar(key: str, text: str) -> Any:
    """The YAML value of an override's text."""
    return read(text, f"override {key}={text if len(text) <= 100 else shown(text)}")


def count_cells(overrides: Overrides) -> int:
    """The number of experiments in the grid of the overrides.

    Raises `ConfigError` for more than `CELLS`.
    """
    return math.prod(len(values) for key, values in axes_of(overrides).items() if key != "imports")


def axes_of(overrides: Overrides) -> dict[str, list[Any]]:
    """The values of each key. Those of `imports` make no grid.

    Raises `ConfigError` for more than `CELLS` experiments, and if two overrides set the same field.
    """
    axes = {key: several(key, value) for key, value in pairs(overrides).items()}
    varied = {key: values for key, values in axes.items() if key != "imports"}
    check_distinct(varied)
    count = math.prod(map(len, varied.values()))
    if count > CELLS:
        factors = " x ".join(f"{key} {len(values)}" for key, values in varied.items() if len(values) > 1)
        raise ConfigError(
            f"these overrides make {count:,} experiments ({factors}), and a grid has at most {CELLS:,}; give fewer "
            "values"
        )
    return axes


def check_distinct(axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises `ConfigError` if two overrides set the same field: `cohort=10 cohort.size=20`."""
    owner: dict[str, str] = {}
    for key, values in axes.items():
        section = section_of(Experiment, key.split("."))
        words = [expand_shorthand(value, section) for value in values if not isinstance(value, dict)]
        for field in {
            f"{key}.{name}" for word in words if isinstance(word, dict) for name in word if word[name] is not None
        } or {key}:
            if field in owner:
                raise ConfigError(f"override {key} and override {owner[field]} set the same field; keep one")
            owner[field] = key
