"""Overrides `key.sub=value` of a command line, and the grid that several values make.

pairs(["algorithm=fedavg,feddf", "seed=0..4"])  # {"algorithm": "fedavg,feddf", "seed": "0..4"}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from flray.algorithms import ALGORITHMS
from flray.config.experiment import Experiment
from flray.config.objects import without_objects
from flray.core.schema.errors import ConfigError, kind_of, shown
from flray.core.schema.plain import plain, read, written
from flray.core.schema.section import expand_shorthand, section_of
from flray.scenario import DRIFTS

OF_TABLES = {"algorithm": ALGORITHMS, "drift": DRIFTS}
CELLS = 10_000  # experiments in a grid; each has a folder
# texts `key=value`, and values by key
Overrides = Mapping[str, Any] | Iterable[str] | Sequence[str | Mapping[str, Any]]


def pairs(overrides: Overrides) -> dict[str, Any]:
    """Overrides by key. Raises `ConfigError` for one without a key, or given twice."""
    by_key: dict[str, Any] = {}
    for given in [overrides] if isinstance(overrides, Mapping) else overrides:
        if not isinstance(given, Mapping | str):
            raise ConfigError(f"override {shown(given)} is {kind_of(given)}; write 'key=value', or key=value in Python")
        for key, value in given.items() if isinstance(given, Mapping) else [pair(given)]:
            if not isinstance(key, str) or not all(key.split(".")):
                raise ConfigError(f"override {shown(key)}: no key; write key=value, for example algorithm.lr=0.1")
            plain(key, "an override's key")
            if key in by_key:
                raise ConfigError(f"override {key} is given twice: {shown(by_key[key])} and {shown(value)}; keep one")
            by_key[key] = value
    return without_objects(by_key)


def pair(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"override {shown(text)}: write key=value, for example algorithm.lr=0.1")
    return key.strip(), value


def several(key: str, value: Any) -> list[Any]:
    """The values of an override: `a,b,c` and `0..4` outside brackets are several, and so are lists in a list
    (:func:`listed`).

    In Python a list, range or array of a key that takes no list is several values, too. In `preset` a comma combines
    presets and a slash separates values: `small/official,scratch` has two values.
    Raises `ConfigError` for more than `CELLS` values, and for a value that is given twice.
    """
    if not isinstance(value, str):
        given = plain(value, f"override {key}")
        if not isinstance(given, list | tuple) or _takes(key) != (0, False):
            return _distinct(key, listed(key, given))
        if not given:
            raise ConfigError(f"override {key}=[]: no value")
        return _distinct(key, list(given))  # `seed=[0, 1]`
    if value.strip().startswith(("[", "{", "'", '"')):
        return _distinct(key, listed(key, _bracketed(key, value)))
    values: list[Any] = []
    between = "/" if key == "preset" else ","
    for part in value.split(between):
        ends = re.fullmatch(r"\s*(-?[0-9]{1,19})\.\.(-?[0-9]{1,19})\s*", part)
        if between == "/" and "," in part:
            values.append(part)
        elif re.fullmatch(r"\s*[-+.\d]+ *\.\. *[-+.\d]+\s*", part) and not (ends and int(ends[1]) <= int(ends[2])):
            raise ConfigError(
                f"override {key}={part.strip()}: a range is FIRST..LAST, whole numbers without a space, the smaller "
                "one first, as 0..4; write other values with commas: 0,2,4"
            )
        elif ends:
            low, high = int(ends[1]), int(ends[2])
            if high - low >= CELLS:
                raise ConfigError(
                    f"override {key}={part.strip()}: {high - low + 1:,} values, and a grid has at most {CELLS:,} "
                    "experiments"
                )
            values.extend(range(low, high + 1))
        elif part.strip() or between not in value:
            read_as = scalar(key, part)  # a number or a truth value is a text, too
            values.append(part.strip() if isinstance(read_as, int | float) and _is_text(key) else read_as)
    if not values:
        raise ConfigError(f"override {key}={shown(value)}: no value")
    return _distinct(key, values)


def _distinct(key: str, values: list[Any]) -> list[Any]:
    """The values. Raises `ConfigError` for one that is there twice; 1, 1.0 and true differ."""
    seen = set[tuple[type, str]]()
    for one in values:
        if (word := (type(one), str(one))) in seen:
            given = ",".join(map(written, values))
            raise ConfigError(f"override {key}={shorter(given)}: {shown(one)} is given twice; give each value once")
        seen.add(word)
    return values


def listed(key: str, value: Any) -> list[Any]:
    """The values that a list gives a key: its elements, if each of them alone is a value of that key, else the list.

    A key of lists takes lists (`data.input=[[a], [b, c]]` has two
    values, `data.input=[a, b]` one), a section takes mappings and its short words (`partition=[iid, {name: dirichlet,
    alpha: 0.1}]`), and null where that is allowed.
    Raises `ConfigError` if only some of the elements are values.
    """
    if not isinstance(value, list | tuple) or not value:
        return [value]
    levels, section = _takes(key)
    if section and not levels:
        return list(value)
    least = 1 if levels is None else levels
    if least == 0:
        return [value]
    fit = [one is None or _levels(one) >= least for one in value]
    if all(fit) and any(_levels(one) >= least for one in value if one is not None and (one or least == 1)):
        return list(value)
    if levels is not None and any(_levels(one) >= least and one not in (None, []) for one in value):
        alone = [[] if one == "none" else [one] for one in value]  # what `KEY=none` is
        lists = written([one if fits else own for one, own, fits in zip(value, alone, fit, strict=True)])
        raise ConfigError(
            f"override {key}={written(value)}: some elements are lists and {written(value[fit.index(False)])} is not; "
            f"write each value of the grid as a list: '{key}={lists}'"
        )
    return [value]


def _bracketed(key: str, text: str) -> Any:
    """The YAML value of a text in brackets. Raises `ConfigError`; for `[a],[b]` it says how to write a grid."""
    try:
        return scalar(key, text)
    except ConfigError as error:
        try:
            several = scalar(key, f"[{text}]")
        except ConfigError:
            raise error from None
        if len(several) < 2:
            raise
        raise ConfigError(f"override {key}={shorter(text)}: several values; write them as '{key}=[{text}]'") from None


def _levels(value: Any) -> float:
    """How deep lists lie in one another: 0 for no list, 1 for `[a]`; an empty list is as deep as is asked for."""
    if not isinstance(value, list | tuple):
        return 0
    return 1 + max(map(_levels, value), default=math.inf)


def _takes(key: str) -> tuple[int | None, bool]:
    """(how deep the lists are that a key takes, 0: none, None: it is unknown; whether it takes a mapping)."""
    *path, last = key.split(".")
    owner = section_of(Experiment, path)
    kinds = [owner] if owner is not None else []
    if len(path) == 1 and path[0] in OF_TABLES:  # their options are those of a name that is not known here
        table = OF_TABLES[path[0]]
        kinds += [kind for name in table.own_paths() if isinstance(kind := table.get(name), type)]
    found = [
        info.annotation
        for kind in kinds
        for name, info in getattr(kind, "model_fields", {}).items()
        if last in (name, info.alias)
    ]
    if not found:
        return None, False
    return max(_depth(kind) for kind in found), any(map(_is_mapping, found))


def _is_text(key: str) -> bool:
    """Whether a key takes texts alone, or none."""
    *path, last = key.split(".")
    owner = section_of(Experiment, path)
    fields = owner.model_fields if owner is not None else {}
    return any(last == (info.alias or name) and info.annotation in (str, str | None) for name, info in fields.items())


def _depth(kind: Any) -> int:
    """How deep the lists of an annotation are."""
    inside = [_depth(part) for part in get_args(kind)]
    return max(inside, default=0) + (get_origin(kind) in (list, tuple))


def _is_mapping(kind: Any) -> bool:
    """Whether a section or a mapping is one of the values of an annotation, outside lists."""
    origin = get_origin(kind)
    if origin in (list, tuple):
        return False
    if origin is dict or (isinstance(kind, type) and issubclass(kind, BaseModel | dict)):
        return True
    return any(map(_is_mapping, get_args(kind)))


def shorter(text: str) -> str:
    return text if len(text) <= 100 else shown(text)


def scalar(key: str, text: str) -> Any:
    """The YAML value of an override's text, in which `#` begins no comment and `&` no anchor: `name=run #3`.

    Raises `ConfigError`, also for one line of a list, a mapping or a quoted text with a comment.
    """
    where = f"override {key}={shorter(text)}"
    value = read(text, where)
    lost = [mark for mark in "#&" if str(value).count(mark) < text.count(mark)]
    if lost and not isinstance(value, list | dict) and not text.lstrip().startswith(("'", '"', "!", "|", ">")):
        return text.strip()
    if "#" in lost and "\n" not in text:
        raise ConfigError(f"{where}: YAML leaves out what follows ' #'; leave the comment out, or quote the text")
    return value


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
