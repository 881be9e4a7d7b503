"""Every key of a configuration, for `flray list config`, and the section to which a key belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from flray.aggregations import AGGREGATIONS
from flray.algorithms import ALGORITHMS
from flray.config.experiment import Experiment
from flray.core.schema.hp import Hyperparameter, declared_keys, hyperparameters
from flray.core.schema.section import section_of
from flray.models import MODELS
from flray.models.model_config import START, model_options


class Key(NamedTuple):
    """One key: its dotted name, its declaration, and whether it is a section itself."""

    name: str
    declared: Hyperparameter
    section: bool


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[Key]:
    """All keys of a section and of the sections in it, in the order of the file."""
    for declared in declared_keys(model):
        inner = section_of(model, (declared.name,))
        name = f"{prefix}{declared.name}"
        yield Key(name, declared, inner is not None)
        if inner is not None:
            yield from keys_of(inner, f"{name}.")


def places_of(key: str, values: Mapping[str, Any]) -> list[str]:
    """Dotted names of `key` in the sections of an experiment, with the algorithm and the model that `values` choose."""
    names = [*(known.name for known in keys_of(Experiment)), *chosen_keys(values)]
    return list(dict.fromkeys(name for name in names if name.endswith(f".{key}")))


def chosen_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """Dotted names of the options of the algorithm, the rule and the model that `values` choose."""
    for section, table in (("algorithm", ALGORITHMS), ("aggregation", AGGREGATIONS), ("model", MODELS)):
        chosen = values.get(section)
        name = chosen.get("name") if isinstance(chosen, Mapping) else chosen
        if isinstance(name, str) and name in table.names():
            options = hyperparameters(table.get(name)) if section != "model" else model_options(name)
            fields = [*(option.name for option in options), *(START if section == "model" else ())]
            yield from (f"{section}.{field}" for field in fields)


def grid_notes(overrides: Iterable[str]) -> list[str]:
    """A line for each override whose commas may be misread.

    Commas make a grid also for a key whose value is a list, and none for `preset`.
    """
    lists = {key.name for key in keys_of(Experiment) if key.declared.type.startswith("list")}
    given = [(text.partition("=")[0].strip(), text.partition("=")[2]) for text in overrides]
    return [
        f"{key}={text} makes a run for each value; one run with the list: '{key}=[{text}]'"
        for key, text in given
        if key in lists and "," in text and not text.strip().startswith("[")
    ] + [
        f"preset={text} is one run, a later preset over an earlier one; a run for each: preset={text.replace(',', '/')}"
        for key, text in given
        if key == "preset" and "," in text and "/" not in text
    ]
